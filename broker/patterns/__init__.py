"""The reliability patterns of the ZeroMQ Guide's chapter 4, on the wire that the Guide's programs and the RFCs speak.

    LazyPirate                      a client that asks again                     request_reply/
    Server                          what it asks                                 request_reply/
    SimpleQueue, SimpleWorker       least recently used worker                   pirate_queue/
    ParanoidQueue, ParanoidWorker   the same with heartbeats (RFC 6)             pirate_queue/
    BinaryStar, BinaryStarClient    two servers, one of them active              binary_star/
    Idempotent, Stamps              a handler that does nothing twice            idempotent/
    Freelance, Shotgun              clients that know several servers (RFC 10)   freelance/
    Generaldomo*                    Majordomo over CLIENT and SERVER sockets     generaldomo/
    trip                            round trips, measured                        tripping/
    Scatter, Gather                 single frames one way (RFC 49)               scatter_gather/

Generaldomo and scatter-gather need draft sockets (`broker.io.draft_sockets`).
Majordomo, the broker with services, is `broker` itself. README.md says when to use which.
"""

from broker.io.draft_sockets import MissingDrafts
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
    "trip",
    "unpack",
]
