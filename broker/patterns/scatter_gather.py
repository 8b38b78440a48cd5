"""Scatter-gather (RFC 49): single frames one way, each to one of those who gather.

Needs draft sockets: see `broker.drafts`.

message   scatter ── one frame ──▶ gather
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Self

from broker.drafts import LOOK, DraftSocket, Unreachable
from broker.errors import BrokerError, TimedOut, UsageError
from broker.patterns.fan import Fan

QUEUE = 1000
"""Messages that an end holds for each of the others, or from each."""

MOST_BYTES = 128 << 20
"""Of a message."""

LINGER = 30_000
"""Milliseconds that may pass at the end until all has been sent."""


class Unsent(BrokerError):
    """A scattering end was closed, and some of what it had taken could not be sent."""


class _End:
    """What both ends share: a socket that any threads use until it is closed."""

    def __init__(self, socket: DraftSocket | Fan) -> None:
        self._socket = socket
        self._state = threading.Condition()
        self._users = 0
        self._stopped = False
        self._closed = False

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with its real port comes back. May be repeated."""
        return self._socket.bind(endpoint)

    def connect(self, endpoint: str) -> None:
        """Connect. May be repeated."""
        self._socket.connect(endpoint)

    def stop(self) -> None:
        """Nobody waits any more; `close` it then. Any thread may ask, and signal handlers."""
        self._stopped = True

    def close(self, linger: int = 0) -> None:
        """Close it, also while other threads use it. What was sent may still go out, for `linger` milliseconds."""
        self.stop()
        with self._state:
            self._state.wait_for(lambda: not self._users)
            closed, self._closed = self._closed, True
        if not closed and not self._socket.close(linger):
            self._fell_short()

    def _fell_short(self) -> None:
        """Not all that was sent could go out."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enter(self) -> bool:
        with self._state:
            stopped = self._stopped
            self._users += not stopped
            return not stopped

    def _leave(self) -> None:
        with self._state:
            self._users -= 1
            self._state.notify_all()


def _over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


class Scatter(_End):
    """Sends each message to one of the gathering ends, in turn. Any threads may share it.

    with Scatter() as scatter:
        scatter.connect("tcp://10.0.0.1:5557")
        scatter.send(b"hello")
    """

    def __init__(self) -> None:
        """Raises MissingDrafts."""
        self._fan = Fan(QUEUE, LOOK / 1000)
        super().__init__(self._fan)
        self.sent = 0
        """Messages that were taken over."""

    def close(self, linger: int = LINGER) -> None:
        """Send what was taken over, for `linger` milliseconds at most, and close it. Raises Unsent if that is too
        short, or nobody is there any more."""
        super().close(linger)

    def __exit__(self, *error: object) -> None:
        try:
            self.close()
        except Unsent:
            if error[0] is None:  # else that one says more
                raise

    def _fell_short(self) -> None:
        most = min(self.sent, 2 * QUEUE)
        raise Unsent(f"up to {most} of {self.sent} messages were not sent: those who gather are gone, or do not read")

    def send(self, message: bytes, timeout: float | None = None) -> None:
        """Send one frame. Nothing is dropped: it waits while nobody can take it, for `timeout` seconds at most.

        Raises TimedOut; then the message is not sent.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self._enter():
            try:
                self._fan.send(message)
                with self._state:
                    self.sent += 1
                return
            except Unreachable as error:
                if _over(until):
                    raise TimedOut(f"nobody took the message in {timeout:g} s; is somebody there to gather?") from error
            finally:
                self._leave()
        raise UsageError("the scattering end is closed")


class Gather(_End):
    """Takes messages of all scattering ends, fairly. Any threads may share it; each message goes to one of them.

    with Gather() as gather:
        gather.bind("tcp://127.0.0.1:5557")
        for message in gather:
            ...
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        """`most_bytes`: of a message; who sends a larger one loses its connection. Raises MissingDrafts."""
        self._gathering = DraftSocket("GATHER", receive_queue=QUEUE, most_bytes=most_bytes)
        super().__init__(self._gathering)

    def receive(self, timeout: float | None = None) -> bytes | None:
        """One message; None after `timeout` seconds (None: wait for ever), or when this end was closed meanwhile."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._enter():
            try:
                left = LOOK if until is None else max(0, min(LOOK, int((until - time.monotonic()) * 1000)))
                if (got := self._gathering.receive(left)) is not None:
                    return got[0]
            finally:
                self._leave()
            if _over(until):
                return None
        return None

    def __iter__(self) -> Iterator[bytes]:
        """All messages, until this end is closed."""
        while (message := self.receive()) is not None:
            yield message
