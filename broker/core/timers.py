"""Deadlines, the pauses between attempts, and heartbeats. Nothing here reads a clock.

Timers       many deadlines, most of which are moved before they are reached
Backoff      pauses that grow with each failure
Heartbeat    how often to send heartbeats to one peer, and when its silence means that it is gone
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """A deadline for each key, in the caller's clock.

    A heartbeat deadline moves with every message of its peer. Moving it only writes a dictionary entry; the heap is
    corrected when the old, earlier time comes up. So a busy peer costs one heap operation an interval, not one a
    message. Cancelled keys leave their entry behind; when these are the majority, the heap is rebuilt.
    """

    def __init__(self) -> None:
        self.wake_at: float | None = None
        """When to call `due` again: at the earliest deadline, or earlier when that was moved or cancelled. Reading it
        is free, at the price of one needless call an interval."""
        self._when: dict[Key, float] = {}
        # The one heap entry that counts for a key. Compare it with ==, not `is`: a compiled tuple is its values alone.
        self._queued: dict[Key, tuple[float, int, Key]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._ticket = count()

    def __len__(self) -> int:
        return len(self._when)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._when)

    def __contains__(self, key: Key) -> bool:
        return key in self._when

    def set(self, key: Key, when: float) -> None:
        """Set the deadline of a key, or move it."""
        self._when[key] = when
        queued = self._queued.get(key)
        if queued is None or when < queued[0]:
            entry = self._queued[key] = (when, next(self._ticket), key)
            heappush(self._heap, entry)
            if self.wake_at is None or when < self.wake_at:
                self.wake_at = when

    def cancel(self, key: Key) -> None:
        """Remove the deadline of a key, if it has one."""
        self._when.pop(key, None)
        if self._queued.pop(key, None) is not None and len(self._heap) > 2 * len(self._queued) + 64:
            self._heap = list(self._queued.values())
            heapify(self._heap)
        if not self._queued:
            self.wake_at = None

    def get(self, key: Key) -> float | None:
        """Return the deadline of a key."""
        return self._when.get(key)

    def next(self) -> float | None:
        """Return the earliest deadline."""
        heap = self._heap
        while heap:
            entry = heap[0]
            when, _, key = entry
            if self._queued.get(key) != entry:
                heappop(heap)
            elif (moved := self._when[key]) > when:
                heappop(heap)
                del self._queued[key]
                self.set(key, moved)
            else:
                self.wake_at = when
                return when
        self.wake_at = None
        return None

    def due(self, now: float) -> Iterator[Key]:
        """Remove and yield the keys that are due. Keys may be set meanwhile."""
        while (when := self.next()) is not None and when <= now:
            key = heappop(self._heap)[2]
            del self._when[key], self._queued[key]
            yield key


class Backoff:
    """Waits longer after each failure in a row: from `first` to `most` seconds, twice as long each time. For attempts
    to reach something; the retries of a request are Titanic's (titanic/dispatch/attempts.py)."""

    def __init__(self, first: float = 1.0, most: float = 32.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def take(self, most: float = math.inf) -> float:
        """Return how long to wait now, in seconds, at most `most`."""
        delay = min(self._next, most)
        self._next = min(delay * 2, self._most)
        return delay

    def give_back(self, delay: float) -> None:
        """Undo the last `take`, which returned `delay`: the next wait is as long again."""
        self._next = delay

    def reset(self) -> None:
        """Start again with the first wait."""
        self._next = self._first


def earliest(*times: float | None) -> float | None:
    """Return the first of some deadlines; None: there is none."""
    first: float | None = None
    for time in times:
        if time is not None and (first is None or time < first):
            first = time
    return first


USUAL = 2.5
"""Seconds between the heartbeats of a peer that has not sent any yet, as RFC 7 and 18 suggest."""

FEW = 4
"""Gaps that count."""

CLEARLY = 0.8
"""How much quicker the peer's rhythm must be, as a share of our own interval."""

LEAST = 0.25
"""Shortest interval of our heartbeats, in seconds, unless our own is shorter: a quick peer may only be answering."""

EASE = 1.5
"""Growth of the gap between heartbeats, at most. It must be less than the least liveness, 2."""


class Heartbeat:
    """The heartbeats of one peer and those for it, on one connection. Times are seconds.

    Neither side announces its heartbeat interval, and the two need not be equal. So a peer is judged by the intervals
    that it keeps, and receives heartbeats in the shorter one of both. Only the gap between two heartbeats with nothing
    in between counts, and of the last few gaps the longest: it is not shorter than the peer's interval.

    Heartbeats to a peer slow down only step by step, so that a peer that judges in the same way is never surprised. The
    peer's interval replaces our own only when it is clearly shorter (CLEARLY): otherwise two sides that both adapt
    would speed each other up for ever.
    """

    __slots__ = ("_at", "_beat_at", "_gaps", "_liveness", "_own", "interval", "messages", "patience")

    def __init__(self, own: float, liveness: int, now: float, *, usual: float = USUAL) -> None:
        """`own`: the interval of our own heartbeats; `liveness`: intervals of silence after which a peer is gone."""
        self.interval = own
        """Send a heartbeat when nothing was sent for this long."""
        self.patience = liveness * max(own, usual)
        """The peer is gone after so many seconds of silence."""
        self.messages = 0
        """Messages received, heartbeats included; the caller increments it."""
        self._own = own
        self._liveness = liveness
        self._gaps: tuple[float, ...] = ()
        self._at = now
        self._beat_at = -1  # no heartbeat yet

    def beat(self, now: float) -> None:
        """Note a heartbeat, or what counts as one. It was counted in `messages`."""
        gap = now - self._at
        # What is read in one go was sent earlier, and waited somewhere; and after a gap that is as long as a peer
        # has at most, this side stood still.
        if self.messages == self._beat_at + 1 and 0 < gap < self.patience:
            self._gaps = (*self._gaps[1 - FEW :], gap)
            self.patience = self._liveness * max(self._own, *self._gaps)
            self.interval = min(self.interval, self._wanted())
        self._at, self._beat_at = now, self.messages

    def sent(self) -> None:
        """Note that a heartbeat was sent because the interval was over."""
        self.interval = min(EASE * self.interval, self._wanted())

    def _wanted(self) -> float:
        theirs = max(self._gaps, default=self._own)
        return max(theirs, min(LEAST, self._own)) if theirs < CLEARLY * self._own else self._own
