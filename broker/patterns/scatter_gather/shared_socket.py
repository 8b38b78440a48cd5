"""A draft socket that any threads use until it is closed: what both ends of scatter-gather share."""

from __future__ import annotations

import threading
import time
from typing import Protocol, Self

QUEUE = 1000
"""Messages that an end holds for each of the others, or from each, unless it is told otherwise."""


class Endpoint(Protocol):
    """What is shared: a socket, or several."""

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with its real port comes back."""

    def connect(self, endpoint: str) -> None:
        """Connect."""

    def close(self, linger: int) -> bool:
        """Close it. False when there was more to send than `linger` milliseconds allowed."""


class SharedSocket:
    """What both ends share: a socket that any threads use until it is closed."""

    def __init__(self, socket: Endpoint) -> None:
        self._socket = socket
        self._state = threading.Condition()
        self._users = 0
        self._stopped = False
        self._closing = False
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
        self._closing = True
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

    @property
    def _useless(self) -> bool:
        """Whether nobody may use the socket any more."""
        return self._stopped

    def _enter(self) -> bool:
        with self._state:
            useless = self._useless
            self._users += not useless
            return not useless

    def _leave(self) -> None:
        with self._state:
            self._users -= 1
            self._state.notify_all()


def over(until: float | None) -> bool:
    """Whether that time has come; None: it never does."""
    return until is not None and time.monotonic() >= until
