"""Sockets and the loop around them: the only package of the broker that opens any.

A name of this door is loaded when it is first used: a broker without access control does without."""

from __future__ import annotations

from broker.door import door

_MODULES = {"broker.io.access_control": ["AccessControl"]}

__all__ = [name for names in _MODULES.values() for name in names]

__getattr__ = door(__name__, _MODULES)
