"""The same for programs in asyncio.

Client     any number of coroutines at once, on one connection    broker/aio/client.py
"""

from broker.aio.client import Client as Client

__all__ = ["Client"]
