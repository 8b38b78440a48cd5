"""Titanic: a persistent request queue for ZeroMQ.

    Client     submit, go away, come back for the reply     titanic/client/client.py
    Server     the queue itself                             titanic/server/server.py
    Store      what is on disk                              titanic/store/

Errors are in `titanic.errors`.
"""

from __future__ import annotations

from importlib import import_module

from titanic.version import __version__

TYPE_CHECKING = (
    False  # as `typing` has it, which is not imported: a Ctrl-C is not obeyed before `titanic.entry` is there
)
if TYPE_CHECKING:
    from typing import Any

    from titanic.client.client import Client
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
    from titanic.protocol.answers import RequestInfo
    from titanic.server.server import Server

__all__ = [
    "Client",
    "InvalidRequest",
    "Refused",
    "RequestError",
    "RequestFailed",
    "RequestInfo",
    "Server",
    "ServerConfig",
    "TimedOut",
    "TitanicError",
    "UnknownRequest",
    "__version__",
]

_HOMES = {
    "Client": "client.client",
    "RequestInfo": "protocol.answers",
    "Server": "server.server",
    "ServerConfig": "config",
}
"""The modules of the names; those that are not here are errors."""


def __getattr__(name: str) -> Any:
    """The names, on demand: a client need not wait for all that a server imports, nor the command line for either."""
    if name == "errors":
        return import_module("titanic.errors")
    if name not in __all__:
        raise AttributeError(f"module 'titanic' has no attribute {name!r}")
    return getattr(import_module(f"titanic.{_HOMES.get(name, 'errors')}"), name)
