"""The overview of the queue with its health, and the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.errors import disk_trouble
from titanic.facts.service_health import (
    FIND_CAUSE,
    POISON,
    RECENTLY,
    SLOWER,
    RunTimes,
    is_failing,
    outcomes,
    slow_services,
)
from titanic.protocol.documents import FactsInfo, Filling, NodeInfo, RequestInfo, ServiceFacts, StoreStats
from titanic.web.app_state import app_state, visitor_of
from titanic.web.pages.forms import NotPermitted, unless_forbidden
from titanic.web.pages.services import ServiceRow, run_times_now, services_of
from titanic.web.stats import MAX_CACHE_TTL, StatsSample, current, latency_charts, per_second, unfinished
from titanic.web.template_filters import (
    Line,
    chart,
    counted,
    ends,
    number,
    percent,
    rate,
    sentence,
    service_url,
    size,
    span,
    spark,
)

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

FILLED = Markup(' <a href="/store">What fills the store</a>')

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
    recent, times = await poller.facts(visitor, RECENTLY), await run_times_now(request)
    failing = {} if recent is None else {name: one for name, one in recent["services"].items() if is_failing(one)}
    slower = [name for name, one in times.items() if one.is_slower]
    busiest = sorted(
        services, key=lambda one: (one.name in failing, one.name in slower, one.waiting, one.workers or 0), reverse=True
    )[:TOP]
    facts = await poller.facts(visitor, of=tuple(one.name for one in busiest))
    known = {} if facts is None else facts["services"]
    poison = await unless_forbidden(
        "requests that failed",
        state.cache.get(request, "poison", _poison, visitor.client, ttl=MAX_CACHE_TTL, opened=True),
    )
    nodes = await state.cache.get(request, "nodes", visitor.client.nodes) if "other_nodes" in sample.stats else None
    now = time.time()
    return state.page(
        request,
        "overview.html",
        stats=sample.stats,
        rates={one: current(facts, facts["total"], one, now) for one in RATES} if facts else {},
        health=assess(
            sample, services, failing, known, [] if isinstance(poison, NotPermitted) else poison, nodes or (), times
        ),
        oldest=None if isinstance(oldest, NotPermitted) else oldest,
        missing=[oldest] if isinstance(oldest, NotPermitted) else [],
        services=busiest,
        known=known,
        trends=_trends(facts, busiest),
        others=len(services) - len(busiest) + sample.stats.get("other", {}).get("services", 0),
        charts=_charts(facts, sample.stats["store"], now),
        incomplete=facts is not None and bool(facts["incomplete"]),
    )


async def _poison(client: Client) -> list[RequestInfo]:
    """Find the newest requests that killed their workers."""
    rows, _ = await client.list(state="failed", text=POISON, newest=True, limit=NAMED)
    return [row for row in rows if row["reason"].startswith(POISON)]


async def _oldest(client: Client) -> RequestInfo | None:
    """Find the request that has waited longest, if the server finds it soon."""
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
    """`level`: good, warning or critical. `problems`: sentences. `failing`, `paused`: services, the latter a few."""

    level: str
    problems: list[Markup]
    failing: list[str]
    paused: list[str]


def assess(
    sample: StatsSample,
    services: Sequence[ServiceRow],
    failing: Mapping[str, ServiceFacts],
    hour: Mapping[str, ServiceFacts],
    poison: Sequence[RequestInfo] = (),
    nodes: Sequence[NodeInfo] = (),
    times: Mapping[str, RunTimes] = MappingProxyType({}),
) -> QueueHealth:
    """Report what `titanic health` would, and what needs an operator's attention. `hour`: what services did in the
    last hour. `poison`: requests that killed their workers. `times`: how long services run."""
    stats, store = sample.stats, sample.stats["store"]
    critical, warnings = list[Markup](), list[Markup]()
    if stats["disk_full"]:
        critical.append(escape(disk_note(stats)) + FILLED)
    elif not stats["accepting"] or stats.get("refuses_for_room"):
        text = "The store is full, so new requests are rejected. Delete ended requests or raise --capacity."
        critical.append(text + FILLED)
    elif store["capacity"] and store["used"] > WARN_USED_SHARE * store["capacity"]:
        share = percent(store["used"], store["capacity"])
        warnings.append(f"The store is {share} full ({size(store['used'])}). Delete ended requests." + FILLED)
    if sample.response_time > SLOW:
        took = span(sample.response_time)
        warnings.append(Markup("The server took {} to respond. Its machine or disk may be busy.").format(took))
    worst = sorted(failing, key=lambda name: failing[name]["failed"], reverse=True)
    waiting = [one for one in sorted(services, key=attrgetter("waiting"), reverse=True) if one.waiting]
    slow = slow_services(stats, hour, times, time.time())
    paused = [one for one in waiting if one.paused]
    recently = f"Failing in the last {RECENTLY / 60:.0f} minutes: {{}}."
    found = {
        "Nodes that stopped without a clean shutdown: {}. Start them again.": [
            ("/store", node["name"], f"{counted(node['claims'] or 0, 'request')} claimed")
            for node in nodes
            if node["lease"] is None
        ],
        "No workers: {}. Start one, or find out why they disconnected.": [
            _waits(one) for one in waiting if one.lacks_workers
        ],
        "Paused with requests waiting: {}.": [*map(_waits, paused)],
        **{
            f"{SLOWER.capitalize()}: {{}}. {sentence(advice)}": [
                _waits(one) for one in waiting if slow.get(one.name) == advice
            ]
            for advice in slow.values()
        },
        f"Running longer than usual: {{}}. {sentence(FIND_CAUSE)}": [
            ("", name, one.text) for name, one in times.items() if one.is_slower
        ],
        "Poisoned requests (they killed their workers): {}. Delete them, or fix the code that handles them.": [
            (f"/requests/{row['uuid']}", row["service"], row["uuid"][-8:]) for row in poison
        ],
        recently: [("", name, outcomes(failing[name])) for name in worst],
    }
    for text, named in found.items():
        if named:
            more = f" and {counted(len(named) - NAMED, 'other')}" if len(named) > NAMED else ""
            warnings.append(Markup(text).format(Markup(", ").join(map(_link, named[:NAMED])) + more))
    level = "critical" if critical else "warning" if warnings else "good"
    return QueueHealth(level, critical + warnings, worst, [one.name for one in paused[:NAMED]])


def disk_note(stats: Mapping[str, Any]) -> str:
    """Why the disk takes nothing, and what to do."""
    what, fact, advice = disk_trouble(stats["store"]["path"], stats.get("disk_free", 0))
    return f"{sentence(what)} {sentence(fact)} New requests are rejected. {sentence(advice)}"


def _link(named: tuple[str, str, str]) -> Markup:
    """A link; the page of a service if it has no URL."""
    url, name, about = named
    return Markup('<a href="{}">{}</a> ({})').format(url or service_url(name), ends(name), about)


def _waits(service: ServiceRow) -> tuple[str, str, str]:
    return "", service.name, f"{service.waiting:,} waiting"


# -- the store ----------------------------------------------------------------------------------------------------


async def store(request: Request) -> Response:
    """Show the store's usage and durability, the archive's lag, the nodes, and how to make a backup."""
    state, visitor = app_state(request), visitor_of(request)
    sample, filled, nodes, archive = await asyncio.gather(
        unless_forbidden("the store's usage", state.stats_poller.sample(visitor)),
        unless_forbidden("what fills the store", state.cache.get(request, "filled by", _filled_by, visitor.client)),
        unless_forbidden("nodes", visitor.client.nodes()),
        unless_forbidden("the archive", visitor.client.archive()),
    )
    stats: dict[str, Any] | None = None if isinstance(sample, NotPermitted) else sample.stats
    path = stats["store"]["path"] if stats else ""
    return state.page(
        request,
        "store.html",
        stats=stats,
        filled_by=[] if isinstance(filled, NotPermitted) else filled,
        nodes=None if isinstance(nodes, NotPermitted) else nodes,
        archive=None if isinstance(archive, NotPermitted) else archive,
        missing=[one for one in (sample, nodes, archive) if isinstance(one, NotPermitted)],
        durability=DURABILITY.get(stats["durability"], "") if stats else "",
        database=path.startswith(("postgresql:", "postgres:")),
        disk_note=disk_note(stats) if stats and stats["disk_full"] else "",
    )


async def _filled_by(client: Client) -> list[Filling]:
    """Find the services that fill the store most."""
    return (await client.stats(filled_by=True)).get("filled_by", [])


ROUTES = [Route("/", overview), Route("/store", store)]
