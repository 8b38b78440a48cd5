"""Where a scattering end sends to: a SCATTER socket for each endpoint, so that each message goes to one who is there.

One socket would do, but pyomq gives messages in turn to all endpoints, also to those where nobody is yet or any more.
"""

from __future__ import annotations

import time

from broker.io.draft_sockets import DraftSocket, Unreachable

_PAUSE = 0.0005
"""Seconds between two looks for somebody who takes a message; twice as long each time, up to the following."""

_PAUSE_MOST = 0.005


class Fan:
    """The sockets. Any threads may share it."""

    def __init__(self, queue: int, patience: float) -> None:
        """`queue`: messages for each endpoint. `patience`: seconds for which it waits when it cannot send. Raises
        MissingDrafts."""
        self._queue = queue
        self._patience = patience
        self._sockets: tuple[DraftSocket, ...] = ()
        self._spare: DraftSocket | None = self._make()
        self._next = 0

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with its real port comes back. EndpointError says why not."""
        socket = self._spare or self._make()
        self._spare = socket
        bound = socket.bind(endpoint)
        self._keep(socket)
        return bound

    def connect(self, endpoint: str) -> None:
        """Connect; EndpointError says why not."""
        socket = self._spare or self._make()
        self._spare = socket
        socket.connect(endpoint)
        self._keep(socket)

    def has_peers(self) -> bool:
        """Whether anybody is connected, as far as can be told."""
        return any(socket.has_peers() for socket in self._sockets)

    def send(self, message: bytes) -> None:
        """Send a message to the next one who is there and has room. Raises Unreachable."""
        if self._offer(message):
            return
        end, pause = time.monotonic() + self._patience, _PAUSE
        while time.monotonic() < end:
            time.sleep(pause)
            if self._offer(message):
                return
            pause = min(2 * pause, _PAUSE_MOST)
        raise Unreachable("nobody takes the message")

    def close(self, linger: int) -> bool:
        """Close it; what was sent may still go out, for `linger` milliseconds. False when there was more than could."""
        end = time.monotonic() + linger / 1000
        sockets = [*self._sockets, *([self._spare] if self._spare else [])]
        left = [socket.close(max(1, int((end - time.monotonic()) * 1000))) for socket in sockets]
        return all(left)

    def _offer(self, message: bytes) -> bool:
        sockets = self._sockets
        first, self._next = self._next, self._next + 1  # two threads that take the same one do no harm
        for at in range(len(sockets)):
            socket = sockets[(first + at) % len(sockets)]
            if socket.has_peers():
                try:
                    socket.send(message)
                except Unreachable:  # its queue is full
                    continue
                return True
        return False

    def _keep(self, socket: DraftSocket) -> None:
        self._sockets, self._spare = (*self._sockets, socket), None

    def _make(self) -> DraftSocket:
        return DraftSocket("SCATTER", mute=0, send_queue=self._queue)
