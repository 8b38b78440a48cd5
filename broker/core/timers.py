"""Many deadlines, most of which are moved to later before they are reached.

A heartbeat deadline moves with every message of its peer. Moving it only writes a dictionary entry; the heap
is put right when the old, earlier time comes up. So a busy peer costs one heap operation an interval, not one
a message. Cancelled keys leave their entry behind; when those are the most, the heap is built anew.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """A deadline for each key, in the clock of whoever calls."""

    def __init__(self) -> None:
        self.wake_at: float | None = None
        """When to ask `due` again: not after the earliest deadline, but before it when that was moved or cancelled. It
        costs nothing, where deadlines are moved all the time, but one look in vain for each interval."""
        self._when: dict[Key, float] = {}
        # The one heap entry that counts for a key. Compare it with ==, not `is`: a compiled tuple is its values alone.
        self._queued: dict[Key, tuple[float, int, Key]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._ticket = count()

    def __len__(self) -> int:
        return len(self._when)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._when)

    @property
    def entries(self) -> int:
        """What is in memory: cancelled deadlines stay there until there are many of them."""
        return len(self._heap)

    def __contains__(self, key: Key) -> bool:
        return key in self._when

    def set(self, key: Key, when: float) -> None:
        """Set the deadline of a key, or move it."""
        self._when[key] = when
        queued = self._queued.get(key)
        if queued is None or when < queued[0]:
            self._push(key, when)

    def cancel(self, key: Key) -> None:
        """Forget a key; unknown ones are fine."""
        self._when.pop(key, None)
        if self._queued.pop(key, None) is not None and len(self._heap) > 2 * len(self._queued) + 64:
            self._heap = list(self._queued.values())
            heapify(self._heap)
        if not self._queued:
            self.wake_at = None

    def get(self, key: Key) -> float | None:
        """The deadline of a key."""
        return self._when.get(key)

    def next(self) -> float | None:
        """The earliest deadline."""
        heap = self._heap
        while heap:
            entry = heap[0]
            when, _, key = entry
            if self._queued.get(key) != entry:
                heappop(heap)
            elif (moved := self._when[key]) > when:
                heappop(heap)
                self._push(key, moved)
            else:
                self.wake_at = when
                return when
        self.wake_at = None
        return None

    def due(self, now: float) -> Iterator[Key]:
        """Take out, one after another, the keys whose deadline has come. Setting keys meanwhile is allowed."""
        while (when := self.next()) is not None and when <= now:
            key = heappop(self._heap)[2]
            del self._when[key], self._queued[key]
            yield key

    def _push(self, key: Key, when: float) -> None:
        entry = self._queued[key] = (when, next(self._ticket), key)
        heappush(self._heap, entry)
        if self.wake_at is None or when < self.wake_at:
            self.wake_at = when


class Backoff:
    """Waits longer after each failure in a row: from `first` to `most` seconds, twice as long each time."""

    def __init__(self, first: float = 1.0, most: float = 32.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def take(self, most: float = math.inf) -> float:
        """How long to wait now, in seconds, and not longer than `most`."""
        delay = min(self._next, most)
        self._next = min(delay * 2, self._most)
        return delay

    def give_back(self, delay: float) -> None:
        """The last wait, of so many seconds, was not needed: the next one is as long."""
        self._next = delay

    def reset(self) -> None:
        """The next wait is the first one again."""
        self._next = self._first


def earliest(*times: float | None) -> float | None:
    """The first of some deadlines; None: there is none."""
    first: float | None = None
    for time in times:
        if time is not None and (first is None or time < first):
            first = time
    return first
