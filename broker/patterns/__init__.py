"""The reliability patterns of the ZeroMQ Guide's chapter 4, on the wire that the Guide's programs and the RFCs speak.

    LazyPirate, Server              a client that asks again; what it asks             lazy_pirate.py, server.py
    SimpleQueue, SimpleWorker       least recently used worker                         simple_pirate.py
    ParanoidQueue, ParanoidWorker   the same with heartbeats (RFC 6)                   paranoid_pirate.py
    BinaryStar, BinaryStarClient    two servers, one of them active                    binary_star.py
    Idempotent, Stamps              a handler that does nothing twice                  idempotent.py
    Freelance, Shotgun              clients that know several servers (RFC 10)         freelance.py
    Generaldomo*                    Majordomo over CLIENT and SERVER sockets           generaldomo.py
    trip                            round trips, measured                              tripping.py
    Scatter, Gather                 single frames one way (RFC 49)                     scatter_gather.py

Generaldomo and scatter-gather need draft sockets (`broker.drafts`).
Majordomo, the broker with services, is `broker` itself. README.md says when to use which.
"""

from broker.drafts import MissingDrafts
from broker.patterns.binary_star import BinaryStar, BinaryStarClient, SplitBrain
from broker.patterns.core.binary_star import StarConfig
from broker.patterns.core.freelance import FreelanceConfig
from broker.patterns.core.generaldomo import pack, unpack
from broker.patterns.core.idempotent import Replies, Stamp, Store
from broker.patterns.core.pirate_queue import QueueConfig
from broker.patterns.freelance import Freelance, Shotgun
from broker.patterns.freelance_server import NotPublic, freelance_server
from broker.patterns.generaldomo import Generaldomo, GeneraldomoBroker, GeneraldomoWorker
from broker.patterns.idempotent import Idempotent, Stamps
from broker.patterns.lazy_pirate import LazyPirate
from broker.patterns.paranoid_pirate import ParanoidQueue, ParanoidWorker
from broker.patterns.pirate_queue import Queue
from broker.patterns.scatter_gather import Gather, Scatter, Unread, Unsent
from broker.patterns.server import Server
from broker.patterns.simple_pirate import SimpleQueue, SimpleWorker
from broker.patterns.tripping import KINDS, Trips, trip

__all__ = [
    "KINDS",
    "BinaryStar",
    "BinaryStarClient",
    "Freelance",
    "FreelanceConfig",
    "Gather",
    "Generaldomo",
    "GeneraldomoBroker",
    "GeneraldomoWorker",
    "Idempotent",
    "LazyPirate",
    "MissingDrafts",
    "NotPublic",
    "ParanoidQueue",
    "ParanoidWorker",
    "Queue",
    "QueueConfig",
    "Replies",
    "Scatter",
    "Server",
    "Shotgun",
    "SimpleQueue",
    "SimpleWorker",
    "SplitBrain",
    "Stamp",
    "Stamps",
    "StarConfig",
    "Store",
    "Trips",
    "Unread",
    "Unsent",
    "freelance_server",
    "pack",
    "trip",
    "unpack",
]
