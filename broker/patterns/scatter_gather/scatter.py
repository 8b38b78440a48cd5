"""The end of scatter-gather (RFC 49) that sends. Needs draft sockets: see `broker.io.draft_sockets`.

message   scatter ── one frame ──▶ gather
"""

from __future__ import annotations

import time

from broker.client import Body, body_frames
from broker.config import check
from broker.errors import BrokerError, TimedOut, UsageError
from broker.io.draft_sockets import LOOK, DraftSocket, Unreachable
from broker.patterns.scatter_gather.shared_socket import QUEUE, SharedSocket, over

LINGER = 30_000
"""Milliseconds that may pass at the end until all has been sent."""

_PAUSE = 0.0005
"""Seconds between two tries to send a message. They double up to `_PAUSE_MOST`."""

_PAUSE_MOST = 0.005


class Unsent(BrokerError):
    """A scattering end was closed, and some of what it had taken could not be sent."""


class Scatter(SharedSocket):
    """Sends each message to one of the gathering ends, in turn. Any threads may share it.

    with Scatter() as scatter:
        scatter.connect("tcp://10.0.0.1:5557")
        scatter.send(b"hello")
    """

    def __init__(self, *, queue: int = QUEUE) -> None:
        """`queue`: messages that wait for each gathering end before `send` blocks. Raises MissingDrafts."""
        check(queue > 0, f"queue is {queue}; it must be 1 or more")
        self._queue = queue
        self._sockets = ScatterSockets(queue, LOOK / 1000)
        super().__init__(self._sockets)
        self.sent = 0
        """Messages that were taken over."""

    def close(self, linger: int = LINGER) -> None:
        """Send what was taken over, for `linger` milliseconds at most, and close it. Raises Unsent if that is too
        short, or no peer is left."""
        super().close(linger)

    def __exit__(self, *error: object) -> None:
        try:
            self.close()
        except Unsent:
            if error[0] is None:  # else that one says more
                raise

    def _fell_short(self) -> None:
        most = min(self.sent, 2 * self._queue)
        raise Unsent(f"up to {most} of {self.sent} messages were not sent: those who gather are gone, or do not read")

    def send(self, message: Body, timeout: float | None = None) -> None:
        """Send one frame, bytes or text. Nothing is dropped: it waits while nobody can take it, for `timeout` seconds.

        Raises TimedOut; then the message is not sent.
        """
        (frame,) = body_frames((message,))
        until = None if timeout is None else time.monotonic() + timeout
        while self._enter():
            try:
                self._sockets.send(frame)
                with self._state:
                    self.sent += 1
                return
            except Unreachable as error:
                if over(until):
                    raise TimedOut(f"nobody took the message in {timeout:g} s; is somebody there to gather?") from error
            finally:
                self._leave()
        raise UsageError("the scattering end is closed")


class ScatterSockets:
    """A SCATTER socket for each endpoint, so that each message goes to a connected peer. Any threads may share it.

    One socket would do, but pyomq distributes messages over all endpoints, connected or not.
    """

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
        """Send a message to the next connected peer that has room. Raises Unreachable."""
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
