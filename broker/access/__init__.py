"""Who may do what: users, their keys and permissions, and the file that says so.

A name of this door is loaded when it is first used: a broker without access control does without."""

from __future__ import annotations

from broker.door import door

_MODULES = {"broker.access.keys": ["Keys"]}

__all__ = [name for names in _MODULES.values() for name in names]

__getattr__ = door(__name__, _MODULES)
