"""Titanic's client for asyncio.

Client     as titanic.Client, with coroutines    titanic/aio/client.py
"""

from titanic.aio.client import Client as Client

__all__ = ["Client"]
