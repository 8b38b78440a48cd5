"""The store of Titanic: requests and replies that outlive the process. Start reading at interface.py.

`__init__.pyi` lists the exports. Each is loaded on first use: a server with a store of its own does not load what nodes
share.
"""

from __future__ import annotations

from broker import lazy_exports

__getattr__, __all__ = lazy_exports(__name__)
