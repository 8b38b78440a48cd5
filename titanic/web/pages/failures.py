"""Failures, grouped by error and service, as the server has counted them. Users who may read only their own requests
see groups of their newest failures."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.errors import InvalidRequest
from titanic.facts.groups import MAX_TEXT, first_line, normalize
from titanic.protocol.documents import FailureGroupInfo, RequestInfo
from titanic.web.app_state import app_state, visitor_of
from titanic.web.problems import HTTPProblem
from titanic.web.request_filter import BATCH, SEARCH_TIMEOUT, FoundRequests, RequestFilter, check_after, find_some
from titanic.web.template_filters import bars

MAX_FAILURES = 1000
"""Requests that are fetched in a state."""

MAX_CALLS = 3
"""Calls that are made to fetch them, because a page may be short."""

LISTED = 100
"""Groups that are listed, and requests of a group on a page."""

PARTS = 30
"""Bars of a chart."""

HOUR_US = 3_600_000_000
"""Microseconds that a bar covers, at least."""

SPANS = {"hour": (3600, "in the last hour"), "day": (86_400, "in the last day"), "week": (604_800, "in the last week")}

KEPT = 28 * 86_400
"""Seconds for which the server keeps groups."""


@dataclass(slots=True)
class FailureGroup:
    """Failures of one service with the same normalized error. Times are in microseconds since 1970."""

    service: str
    state: str
    text: str
    title: str
    """The error; without gaps when all have the same."""
    count: int
    first: int
    """When the first of them ended."""
    last: int
    points: list[tuple[int, int]]
    """Times, and how many failed then."""
    retries_only: bool = False
    """Whether all of them were attempts that were followed by another: no request has failed."""

    @property
    def id(self) -> str:
        """Its name in URLs."""
        name = "\0".join((self.service, self.state, self.text))
        return hashlib.sha256(name.encode(errors="replace")).hexdigest()[:16]


class FoundGroups(NamedTuple):
    """The groups, the largest first."""

    groups: list[FailureGroup]
    counted: bool
    """Whether the server has counted them; else they are those of the newest failures."""
    omitted: int = 0
    """Further groups."""


async def _newest(client: Client, state: str, service: str | None) -> list[RequestInfo]:
    rows: list[RequestInfo] = []
    after: str | None = None
    for _ in range(MAX_CALLS):
        limit = MAX_FAILURES - len(rows)
        page, after = await client.list(state=state, service=service, newest=True, limit=limit, after=after)
        rows += page
        if after is None or len(rows) >= MAX_FAILURES:
            break
    return rows


async def _find(request: Request, service: str | None, span: str) -> FoundGroups:
    visitor = visitor_of(request)
    client = visitor.client
    seconds = SPANS[span][0] if span in SPANS else KEPT
    since = _since(span)
    facts = None
    if app_state(request).identity.reads_all(visitor.user):
        with suppress(InvalidRequest):  # the server is of an older version
            facts = await client.facts(seconds, of=[service] if service else [], failures=True)
    if facts is not None and "failures" in facts:
        found = [_counted(one, since) for one in facts["failures"]]
        return FoundGroups(sorted(found, key=_weight, reverse=True), True, facts["failures_omitted"])
    rows = [row for state in ("failed", "expired") for row in await _newest(client, state, service)]
    return FoundGroups(group_failures(row for row in rows if row["finished_at"] >= since), False)


def _since(span: str) -> int:
    """The earliest end of failures that are shown; 0: any."""
    return int((time.time() - SPANS[span][0]) * 1e6) if span in SPANS else 0


def _counted(group: FailureGroupInfo, since: int) -> FailureGroup:
    """A group as the server has counted it, of the failures since then."""
    points = [(at, count) for at, count in group["hours"] if at + HOUR_US > since]
    count = group["failed"] + group["retried"] if group["first"] >= since else sum(count for _, count in points)
    name, title = group["service"] or "", group["text"] if count > 1 else group["example"] or group["text"]
    first, retried = max(since, group["first"]), not group["failed"]
    return FailureGroup(name, group["state"], group["text"], title, count, first, group["last"], points, retried)


async def failures(request: Request) -> Response:
    """List the groups."""
    service, span = _query(request)
    found = await app_state(request).cache.get(request, "failures", _find, request, service or None, span)
    groups = found.groups
    now = int(time.time() * 1e6)
    since = now - SPANS[span][0] * 1_000_000 if span in SPANS else min((one.first for one in groups), default=now)
    until = now if span in SPANS else max((one.last for one in groups), default=now)
    shown = groups[:LISTED]
    begins, ends = chart_span(since, until)
    counts = {one.id: histogram(one.points, begins, ends, PARTS) for one in shown}
    most = max((max(each) for each in counts.values()), default=0) or 1
    return app_state(request).page(
        request,
        "failures.html",
        groups=shown,
        total=sum(one.count for one in groups),
        others=len(groups[LISTED:]) + found.omitted,
        charts={one: bars(each, "Failures over time", most) for one, each in counts.items()},
        most=most,
        found=found,
        service=service,
        span=span,
        spans={name: text for name, (_, text) in SPANS.items()},
        query=_suffix(service, span),
        since=since,
        until=until,
        begins=begins,
    )


def chart_span(since: int, until: int) -> tuple[int, int]:
    """The time that a chart covers: failures are counted by hour, so a bar is no less than that."""
    ends = until - until % HOUR_US + HOUR_US
    return min(since, ends - PARTS * HOUR_US), ends


def _query(request: Request) -> tuple[str, str]:
    return request.query_params.get("service", "")[:255], request.query_params.get("span", "")


def _suffix(service: str, span: str, after: str = "") -> str:
    given = {name: value for name, value in (("service", service), ("span", span), ("after", after)) if value}
    return f"?{urlencode(given)}" if given else ""


async def _group(request: Request) -> tuple[FailureGroup, FoundRequests]:
    """The group of this page, and up to LISTED of its requests, the newest first."""
    service, span = _query(request)
    after = request.query_params.get("after")
    check_after(after)
    found = await _find(request, service or None, span)
    wanted = request.path_params["group"]
    chosen = next((one for one in found.groups if one.id == wanted), None)
    if chosen is None:
        raise HTTPProblem(404, "these failures are gone: they were retried or closed, or are too old; see /failures")
    return chosen, await _members(visitor_of(request).client, chosen, _since(span), after)


async def _members(client: Client, group: FailureGroup, since: int, after: str | None) -> FoundRequests:
    """Find requests of a group that ended since then. Other errors of a busy service may lie between them: a page
    searches for SEARCH_TIMEOUT at most, and the next one continues."""
    if not group.service:  # services that the server has not counted by name
        return FoundRequests([], None)
    wanted = RequestFilter(service=group.service, state=group.state)
    rows: list[RequestInfo] = []
    until = time.monotonic() + SEARCH_TIMEOUT
    while True:
        found, after = await find_some(client, wanted, after, BATCH)
        rows += [
            row for row in found if row["finished_at"] >= since and normalize(row["reason"], group.state) == group.text
        ]
        if len(rows) > LISTED:
            return FoundRequests(rows[:LISTED], rows[LISTED - 1]["uuid"])
        if after is None or len(rows) == LISTED or time.monotonic() >= until:
            return FoundRequests(rows, after)


async def group_page(request: Request) -> Response:
    """Show a group."""
    chosen, found = await _group(request)
    begins, ends = chart_span(chosen.first, chosen.last)
    counts = histogram(chosen.points, begins, ends, PARTS)
    after = request.query_params.get("after", "")
    return app_state(request).page(
        request,
        "failures_group.html",
        group=chosen,
        rows=found.rows,
        query=_suffix(*_query(request)),
        next=request.url.path + _suffix(*_query(request), found.after) if found.after else "",
        start=request.url.path + _suffix(*_query(request)) if after else "",
        chart=bars(counts, "Failures over time"),
        begins=begins,
        most=max(counts),
    )


# -- grouping -----------------------------------------------------------------------------------------------------


def group_failures(rows: Iterable[RequestInfo]) -> list[FailureGroup]:
    """Group failures, the largest group first."""
    groups: dict[tuple[str, str, str], list[RequestInfo]] = {}
    for row in rows:
        state = str(row["state"])
        groups.setdefault((row["service"], state, normalize(row["reason"], state)), []).append(row)
    found = []
    for (service, state, text), members in groups.items():
        ends = [row["finished_at"] for row in members]
        lines = {first_line(row["reason"]) for row in members}
        title = (" ".join(lines.pop().split())[:MAX_TEXT] if len(lines) == 1 else "") or text
        points = [(end, 1) for end in ends]
        found.append(FailureGroup(service, state, text, title, len(members), min(ends), max(ends), points))
    return sorted(found, key=_weight, reverse=True)


def _weight(one: FailureGroup) -> tuple[int, int]:
    return one.count, one.last


def histogram(points: Sequence[tuple[int, int]], since: int, until: int, parts: int) -> list[int]:
    """Divide the time between two moments into parts and count the failures in each."""
    counts = [0] * parts
    width = max(1, until - since) / parts
    for at, count in points:
        counts[min(max(int((at - since) / width), 0), parts - 1)] += count
    return counts


ROUTES = [
    Route("/failures", failures),
    Route("/failures/{group}", group_page),
]
