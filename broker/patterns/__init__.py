"""The reliability patterns of the ZeroMQ Guide's chapter 4, on the wire that the Guide's programs and the RFCs speak.

README.md says when to use which. Generaldomo and scatter-gather need draft sockets (`broker.io.draft_sockets`).
Majordomo, the broker with services, is `broker` itself.
"""

from broker.io.draft_sockets import MissingDrafts
from broker.io.guarded_router import ServerKeys, server_keys
from broker.patterns.binary_star.core import StarConfig
from broker.patterns.binary_star.server import BinaryStar, BinaryStarClient, SplitBrain
from broker.patterns.freelance.client import Freelance, Shotgun
from broker.patterns.freelance.core import FreelanceConfig
from broker.patterns.freelance.server import NotPublic, freelance_server
from broker.patterns.generaldomo.broker import Generaldomo, GeneraldomoBroker, GeneraldomoWorker
from broker.patterns.generaldomo.core import pack, unpack
from broker.patterns.idempotent.core import Replies, ReplyStore, Stamp
from broker.patterns.idempotent.handler import Idempotent, Stamps
from broker.patterns.pirate_queue.core import QueueConfig
from broker.patterns.pirate_queue.queue import ParanoidQueue, ParanoidWorker, PirateQueue, SimpleQueue, SimpleWorker
from broker.patterns.request_reply.client import LazyPirate
from broker.patterns.request_reply.server import Server
from broker.patterns.scatter_gather.ends import Gather, Scatter, Unread, Unsent
from broker.patterns.tripping.measurement import KINDS, Trips, trip

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
    "PirateQueue",
    "QueueConfig",
    "Replies",
    "ReplyStore",
    "Scatter",
    "Server",
    "ServerKeys",
    "Shotgun",
    "SimpleQueue",
    "SimpleWorker",
    "SplitBrain",
    "Stamp",
    "Stamps",
    "StarConfig",
    "Trips",
    "Unread",
    "Unsent",
    "freelance_server",
    "pack",
    "server_keys",
    "trip",
    "unpack",
]
