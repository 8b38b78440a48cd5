"""How often a peer sends heartbeats, and what follows: when its silence means that it is dead, how often to send some.

Neither side tells the other its heartbeat interval, and the two need not be the same. So a peer is judged by the
intervals that it keeps, and is sent heartbeats in the shorter one of both. Only the gap between two heartbeats with
nothing in between counts, and of the last few the longest: it is not shorter than the interval of the peer.

Heartbeats to a peer become slower step by step only, so that a peer that judges in the same way is never surprised. The
peer's interval replaces our own only when it is clearly shorter (CLEARLY): otherwise two sides that both adapt would
speed each other up for ever.
"""

from __future__ import annotations

USUAL = 2.5
"""Seconds between the heartbeats of a peer of which nothing has been heard yet, as RFC 7 and 18 suggest."""

FEW = 4
"""Gaps that count."""

CLEARLY = 0.8
"""How much quicker the peer's rhythm must be, as a share of our own interval."""

LEAST = 0.25
"""Seconds between our heartbeats if our own interval is longer, however quick the peer is: it may only be answering."""

EASE = 1.5
"""By how much the next gap may be longer than the last. It must be less than the least liveness, 2."""


class Heartbeat:
    """The heartbeats of one peer and those for it, on one connection. Times are seconds."""

    __slots__ = ("_at", "_beat_at", "_gaps", "_liveness", "_own", "interval", "messages", "patience")

    def __init__(self, own: float, liveness: int, now: float, *, usual: float = USUAL) -> None:
        """`own`: the interval of our own heartbeats; `liveness`: intervals of silence after which a peer is gone."""
        self.interval = own
        """Send a heartbeat when nothing was sent for this long."""
        self.patience = liveness * max(own, usual)
        """The peer is gone when nothing came for this long."""
        self.messages = 0
        """Messages that came, heartbeats too: to be counted up by whoever takes them."""
        self._own = own
        self._liveness = liveness
        self._gaps: tuple[float, ...] = ()
        self._at = now
        self._beat_at = -1  # no heartbeat yet

    def beat(self, now: float) -> None:
        """A heartbeat came, or what counts as one, and was counted in `messages`."""
        gap = now - self._at
        # What is read in one go was sent earlier, and waited somewhere; and after a gap that is as long as a peer
        # has at most, this side stood still.
        if self.messages == self._beat_at + 1 and 0 < gap < self.patience:
            self._gaps = (*self._gaps[1 - FEW :], gap)
            self.patience = self._liveness * max(self._own, *self._gaps)
            self.interval = min(self.interval, self._wanted())
        self._at, self._beat_at = now, self.messages

    def sent(self) -> None:
        """A heartbeat was sent because the interval was over."""
        self.interval = min(EASE * self.interval, self._wanted())

    def _wanted(self) -> float:
        theirs = max(self._gaps, default=self._own)
        return max(theirs, min(LEAST, self._own)) if theirs < CLEARLY * self._own else self._own
