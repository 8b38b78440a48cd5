"""Titanic: a persistent request queue for ZeroMQ.

    Client     submit, go away, come back for the reply     titanic/client/client.py
    Server     the queue itself                             titanic/server/server.py
    Store      what is on disk                              titanic/store/

Errors are in `titanic.errors`. A name is loaded when it is first used: a client does not wait for what a server
imports, nor the command line for either. Type checkers find them in `__init__.pyi`.
"""

from __future__ import annotations

import broker  # noqa: F401  (first: it knows whether compiled modules are wanted, or their source)

_MODULES = {
    "titanic.client.client": ["Client"],
    "titanic.config": ["ServerConfig"],
    "titanic.errors": [
        "Forbidden",
        "InvalidRequest",
        "KeyRefused",
        "Refused",
        "RequestError",
        "RequestFailed",
        "TimedOut",
        "TitanicError",
        "UnknownRequest",
    ],
    "titanic.jobs.context": ["RequestContext", "current"],
    "titanic.jobs.ending": ["Cancelled", "Failed", "Retry"],
    "titanic.protocol.answers": ["Look", "RequestInfo"],
    "titanic.protocol.documents": ["ArchiveInfo", "NodeInfo", "Stats"],
    "titanic.protocol.progress": ["Progress"],
    "titanic.server.server": ["Server"],
    "titanic.version": ["__version__"],
}

__all__ = [name for names in _MODULES.values() for name in names]


def __getattr__(name: str) -> object:
    if name == "errors":
        return __import__("titanic.errors", fromlist=["errors"])
    for module, names in _MODULES.items():
        if name in names:
            # `-X importtime` does not see what importlib.import_module loads.
            value: object = getattr(__import__(module, fromlist=[name]), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'titanic' has no attribute {name!r}")
