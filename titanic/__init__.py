"""Titanic: a persistent request queue for ZeroMQ.

    Client     submit, go away, come back for the reply     titanic/client/client.py
    Server     the queue itself                             titanic/server/server.py
    Store      what is on disk                              titanic/store/

Errors are in `titanic.errors`. A name is loaded when it is first used: a client does not wait for what a server
imports, nor the command line for either. Type checkers find them in `__init__.pyi`.
"""

from __future__ import annotations

import broker  # first: it knows whether compiled modules are wanted, or their source

if not hasattr(broker, "door"):
    _stranger = vars(broker).get("__file__") or [*vars(broker).get("__path__", ())]
    raise ImportError(
        f"the module 'broker' is a stranger: {_stranger} hides the one that belongs to titanic-queue; rename that file,"
        " or run `pip uninstall broker` and install titanic-queue again"
    )

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
    "titanic.jobs.context": ["RequestContext", "current", "current_or_none"],
    "titanic.jobs.ending": ["Cancelled", "Failed", "Retry"],
    "titanic.protocol.answers": ["Look", "RequestInfo"],
    "titanic.protocol.documents": ["ArchiveInfo", "NodeInfo", "Stats"],
    "titanic.protocol.progress": ["Progress"],
    "titanic.server.server": ["Server"],
    "titanic.version": ["__version__"],
}

__all__ = [name for names in _MODULES.values() for name in names]

_load = broker.door(__name__, _MODULES)


def __getattr__(name: str) -> object:
    return __import__("titanic.errors", fromlist=["errors"]) if name == "errors" else _load(name)
