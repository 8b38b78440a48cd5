"""What has failed, grouped by error and service: a bounded look at the newest of what failed and expired."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.protocol.answers import RequestInfo
from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.pages.bulk import confirm
from titanic.web.pages.choosing import Choice
from titanic.web.pages.grouping import Group, group, spread
from titanic.web.problems import Problem
from titanic.web.words import counted

MOST = 1000
"""Requests that are looked at in each of the two states."""

PAGES = 3
"""Pages that are asked for to get them: a page may be short."""

LISTED = 100
"""Requests of a group that its page lists."""

PARTS = 30
"""Bars of a chart."""

SPANS = {"hour": (3600, "the last hour"), "day": (86_400, "the last day"), "week": (604_800, "the last week")}


class Found(NamedTuple):
    """What a look has found."""

    rows: list[RequestInfo]
    all: bool
    """Whether that is all there is."""
    oldest: int
    """When the one that was submitted first was submitted."""


async def _newest(client: Client, state: str, service: str | None) -> tuple[list[RequestInfo], bool]:
    rows: list[RequestInfo] = []
    after: str | None = None
    for _ in range(PAGES):
        page, after = await client.list(state=state, service=service, newest=True, limit=MOST - len(rows), after=after)
        rows += page
        if after is None or len(rows) >= MOST:
            break
    return rows, after is None


async def _look(client: Client, service: str | None, span: str) -> Found:
    failed, all_failed = await _newest(client, "failed", service)
    expired, all_expired = await _newest(client, "expired", service)
    rows = [*failed, *expired]
    oldest = min((row["submitted_at"] for row in rows), default=0)
    if span in SPANS:
        since = (time.time() - SPANS[span][0]) * 1e6
        rows = [row for row in rows if row["finished_at"] >= since]
    return Found(rows, all_failed and all_expired, oldest)


async def failures(request: Request) -> Response:
    """The groups."""
    service, span = _wanted(request)
    ask = partial(_look, visitor_of(request).client, service or None, span)
    found = await gateway_of(request).looks.share(request, "failures", ask)
    groups = group(found.rows)
    ends = [row["finished_at"] for row in found.rows]
    now = int(time.time() * 1e6)
    since = now - SPANS[span][0] * 1_000_000 if span in SPANS else min(ends, default=now)
    until = now if span in SPANS else max(ends, default=now)
    charts = {one.id: bars(spread(one.rows, since, until, PARTS), "Failures over time") for one in groups}
    return gateway_of(request).page(
        request,
        "failures.html",
        groups=groups[:LISTED],
        others=len(groups[LISTED:]),
        charts=charts,
        found=found,
        service=service,
        span=span,
        spans={name: text for name, (_, text) in SPANS.items()},
        query=_query(service, span),
        since=since,
        until=until,
    )


def _wanted(request: Request) -> tuple[str, str]:
    return request.query_params.get("service", "")[:255], request.query_params.get("span", "")


def _query(service: str, span: str) -> str:
    given = {name: value for name, value in (("service", service), ("span", span)) if value}
    return f"?{urlencode(given)}" if given else ""


async def _group(request: Request) -> Group:
    service, span = _wanted(request)
    found = await _look(visitor_of(request).client, service or None, span)
    wanted = request.path_params["group"]
    chosen = next((one for one in group(found.rows) if one.id == wanted), None)
    if chosen is None:
        raise Problem(
            404, "these failures are not there any more; they were retried, closed, or are too old; see /failures"
        )
    return chosen


async def group_page(request: Request) -> Response:
    """The failures of one group."""
    chosen = await _group(request)
    service, span = _wanted(request)
    chart = bars(spread(chosen.rows, chosen.first, chosen.last, PARTS), "Failures over time", small=False)
    return gateway_of(request).page(
        request,
        "failures_group.html",
        group=chosen,
        rows=chosen.rows[:LISTED],
        query=_query(service, span),
        chart=chart,
    )


async def retry_page(request: Request) -> Response:
    """Asks whether all of a group are to be retried. The form names them, so that no more are than it says."""
    chosen = await _group(request)
    choice = Choice(service=chosen.service, state=chosen.state)
    back = f"/failures/{chosen.id}{_query(*_wanted(request))}"
    return confirm(request, "retry", choice, [row["uuid"] for row in chosen.rows], chosen.title, back)


def bars(counts: list[int], what: str, *, small: bool = True) -> Markup:
    """A bar for each part of a time."""
    most, height = max(counts, default=0) or 1, 24 if small else 60
    width = 4 if small else 20
    parts = [
        Markup('<rect x="{}" y="{:.1f}" width="{}" height="{:.1f}"/>').format(
            at * width, height - height * count / most, width - 1, height * count / most
        )
        for at, count in enumerate(counts)
        if count
    ]
    label = f"{what}: {counted(sum(counts), 'failure')}, {max(counts, default=0):,} at most at a time"
    head = Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        "bars small" if small else "bars", width * len(counts), height, label
    )
    return head + Markup("").join(parts) + Markup("</svg>")


ROUTES = [
    Route("/failures", failures),
    Route("/failures/{group}", group_page),
    Route("/failures/{group}/retry", retry_page),
]
