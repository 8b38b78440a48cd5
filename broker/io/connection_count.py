"""The connections of a ROUTER, as far as its monitor and its messages tell."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from typing import Any

import zmq

from broker.io.loop import Channel
from broker.io.sockets import DRAIN_LIMIT, Socket, monitored_event, receive


class NamedConnections:
    """The connections of peers that have given themselves a name (ZMQ_ROUTING_ID), by their file descriptors.

    A peer that connects with a name in use takes it over: the socket does not tell, and what it held for the former
    peer is gone. The others have names of the ROUTER's making, which are never used again.
    """

    def __init__(self) -> None:
        self._connections: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._names)

    def new(self, name: bytes, frame: Any) -> int | None:
        """The connection by which a message came, of which this is a frame; None when the name had it before. It is
        to be `opened`, after what was there by that number is `closed`: descriptors are used again."""
        try:
            connection: int = frame.get(zmq.SRCFD)
        except zmq.ZMQError:  # inproc
            return None
        return None if self._connections.get(name) == connection else connection

    def opened(self, name: bytes, connection: int) -> bool:
        """A name has a new connection; whether it was taken over from another one, which is still there."""
        before = self._connections.get(name)
        if before is not None:
            del self._names[before]
        self.closed(connection)
        self._connections[name], self._names[connection] = connection, name
        return before is not None

    def closed(self, connection: int) -> bytes | None:
        """A connection is gone: the name that it had, if that was its last one."""
        name = self._names.pop(connection, None)
        if name is not None:
            del self._connections[name]
        return name


class ConnectionCount(Channel):
    """A channel that counts connections by TCP and IPC, from the moment that they are accepted.

    To be made before the socket is bound, and closed before it.
    """

    rests = True

    def __init__(self, socket: Socket, tell: Callable[[int], None], closed: Callable[[int], None]) -> None:
        """`tell` gets the count when it changes, `closed` the file descriptor of a connection that is gone."""
        self._watched = socket
        self._tell = tell
        self._closed = closed
        self._count = 0
        self._monitor: Socket | None = socket.context.socket(zmq.PAIR)
        # Without a limit: when its queue is full, ZeroMQ's own thread waits, which does the work of all connections.
        self._monitor.rcvhwm = 0
        address = f"inproc://peers-{secrets.token_hex(8)}"
        socket.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor.connect(address)

    def sockets(self) -> list[Socket]:
        return [] if self._monitor is None else [self._monitor]

    def drain(self, now: float) -> bool:
        """Count what has happened, up to a limit."""
        if self._monitor is None:
            return False
        before = self._count
        for left in range(DRAIN_LIMIT, -1, -1):
            if not left or (frames := receive(self._monitor)) is None:
                break
            if monitored_event(frames) == zmq.EVENT_ACCEPTED:
                self._count += 1
            else:
                self._count -= 1
                self._closed(int.from_bytes(frames[0][2:6], sys.byteorder))
        if self._count != before:
            self._tell(self._count)
        return not left

    def close(self) -> None:
        if self._monitor is not None:
            if not self._watched.closed:
                self._watched.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
