"""A node's membership of a shared store, without SQL, sockets or clock.

A node dispatches under an incarnation, a number that it drew, and only while the lease of that lasts. It renews the
lease, expires silent nodes, and joins again with a new incarnation when its own is over, or when it is
unknown what the store has of it. `now` is as in claims_core.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from titanic.store import Joined, LeaseConfig, Place, Renewed, Silent

Draw = Callable[[], int]
"""Returns a number that was never used."""


class LeaseState(Enum):
    """The state of a node's membership."""

    OUTSIDE = "outside"
    INSIDE = "inside"
    DOUBTED = "doubted"
    LEFT = "left"
    REFUSED = "refused"


class LeaseEvent(Enum):
    """What the store reports about a node's incarnation."""

    JOINED = "joined"
    STILLBORN = "stillborn"  # the next one ended before the node knew that it had joined
    OVER = "over"
    UNKNOWN = "unknown"  # it is unknown whether a claim, a release or outcomes were committed
    LEFT = "left"
    TOO_OLD = "too old"


LEASE_TRANSITIONS: dict[tuple[LeaseState, LeaseEvent], LeaseState] = {
    (LeaseState.OUTSIDE, LeaseEvent.JOINED): LeaseState.INSIDE,
    (LeaseState.OUTSIDE, LeaseEvent.LEFT): LeaseState.LEFT,
    (LeaseState.OUTSIDE, LeaseEvent.TOO_OLD): LeaseState.REFUSED,
    (LeaseState.INSIDE, LeaseEvent.OVER): LeaseState.OUTSIDE,
    (LeaseState.INSIDE, LeaseEvent.UNKNOWN): LeaseState.DOUBTED,
    (LeaseState.INSIDE, LeaseEvent.LEFT): LeaseState.LEFT,
    (LeaseState.INSIDE, LeaseEvent.TOO_OLD): LeaseState.REFUSED,
    (LeaseState.DOUBTED, LeaseEvent.JOINED): LeaseState.INSIDE,
    (LeaseState.DOUBTED, LeaseEvent.STILLBORN): LeaseState.OUTSIDE,
    (LeaseState.DOUBTED, LeaseEvent.OVER): LeaseState.OUTSIDE,
    (LeaseState.DOUBTED, LeaseEvent.LEFT): LeaseState.LEFT,
    (LeaseState.DOUBTED, LeaseEvent.TOO_OLD): LeaseState.REFUSED,
}
"""What has no entry changes nothing."""

IN_FORCE = (LeaseState.INSIDE, LeaseState.DOUBTED)
"""States in which the lease counts."""
OUT = (LeaseState.LEFT, LeaseState.REFUSED)


class Join(NamedTuple):
    """Begin `incarnation` in place of the one `before`: answer with `joined`, `failed` or `refused`."""

    number: int
    sent: float
    incarnation: int
    before: int | None
    held: list[Place]


class Renew(NamedTuple):
    """Renew the lease and expire silent nodes: answer with `renewed`, `failed` or `refused`."""

    number: int
    sent: float
    incarnation: int
    silent: list[Silent]
    abandoned: Sequence[int] = ()


class Leave(NamedTuple):
    """End the node's incarnations: answer with `left`, `failed` or `refused`."""

    number: int
    incarnations: list[int]


LeaseCall = Join | Renew | Leave


