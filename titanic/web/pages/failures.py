"""Failures, grouped by error and service, from a bounded number of the requests that failed or expired last."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.protocol.answers import RequestInfo
from titanic.web.app_state import app_state, visitor_of
from titanic.web.pages.bulk import confirm
from titanic.web.problems import HTTPProblem
from titanic.web.request_filter import RequestFilter
from titanic.web.template_filters import bars

MAX_FAILURES = 1000
"""Requests that are fetched in each of the two states."""

MAX_CALLS = 3
"""Calls that are made to fetch them, because a page may be short."""

LISTED = 100
"""Groups that are listed, and requests of a group."""

PARTS = 30
"""Bars of a chart."""

SPANS = {"hour": (3600, "in the last hour"), "day": (86_400, "in the last day"), "week": (604_800, "in the last week")}


class Failures(NamedTuple):
    """The failures that were fetched."""

    rows: list[RequestInfo]
    all: bool
    """Whether there are no others."""
    oldest: int
    """When the oldest of them was submitted."""


async def _newest(client: Client, state: str, service: str | None) -> tuple[list[RequestInfo], bool]:
    rows: list[RequestInfo] = []
    after: str | None = None
    for _ in range(MAX_CALLS):
        limit = MAX_FAILURES - len(rows)
        page, after = await client.list(state=state, service=service, newest=True, limit=limit, after=after)
        rows += page
        if after is None or len(rows) >= MAX_FAILURES:
            break
    return rows, after is None


async def _fetch(client: Client, service: str | None, span: str) -> Failures:
    failed, all_failed = await _newest(client, "failed", service)
    expired, all_expired = await _newest(client, "expired", service)
    rows = [*failed, *expired]
    oldest = min((row["submitted_at"] for row in rows), default=0)
    if span in SPANS:
        since = (time.time() - SPANS[span][0]) * 1e6
        rows = [row for row in rows if row["finished_at"] >= since]
    return Failures(rows, all_failed and all_expired, oldest)


async def failures(request: Request) -> Response:
    """List the groups."""
    service, span = _query(request)
    client = visitor_of(request).client
    found = await app_state(request).cache.get(request, "failures", _fetch, client, service or None, span)
    groups = group_failures(found.rows)
    ends = [row["finished_at"] for row in found.rows]
    now = int(time.time() * 1e6)
    since = now - SPANS[span][0] * 1_000_000 if span in SPANS else min(ends, default=now)
    until = now if span in SPANS else max(ends, default=now)
    charts = {one.id: bars(histogram(one.rows, since, until, PARTS), "Failures over time") for one in groups}
    return app_state(request).page(
        request,
        "failures.html",
        groups=groups[:LISTED],
        others=len(groups[LISTED:]),
        charts=charts,
        found=found,
        service=service,
        span=span,
        spans={name: text for name, (_, text) in SPANS.items()},
        query=_suffix(service, span),
        since=since,
        until=until,
    )


def _query(request: Request) -> tuple[str, str]:
    return request.query_params.get("service", "")[:255], request.query_params.get("span", "")


def _suffix(service: str, span: str) -> str:
    given = {name: value for name, value in (("service", service), ("span", span)) if value}
    return f"?{urlencode(given)}" if given else ""


async def _group(request: Request) -> FailureGroup:
    service, span = _query(request)
    found = await _fetch(visitor_of(request).client, service or None, span)
    wanted = request.path_params["group"]
    chosen = next((one for one in group_failures(found.rows) if one.id == wanted), None)
    if chosen is None:
        raise HTTPProblem(404, "these failures are gone: they were retried or closed, or are too old; see /failures")
    return chosen


async def group_page(request: Request) -> Response:
    """Show a group."""
    chosen = await _group(request)
    service, span = _query(request)
    chart = bars(histogram(chosen.rows, chosen.first, chosen.last, PARTS), "Failures over time", small=False)
    return app_state(request).page(
        request,
        "failures_group.html",
        group=chosen,
        rows=chosen.rows[:LISTED],
        query=_suffix(service, span),
        chart=chart,
    )


async def retry_page(request: Request) -> Response:
    """Ask for confirmation to retry a group. The form lists its requests, so that later failures are not retried."""
    chosen = await _group(request)
    matched = RequestFilter(service=chosen.service, state=chosen.state)
    back = f"/failures/{chosen.id}{_suffix(*_query(request))}"
    return confirm(request, "retry", matched, [row["uuid"] for row in chosen.rows], chosen.title, back)


# -- grouping -----------------------------------------------------------------------------------------------------

MAX_TEXT = 300
"""Characters of an error that are compared."""

GAP = "…"

VARIABLE = re.compile(
    r"""
      [0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}     # a UUID
    | \b[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s'"<>]{1,300}            # a URL
    | '[^'\n]{1,300}' | "[^"\n]{1,300}" | `[^`\n]{1,300}`          # quoted text
    | (?<![\w.])~?(?:/[\w.+@%=-]+){2,20}/?                       # a path
    | \b[A-Za-z]:\\[^\s'"]{1,300}
    | 0[xX][0-9a-fA-F]+
    | \b(?=[0-9a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{6,128}\b  # digits of a hash
    | (?:(?<!\w)[-+])?\d+(?:[.,:]\d+)*                               # a number, a time
    """,
    re.VERBOSE,
)
"""What differs between failures with the same cause."""


def normalize(reason: str) -> str:
    """The first line of an error, with a gap for each variable part."""
    text = VARIABLE.sub(GAP, _first_line(reason))
    return " ".join(text.split())[:MAX_TEXT]


def _first_line(reason: str) -> str:
    line = next((line.strip() for line in reason.splitlines() if line.strip()), "")
    return line[: 4 * MAX_TEXT]


@dataclass(slots=True)
class FailureGroup:
    """Failures of one service with the same normalized error."""

    service: str
    state: str
    text: str
    rows: list[RequestInfo] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Its name in URLs."""
        name = "\0".join((self.service, self.state, self.text))
        return hashlib.sha256(name.encode(errors="replace")).hexdigest()[:16]

    @property
    def title(self) -> str:
        """The error; without gaps when all have the same."""
        lines = {_first_line(row["reason"]) for row in self.rows}
        line = " ".join(lines.pop().split())[:MAX_TEXT] if len(lines) == 1 else ""
        return line or self.text

    @property
    def first(self) -> int:
        """When the first of them ended, in microseconds since 1970."""
        return min(row["finished_at"] for row in self.rows)

    @property
    def last(self) -> int:
        """When the last of them ended."""
        return max(row["finished_at"] for row in self.rows)


def group_failures(rows: Iterable[RequestInfo]) -> list[FailureGroup]:
    """Group failures, the largest group first."""
    groups: dict[tuple[str, str, str], FailureGroup] = {}
    for row in rows:
        state = str(row["state"])
        text = normalize(row["reason"]) or ("not started in time" if state == "expired" else "no error text")
        key = (row["service"], state, text)
        if key not in groups:
            groups[key] = FailureGroup(*key)
        groups[key].rows.append(row)
    return sorted(groups.values(), key=_weight, reverse=True)


def _weight(one: FailureGroup) -> tuple[int, int]:
    return len(one.rows), one.last


def histogram(rows: Sequence[RequestInfo], since: int, until: int, parts: int) -> list[int]:
    """Divide the time between two moments into parts and count the requests that ended in each."""
    counts = [0] * parts
    width = max(1, until - since) / parts
    for row in rows:
        at = int((row["finished_at"] - since) / width)
        if -1 <= at <= parts:
            counts[min(max(at, 0), parts - 1)] += 1
    return counts


ROUTES = [
    Route("/failures", failures),
    Route("/failures/{group}", group_page),
    Route("/failures/{group}/retry", retry_page),
]
