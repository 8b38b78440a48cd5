"""Which services an answer names: clients can invent any number of names. The others are one sum."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from heapq import nlargest
from threading import Lock
from typing import NamedTuple

from titanic.protocol.tsp import SERVICES
from titanic.store import NO_QUEUE, QueueFigures, ReadTransaction

MOST_SERVICES = 1000
"""Services that an answer names."""

MOST_FILLING = 10
"""Services that fill the store most, which are remembered besides."""

STEP = 10_000
"""Queues that are read for an answer, in some 20 ms. If there are more, each answer continues behind the last one."""


class Named(NamedTuple):
    """`queues`: what was read of them. `services`: those to name. `others`: how many there are besides, as far as
    known."""

    queues: Mapping[bytes, QueueFigures]
    services: Collection[bytes]
    others: int


class NamedServices:
    """Finds the largest queues. Any thread may call it."""

    def __init__(self, most: int = MOST_SERVICES, step: int = STEP) -> None:
        self._most, self._step = most, step
        self._lock = Lock()
        self._largest: Collection[bytes] = ()
        self._last, self._passed, self._total = b"", 0, 0
        """The queue behind which the next answer continues, how many were read so far, and how many there are."""

    def choose(
        self, tx: ReadTransaction, names: Collection[bytes], first: Container[bytes] = (), of: Collection[bytes] = ()
    ) -> Named:
        """Choose among these and all that have queues. `first`: those of `names` that are named before others. `of`:
        those that are named in any case."""
        with self._lock:
            queues = rows = tx.queues(after=self._last, limit=self._step)
            if self._last or len(rows) == self._step:
                queues = {**tx.queues(dict.fromkeys((*self._largest, *names))), **rows}
            self._last, self._passed = next(reversed(rows), b""), self._passed + len(rows)
            self._total = max(self._total, self._passed)
            if len(rows) < self._step:
                self._last, self._passed, self._total = b"", 0, self._passed
            self._largest = [  # of equal ones those of before, so that the same are named
                *nlargest(self._most, queues, key=lambda name: queues[name].unended),
                *nlargest(MOST_FILLING, queues, key=lambda name: queues[name].bytes),
            ]
            unread = max(0, self._total - len(queues))
        known = dict.fromkeys(name for name in (*queues, *names) if name not in SERVICES)
        largest = nlargest(self._most, known, key=lambda name: (name in first, queues.get(name, NO_QUEUE).ready))
        return Named(queues, sorted({*largest, *of}), unread + len(known.keys() - {*largest, *of}))
