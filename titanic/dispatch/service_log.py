"""What the server's log says of services: requests that failed for good, and workers that come and go."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping

from titanic.logs import COUNTED, WINDOW, Throttle, event
from titanic.store import Status
from titanic.util.clock import Clock
from titanic.util.text import one_line

log = logging.getLogger(__name__)

MOST_TEXT = 300
"""Characters of a reason or a name: a worker may say anything."""

OTHERS = b""
"""No service has this name."""


class FailureLog:
    """A line for each request that failed for good; when many of a service fail, the first ones and a count. Used in
    one thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._throttle: Throttle[bytes, None] = Throttle(OTHERS)

    def report(self, uuid: bytes, service: bytes, status: Status, reason: str) -> None:
        """Log that this request failed or expired; no other attempt follows."""
        now = self._clock()
        self.tick(now)
        kind, held = self._throttle.take(service, None, now)
        if held:
            if held == 1:
                text = "more requests%s are failing: for %.0f s they are only counted; see titanic ls --state failed"
                log.warning(text, _of(kind), WINDOW, extra=_about(kind))
            return
        word, text = status.name.lower(), one_line(reason, MOST_TEXT)
        fields = event(word, uuid=uuid, service=service)
        log.warning("%s for %s %s: %s", uuid.hex(), _shown(service), word, text, extra=fields | COUNTED)

    def tick(self, now: float) -> None:
        """Log how many lines were left out, once their minute is over. Call it now and then: no line may follow."""
        for kind, more, _ in self._throttle.ended(now):
            text = "%d more requests%s failed or expired within %.0f s; see titanic ls --state failed"
            log.warning(text, more, _of(kind), WINDOW, extra=_about(kind))

    def finish(self) -> None:
        """Log it now, at the end."""
        self.tick(math.inf)


def _of(kind: bytes) -> str:
    return " of further services" if kind == OTHERS else f" for {_shown(kind)}"


def _about(kind: bytes) -> dict[str, object]:
    return event("failed", service=kind) | COUNTED


class PresenceLog:
    """A line when a service has its first worker, and when the last one has gone. Used in one thread, which polls: a
    worker that came and went between two polls is not noticed."""

    def __init__(self) -> None:
        self._present: set[bytes] = set()

    def update(self, workers: Mapping[bytes, int]) -> None:
        """Compare with the services that have workers now, and how many."""
        for name in sorted(self._present - workers.keys()):
            log.warning("%s has no workers left", _shown(name), extra=event("no-worker", service=name))
        for name in sorted(workers.keys() - self._present):
            log.info("%s has a worker", _shown(name), extra=event("worker", service=name))
        self._present = set(workers)


def _shown(service: bytes) -> str:
    return one_line(service.decode(errors="replace"), MOST_TEXT)
