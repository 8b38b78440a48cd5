"""What a server does only if it shares its store with others: it claims requests (claims.py, node.py), dispatches what
it has claimed (dispatcher.py), and finds out what other nodes do (notifications.py).

The exports are loaded on first use: a server that shares its store with no other does not need them.
"""

from __future__ import annotations

from broker import lazy_exports

__getattr__, __all__ = lazy_exports(__name__)
