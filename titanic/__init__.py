"""Titanic: a persistent request queue for ZeroMQ.

    Client     submit, go away, come back for the reply     titanic/client.py
    Server     the queue itself                             titanic/server.py
    Store      what is on disk                              titanic/store/

Errors are in `titanic.errors`.
"""

from typing import TYPE_CHECKING, Any

from titanic.client import Client
from titanic.errors import (
    InvalidRequest,
    Refused,
    RequestError,
    RequestFailed,
    TimedOut,
    TitanicError,
    UnknownRequest,
)
from titanic.version import __version__

if TYPE_CHECKING:
    from titanic.config import ServerConfig
    from titanic.server import Server

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


def __getattr__(name: str) -> Any:
    """The server's names, on demand: a client need not wait for all that a server imports."""
    if name == "Server":
        from titanic.server import Server

        return Server
    if name == "ServerConfig":
        from titanic.config import ServerConfig

        return ServerConfig
    raise AttributeError(f"module 'titanic' has no attribute {name!r}")
