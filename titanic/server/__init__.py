"""The server as a running thing, with a broker in the same process or elsewhere.

A name of this door is loaded when it is first used: a server that gathers nothing does without.
"""

from __future__ import annotations

from broker import door

_MODULES = {"titanic.server.gather": ["GatherEndpoints"]}

__all__ = [name for names in _MODULES.values() for name in names]

__getattr__ = door(__name__, _MODULES)
