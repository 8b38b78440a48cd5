"""ZMTP, the protocol of ZeroMQ's connections, without I/O: bytes in, events out; messages in, bytes out.

`connection.py` has the states as a table. `broker.zmtp.encryption` encrypts; it loads libsodium.
"""

from broker.zmtp.connection import Connection, ConnectionFailed, ConnectionState, Event, PeerReady, Ping
from broker.zmtp.frames import Failure, MessageLimits, OversizedMessage, ZmtpFault, encode

__all__ = [
    "Connection",
    "ConnectionFailed",
    "ConnectionState",
    "Event",
    "Failure",
    "MessageLimits",
    "OversizedMessage",
    "PeerReady",
    "Ping",
    "ZmtpFault",
    "encode",
]
