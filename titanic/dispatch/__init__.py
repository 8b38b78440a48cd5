"""Dispatch gets stored requests executed: what to send next (core.py), how it travels (transport.py), and the
channel of the front's loop that does both (dispatcher.py).

The exports are loaded on first use: a server that shares its store with no other does not need them.
"""

from __future__ import annotations

from broker import lazy_exports

__getattr__, __all__ = lazy_exports(__name__)
