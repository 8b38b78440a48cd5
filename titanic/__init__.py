"""Titanic: a persistent request queue for ZeroMQ.

    Client     submit, go away, come back for the reply     titanic/client.py
    Server     the queue itself                             titanic/server.py
    Store      what is on disk                              titanic/store/

Errors are in `titanic.errors`.
"""

from titanic.client import Client
from titanic.config import ServerConfig
from titanic.errors import (
    InvalidRequest,
    Refused,
    RequestError,
    RequestFailed,
    TimedOut,
    TitanicError,
    UnknownRequest,
)
from titanic.server import Server
from titanic.version import __version__

__all__ = [
    "Client",
    "InvalidRequest",
    "Refused",
    "RequestError",
    "RequestFailed",
    "Server",
    "ServerConfig",
    "TimedOut",
    "TitanicError",
    "UnknownRequest",
    "__version__",
]
