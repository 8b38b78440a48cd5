"""The server as a running thing, with a broker in the same process or elsewhere.

The exports are loaded on first use: a server that gathers nothing does not need them.
"""

from __future__ import annotations

from broker import lazy_exports

__getattr__, __all__ = lazy_exports(__name__)
