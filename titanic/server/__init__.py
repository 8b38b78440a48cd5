"""The running server, with a broker in the same process or a separate one.

The exports are loaded on first use: servers without GATHER endpoints do not need them.
"""

from __future__ import annotations

from broker import lazy_exports

__getattr__, __all__ = lazy_exports(__name__)
