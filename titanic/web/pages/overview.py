"""The overview of the queue with its health, and the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.protocol.answers import RequestInfo
from titanic.protocol.documents import FactsInfo, ServiceFacts, StoreStats
from titanic.web.app_state import app_state, visitor_of
from titanic.web.pages.forms import NotPermitted, unless_forbidden
from titanic.web.pages.services import ServiceRow, services_of
from titanic.web.stats import (
    RECENTLY,
    StatsSample,
    current,
    facts_of,
    is_failing,
    latency_charts,
    per_second,
    unfinished,
)
from titanic.web.template_filters import Line, chart, counted, number, percent, rate, short, size, span, spark

RATES = ("accepted", "succeeded", "failed")
"""Counts that are shown per second."""

TOP = 12
"""Services that are shown."""

SLOW = 2.5
"""Seconds: a response that took longer is a warning."""

WARN_USED_SHARE = 0.9
"""A store with more of its capacity in use is a warning here. `titanic health` warns by the time until it is full
(`WARN_FULL_IN`)."""

NAMED = 3
"""Services that are named in one sentence."""

DURABILITY = {
    "synced": "Acknowledged requests are on disk and survive a power failure.",
    "relaxed": "The disk is synced once a second: a power failure may lose requests acknowledged in the last second. "
    "Killing the server loses nothing.",
    "memory": "The store is in memory only: it survives a restart of the server, but not of the machine.",
}


async def overview(request: Request) -> Response:
    """Show what waits, runs and fails now, and how that was in the last hour."""
    state, visitor = app_state(request), visitor_of(request)
    poller = state.stats_poller
    oldest = await unless_forbidden(
        "the oldest waiting request", state.cache.get(request, "oldest", _oldest, visitor.client)
    )
    sample = await unless_forbidden("statistics and services", poller.sample(visitor))
    if isinstance(sample, NotPermitted):
        missing = [one for one in (sample, oldest) if isinstance(one, NotPermitted)]
        return state.page(request, "overview.html", stats=None, missing=missing)
    services = services_of(sample)
    recent = await state.cache.get(request, "recent", facts_of, visitor.client, (), RECENTLY)
    failing = {} if recent is None else {name: one for name, one in recent["services"].items() if is_failing(one)}
    busiest = sorted(services, key=_importance, reverse=True)
    busiest = sorted(busiest, key=lambda one: one.name in failing, reverse=True)[:TOP]
    facts = await state.cache.get(request, "facts", facts_of, visitor.client, [one.name for one in busiest])
    now = time.time()
    return state.page(
        request,
        "overview.html",
        stats=sample.stats,
        rates={} if facts is None else {name: current(facts, facts["total"], name, now) for name in RATES},
        health=assess(sample, services, failing),
        oldest=None if isinstance(oldest, NotPermitted) else oldest,
        missing=[oldest] if isinstance(oldest, NotPermitted) else [],
        services=busiest,
        known={} if facts is None else facts["services"],
        trends=_trends(facts, busiest),
        others=len(services) - len(busiest),
        charts=_charts(facts, sample.stats["store"], now),
        incomplete=facts is not None and bool(facts["incomplete"]),
    )


def _importance(service: ServiceRow) -> tuple[int, int]:
    return service.waiting, service.workers or 0


async def _oldest(client: Client) -> RequestInfo | None:
    """Find the request that has waited longest, if it is near the beginning of the list."""
    after = None
    for _ in range(5):  # a page can be empty without being the last
        rows, after = await client.list(state="waiting", limit=1, after=after)
        if rows or after is None:
            return rows[0] if rows else None
    return None


def _trends(facts: FactsInfo | None, services: Sequence[ServiceRow]) -> dict[str, Markup]:
    known = {} if facts is None else facts["services"]
    values = {one.name: unfinished(known[one.name]["series"], one.unended) for one in services if one.name in known}
    top = max((one or 0 for each in values.values() for one in each), default=0)
    return {name: spark(each, f"{name}, unfinished", top) for name, each in values.items()}


def _charts(facts: FactsInfo | None, store: StoreStats, now: float) -> list[tuple[str, Markup]]:
    if facts is None:
        return []
    series = facts["total"]["series"]
    rates = [
        Line(text, per_second(facts, series, name, now))
        for text, name in (("submitted", "accepted"), ("done", "succeeded"), ("failed", "failed"))
    ]
    left = [Line("unfinished", unfinished(series, store["requests"] - store["replies"]))]
    return [
        ("Requests per second", chart("Requests per second", rates, rate)),
        ("Unfinished requests", chart("Unfinished requests", left, number)),
        *latency_charts(series),
    ]


# -- health -------------------------------------------------------------------------------------------------------


class QueueHealth(NamedTuple):
    """`level`: good, warning or critical. `problems`: sentences, each with what to do. `failing`: failing services."""

    level: str
    problems: list[str]
    failing: list[str]


def assess(
    sample: StatsSample, services: Sequence[ServiceRow], failing: Mapping[str, ServiceFacts] = MappingProxyType({})
) -> QueueHealth:
    """Report what `titanic health` would, and what needs an operator's attention."""
    stats, store = sample.stats, sample.stats["store"]
    critical, warnings = [], []
    if stats["disk_full"]:
        critical.append("The store's disk is full, so new requests are rejected. Free space on it.")
    elif not stats["accepting"]:
        critical.append("The store is full, so new requests are rejected. Delete ended requests or raise --capacity.")
    elif store["capacity"] and store["used"] > WARN_USED_SHARE * store["capacity"]:
        share = percent(store["used"], store["capacity"])
        warnings.append(f"The store is {share} full ({size(store['used'])}). Delete ended requests.")
    if sample.response_time > SLOW:
        warnings.append(f"The server took {span(sample.response_time)} to respond. Its machine or disk is busy.")
    if lacking := [service for service in services if service.lacks_workers]:
        lacking.sort(key=_waiting, reverse=True)
        names = _named([f"{short(service.name, 60)} ({service.waiting:,} waiting)" for service in lacking])
        verb = "has" if len(lacking) == 1 else "have"
        warnings.append(f"{names} {verb} no workers. Start one, or find out why they stopped.")
    if paused := [service for service in services if service.paused and service.waiting]:
        names = _named([short(service.name, 60) for service in paused])
        verb = "is" if len(paused) == 1 else "are"
        each = "it" if len(paused) == 1 else "each"
        warnings.append(f"{names} {verb} paused with requests waiting. Resume {each} on its page.")
    worst = sorted(failing, key=lambda name: failing[name]["failed"], reverse=True)
    if worst:
        names = _named([f"{short(name, 60)} ({_outcomes(failing[name])})" for name in worst])
        warnings.append(f"Failing in the last {RECENTLY / 60:.0f} minutes: {names}.")
    level = "critical" if critical else "warning" if warnings else "good"
    return QueueHealth(level, critical + warnings, worst)