class Lease:
    """Decides; `now` is in seconds of a monotonic clock, and `draw` returns a number that was never used."""

    def __init__(self, draw: Draw, config: LeaseConfig | None = None) -> None:
        self.config = config or LeaseConfig()
        self.state = LeaseState.OUTSIDE
        self.incarnation: int | None = None
        """The last one that was joined."""
        self.until = -math.inf
        """When the node has to stop dispatching."""
        self.due_at = -math.inf
        """When to query the store next."""
        self._draw = draw
        self._number = 0
        self.drawn: int | None = None
        """The one that it is about to join."""
        self.asked: LeaseCall | None = None
        """The call to the store that is not answered yet."""
        self._seen: dict[int, tuple[int, float]] = {}
        """The others' `lease_until`, and since when each has been unchanged."""
        self._ended: dict[int, float] = {}
        """Since when incarnations are known to have ended, and may have workers that come with requests."""
        self._polled_at = -math.inf

    def lasts(self, now: float) -> bool:
        """Whether the node may dispatch what it holds."""
        return now < self.until and self.state in IN_FORCE

    def take_number(self) -> int:
        """Return a number for a call or an answer: later ones are higher."""
        self._number += 1
        return self._number

    def next_deadline(self) -> float | None:
        """When to query the store."""
        return self.due_at if self.asked is None and self.state not in OUT else None

    def awaited_for(self, other: int, now: float) -> float | None:
        """Return for how many seconds more the workers of an incarnation are awaited; None: it has not ended."""
        since = self._ended.get(other)
        return None if since is None else max(0.0, since + self.config.patience - now)

    # -- what is to be asked ---------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether one of the following is to be asked now. One is on its way at a time."""
        return self.asked is None and now >= self.due_at and self.state not in OUT

    def join(self, now: float, held: list[Place]) -> Join:
        """Join the others: where it is not INSIDE. The number stays the same until there is an answer."""
        if self.drawn is None:
            self.drawn = self._draw()
        self.asked = asked = Join(self.take_number(), now, self.drawn, self.incarnation, held)
        self.due_at = now + self.config.renew
        return asked

    def renew(self, now: float) -> Renew:
        """Renew the lease of an incarnation that is INSIDE."""
        assert self.incarnation is not None
        silent = [Silent(other, seen) for other, (seen, since) in self._seen.items() if self._is_silent(since, now)]
        abandoned = [other for other, since in self._ended.items() if now - since >= self.config.patience]
        self.asked = asked = Renew(self.take_number(), now, self.incarnation, silent, abandoned)
        self.due_at = now + self.config.renew
        return asked

    def leave(self, now: float) -> Leave:
        """Leave for good. The incarnation that it was about to join is not to begin after that."""
        mine = [number for number in (self.incarnation, self.drawn) if number is not None]
        self.asked = asked = Leave(self.take_number(), mine)
        self.due_at = now + self.config.renew
        return asked

    # -- what came of it -------------------------------------------------------------------------------------

    def joined(self, op: Join, answer: Joined, now: float) -> bool:
        """Whether it is INSIDE now. Answers to what has `failed` come too late, here and below."""
        if op != self.asked:
            return False
        self.asked = None
        self.incarnation, self.drawn = op.incarnation, None
        if not answer.alive:
            self._stop(LeaseEvent.STILLBORN, now)
            return False
        self._change(LeaseEvent.JOINED)
        self._extend(op)
        self._see_others(answer, now)
        return True

    def renewed(self, op: Renew, answer: Renewed, now: float) -> None:
        """An incarnation that is over has nothing any more, except what the next one takes over from it."""
        if op != self.asked:
            return
        self.asked = None
        if not answer.alive:
            self.over(now)
        elif self.state in IN_FORCE:
            self._extend(op)
            self._see_others(answer, now)

    def left(self, op: Leave) -> None:
        """Nothing can be claimed by it any more."""
        if op == self.asked:
            self._stop(LeaseEvent.LEFT, math.inf)

    def refused(self) -> None:
        """The store is in a format of a later version. Nothing is dispatched or written any more."""
        self._stop(LeaseEvent.TOO_OLD, math.inf)

    def over(self, now: float) -> None:
        """Join again at once: other nodes have ended this incarnation."""
        self._stop(LeaseEvent.OVER, now)

    def doubt(self, now: float) -> None:
        """Join again at once: it is unknown whether a statement under this incarnation was committed."""
        if self.state is LeaseState.INSIDE:
            self._change(LeaseEvent.UNKNOWN)
            self.hasten(now)

    def hasten(self, now: float) -> None:
        """Query the store at once."""
        self.due_at = min(self.due_at, now)

    def failed(self, op: LeaseCall, now: float) -> None:
        """The store gave no answer. The call can be repeated, whatever its outcome."""
        if op == self.asked:
            self.asked = None
            self.due_at = now + self.config.renew / 4

    # -- inside ----------------------------------------------------------------------------------------------

    def _change(self, event: LeaseEvent) -> None:
        self.state = LEASE_TRANSITIONS.get((self.state, event), self.state)

    def _stop(self, event: LeaseEvent, now: float) -> None:
        self.until = -math.inf
        self._change(event)
        self.hasten(now)

    def _extend(self, op: Join | Renew) -> None:
        self.until = max(self.until, op.sent + self.config.lease - self.config.margin)

    def _is_silent(self, since: float, now: float) -> bool:
        return now - since >= self.config.lease

    def _see_others(self, answer: Joined | Renewed, now: float) -> None:
        """Remember since when the other nodes' leases have been unchanged, and which have ended."""
        self._ended = {other: self._ended.get(other, now) for other in answer.ended}
        over = [end for since in self._ended.values() if (end := since + self.config.patience) > now]
        self.due_at = min([self.due_at, *over])  # with a long lease, the next renewal would be late
        if now - self._polled_at > self.config.lease / 2:
            self._seen.clear()
        self._polled_at = now
        known, self._seen = self._seen, {}
        for other in answer.others:
            seen = known.get(other.incarnation)
            if seen is None or seen[0] != other.lease_until:
                seen = (other.lease_until, now)
            self._seen[other.incarnation] = seen
