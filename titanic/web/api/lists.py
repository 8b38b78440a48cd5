"""Paged lists of requests and services. Each page links to the next one."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from titanic.protocol.answers import RequestInfo
from titanic.protocol.submit_options import MOST_UUIDS
from titanic.util.text import quoted
from titanic.web.api.requests import described
from titanic.web.api.resource import ApiRoute
from titanic.web.api.responses import json_response, query_uuid, timestamp
from titanic.web.api.schemas import (
    COUNT,
    PATH,
    STATES,
    TEXT,
    answer,
    header,
    listed,
    parameter,
    record,
    ref,
    wrong,
)
from titanic.web.app_state import app_state, visitor_of
from titanic.web.problems import Problem
from titanic.web.request_headers import read_integer, read_query

PAGE_TIMEOUT = 1.0
"""Seconds for which a page searches for rare matches: the server scans some thousands of requests per call."""

PAGE = 100
"""Default number of rows on a page."""


def page_size(given: dict[str, str]) -> int:
    """The requested number of rows. Raises Problem."""
    return read_integer("limit", given["limit"], 1, MOST_UUIDS) if "limit" in given else PAGE


def page(path: str, name: str, rows: list[Any], given: dict[str, str], after: str | None) -> Response:
    """Make a page. `given`: the query. `after`: where the next page starts; None: this is the last."""
    following = None if after is None else f"{path}?{urlencode({**given, 'after': after}, quote_via=quote)}"
    headers = None if following is None else {"Link": f'<{following}>; rel="next"'}
    return json_response({name: rows, "next": following}, headers=headers)


async def get_requests(request: Request) -> Response:
    """List stored requests, oldest or newest first."""
    given = read_query(request, ("service", "state", "text", "newest", "after", "limit"))
    limit = page_size(given)
    if (state := given.get("state")) is not None and state not in STATES:
        raise Problem(400, f"state is {quoted(state)}; it must be one of {', '.join(STATES)}")
    if given.get("service") == "":
        raise Problem(400, "service is empty; name one, or leave it out for all")
    if (newest := given.get("newest", "false")) not in ("true", "false"):
        raise Problem(400, f"newest is {quoted(newest)}; it must be true or false")
    if (after := given.get("after")) is not None:
        after = query_uuid("after", after)
    client, rows, until = visitor_of(request).client, list[RequestInfo](), time.monotonic() + PAGE_TIMEOUT
    while True:
        found, after = await client.list(
            service=given.get("service"),
            state=state,
            text=given.get("text"),
            newest=newest == "true",
            after=after,
            limit=limit - len(rows),
        )
        rows += found
        if after is None or len(rows) >= limit or time.monotonic() >= until:
            break
    return page("/v1/requests", "requests", [described(row) for row in rows], given, after)


async def get_services(request: Request) -> Response:
    """List the services by name: those with stored requests or workers."""
    given = read_query(request, ("after", "limit"))
    limit = page_size(given)
    stats = (await app_state(request).stats_poller.sample(visitor_of(request))).stats
    names = sorted(name for name in stats["services"] if name > given.get("after", ""))
    rows = [_service(name, stats["services"][name]) for name in names[:limit]]
    return page("/v1/services", "services", rows, given, names[limit - 1] if len(names) > limit else None)


def _service(name: str, figures: Any) -> dict[str, Any]:
    known = figures if isinstance(figures, dict) else {"waiting": figures}
    path = quote(name, safe="")
    if not name.strip("."):  # `.` and `..` would be resolved as folders
        path = path.replace(".", "%2E")
    found = {"requests": f"/v1/requests?service={path}", "submit": f"/v1/services/{path}/requests"}
    return {"name": name, **known, "links": found}


async def get_stats(request: Request) -> Response:
    """Get the statistics of the server."""
    read_query(request, ())
    stats = (await app_state(request).stats_poller.sample(visitor_of(request))).stats
    rows = stats.get("by_service") or {}
    by_service = {name: {**row, "oldest": timestamp(row["oldest"])} for name, row in rows.items()}
    return json_response({**stats, "by_service": by_service})


_LINK = {"Link": header("The next page, as `next` (RFC 8288).", required=False)}
_LIMIT = parameter(
    "query", "limit", "Rows on a page.", {"type": "integer", "minimum": 1, "maximum": MOST_UUIDS, "default": PAGE}
)
_NEXT = {"type": ["string", "null"], "description": "The next page; null: this is the last."}
_SERVICE = record(
    {"name": TEXT, "waiting": COUNT, "links": record({"requests": PATH, "submit": PATH})},
)


def _paged(name: str, row: dict[str, Any]) -> dict[str, Any]:
    return {"200": answer("A page.", record({name: listed(row), "next": _NEXT}), _LINK), **wrong()}


def _asked(name: str, text: str, **schema: Any) -> dict[str, Any]:
    return parameter("query", name, text, {"type": "string", **schema})


PATHS: dict[str, dict[str, Any]] = {
    "/v1/requests": {
        "get": {
            "operationId": "list",
            "summary": "List stored requests, oldest first",
            "description": "A page may be short, or empty, and yet have a next one.",
            "parameters": [
                _asked("service", "Only of this service.", minLength=1),
                _asked("state", "Only in this state.", enum=list(STATES)),
                _asked("text", "Only with this text in the reason or the key, ignoring case."),
                parameter("query", "newest", "Newest first.", {"type": "boolean", "default": False}),
                _asked("after", "Where the page starts: taken from `next`.", pattern="^[0-9a-fA-F]{32}$"),
                _LIMIT,
            ],
            "responses": _paged("requests", ref("schemas", "Request")),
        }
    },
    "/v1/services": {
        "get": {
            "operationId": "services",
            "summary": "List the services with stored requests or workers",
            "parameters": [_asked("after", "Where the page starts: taken from `next`."), _LIMIT],
            "responses": _paged("services", _SERVICE),
        }
    },
    "/v1/stats": {
        "get": {
            "operationId": "stats",
            "summary": "Get statistics of the server",
            "responses": {"200": answer("The document of `titanic.stats`.", {"type": "object"}), **wrong()},
        }
    },
}

ROUTES = [
    ApiRoute("/v1/requests", GET=get_requests),
    ApiRoute("/v1/services", GET=get_services),
    ApiRoute("/v1/stats", GET=get_stats),
]