def _outcomes(figures: ServiceFacts) -> str:
    retried = f"{figures['retried']:,} retried, " if figures["retried"] else ""
    return f"{figures['failed']:,} failed, {retried}{figures['succeeded']:,} done"


def _named(names: Sequence[str]) -> str:
    more = f" and {counted(len(names) - NAMED, 'other service')}" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _waiting(service: ServiceRow) -> int:
    return service.waiting


# -- the store ----------------------------------------------------------------------------------------------------


async def store(request: Request) -> Response:
    """Show the store's usage and durability, the archive's lag, the nodes, and how to make a backup."""
    state, visitor = app_state(request), visitor_of(request)
    sample, nodes, archive = await asyncio.gather(
        unless_forbidden("the store's usage", state.stats_poller.sample(visitor)),
        unless_forbidden("nodes", visitor.client.nodes()),
        unless_forbidden("the archive", visitor.client.archive()),
    )
    stats: dict[str, Any] | None = None if isinstance(sample, NotPermitted) else sample.stats
    path = stats["store"]["path"] if stats else ""
    return state.page(
        request,
        "store.html",
        stats=stats,
        nodes=None if isinstance(nodes, NotPermitted) else nodes,
        archive=None if isinstance(archive, NotPermitted) else archive,
        missing=[one for one in (sample, nodes, archive) if isinstance(one, NotPermitted)],
        durability=DURABILITY.get(stats["durability"], "") if stats else "",
        database=path.startswith(("postgresql:", "postgres:")),
    )


ROUTES = [Route("/", overview), Route("/store", store)]
