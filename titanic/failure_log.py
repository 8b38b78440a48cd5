"""Requests that failed for good, in the server's log: a line each, and in a flood the first few and a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from titanic.logs import event
from titanic.store import Status
from titanic.text import one_line

log = logging.getLogger(__name__)

LINES, WINDOW = 20, 60.0
"""Lines in so many seconds, at most."""

MOST_TEXT = 300
"""Characters of a reason: a worker may say anything."""


class FailureLog:
    """Used in one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = float("-inf")
        self._count = 0

    def tell(self, uuid: bytes, service: bytes, status: Status, reason: str) -> None:
        """This request failed or expired; no other attempt follows."""
        now = self._clock()
        if now >= self._ends:
            if self._count > LINES:
                log.warning("%d more failed or expired meanwhile", self._count - LINES)
            self._ends, self._count = now + WINDOW, 0
        self._count += 1
        if self._count > LINES:
            if self._count == LINES + 1:
                log.warning("more fail: counted for %.0f s, not listed; see titanic ls --state failed", WINDOW)
            return
        name = one_line(service.decode(errors="replace"), MOST_TEXT)
        word, text = status.name.lower(), one_line(reason, MOST_TEXT)
        log.warning("%s for %s %s: %s", uuid.hex(), name, word, text, extra=event(word, uuid=uuid, service=service))
