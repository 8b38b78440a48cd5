"""Whether something is still coming in from a peer that has not said a whole message for a while.

ZeroMQ hands out a message when all of it is there, and what its peer says next waits behind it: while a large one comes
over a slow line, its sender is silent. The system knows better. It counts the bytes that come in on a connection, and
ZeroMQ tells which connection a message came by. So who would be taken for dead is looked at once more here.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

import zmq

LEAST = 1024
"""Bytes a second that must come in. ZeroMQ's own heartbeats are less, and go on when the peer's program hangs."""

_LAST_DATA = struct.Struct("=I")
_LAST_DATA_AT = 52  # in Linux' struct tcp_info: tcpi_last_data_recv, milliseconds
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128  # tcpi_bytes_received


class Inflow:
    """Of one TCP connection; of any other nothing is known, and it never goes on."""

    def __init__(self, frame: Any) -> None:
        """`frame`: of a message that came by this connection."""
        try:
            self._descriptor: int = frame.get(zmq.SRCFD)
        except zmq.ZMQError:  # inproc
            self._descriptor = -1
        self._before: tuple[float, int] | None = None
        self._ends: tuple[Any, Any] | None = None
        self._ends = self._look(lambda connection: (connection.getsockname(), connection.getpeername()))

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

    def _look(self, at: Any) -> Any:
        """Something of the connection, if it is there still: its number may be another's by now, which has not the same
        ends."""
        if self._descriptor < 0:
            return None
        try:
            with socket.socket(fileno=os.dup(self._descriptor)) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    return None
                ends = (connection.getsockname(), connection.getpeername())
                return at(connection) if self._ends in (None, ends) else None
        except OSError:
            return None


def _figures(connection: socket.socket) -> tuple[float, int] | None:
    """Seconds since data came in last, and the bytes that came in all."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < _RECEIVED_AT + _RECEIVED.size:  # a kernel of before 2015
        return None
    return _LAST_DATA.unpack_from(info, _LAST_DATA_AT)[0] / 1000, _RECEIVED.unpack_from(info, _RECEIVED_AT)[0]
