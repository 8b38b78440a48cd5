"""One service: its requests by state, how many and how long, and who works."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.errors import TitanicError
from titanic.protocol.answers import RequestInfo
from titanic.web.figures.history import HOUR, ServiceCounts, grown
from titanic.web.figures.latency import recently_done, times_of
from titanic.web.gateway import Gateway, gateway_of, visitor_of
from titanic.web.hooks.silence import Settings, sources, why_silent
from titanic.web.pages import forms
from titanic.web.pages.asking import Missing, unless_forbidden
from titanic.web.pages.charts import Line, chart
from titanic.web.pages.figures import service_of
from titanic.web.problems import Problem
from titanic.web.words import number, rate, service_url

PARTS = 30
"""Points of a chart: one for two minutes."""

STATES = ("waiting", "delayed", "running", "done", "failed", "expired")

LEAST = 10.0
"""Seconds over which rates are told."""

TOLD = {
    "pause": "It is paused: its requests wait until it is resumed. What workers have goes on.",
    "resume": "It is resumed: workers get its requests again.",
    "ends": "It is set. It holds for requests that end from now on.",
}
"""What is told after an action."""

Trend = Sequence[tuple[float, ServiceCounts]]

FAILURES = 5
"""Of the failures, the youngest."""


async def service(request: Request) -> Response:
    """The page."""
    gateway, visitor = gateway_of(request), visitor_of(request)
    name = request.path_params["name"] or request.query_params.get("name", "")
    if not name:
        raise Problem(404, "no service is named; choose one from the list of services")
    looks, done = gateway.looks, partial(recently_done, visitor.client, name)
    sample, rows, failures = await asyncio.gather(
        unless_forbidden("what waits and who works", gateway.live.sample(visitor)),
        unless_forbidden("how long its requests take", looks.share(request, "done", done)),
        unless_forbidden("its failures", looks.share(request, "failures", partial(_failures, visitor.client, name))),
    )
    known = None if isinstance(sample, Missing) else service_of(sample, name)
    trend = [] if isinstance(sample, Missing) else gateway.live.history.trend(name)
    counts = None if isinstance(sample, Missing) else sample.services().get(name)
    settings = {} if isinstance(sample, Missing) else sample.stats.get("settings") or {}
    now = time.time()
    return gateway.page(
        request,
        "service.html",
        name=name,
        missing=_missing(sample, rows),
        service=known,
        states=STATES,
        times=None if isinstance(rows, Missing) else times_of(rows),
        span_of_rows=None if isinstance(rows, Missing) else _begun(rows),
        failures=None if isinstance(failures, Missing) else failures,
        rates=_rates(trend, counts, now),
        charts=_charts(trend, None if known is None else known.waiting, now),
        sources=sources(settings, name),
        silent=None
        if known is None
        else await looks.share(request, "hooks", partial(_silent, gateway, settings, name)),
    )


async def pause(request: Request) -> Response:
    """Pause a service, or resume it."""
    form = await forms.read(request)
    name, do = form.get("service", ""), form.get("do", "")
    if not name or do not in ("pause", "resume"):
        raise Problem(400, "nothing was changed: the form says neither pause nor resume; open its page again")
    await visitor_of(request).client.set_service(name, paused=do == "pause")
    return _back(request, name, do)


async def set_ends(request: Request) -> Response:
    """Set which service is told of the ends of this one's requests; empty: none."""
    form = await forms.read(request)
    name = form.get("service", "")
    if not name or "on_end" not in form:
        raise Problem(400, "nothing was changed: the form names no service; open its page again")
    await visitor_of(request).client.set_service(name, on_end=form["on_end"].strip())
    return _back(request, name, "ends")


def _back(request: Request, name: str, told: str) -> Response:
    gateway = gateway_of(request)
    gateway.live.forget()
    return gateway.to(request, service_url(name), TOLD[told])


def _missing(*found: object) -> list[Missing]:
    return [one for one in found if isinstance(one, Missing)]


async def _failures(client: Client, name: str) -> list[RequestInfo]:
    rows, _ = await client.list(service=name, state="failed", newest=True, limit=FAILURES)
    return rows


async def _silent(gateway: Gateway, settings: Settings, name: str) -> tuple[int, str] | None:
    """How many web hooks of a service are told nothing, and why; None: there are none, or it is not known."""
    why = why_silent(settings, name)
    if gateway.hooks is None or not why:
        return None
    with suppress(TitanicError):  # who delivers hooks may lack what it takes to find them
        if hooks := await gateway.hooks.of_service(name):
            return len(hooks), why
    return None


def _begun(rows: Sequence[RequestInfo]) -> int | None:
    """When the first of these ended."""
    return min((row["finished_at"] for row in rows if row["finished_at"]), default=None)


def _rates(trend: Trend, now: ServiceCounts | None, at: float) -> tuple[float, float] | None:
    """Done and failed a second in the last minutes; None: not known yet."""
    before = next(((then, counts) for then, counts in reversed(trend) if at - then >= LEAST), None)
    return None if before is None or now is None else _between(before, (at, now))


def _between(before: tuple[float, ServiceCounts], after: tuple[float, ServiceCounts]) -> tuple[float, float]:
    elapsed = after[0] - before[0]
    return (
        grown(before[1].done, after[1].done) / elapsed,
        grown(before[1].failed, after[1].failed) / elapsed,
    )


def _charts(trend: Trend, waiting: int | None, now: float) -> list[tuple[str, Markup]]:
    levels: list[float | None] = [None] * PARTS
    done: list[float | None] = [None] * PARTS
    failed: list[float | None] = [None] * PARTS
    for n, (at, counts) in enumerate(trend):
        part = math.floor((at - now + HOUR) * PARTS / HOUR)
        if part < 0:
            continue
        part = min(part, PARTS - 1)
        levels[part] = counts.waiting
        if n and at > trend[n - 1][0]:
            done[part], failed[part] = _between(trend[n - 1], trend[n])
    if waiting is not None:
        levels[-1] = waiting
    return [
        ("Waiting", chart("Waiting", [Line("waiting", levels)], number)),
        ("Done and failed per second", chart("Per second", [Line("done", done), Line("failed", failed)], rate)),
    ]


ROUTES = [
    Route("/services/{name:path}", service),
    Route("/actions/services", pause, methods=["POST"]),
    Route("/actions/services/ends", set_ends, methods=["POST"]),
]
