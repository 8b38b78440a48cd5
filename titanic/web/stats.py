"""Statistics for pages and event streams: polled once for all visitors, and cached briefly; history from the server."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar, TypeVarTuple, cast

from markupsafe import Markup
from starlette.requests import Request

from titanic.aio import Client
from titanic.errors import CallerError, InvalidRequest, TitanicError
from titanic.protocol.documents import FactSeries, FactsInfo, Percentiles, ServiceFacts
from titanic.web.auth.identity import Visitor
from titanic.web.template_filters import Line, chart, span

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

LEAST_PERIOD = 10.0
"""Seconds over which rates are measured, at least."""

MEASURED = 200
"""Requests that latency is measured on where the counts of the server may not be read: those that were done last."""

SHARES: tuple[Literal["p50", "p90", "p99"], ...] = ("p50", "p90", "p99")

BEGINS, ENDS = ("accepted", "requeued"), ("succeeded", "failed", "expired", "cancelled")
"""What makes the number of unfinished requests grow, and shrink."""

CACHE_TTL = 3.0
"""Seconds for which a result is cached, at least."""

LOAD_SHARE = 0.02
"""Share of the time that may be spent on reloading: slow results are cached for longer."""

MAX_CACHE_TTL = 10.0
"""Seconds for which a result is cached, at most. Errors are cached for CACHE_TTL."""

MAX_DAY_TTL, TTL_SHARE = 60.0, 720
"""Counts that all visitors share are cached for this share of the time that they cover, at most a minute."""

MAX_CACHED = 200
"""Results that are cached at a time."""


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


# -- polling ------------------------------------------------------------------------------------------------------


class StatsPoller:
    """Polls the server once for all visitors, and for an hour after the last of them left."""

    def __init__(self) -> None:
        self._last: StatsSample | None = None
        self._permitted: dict[str, float] = {}
        """When each user's own poll last succeeded."""
        self._polling = asyncio.Lock()
        self._requested_at = 0.0
        self._background: asyncio.Task[None] | None = None
        self._facts: dict[tuple[float, tuple[str, ...]], CacheEntry] = {}
        """By span and services."""
        self._visitor: Visitor | None = None
        """The last visitor with permission: the background task polls with this visitor's key."""

    async def sample_of(self, visitor: Visitor, service: str) -> StatsSample:
        """Return a sample that has this service, too. A service that the server does not know is missing, or has zeros.
        Raises what `sample` raises."""
        sample = await self.sample(visitor)
        if "other" not in sample.stats or service in sample.stats.get("by_service", {}):
            return sample
        stats: dict[str, Any] = {**await visitor.client.stats(services=True, of=[service])}
        return replace(sample, stats=stats, workers=_workers(stats))

    async def sample(self, visitor: Visitor) -> StatsSample:
        """Return a sample, at most two seconds old, of the largest services. Raises what `Client.stats` raises, such as
        Forbidden."""
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

    async def facts(self, visitor: Visitor, seconds: float = HOUR, of: tuple[str, ...] = ()) -> FactsInfo | None:
        """Return what `facts_of` returns, of a moment ago: for visitors whose `sample` was returned."""
        entry = self._facts.get((seconds, of))
        if entry is None or not entry.is_fresh:
            self._facts = {each: one for each, one in self._facts.items() if one.is_fresh}
            ttl = min(MAX_DAY_TTL, max(CACHE_TTL, seconds / TTL_SHARE))
            entry = self._facts[seconds, of] = CacheEntry(facts_of(visitor.client, of, seconds), ttl)
        try:
            return cast(FactsInfo | None, await asyncio.shield(entry.result))
        except TitanicError:  # perhaps of another visitor, who has lost the permission
            self._facts.pop((seconds, of), None)
            return await facts_of(visitor.client, of, seconds)

    def invalidate(self) -> None:
        """Poll for the next caller, because something was changed."""
        self._last, self._facts = None, {}

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
        for row in answer.get("by_service", {}).values():
            if "limits_set" in row:
                row["limits_set"]["by"] = ""
        self._last = sample = StatsSample(time.time(), stats, _workers(stats), response_time)
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


