"""How many peers are connected to a socket. ROUTER does not tell; its monitor does."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import zmq

from broker.transport import DRAIN_LIMIT, Socket, monitored_event, receive


class Peers:
    """A channel that counts connections by TCP and IPC, from the moment that they are accepted.

    To be made before the socket is bound, and closed before it.
    """

    rests = True

    def __init__(self, socket: Socket, tell: Callable[[int], None]) -> None:
        """`tell` gets the count when it changes."""
        self._watched = socket
        self._tell = tell
        self._count = 0
        self._monitor: Socket | None = socket.context.socket(zmq.PAIR)
        # Without a limit: when its queue is full, ZeroMQ's own thread waits, which does the work of all connections.
        self._monitor.rcvhwm = 0
        address = f"inproc://peers-{secrets.token_hex(8)}"
        socket.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor.connect(address)

    def sockets(self) -> list[Socket]:
        """What to poll: the monitor."""
        return [] if self._monitor is None else [self._monitor]

    def changed(self) -> bool:
        """It is always the same socket."""
        return False

    def drain(self, now: float) -> bool:
        """Count what has happened, up to a limit."""
        if self._monitor is None:
            return False
        before = self._count
        for left in range(DRAIN_LIMIT, -1, -1):
            if not left or (frames := receive(self._monitor)) is None:
                break
            self._count += 1 if monitored_event(frames) == zmq.EVENT_ACCEPTED else -1
        if self._count != before:
            self._tell(self._count)
        return not left

    def tick(self, now: float) -> None:
        """Nothing is ever due here."""

    def flush(self, now: float) -> None:
        """Nothing is sent here."""

    def next_deadline(self) -> float | None:
        """Never."""
        return None

    def close(self) -> None:
        """Look no more."""
        if self._monitor is not None:
            if not self._watched.closed:
                self._watched.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
