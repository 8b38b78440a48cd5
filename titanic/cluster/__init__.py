"""What only a server with a shared store does: claim requests under a lease (lease.py,
claims_core.py, node.py), dispatch them
(cluster_dispatcher.py), take over those with which workers come (returning.py), and exchange notifications with other
nodes (notifications.py).

The exports are loaded on first use: a server that shares its store with no other does not need them.
"""

from __future__ import annotations

from broker import lazy_exports

__getattr__, __all__ = lazy_exports(__name__)
