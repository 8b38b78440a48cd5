"""The first page: what waits, runs and fails now, and how that was in the last hour."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.protocol.answers import RequestInfo
from titanic.web.figures.history import STEP, History
from titanic.web.figures.latency import Moment
from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.pages.asking import Missing, unless_forbidden
from titanic.web.pages.charts import Line, chart, spark
from titanic.web.pages.figures import Service, services_of
from titanic.web.pages.health import judge
from titanic.web.words import number, rate, span

MOST_PARTS = 120
"""Points of a chart: one for each half minute of an hour."""

TOP = 12
"""Services that are shown."""


async def overview(request: Request) -> Response:
    """The page."""
    gateway, visitor = gateway_of(request), visitor_of(request)
    oldest = await unless_forbidden(
        "the oldest request that waits", gateway.looks.share(request, "oldest", partial(_oldest, visitor.client))
    )
    sample = await unless_forbidden("what waits, runs and fails, and the services", gateway.live.sample(visitor))
    if isinstance(sample, Missing):
        missing = [one for one in (sample, oldest) if isinstance(one, Missing)]
        return gateway.page(request, "overview.html", stats=None, missing=missing)
    hour = await unless_forbidden("how long requests take", gateway.live.latencies.look(visitor.user, visitor.client))
    services, history = services_of(sample), gateway.live.history
    busiest = sorted(services, key=_importance, reverse=True)[:TOP]
    return gateway.page(
        request,
        "overview.html",
        stats=sample.stats,
        rates=history.now(),
        health=judge(sample, services),
        oldest=None if isinstance(oldest, Missing) else oldest,
        missing=[oldest] if isinstance(oldest, Missing) else [],
        services=busiest,
        trends=_trends(history, busiest),
        others=len(services) - len(busiest),
        charts=_charts(history, () if isinstance(hour, Missing) else hour, time.time()),
    )


def _importance(service: Service) -> tuple[int, int]:
    return service.waiting, service.workers or 0


async def _oldest(client: Client) -> RequestInfo | None:
    """The request that has waited longest, if it is near the beginning of the list."""
    after = None
    for _ in range(5):  # a page can be empty and yet not the last
        rows, after = await client.list(state="waiting", limit=1, after=after)
        if rows or after is None:
            return rows[0] if rows else None
    return None


def _trends(history: History, services: Sequence[Service]) -> dict[str, Markup]:
    return {
        one.name: spark(
            [*(counts.waiting for _, counts in history.trend(one.name)), one.waiting], f"{one.name}, waiting"
        )
        for one in services
    }


def _charts(history: History, hour: Sequence[Moment], now: float) -> list[tuple[str, Markup]]:
    length = history.length(now)
    parts = min(MOST_PARTS, int(length / STEP))
    rates, levels = history.rates(now, parts, length), history.levels(now, parts, length)
    a_second = [
        Line("submitted", [one.submitted for one in rates]),
        Line("done", [one.done for one in rates]),
        Line("failed", [one.failed for one in rates]),
    ]
    waiting = [
        Line("waiting", [one and one[0] for one in levels]),
        Line("running", [one and one[1] for one in levels]),
    ]
    moments = _in_parts(hour, now, parts, length)
    latency = [
        Line("half wait no longer than", [one and one.waited for one in moments]),
        Line("half run no longer than", [one and one.ran for one in moments]),
        Line("90 % take no longer than", [one and one.took for one in moments]),
    ]
    return [
        ("Requests per second", chart("Requests per second", a_second, rate, length)),
        ("Waiting and running", chart("Waiting and running", waiting, number, length)),
        ("How long requests take", chart("How long requests take", latency, span, length)),
    ]


def _in_parts(hour: Sequence[Moment], now: float, parts: int, length: float) -> list[Moment | None]:
    found: list[Moment | None] = [None] * parts
    for moment in hour:
        at = math.floor((moment.at - now + length) * parts / length)
        if at >= 0:
            found[min(at, parts - 1)] = moment
    return found


ROUTES = [Route("/", overview)]
