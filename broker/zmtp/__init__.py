"""ZMTP, the protocol of ZeroMQ's connections, without I/O: bytes in, events out; messages in, bytes out.

README.md has the states and what becomes of what a peer sends. `broker.zmtp.curve` encrypts; it loads libsodium.
"""

from broker.zmtp.connection import Connection, Event, Failed, PeerReady, Ping, State
from broker.zmtp.frames import Failure, Limits, TooLarge, ZmtpFault, encode

__all__ = [
    "Connection",
    "Event",
    "Failed",
    "Failure",
    "Limits",
    "PeerReady",
    "Ping",
    "State",
    "TooLarge",
    "ZmtpFault",
    "encode",
]
