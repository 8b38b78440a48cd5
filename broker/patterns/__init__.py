"""The reliability patterns of the ZeroMQ Guide's chapter 4, on the wire that the Guide's programs and the RFCs speak.

README.md says when to use which. Generaldomo and scatter-gather need draft sockets (`broker.io.draft_sockets`).
Majordomo, the broker with services, is `broker` itself.

`__init__.pyi` lists the exports. Each is loaded on first use: a program that uses one pattern does not load the others.
"""

from __future__ import annotations

from broker.lazy_exports import lazy_exports

__getattr__, __all__ = lazy_exports(__name__)
