"""What the system knows of a TCP connection of a socket of ZeroMQ: what comes in on it, and whether its peer runs."""

from __future__ import annotations

import os
import socket as stream
import struct
from typing import Any

import zmq

SILENCE = 3.0
"""Seconds in which a connection is made, and in which something comes by it or is acknowledged, where there is another
endpoint to go to."""

BEAT = 1.0
"""Seconds between ZeroMQ's heartbeats then."""

LEAST = 1024
"""Bytes a second that must come in. ZeroMQ's own heartbeats are less, and go on when the peer's program hangs."""

_U32 = struct.Struct("=I")
_LAST_DATA_AT = 52  # in Linux' struct tcp_info: tcpi_last_data_recv, milliseconds
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128  # tcpi_bytes_received
_LAST_ACK_AT = 56  # tcpi_last_ack_recv, milliseconds
_UNACKNOWLEDGED_AT = 24  # tcpi_unacked, segments
_UNSENT_AT = 144  # tcpi_notsent_bytes


class TcpConnection:
    """One TCP connection of a socket of ZeroMQ. Of any other connection nothing is known."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: its number, negative if it is not known."""
        self._descriptor = descriptor
        self._ends: tuple[Any, Any] | None = None
        self._ends = self._look(_ends)

    def _look(self, at: Any) -> Any:
        """Something of the connection, if it is there still: its number may be another's by now, which has not the same
        ends."""
        if self._descriptor < 0:
            return None
        try:
            with stream.socket(fileno=os.dup(self._descriptor)) as connection:
                if connection.family not in (stream.AF_INET, stream.AF_INET6):
                    return None
                return at(connection) if self._ends in (None, _ends(connection)) else None
        except OSError:
            return None


class TcpInflow(TcpConnection):
    """What comes in on one TCP connection, whole messages or not.

    ZeroMQ hands out a message when all of it is there, and what its peer says next waits behind it: while a large one
    comes over a slow line, its sender is silent. The system knows better. It counts the bytes that come in on a
    connection, and ZeroMQ reports which connection a message came by. So a peer that seems dead is checked once more
    here.
    """

    def __init__(self, frame: Any) -> None:
        """`frame`: of a message that came by this connection."""
        try:
            descriptor: int = frame.get(zmq.SRCFD)
        except zmq.ZMQError:  # inproc
            descriptor = -1
        self._before: tuple[float, int] | None = None
        super().__init__(descriptor)

    def goes_on(self, now: float, patience: float) -> bool:
        """Whether enough came in since this was last asked, `patience` seconds ago; at first, whether anything did."""
        figures = self._look(_figures)
        if figures is None:
            return False
        silence, received = figures
        before, self._before = self._before, (now, received)
        if silence >= patience:
            return False
        if before is None or now - before[0] > 2 * patience:  # asked about another message then
            return True
        return bool(received - before[1] >= LEAST * (now - before[0]))


class Pulse(TcpConnection):
    """Whether the program at the other end of a TCP connection runs, of which ZeroMQ wants to hear each second.

    What comes in is a sign of life, a whole message or not. While a large message goes out, a heartbeat waits behind
    it; then it is one that the system there acknowledges what it gets.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._asked_at = float("-inf")
        self._alive_at = 0.0

    def beats(self, now: float) -> bool:
        """Whether there was a sign of life within SILENCE seconds. Ask at least each second: after a longer pause
        nothing is known, for this process may have been stopped itself."""
        pause = now - self._asked_at
        if pause < BEAT / 2:
            return True
        self._asked_at = now
        silence = self._look(_silence) if pause <= 2 * BEAT else None
        self._alive_at = now if silence is None else max(self._alive_at, now - silence)
        return now - self._alive_at < SILENCE


def _ends(connection: stream.socket) -> tuple[Any, Any]:
    return connection.getsockname(), connection.getpeername()


def _figures(connection: stream.socket) -> tuple[float, int] | None:
    """Seconds since data came in last, and the bytes that came in all."""
    info = connection.getsockopt(stream.IPPROTO_TCP, stream.TCP_INFO, 256)
    if len(info) < _RECEIVED_AT + _RECEIVED.size:  # a kernel of before 2015
        return None
    return _U32.unpack_from(info, _LAST_DATA_AT)[0] / 1000, _RECEIVED.unpack_from(info, _RECEIVED_AT)[0]


def _silence(connection: stream.socket) -> float | None:
    """Seconds since the last sign of life."""
    info = connection.getsockopt(stream.IPPROTO_TCP, stream.TCP_INFO, 256)
    if len(info) < _UNSENT_AT + _U32.size:  # a kernel of before 2016
        return None
    at = [_LAST_DATA_AT]
    if _U32.unpack_from(info, _UNACKNOWLEDGED_AT)[0] or _U32.unpack_from(info, _UNSENT_AT)[0]:
        at.append(_LAST_ACK_AT)
    return float(min(_U32.unpack_from(info, where)[0] for where in at)) / 1000
