"""How long requests wait and run: of those that are stored, by each user's own eyes, and kept for an hour."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from titanic.aio import Client
from titanic.protocol.answers import RequestInfo
from titanic.web.figures.history import HOUR

LOOKED_AT = 200
"""Requests that a look takes: the youngest that are done."""

EVERY = 10.0
"""Seconds between two looks of a user."""

FRESH = 60.0
"""Seconds: what ended before is not how long it takes now."""

USERS = 50
"""So many users' hours are kept: those who looked last."""


class Percentiles(NamedTuple):
    """In seconds."""

    median: float
    p90: float
    p99: float
    most: float


class Times(NamedTuple):
    """How long some requests waited until they were first sent to a worker, how long the last attempt ran, and how long
    all took; None where none of them tells."""

    requests: int
    waited: Percentiles | None
    ran: Percentiles | None
    took: Percentiles | None


class Moment(NamedTuple):
    """How long what had just ended took, in seconds."""

    at: float
    waited: float
    ran: float
    took: float
    """90 % took no longer."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of them that such a share does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """Of these; None without any."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Percentiles(percentile(ordered, 0.5), percentile(ordered, 0.9), percentile(ordered, 0.99), ordered[-1])


def times_of(rows: Sequence[RequestInfo]) -> Times:
    """Of requests that have ended. How long those waited that were tried again is not known any more, nor what delayed
    ones were delayed by: they are left out of that."""
    sent = [row for row in rows if row["dispatched_at"] and row["finished_at"]]
    once = [row for row in sent if row["attempts"] <= 1]
    waited = percentiles(_span(_ready(row), row["dispatched_at"]) for row in once)
    ran = percentiles(_span(row["dispatched_at"], row["finished_at"]) for row in sent)
    return Times(len(sent), waited, ran, percentiles(_span(_ready(row), row["finished_at"]) for row in sent))


def _ready(row: RequestInfo) -> int:
    """When it could have begun."""
    return max(row["submitted_at"], row["not_before"])


def _span(since: int, until: int) -> float:
    return max(0.0, (until - since) / 1e6)  # clocks are set back, too


async def recently_done(client: Client, service: str | None = None) -> list[RequestInfo]:
    """The youngest requests that are done, of one service if given. Raises Forbidden."""
    rows, after = await client.list(service=service, state="done", newest=True, limit=LOOKED_AT)
    if not rows and after is not None:  # a page can be empty and yet not the last
        rows, _ = await client.list(service=service, state="done", newest=True, after=after, limit=LOOKED_AT)
    return rows


class Latencies:
    """An hour for each user who looks: what he may see need not be what others may."""

    def __init__(self) -> None:
        self._hours: dict[str, deque[Moment]] = {}
        self._looked: dict[str, float] = {}

    async def look(self, user: str, client: Client) -> Sequence[Moment]:
        """The last hour of a user, up to now. Raises Forbidden."""
        now = time.monotonic()
        if now - self._looked.get(user, -EVERY) >= EVERY:
            before = self._looked.pop(user, None)
            self._looked[user] = now
            try:
                rows = await recently_done(client)
            except BaseException:
                if before is None:
                    self._looked.pop(user, None)
                raise
            self._keep(user, rows, time.time())
        return self._hours.get(user, ())

    def _keep(self, user: str, rows: Sequence[RequestInfo], now: float) -> None:
        times = times_of([row for row in rows if row["finished_at"] > (now - FRESH) * 1e6])
        hour = self._hours.pop(user, None) or deque(maxlen=int(HOUR / EVERY))
        self._hours[user] = hour
        if times.ran is not None and times.took is not None:
            waited = 0.0 if times.waited is None else times.waited.median
            hour.append(Moment(now, waited, times.ran.median, times.took.p90))
        while hour and hour[0].at < now - HOUR:
            hour.popleft()
        while len(self._hours) > USERS:
            forgotten = next(iter(self._hours))
            del self._hours[forgotten]
            self._looked.pop(forgotten, None)
