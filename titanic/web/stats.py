"""Statistics for pages and event streams: polled once for all visitors, cached briefly, kept for an hour in memory."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from starlette.requests import Request

from titanic.aio import Client
from titanic.errors import CallerError, TitanicError
from titanic.protocol.answers import RequestInfo
from titanic.web.auth.identity import Visitor

Loaded = TypeVar("Loaded")
Arguments = TypeVarTuple("Arguments")

HOUR = 3600.0

POLL_INTERVAL = 2.0
"""Seconds between two polls while pages or streams are open."""

IDLE_INTERVAL = 10.0
"""Seconds between two polls while none is; after an hour of that, polling stops."""

PERMISSION_TTL = 10.0
"""Seconds for which a user whose own poll succeeded is given samples that were polled with another user's key."""

ADMIN_ONLY = ("refusals", "refused")
"""Fields of `titanic.stats` that only admins get."""

HISTORY_STEP = 10.0
"""Seconds between two samples that are kept for an hour."""

RECENT = 20.0
"""Seconds over which current rates are measured."""

TREND_STEP = 120.0
"""Seconds between two samples of each service."""

SHORTER_SPANS = (300.0, 900.0)
"""Seconds that charts cover while less than an hour is known."""

LATENCY_SAMPLE = 200
"""Requests to measure latency on: those that ended last."""

LATENCY_INTERVAL = 10.0
"""Seconds between two measurements of latency for a user."""

LATENCY_WINDOW = 60.0
"""Seconds: requests that ended earlier do not count as current latency."""

MAX_USERS = 50
"""Users with a kept latency: the most recent ones."""

CACHE_TTL = 3.0
"""Seconds for which a result is cached, at least."""

LOAD_SHARE = 0.02
"""Share of the time that may be spent on reloading: slow results are cached for longer."""

MAX_CACHE_TTL = 10.0
"""Seconds for which a result is cached, at most. Errors are cached for CACHE_TTL."""

MAX_CACHED = 200
"""Results that are cached at a time."""


class Counters(NamedTuple):
    """Counters of the queue at a moment. `source`: the process that counts; each starts at 0."""

    at: float
    source: str
    submitted: int
    done: int
    failed: int
    waiting: int
    running: int


class ServiceCounters(NamedTuple):
    """Counters of a service; `done` and `failed` since the start of the server."""

    waiting: int
    done: int
    failed: int


