"""Web console and HTTP API (`titanic web`). See README.md.

It is a client like any other: the server checks and stores everything. `Gateway` is an ASGI application, which others
may mount. The exports are loaded on first use: the settings need no web server.
"""

from __future__ import annotations

from broker import lazy_exports

__getattr__, __all__ = lazy_exports(__name__)
