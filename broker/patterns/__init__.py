"""The reliability patterns of the ZeroMQ Guide's chapter 4, on the wire that the Guide's programs and the RFCs speak.

README.md says when to use which. Generaldomo and scatter-gather need draft sockets (`broker.io.draft_sockets`).
Majordomo, the broker with services, is `broker` itself.

A name is loaded when it is first used: who takes one pattern, or gathers at a server, does not wait for the others.
Type checkers find them in `__init__.pyi`.
"""

from __future__ import annotations

from broker.door import door

_MODULES = {
    "broker.io.draft_sockets": ["MissingDrafts"],
    "broker.io.guarded_router": ["ServerKeys", "server_keys"],
    "broker.patterns.binary_star.core": ["StarConfig"],
    "broker.patterns.binary_star.server": ["BinaryStar", "BinaryStarClient", "SplitBrain"],
    "broker.patterns.freelance.client": ["Freelance", "Shotgun"],
    "broker.patterns.freelance.core": ["FreelanceConfig"],
    "broker.patterns.freelance.server": ["NotPublic", "freelance_server"],
    "broker.patterns.generaldomo.broker": ["Generaldomo", "GeneraldomoBroker", "GeneraldomoWorker"],
    "broker.patterns.generaldomo.core": ["pack", "unpack"],
    "broker.patterns.idempotent.core": ["Replies", "ReplyStore", "Stamp"],
    "broker.patterns.idempotent.handler": ["Idempotent", "Stamps"],
    "broker.patterns.pirate_queue.core": ["QueueConfig"],
    "broker.patterns.pirate_queue.queue": [
        "ParanoidQueue",
        "ParanoidWorker",
        "PirateQueue",
        "SimpleQueue",
        "SimpleWorker",
    ],
    "broker.patterns.request_reply.client": ["LazyPirate"],
    "broker.patterns.request_reply.server": ["Server"],
    "broker.patterns.scatter_gather.ends": ["Gather", "Scatter", "Unread", "Unsent"],
    "broker.patterns.tripping.measurement": ["KINDS", "Trips", "trip"],
}

__all__ = [name for names in _MODULES.values() for name in names]

__getattr__ = door(__name__, _MODULES)