NO_COUNTERS = ServiceCounters(0, 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class StatsSample:
    """One answer of `titanic.stats`."""

    at: float
    """Seconds since 1970."""
    stats: dict[str, Any]
    workers: dict[str, int] | None
    """The number of workers by service; None: unknown, the broker is a separate process."""
    response_time: float
    """Seconds until the answer."""

    def counters(self) -> Counters:
        """The counters of the queue."""
        store, since, ended = self.stats["store"], self.stats["since_start"], self.stats["dispatch"]
        source = str(self.stats.get("queue", ""))
        done, failed, running = ended["succeeded"], ended["failed"], self.stats["running"]
        return Counters(self.at, source, since["accepted"], done, failed, store["waiting"], running)

    def services(self) -> dict[str, ServiceCounters]:
        """The counters of each service."""
        rows = self.stats.get("by_service") or {}
        return {name: ServiceCounters(row["waiting"], row["done"], row["failed"]) for name, row in rows.items()}


# -- polling ------------------------------------------------------------------------------------------------------


class StatsPoller:
    """Polls the server once for all visitors, and for an hour after the last of them left."""

    def __init__(self) -> None:
        self.history = History()
        self.latencies = Latencies()
        self._last: StatsSample | None = None
        self._permitted: dict[str, float] = {}
        """When each user's own poll last succeeded."""
        self._polling = asyncio.Lock()
        self._requested_at = 0.0
        self._background: asyncio.Task[None] | None = None
        self._visitor: Visitor | None = None
        """The last visitor with permission: the background task polls with this visitor's key."""

    async def sample(self, visitor: Visitor) -> StatsSample:
        """Return a sample that is at most two seconds old. Raises what `Client.stats` raises, such as Forbidden."""
        self._requested_at = time.monotonic()
        async with self._polling:
            now = time.monotonic()
            last = self._last
            permitted = now - self._permitted.get(visitor.user, -PERMISSION_TTL) < PERMISSION_TTL
            if last is not None and permitted and 0 <= time.time() - last.at < POLL_INTERVAL:
                return last
            try:
                sample = await self._poll(visitor.client)
            except TitanicError:
                self._permitted.pop(visitor.user, None)
                raise
            self._permitted[visitor.user] = now
            self._visitor = visitor
        if self._background is None or self._background.done():
            self._background = asyncio.create_task(self._keep_polling())
        return sample

    def invalidate(self) -> None:
        """Poll for the next caller, because something was changed."""
        self._last = None

    def close(self) -> None:
        """Stop polling."""
        if self._background is not None:
            self._background.cancel()

    async def _poll(self, client: Client) -> StatsSample:
        began = time.monotonic()
        answer = await client.stats(services=True)
        response_time = time.monotonic() - began
        # The sample is shown to other users, too.
        stats = {name: value for name, value in answer.items() if name not in ADMIN_ONLY}
        self._last = sample = StatsSample(time.time(), stats, _workers(stats), response_time)
        self.history.add(sample)
        return sample

    async def _keep_polling(self) -> None:
        while (idle := time.monotonic() - self._requested_at) < HOUR and (visitor := self._visitor):
            await asyncio.sleep(IDLE_INTERVAL if idle > IDLE_INTERVAL else POLL_INTERVAL)
            async with self._polling:
                if self._last is not None and 0 <= time.time() - self._last.at < POLL_INTERVAL / 2:
                    continue
                try:
                    await self._poll(visitor.client)
                except CallerError:  # the user lost the permission or the key
                    self._visitor = None
                except TitanicError:
                    continue  # the server is away and may come back
            with suppress(TitanicError):
                await self.latencies.measure(visitor.user, visitor.client)


def _workers(stats: dict[str, Any]) -> dict[str, int] | None:
    """Count the workers by service on all nodes; None when the broker is a separate process and cannot say."""
    rows = stats.get("by_service") or {}
    if any(row["workers"] is None for row in rows.values()):
        return None
    here = Counter({name: row["workers"] for name, row in rows.items()})
    here.update(stats.get("workers_elsewhere") or {})
    return dict(here)


# -- the last hour ------------------------------------------------------------------------------------------------


class RequestRates(NamedTuple):
    """Requests per second; None: unknown."""

    submitted: float | None
    done: float | None
    failed: float | None


UNKNOWN = RequestRates(None, None, None)


def increase(before: int, after: int) -> int:
    """By how much a counter grew; after a restart, its value."""
    return after - before if after >= before else after


def _rates(before: Counters, after: Counters) -> RequestRates:
    elapsed = after.at - before.at
    if elapsed <= 0 or before.source != after.source:
        return UNKNOWN
    return RequestRates(
        increase(before.submitted, after.submitted) / elapsed,
        increase(before.done, after.done) / elapsed,
        increase(before.failed, after.failed) / elapsed,
    )


class History:
    """Samples of the last hour, in bounded memory. It has no clock: each sample says when it was taken."""

    def __init__(self) -> None:
        self._recent: deque[Counters] = deque()
        self._points: deque[Counters] = deque()
        self._trends: deque[tuple[float, Mapping[str, ServiceCounters]]] = deque()

    def add(self, sample: StatsSample) -> None:
        """Add a sample. If its time is before the last one, the clock was set back: forget all earlier samples."""
        counters = sample.counters()
        if self._recent and counters.at < self._recent[-1].at:
            for each in (self._recent, self._points, self._trends):
                each.clear()
        self._recent.append(counters)
        while self._recent[0].at < counters.at - RECENT:
            self._recent.popleft()
        if not self._points or counters.at - self._points[-1].at >= HISTORY_STEP:
            self._points.append(counters)
        while self._points[0].at < counters.at - HOUR - HISTORY_STEP:
            self._points.popleft()
        if not self._trends or counters.at - self._trends[-1][0] >= TREND_STEP:
            self._trends.append((counters.at, sample.services()))
        while self._trends[0][0] < counters.at - HOUR - TREND_STEP:
            self._trends.popleft()

    @property
    def began(self) -> float | None:
        """The time of the oldest sample."""
        return self._points[0].at if self._points else None

    def length(self, now: float) -> float:
        """Seconds that charts cover: an hour, or less while less is known."""
        known = 0.0 if self.began is None else now - self.began
        return next((length for length in SHORTER_SPANS if known <= length), HOUR)

    def now(self) -> RequestRates:
        """Return the current rates."""
        return _rates(self._recent[0], self._recent[-1]) if len(self._recent) > 1 else UNKNOWN

    def rates(self, now: float, parts: int, length: float = HOUR) -> list[RequestRates]:
        """Divide the last `length` seconds into parts and return the rates of each."""
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
        return [
            RequestRates(a / covered, b / covered, c / covered) if covered else UNKNOWN for covered, a, b, c in sums
        ]

    def levels(self, now: float, parts: int, length: float = HOUR) -> list[tuple[int, int] | None]:
        """Divide the last `length` seconds into parts and return how many waited and ran at the end of each."""
        found: list[tuple[int, int] | None] = [None] * parts
        for counters in self._all():
            at = math.floor((counters.at - now + length) * parts / length)
            if 0 <= at <= parts:
                found[min(at, parts - 1)] = (counters.waiting, counters.running)
        return found

    def trend(self, service: str) -> list[tuple[float, ServiceCounters]]:
        """Return the counters of a service, every two minutes."""
        return [(at, services.get(service, NO_COUNTERS)) for at, services in self._trends]

    def _all(self) -> Sequence[Counters]:
        points = list(self._points)
        if self._recent and (not points or self._recent[-1].at > points[-1].at):
            points.append(self._recent[-1])
        return points


# -- latency ------------------------------------------------------------------------------------------------------


class Percentiles(NamedTuple):
    """In seconds."""

    p50: float
    p90: float
    p99: float
    max: float


class Latency(NamedTuple):
    """How long requests waited for a worker, how long the last attempt ran, and both together; None: not measured."""

    requests: int
    wait: Percentiles | None
    run: Percentiles | None
    total: Percentiles | None


class LatencyPoint(NamedTuple):
    """The latency of requests that had just ended, in seconds."""

    at: float
    wait_p50: float
    run_p50: float
    total_p90: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """The percentiles of these values; None without any."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Percentiles(percentile(ordered, 0.5), percentile(ordered, 0.9), percentile(ordered, 0.99), ordered[-1])


def latency_of(rows: Sequence[RequestInfo]) -> Latency:
    """The latency of requests that have ended.

    The wait of retried requests is left out because the time of their first attempt is not stored. A delay is no wait.
    """
    sent = [row for row in rows if row["dispatched_at"] and row["finished_at"]]
    once = [row for row in sent if row["attempts"] <= 1]
    wait = percentiles(_elapsed(_ready(row), row["dispatched_at"]) for row in once)
    run = percentiles(_elapsed(row["dispatched_at"], row["finished_at"]) for row in sent)
    return Latency(len(sent), wait, run, percentiles(_elapsed(_ready(row), row["finished_at"]) for row in sent))


def _ready(row: RequestInfo) -> int:
    """When it could have started."""
    return max(row["submitted_at"], row["not_before"])


def _elapsed(since: int, until: int) -> float:
    return max(0.0, (until - since) / 1e6)  # a clock may be set back


async def recently_done(client: Client, service: str | None = None) -> list[RequestInfo]:
    """List the requests that were done last, of one service or all. Raises Forbidden."""
    rows, after = await client.list(service=service, state="done", newest=True, limit=LATENCY_SAMPLE)
    if not rows and after is not None:  # a page can be empty without being the last
        rows, _ = await client.list(service=service, state="done", newest=True, after=after, limit=LATENCY_SAMPLE)
    return rows


class Latencies:
    """The latency of the last hour by user, because users may read different requests."""

    def __init__(self) -> None:
        self._hours: dict[str, deque[LatencyPoint]] = {}
        self._measured: dict[str, float] = {}

    async def measure(self, user: str, client: Client) -> Sequence[LatencyPoint]:
        """Return the last hour of a user, up to now. Raises Forbidden."""
        now = time.monotonic()
        if now - self._measured.get(user, -LATENCY_INTERVAL) >= LATENCY_INTERVAL:
            before = self._measured.pop(user, None)
            self._measured[user] = now
            try:
                rows = await recently_done(client)
            except BaseException:
                if before is None:
                    self._measured.pop(user, None)
                raise
            self._keep(user, rows, time.time())
        return self._hours.get(user, ())

    def _keep(self, user: str, rows: Sequence[RequestInfo], now: float) -> None:
        latency = latency_of([row for row in rows if row["finished_at"] > (now - LATENCY_WINDOW) * 1e6])
        hour = self._hours.pop(user, None) or deque(maxlen=int(HOUR / LATENCY_INTERVAL))
        self._hours[user] = hour
        if latency.run is not None and latency.total is not None:
            wait = 0.0 if latency.wait is None else latency.wait.p50
            hour.append(LatencyPoint(now, wait, latency.run.p50, latency.total.p90))
        while hour and hour[0].at < now - HOUR:
            hour.popleft()
        while len(self._hours) > MAX_USERS:
            oldest = next(iter(self._hours))
            del self._hours[oldest]
            self._measured.pop(oldest, None)


# -- results for pages that refresh themselves ----------------------------------------------------------------------


class CacheEntry:
    """A result, or a load in progress."""

    def __init__(self, load: Coroutine[Any, Any, Any], ttl: float) -> None:
        self.result = asyncio.create_task(load)
        self._ttl = ttl
        self._began = time.monotonic()
        self._expires = math.inf
        self.result.add_done_callback(self._loaded)

    def _loaded(self, task: asyncio.Task[Any]) -> None:
        ttl = self._ttl
        if not task.cancelled() and task.exception() is None:
            ttl = max(ttl, min(MAX_CACHE_TTL, (time.monotonic() - self._began) / LOAD_SHARE))
        self._expires = self._began + ttl

    @property
    def is_fresh(self) -> bool:
        """Whether it may still be returned."""
        return time.monotonic() < self._expires


class TtlCache:
    """Shares results among the open pages of a user that refresh themselves. Opening or reloading a page bypasses it,
    so that users see their own changes."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str, str, str], CacheEntry] = {}
        """By user, path, query and name."""

    async def get(
        self,
        request: Request,
        name: str,
        load: Callable[[*Arguments], Coroutine[Any, Any, Loaded]],
        *arguments: *Arguments,
        ttl: float = CACHE_TTL,
    ) -> Loaded:
        """Return what `load` returns with these arguments, or raise what it raises. `name` distinguishes the results
        of one page."""
        key = request.state.visitor.user, request.url.path, request.url.query, name
        entry = self._entries.get(key)
        if entry is None or not entry.is_fresh or request.headers.get("x-live") != "1":
            if len(self._entries) >= MAX_CACHED:
                self._entries = {each: one for each, one in self._entries.items() if one.is_fresh}
            entry = self._entries[key] = CacheEntry(load(*arguments), ttl)
        result: Loaded = await asyncio.shield(entry.result)  # a cancelled caller does not cancel it for the others
        return result