def _workers(stats: dict[str, Any]) -> dict[str, int] | None:
    """Count the workers by service on all nodes; None when the broker is a separate process and cannot say."""
    rows = stats.get("by_service") or {}
    if any(row["workers"] is None for row in rows.values()):
        return None
    here = Counter({name: row["workers"] for name, row in rows.items()})
    here.update(stats.get("workers_elsewhere") or {})
    return dict(here)


# -- history ------------------------------------------------------------------------------------------------------


async def facts_of(client: Client, of: Sequence[str], seconds: float = HOUR) -> FactsInfo | None:
    """What was counted in the last hour, of these services by minute; None: the server is of an older version. Raises
    Forbidden."""
    try:
        return await client.facts(seconds, of=of)
    except InvalidRequest:
        return None


def per_second(facts: FactsInfo, series: FactSeries, name: str, now: float) -> list[float | None]:
    """A count of each period as a rate; None for the last one while it is short."""
    counts, step = series["counts"][name], facts["step"]
    last = now - facts["since"] / 1e6 - (len(counts) - 1) * step
    rates: list[float | None] = [count / step for count in counts]
    if rates:
        rates[-1] = counts[-1] / min(last, step) if last >= LEAST_PERIOD else None
    return rates


def current(facts: FactsInfo, figures: ServiceFacts, name: str, now: float) -> float:
    """The last known rate of `per_second`, which the charts end with."""
    rates = per_second(facts, figures["series"], name, now)
    return next((one for one in reversed(rates) if one is not None), 0.0)


def unfinished(series: FactSeries, now: int) -> list[float | None]:
    """How many requests had not ended at the end of each period, `now` of them at the end of the last one."""
    counts, found = series["counts"], list[float | None]()
    for changes in reversed([*zip(*(counts[name] for name in (*BEGINS, *ENDS)), strict=True)]):
        found.append(now)
        now = max(0, now - sum(changes[: len(BEGINS)]) + sum(changes[len(BEGINS) :]))
    return found[::-1]


def latency_charts(series: FactSeries) -> list[tuple[str, Markup]]:
    """Charts of the waiting and run times of each period."""
    return [
        (title, chart(title, [Line(share, [one and one[share] for one in times]) for share in SHARES], span))
        for title, times in (("Wait", series["wait"]), ("Run", series["run"]))
    ]


class Latency(NamedTuple):
    """How long requests waited until their first attempt, and how long attempts ran; None: not measured."""

    wait: Percentiles | None
    run: Percentiles | None


async def measured_latency(client: Client, service: str) -> Latency:
    """Measure the latency of the newest done requests that a user may read. Raises Forbidden."""
    rows, _ = await client.list(service=service, state="done", newest=True, limit=MEASURED)
    first = [row for row in rows if row["attempts"] == 1]  # when another one was sent the first time is not kept
    waits = (row["dispatched_at"] - max(row["submitted_at"], row["not_before"]) for row in first)
    return Latency(_percentiles(waits), _percentiles(row["finished_at"] - row["dispatched_at"] for row in rows))


def _percentiles(microseconds: Iterable[int]) -> Percentiles | None:
    ordered = [max(0, one) / 1e6 for one in sorted(microseconds)]  # a clock may be set back
    if not ordered:
        return None
    p50, p90, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.9, 0.99))
    return Percentiles(p50=p50, p90=p90, p99=p99)


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
        opened: bool = False,
    ) -> Loaded:
        """Return what `load` returns with these arguments, or raise what it raises. `name` distinguishes the results
        of one page. `opened`: pages that are opened get it, too."""
        key = request.state.visitor.user, request.url.path, request.url.query, name
        entry = self._entries.get(key)
        if entry is None or not entry.is_fresh or not (opened or request.headers.get("x-live") == "1"):
            if len(self._entries) >= MAX_CACHED:
                self._entries = {each: one for each, one in self._entries.items() if one.is_fresh}
            entry = self._entries[key] = CacheEntry(load(*arguments), ttl)
        result: Loaded = await asyncio.shield(entry.result)  # a cancelled caller does not cancel it for the others
        return result
