"""Services, workers, statistics and the audit of the server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, cast
from urllib.parse import quote

from msgspec import Meta
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from titanic.errors import InvalidRequest
from titanic.protocol import tsp
from titanic.protocol.documents import AuditQuery, FailureGroupInfo, LimitValues
from titanic.web.api.openapi import (
    AFTER,
    FLAG,
    LIMIT,
    AuditRows,
    BoundsInForce,
    History,
    PutLimits,
    ScheduleList,
    ServiceLinks,
    ServicePage,
    Stats,
    WorkerList,
    answer,
    endpoint,
    paged,
    parameter,
    wrong,
)
from titanic.web.api.resource import (
    ApiRoute,
    flag,
    json_response,
    page,
    page_size,
    query_of,
    read_document,
    timestamp,
    with_times,
)
from titanic.web.app_state import app_state, visitor_of
from titanic.web.problems import HTTPProblem
from titanic.web.request_headers import ROOT, read_integer

MIN_LAST, MAX_LAST = 60, 28 * 86_400
"""Seconds of history that may be asked for."""

MAX_DOCUMENT = 4096
"""Bytes of a change of limits."""

MAX_AGE = 1_000_000_000
"""Seconds of the audit that may be asked for."""

_LAST = Annotated[int, Meta(ge=MIN_LAST, le=MAX_LAST, extra_json_schema={"default": 3600})]


def read_service(request: Request) -> str:
    """Read the service in the path. Raises HTTPProblem if the name is not valid."""
    service: str = request.scope["path_params"]["service"]
    if fault := tsp.request_fault([service.encode(), b""]):
        raise HTTPProblem(400, fault)
    return service


async def get_services(request: Request) -> Response:
    """List the services by name: those with stored requests or workers."""
    given = query_of(request)
    limit = page_size(given)
    stats = (await app_state(request).stats_poller.sample(visitor_of(request))).stats
    figures = _figures(stats) or {name: {"waiting": waiting} for name, waiting in stats["services"].items()}
    names = sorted(name for name in figures if name > given.get("after", ""))
    rows = [{"name": name, **figures[name], "links": _service_links(name)} for name in names[:limit]]
    other = {name: stats[name] for name in ("other",) if name in stats}
    return page("/v1/services", {"services": rows, **other}, given, names[limit - 1] if len(names) > limit else None)


def _figures(stats: dict[str, Any]) -> dict[str, Any]:
    """The figures of each service; older servers send none."""
    rows = stats.get("by_service") or {}
    return {
        name: with_times(row, "at", "oldest", *(each for each in row if each.endswith("_at")))
        for name, row in rows.items()
    }


def _service_links(name: str) -> ServiceLinks:
    path = quote(name, safe="")
    if not name.strip("."):  # `.` and `..` would be resolved as folders
        path = path.replace(".", "%2E")
    root = f"{ROOT.get()}/v1"
    return {"requests": f"{root}/requests?service={path}", "submit": f"{root}/services/{path}/requests"}


async def put_limits(request: Request) -> Response:
    """Set the limits of a service."""
    name = read_service(request)
    given = await read_document(request, PutLimits, MAX_DOCUMENT, '{"running": 4, "rate": 10}')
    found = await visitor_of(request).client.set_limits(name, **cast(LimitValues, asdict(given)))
    app_state(request).stats_poller.invalidate()
    return json_response(with_times({each: found[each] for each in ("limits", "limits_set") if each in found}, "at"))


async def get_workers(request: Request) -> Response:
    """List the workers of the server, with the requests that they have."""
    found = await visitor_of(request).client.workers()
    return json_response(with_times(found, "started_at", "registered_at", "heard_at"))


async def get_schedules(request: Request) -> Response:
    """List the registered schedules."""
    try:
        found = await visitor_of(request).client.schedules()
    except InvalidRequest as error:
        raise HTTPProblem(503, f"the server keeps no schedules: {error}") from error
    times = "tick", "next", "paused_at", "registered_at", "seen_at"
    return json_response(with_times({"schedules": found}, *times))


async def get_stats(request: Request) -> Response:
    """Get the statistics of the server."""
    stats = (await app_state(request).stats_poller.sample(visitor_of(request))).stats
    return json_response({**stats, "by_service": _figures(stats)})


async def get_history(request: Request) -> Response:
    """Get what services did in the last seconds."""
    given = query_of(request)
    last = given.get("last", "3600")
    if not last.isdecimal() or not MIN_LAST <= int(last[:9]) <= MAX_LAST:
        raise HTTPProblem(400, f"last must be a number of seconds from {MIN_LAST} to {MAX_LAST}")
    of = [given["service"]] if given.get("service") else []
    try:
        facts = await visitor_of(request).client.facts(int(last), of=of, failures=flag(given, "failures"))
    except InvalidRequest as error:
        raise HTTPProblem(503, str(error)) from error
    document: dict[str, Any] = {**facts, "since": timestamp(facts["since"])}
    document["incomplete"] = [
        {"since": timestamp(since), "until": timestamp(until)} for since, until in facts["incomplete"]
    ]
    if "failures" in facts:
        document["failures"] = [_group(one) for one in facts["failures"]]
    return json_response(document)


def _group(group: FailureGroupInfo) -> dict[str, Any]:
    times = {"first": timestamp(group["first"]), "last": timestamp(group["last"])}
    return {**group, **times, "hours": [{"hour": timestamp(at), "count": count} for at, count in group["hours"]]}


async def get_audit(request: Request) -> Response:
    """List acts or refusals, the newest first."""
    given = query_of(request)
    options = audit_query(given, page_size(given), refusals=flag(given, "refusals"))
    found = await visitor_of(request).client.audit(**options)
    rows = with_times({"acts": found["acts"], "refusals": found["refusals"]}, "at")
    return page("/v1/audit", rows, given, found["next"])


def audit_query(given: Mapping[str, str], limit: int, *, refusals: bool) -> AuditQuery:
    """Read which rows of the audit are wanted, at most `limit`. Raises HTTPProblem."""
    last = read_integer("last", given["last"], 1, MAX_AGE) if "last" in given else None
    return {
        "refusals": refusals,
        "limit": limit,
        "after": given.get("after"),
        "user": given.get("user") or None,
        "act": given.get("act") or None,
        "address": given.get("address") or None,
        "since": None if last is None else time.time() - last,
    }


ROUTES = [
    ApiRoute(
        "/v1/services",
        GET=endpoint(
            get_services,
            "services",
            "List the services with stored requests or workers",
            paged(ServicePage),
            parameters=[parameter("query", "after", AFTER, str), LIMIT],
        ),
    ),
    ApiRoute(
        "/v1/services/{service}/limits",
        PUT=endpoint(
            put_limits,
            "setLimits",
            "Set limits of a service, in place of the configured ones",
            {"200": answer("The limits in force.", BoundsInForce), **wrong(413)},
            body=PutLimits,
        ),
    ),
    ApiRoute(
        "/v1/workers",
        GET=endpoint(
            get_workers,
            "workers",
            "List the workers of the server",
            {"200": answer("The workers.", WorkerList), **wrong()},
        ),
    ),
    ApiRoute(
        "/v1/schedules",
        GET=endpoint(
            get_schedules,
            "schedules",
            "List the registered schedules",
            {"200": answer("The schedules.", ScheduleList), **wrong()},
        ),
    ),
    ApiRoute(
        "/v1/stats",
        GET=endpoint(
            get_stats,
            "stats",
            "Get statistics of the server",
            {"200": answer("The document of `titanic.stats`.", Stats), **wrong()},
        ),
    ),
    ApiRoute(
        "/v1/history",
        GET=endpoint(
            get_history,
            "history",
            "Get what services did, by minute or hour, and their failures",
            {"200": answer("Counts, times and groups of failures.", History), **wrong()},
            parameters=[
                parameter("query", "last", "Seconds.", _LAST),
                parameter("query", "service", "The service of `series` and `failures`.", str),
                parameter("query", "failures", "Whether to group failures.", FLAG),
            ],
        ),
    ),
    ApiRoute(
        "/v1/audit",
        GET=endpoint(
            get_audit,
            "audit",
            "List who acted on requests of others, services and nodes, or what was refused",
            paged(AuditRows),
            parameters=[
                parameter("query", "refusals", "Refusals instead of acts.", FLAG),
                parameter("query", "user", "Only of this user.", str),
                parameter("query", "act", "Only this act, such as `close`.", str),
                parameter("query", "address", "Only from this IP address.", str),
                parameter("query", "last", "Only of the last seconds.", Annotated[int, Meta(ge=1, le=MAX_AGE)]),
                parameter("query", "after", AFTER, Annotated[str, Meta(pattern="^([0-9a-f]{2}){1,255}$")]),
                LIMIT,
            ],
        ),
    ),
]
