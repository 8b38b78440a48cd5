"""What the log says of refusals: who was refused what, from where, and why; never a body.

Of each user and action a line goes out, then those that follow within a second are counted: when it is over, one line
tells how many, with the last of them.
"""

from __future__ import annotations

import logging
import math
import time

from broker.access.rules import Guard, Refusal
from broker.core.throttle import COUNTED, Throttle
from broker.io.channel import Channel
from broker.io.connection import Connection

log = logging.getLogger("broker.access")

LINE_EVERY = 1.0
"""Seconds in which one refusal of a user and action is logged and the others are counted."""

MOST_KINDS = 1_000_000
"""More users and actions than an access file has."""


class AccessLog(Channel):
    """Logs what a guard refused."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._throttle: Throttle[tuple[str, str]] = Throttle(lines=1, window=LINE_EVERY, most=MOST_KINDS)
        self._last: dict[tuple[str, str], Refusal] = {}
        """The last one that was held back, of each kind."""

    def flush(self, now: float) -> None:
        self._tell(now)
        for report in self._guard.take_reports():
            kind, count = self._throttle.take((report.first.user, report.first.action), now, report.count)
            if count == report.count:
                self._write(report.first)
            if count > 1:
                self._last[kind] = report.last

    def next_deadline(self) -> float | None:
        """When the next count is due."""
        return self._throttle.next_end

    def close(self) -> None:
        """Nothing follows: log all counts."""
        self.flush(time.monotonic())
        self._tell(math.inf)

    def _tell(self, now: float) -> None:
        """Log the counts whose second is over."""
        for kind, more in self._throttle.ended(now):
            self._write(self._last.pop(kind), f" (the last of {more} more within {LINE_EVERY:g} s)")

    def _write(self, refusal: Refusal, counted: str = "") -> None:
        peer = refusal.peer.address if isinstance(refusal.peer, Connection) else refusal.peer
        log.warning(
            "refused: user %r, %s%s, from %s%s; %d so far%s",
            refusal.user,
            refusal.action,
            f" {refusal.service!r}" if refusal.service not in ("", refusal.action) else "",
            peer or "?",
            "; " + refusal.why.removeprefix("forbidden: ") if refusal.why else "",
            self._guard.refusals.get((refusal.user, refusal.action), 0),
            counted,
            extra={
                "event": "forbidden",
                "user": refusal.user,
                "action": refusal.action,
                "service": refusal.service,
                "peer": peer,
                **COUNTED,
            },
        )
