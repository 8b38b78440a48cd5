"""Titanic: a persistent request queue for ZeroMQ.

    Client     submit, go away, come back for the reply     titanic/client/client.py
    Server     the queue itself                             titanic/server/server.py
    Store      what is on disk                              titanic/store/

Errors are in `titanic.errors`. `__init__.pyi` lists the exports. Each is loaded on first use: a client does not
load what a server needs, nor does the command line load either.
"""

from __future__ import annotations

import broker  # first: it knows whether compiled modules are wanted, or their source

if not hasattr(broker, "lazy_exports"):
    _ours = f"{__path__[0].removesuffix('titanic')}broker/__init__.py"
    _stranger = vars(broker).get("__file__") or [*vars(broker).get("__path__", ())]
    raise ImportError(
        f"another module 'broker', {_stranger}, hides the one of titanic-queue, {_ours}; rename that file,"
        " or run `pip uninstall broker` and install titanic-queue again"
    )

_load, __all__ = broker.lazy_exports(__name__)


def __getattr__(name: str) -> object:
    return __import__("titanic.errors", fromlist=["errors"]) if name == "errors" else _load(name)
