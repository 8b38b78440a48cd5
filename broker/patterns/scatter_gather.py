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
from broker.errors import TimedOut, UsageError


class _End:
    """What both ends share: a socket that any threads use until it is closed."""

    def __init__(self, kind: str) -> None:
        self._socket = DraftSocket(kind, mute=LOOK)
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

    def close(self, linger: int | None = 30_000) -> None:
        """Close it, also while other threads use it. What was sent may still go out, for `linger` milliseconds."""
        self.stop()
        with self._state:
            self._state.wait_for(lambda: not self._users)
            closed, self._closed = self._closed, True
        if not closed:
            self._socket.close(linger)

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
        super().__init__("SCATTER")

    def send(self, message: bytes, timeout: float | None = None) -> None:
        """Send one frame. Nothing is dropped: it waits while nobody can take it, for `timeout` seconds at most.

        Raises TimedOut; then the message is not sent.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self._enter():
            try:
                self._socket.send(message)
                return
            except Unreachable as error:
                if _over(until):
                    raise TimedOut(f"nobody took the message in {timeout:g} s; is a gathering end there?") from error
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

    def __init__(self) -> None:
        """Raises MissingDrafts."""
        super().__init__("GATHER")

    def receive(self, timeout: float | None = None) -> bytes | None:
        """One message; None after `timeout` seconds (None: wait for ever), or when this end was closed meanwhile."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._enter():
            try:
                left = LOOK if until is None else max(0, min(LOOK, int((until - time.monotonic()) * 1000)))
                if (got := self._socket.receive(left)) is not None:
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
