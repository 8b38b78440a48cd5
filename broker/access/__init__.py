"""Access control: users, their keys and permissions, and the access file.

The exports are loaded on first use: a broker without access control does not need them.
"""

from __future__ import annotations

from broker.lazy_exports import lazy_exports

__getattr__, __all__ = lazy_exports(__name__)
