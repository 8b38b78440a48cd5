"""The same for programs in asyncio.

Client     any number of coroutines at once, on one connection    broker/aio/client.py
Worker     coroutines as handlers, many of them at a time         broker/aio/worker.py
"""

from broker.aio.client import Client as Client
from broker.aio.worker import AsyncHandler as AsyncHandler
from broker.aio.worker import Worker as Worker

__all__ = ["AsyncHandler", "Client", "Worker"]
