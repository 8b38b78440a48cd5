"""Ends handshakes that say too much.

ZeroMQ takes in a frame as a whole before it looks at it, and one option limits the size of all frames, those of a
handshake too: so somebody without a key could have as much memory as the largest message, for each connection. The
system counts the bytes of a TCP connection, both ways. Whom ZeroMQ has not told READY yet, which is more than greeting
and WELCOME, has not been let in.
"""

from __future__ import annotations

import socket as stream
import struct
from contextlib import suppress

from broker.io.channel import Channel
from broker.io.user_connections import UserConnections

MOST_SAID = 64 << 10
"""Bytes in a handshake; one has less than a thousand."""

NOT_IN = 64 + 170 + 26
"""Bytes that are said at most to somebody who is not let in: greeting, WELCOME, and what the system may count besides.
READY has 60 at least."""

LOOK_EVERY = 0.25

_FIGURES = struct.Struct("=QQ")
_FIGURES_AT = 120  # in Linux' struct tcp_info: tcpi_bytes_acked, tcpi_bytes_received


class Handshakes(Channel):
    """Looks at the connections that are not let in yet."""

    def __init__(self, connections: UserConnections) -> None:
        self._connections = connections
        self._look_at = 0.0

    def tick(self, now: float) -> None:
        self._look_at = now + LOOK_EVERY
        unfinished = self._connections.unfinished
        for descriptor in [*unfinished]:
            heard, said = _figures(descriptor)
            if heard > NOT_IN:
                del unfinished[descriptor]
            elif said > MOST_SAID:
                del unfinished[descriptor]
                self._connections.end_handshake(descriptor)

    def next_deadline(self) -> float | None:
        return self._look_at if self._connections.unfinished else None


def _figures(descriptor: int) -> tuple[int, int]:
    """The bytes that a TCP connection has taken from us, and given us; of any other, more than a handshake."""
    connection = None
    info = b""
    with suppress(OSError):  # it is gone
        connection = stream.socket(stream.AF_INET, stream.SOCK_STREAM, 0, fileno=descriptor)
        info = connection.getsockopt(stream.IPPROTO_TCP, stream.TCP_INFO, 256)
    if connection is not None:
        connection.detach()  # it is ZeroMQ's
    if len(info) < _FIGURES_AT + _FIGURES.size:  # a kernel of before 2015
        return NOT_IN + 1, 0
    heard, said = _FIGURES.unpack_from(info, _FIGURES_AT)
    return heard, said
