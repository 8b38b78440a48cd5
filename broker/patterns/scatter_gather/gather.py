"""The end of scatter-gather (RFC 49) that receives. Needs draft sockets: see `broker.io.draft_sockets`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from broker.config import check
from broker.errors import BrokerError
from broker.io.draft_sockets import LOOK, DraftSocket
from broker.patterns.scatter_gather.shared_socket import QUEUE, SharedSocket, over

MOST_BYTES = 128 << 20
"""Of a message."""

QUIET = 0.2
"""Seconds without a message after which a gathering end that was stopped expects no more."""

LAST = 5.0
"""Seconds for which a stopped end reads on, and as long again for what its socket holds then."""


class Unread(BrokerError):
    """A gathering end was stopped, and messages went on coming."""

    def __init__(self) -> None:
        super().__init__(
            f"messages were still coming {LAST:g} s after the end was asked for; what was under way then is lost, and "
            "nobody knows how much: stop those who scatter first"
        )


class Gather(SharedSocket):
    """Takes messages of all scattering ends, fairly. Any threads may share it; each message goes to one of them.

    with Gather() as gather:
        gather.bind("tcp://127.0.0.1:5557")
        for message in gather:
            ...
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES, queue: int = QUEUE) -> None:
        """`most_bytes`: of a message; a peer that sends a larger one loses its connection. `queue`: messages that wait
        here from each scattering end. Raises MissingDrafts."""
        check(queue > 0, f"queue is {queue}; it must be 1 or more")
        self._gathering = DraftSocket("GATHER", receive_queue=queue, most_bytes=most_bytes)
        super().__init__(self._gathering)
        self._stopped_at = self._came_at = float("-inf")

    def stop(self) -> None:
        """Let `receive` give back what is still coming, and end then. Any thread may ask, and signal handlers.

        A scattering end cannot be told to wait: closing a connection, or only the endpoint, loses what is in it.
        """
        if not self._stopped:
            self._stopped_at = time.monotonic()
        super().stop()

    def receive(self, timeout: float | None = None) -> bytes | None:
        """One message; None after `timeout` seconds (None: wait for ever), when this end was closed meanwhile, or was
        stopped and all that had been sent has come. Raises Unread if that has no end."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._enter():
            try:
                if (got := self._gathering.receive(self._patience(until))) is not None:
                    self._came_at = time.monotonic()
                    return got[0]
            finally:
                self._leave()
            if over(until) or self._all_came():
                return None
        return None

    def __iter__(self) -> Iterator[bytes]:
        """All messages, until this end is stopped or closed. Raises Unread."""
        while (message := self.receive()) is not None:
            yield message

    @property
    def _useless(self) -> bool:
        return self._closing

    def _patience(self, until: float | None) -> int:
        """Milliseconds to wait for a message."""
        now = time.monotonic()
        if self._stopped:
            if now >= self._stopped_at + 2 * LAST:
                raise Unread
            if now >= self._stopped_at + LAST:
                return 0
        return LOOK if until is None else max(0, min(LOOK, int((until - now) * 1000)))

    def _all_came(self) -> bool:
        """Whether nothing is expected after `stop`; called when nothing is there."""
        now = time.monotonic()
        if not self._stopped:
            return False
        if now >= max(self._came_at, self._stopped_at) + QUIET:
            return True
        if now >= self._stopped_at + LAST:
            raise Unread
        return False
