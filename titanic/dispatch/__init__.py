"""Dispatch gets stored requests executed: what to send next (core.py), how it travels (transport.py), and the
channel of the front's loop that does both (dispatcher.py).

A name of this door is loaded when it is first used: a server that shares its store with no other does without.
"""

from __future__ import annotations

from broker import door

_MODULES = {
    "titanic.dispatch.node": ["ClaimingNode"],
    "titanic.dispatch.other_nodes": ["OtherNodes"],
}

__all__ = [name for names in _MODULES.values() for name in names]

__getattr__ = door(__name__, _MODULES)
