"""Request-reply over ZeroMQ: a Majordomo broker (MDP 0.1 and 0.2), workers, clients.

    Broker     routes requests to services         broker/server.py
    Worker     serves a service with a function     broker/worker.py
    Client     one request at a time                broker/client.py
    Pipeline   many requests in flight              broker/pipeline.py

The protocol's cores, without sockets, are in `broker.core`. `__init__.pyi` lists the exports. Each is loaded on first
use: a client does not load what a broker or a worker needs.
"""

from broker.lazy_exports import choose_build, lazy_exports

choose_build()

__getattr__, __all__ = lazy_exports(__name__)
