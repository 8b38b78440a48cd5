"""What the figures were in the last hour, from samples of counters. No clock: who adds a sample says when it was."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

HOUR = 3600.0

STEP = 10.0
"""Seconds between two samples that are kept for an hour."""

RECENT = 20.0
"""Seconds that `now` is, for rates."""

TREND_STEP = 120.0
"""Seconds between two samples of each service."""


LENGTHS = (300.0, 900.0)
"""Seconds that charts show while no more is known."""


class Counts(NamedTuple):
    """Counters at a moment. `source`: which process counts; they begin at 0 with each."""

    at: float
    source: str
    submitted: int
    done: int
    failed: int
    waiting: int
    running: int


class Rates(NamedTuple):
    """So many a second; None: not known."""

    submitted: float | None
    done: float | None
    failed: float | None


UNKNOWN = Rates(None, None, None)


class ServiceCounts(NamedTuple):
    """Of a service at a moment; done and failed since the start."""

    waiting: int
    done: int
    failed: int


def counts_of(at: float, stats: Mapping[str, Any]) -> Counts:
    """The counters in an answer of titanic.stats."""
    store, since, ended = stats["store"], stats["since_start"], stats["dispatch"]
    running, waiting = stats["running"], store["waiting"]
    source = str(stats.get("queue", ""))
    return Counts(at, source, since["accepted"], ended["succeeded"], ended["failed"], waiting, running)


def grown(before: int, after: int) -> int:
    """By how much a counter has grown; if it has begun again, by at least what it is."""
    return after - before if after >= before else after


def _rates(before: Counts, after: Counts) -> Rates:
    elapsed = after.at - before.at
    if elapsed <= 0 or before.source != after.source:
        return UNKNOWN
    return Rates(
        grown(before.submitted, after.submitted) / elapsed,
        grown(before.done, after.done) / elapsed,
        grown(before.failed, after.failed) / elapsed,
    )


class History:
    """The last hour, in bounded memory."""

    def __init__(self) -> None:
        self._recent: deque[Counts] = deque()
        self._points: deque[Counts] = deque()
        self._trends: deque[tuple[float, Mapping[str, ServiceCounts]]] = deque()

    def add(self, counts: Counts, services: Callable[[], Mapping[str, ServiceCounts]]) -> None:
        """`services` is asked now and then. A moment before the last one is a clock that was set back: all before is
        forgotten."""
        if self._recent and counts.at < self._recent[-1].at:
            for each in (self._recent, self._points, self._trends):
                each.clear()
        self._recent.append(counts)
        while self._recent[0].at < counts.at - RECENT:
            self._recent.popleft()
        if not self._points or counts.at - self._points[-1].at >= STEP:
            self._points.append(counts)
        while self._points[0].at < counts.at - HOUR - STEP:
            self._points.popleft()
        if not self._trends or counts.at - self._trends[-1][0] >= TREND_STEP:
            self._trends.append((counts.at, services()))
        while self._trends[0][0] < counts.at - HOUR - TREND_STEP:
            self._trends.popleft()

    @property
    def began(self) -> float | None:
        """The moment of the first sample that is kept."""
        return self._points[0].at if self._points else None

    def length(self, now: float) -> float:
        """Seconds that charts show: an hour, or less while less is known."""
        known = 0.0 if self.began is None else now - self.began
        return next((length for length in LENGTHS if known <= length), HOUR)

    def now(self) -> Rates:
        """Of the last seconds."""
        return _rates(self._recent[0], self._recent[-1]) if len(self._recent) > 1 else UNKNOWN

    def rates(self, now: float, parts: int, length: float = HOUR) -> list[Rates]:
        """The rates in each of so many parts of the last `length` seconds."""
        sums = [[0.0, 0.0, 0.0, 0.0] for _ in range(parts)]
        began, width = now - length, length / parts
        for before, after in pairwise(self._all()):
            rates = _rates(before, after)
            if rates.done is None:
                continue
            first = max(0, int((before.at - began) / width))
            for at in range(first, min(parts - 1, int((after.at - began) / width)) + 1):
                start = began + at * width
                overlap = min(after.at, start + width) - max(before.at, start)
                if overlap > 0:
                    for n, value in enumerate((overlap, *(rate * overlap for rate in rates if rate is not None))):
                        sums[at][n] += value
        return [Rates(a / covered, b / covered, c / covered) if covered else UNKNOWN for covered, a, b, c in sums]

    def levels(self, now: float, parts: int, length: float = HOUR) -> list[tuple[int, int] | None]:
        """What waited and what ran at the end of each of so many parts of the last `length` seconds."""
        found: list[tuple[int, int] | None] = [None] * parts
        for counts in self._all():
            at = math.floor((counts.at - now + length) * parts / length)
            if 0 <= at <= parts:
                found[min(at, parts - 1)] = (counts.waiting, counts.running)
        return found

    def trend(self, service: str) -> list[tuple[float, ServiceCounts]]:
        """What a service's figures were, every other minute."""
        return [(at, services.get(service, NOTHING)) for at, services in self._trends]

    def _all(self) -> Sequence[Counts]:
        """Those that are kept, and the last."""
        points = list(self._points)
        if self._recent and (not points or self._recent[-1].at > points[-1].at):
            points.append(self._recent[-1])
        return points


NOTHING = ServiceCounts(0, 0, 0)
