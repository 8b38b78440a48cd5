"""Requests that failed for good, in the server's log: a line each; in a flood of a service some and a count."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from titanic.logs import COUNTED, LINES, WINDOW, Throttle, event
from titanic.store import Status
from titanic.util.text import one_line

log = logging.getLogger(__name__)

MOST_TEXT = 300
"""Characters of a reason: a worker may say anything."""

OTHERS = b""
"""No service has this name."""


class FailureLog:
    """Used in one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._throttle = Throttle(OTHERS)

    def tell(self, uuid: bytes, service: bytes, status: Status, reason: str) -> None:
        """This request failed or expired; no other attempt follows."""
        now = self._clock()
        self.tick(now)
        kind, count = self._throttle.take(service, now)
        if count > LINES:
            if count == LINES + 1:
                text = "more requests%s fail: counted for %.0f s, not listed; see titanic ls --state failed"
                log.warning(text, _of(kind), WINDOW, extra=_about(kind))
            return
        name = one_line(service.decode(errors="replace"), MOST_TEXT)
        word, text = status.name.lower(), one_line(reason, MOST_TEXT)
        fields = event(word, uuid=uuid, service=service)
        log.warning("%s for %s %s: %s", uuid.hex(), name, word, text, extra=fields | COUNTED)

    def tick(self, now: float) -> None:
        """Tell how many were left out, when their time is over. To be called now and then: nothing may follow."""
        for kind, more in self._throttle.ended(now):
            text = "%d more requests%s failed or expired within %.0f s; see titanic ls --state failed"
            log.warning(text, more, _of(kind), WINDOW, extra=_about(kind))

    def finish(self) -> None:
        """Tell it now: this is the end."""
        self.tick(math.inf)


def _of(kind: bytes) -> str:
    return " of further services" if kind == OTHERS else f" for {one_line(kind.decode(errors='replace'), MOST_TEXT)}"


def _about(kind: bytes) -> dict[str, object]:
    return event("failed", service=kind) | COUNTED
