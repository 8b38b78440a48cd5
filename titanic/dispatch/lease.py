"""A node's incarnation and its lease, without SQL or clock (titanic/store/claiming.py says what an incarnation is).

A node may dispatch until the end of its lease, which it counts from before the renewal was *sent*, and by `margin`
shorter. It ends the incarnation of another that it has seen unchanged for a lease, counted from after the answer
*came*. So the other has stopped before, whoever is slow or stands still, as long as their clocks run at the same rate,
give or take `margin / lease` together. Time in which it could not look is no silence of the others: who comes back
after an outage gives them a whole lease to come back, too.

Where the node stands with the store:

    OUTSIDE   it has no incarnation that lives: it joins
    INSIDE    it renews its lease, claims, dispatches and writes
    DOUBTED   nobody knows what became of a statement: requests may be claimed without its knowing, or a release may
              still be on its way. It joins under another number, with what it holds by name; whatever else the old one
              has claimed, or will, is free then. What it holds it may dispatch meanwhile, as long as its lease lasts
    LEFT      it was drained
    REFUSED   the store was upgraded: this version must not touch it

A lease that has run out begins anew when it can be renewed: nobody has ended it yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from titanic.store import Joined, LeaseConfig, Place, Renewed, Silent


class LeaseState(Enum):
    """Where a node stands with the store."""

    OUTSIDE = "outside"
    INSIDE = "inside"
    DOUBTED = "doubted"
    LEFT = "left"
    REFUSED = "refused"


class LeaseEvent(Enum):
    """What a node hears of its incarnation."""

    JOINED = "joined"
    STILLBORN = "stillborn"  # the next one is over before the node knew that it had begun
    OVER = "over"
    UNKNOWN = "unknown"  # nobody knows what became of a claim, a release or outcomes
    LEFT = "left"
    TOO_OLD = "too old"


TRANSITIONS: dict[tuple[LeaseState, LeaseEvent], LeaseState] = {
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
"""Where the lease counts."""
OUT = (LeaseState.LEFT, LeaseState.REFUSED)


class Join(NamedTuple):
    """Begin `incarnation` in place of the one `before`: answer with `joined`, `failed` or `refused`."""

    number: int
    sent: float
    incarnation: int
    before: int | None
    held: list[Place]


class Renew(NamedTuple):
    """Renew the lease, end the silent: answer with `renewed`, `failed` or `refused`."""

    number: int
    sent: float
    incarnation: int
    silent: list[Silent]


class Leave(NamedTuple):
    """End the node's incarnations: answer with `left`, `failed` or `refused`."""

    number: int
    incarnations: list[int]


LeaseCall = Join | Renew | Leave


class Lease:
    """Decides; `now` is in seconds of a clock that cannot be set, and `draw` gives a number that nobody has had."""

    def __init__(self, draw: Callable[[], int], config: LeaseConfig | None = None) -> None:
        self.config = config or LeaseConfig()
        self.state = LeaseState.OUTSIDE
        self.incarnation: int | None = None
        """The last one that was joined."""
        self.until = -math.inf
        """When the node has to stop dispatching."""
        self.due_at = -math.inf
        """When the store is to be asked next."""
        self._draw = draw
        self._number = 0
        self.drawn: int | None = None
        """The one that it is about to join."""
        self.asked: LeaseCall | None = None
        """What the store was asked and has not answered."""
        self._seen: dict[int, tuple[int, float]] = {}
        """The others' `lease_until`, and since when each is seen so."""
        self._looked_at = -math.inf

    def lasts(self, now: float) -> bool:
        """Whether the node may dispatch what it holds."""
        return now < self.until and self.state in IN_FORCE

    def take_number(self) -> int:
        """A number for what is asked or answered: later ones are higher."""
        self._number += 1
        return self._number

    def next_deadline(self) -> float | None:
        """When to ask the store."""
        return self.due_at if self.asked is None and self.state not in OUT else None

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
        self.asked = asked = Renew(self.take_number(), now, self.incarnation, silent)
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
        self._look(answer.others, now)
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
            self._look(answer.others, now)

    def left(self, op: Leave) -> None:
        """Nothing can be claimed by it any more."""
        if op == self.asked:
            self._stop(LeaseEvent.LEFT, math.inf)

    def refused(self) -> None:
        """The store is in a format of a later version. Nothing is dispatched or written any more."""
        self._stop(LeaseEvent.TOO_OLD, math.inf)

    def over(self, now: float) -> None:
        """Others have ended this incarnation: join again, at once."""
        self._stop(LeaseEvent.OVER, now)

    def doubt(self, now: float) -> None:
        """Nobody knows what became of a statement under this incarnation: join again, at once."""
        if self.state is LeaseState.INSIDE:
            self._change(LeaseEvent.UNKNOWN)
            self.hasten(now)

    def hasten(self, now: float) -> None:
        """Ask the store at once."""
        self.due_at = min(self.due_at, now)

    def failed(self, op: LeaseCall, now: float) -> None:
        """The store gave no answer. Whatever became of it, the same may be asked again."""
        if op == self.asked:
            self.asked = None
            self.due_at = now + self.config.renew / 4

    # -- inside ----------------------------------------------------------------------------------------------

    def _change(self, event: LeaseEvent) -> None:
        self.state = TRANSITIONS.get((self.state, event), self.state)

    def _stop(self, event: LeaseEvent, now: float) -> None:
        self.until = -math.inf
        self._change(event)
        self.hasten(now)

    def _extend(self, op: Join | Renew) -> None:
        self.until = max(self.until, op.sent + self.config.lease - self.config.margin)

    def _is_silent(self, since: float, now: float) -> bool:
        return now - since >= self.config.lease

    def _look(self, others: Sequence[Silent], now: float) -> None:
        """Remember since when the others are seen as they are."""
        if now - self._looked_at > self.config.lease / 2:
            self._seen.clear()
        self._looked_at = now
        known, self._seen = self._seen, {}
        for other in others:
            seen = known.get(other.incarnation)
            if seen is None or seen[0] != other.lease_until:
                seen = (other.lease_until, now)
            self._seen[other.incarnation] = seen
