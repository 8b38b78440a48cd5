"""GET /v1/events: what happens in each service, and the end of requests that one follows, as server-sent events.

    event       data
    ----------  ---------------------------------------------------------------------------------------------------
    services    {"services": {NAME: what titanic.stats says of it}}: at first all, then those that have changed;
                null: it is gone
    ended       {"uuid", "state", "reason"}: a request that is followed; each is told of once
    problem     why there are no figures at present, as a problem document; null: there are some again
    reset       what the reader knows is too old to go on from: forget it, all is told anew

The id of an event is the number of the last change that it tells of, behind a name for this process. Who comes again
with it in `Last-Event-ID` is told what changed since. (`EventSource` does that by itself.)
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from titanic.util import ids
from titanic.web.api.resource import Resource
from titanic.web.api.schemas import TEXT, parameter, wrong
from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.problems import Problem
from titanic.web.streams.feed import ALL, MOST_FOLLOWED, EventStream


async def get_events(request: Request) -> Response:
    """A stream. `?service=`, repeatable: figures of these services, `*` of all. `?request=`, repeatable: the end of
    these. Without both: figures of all services."""
    feed, visitor = gateway_of(request).feed, visitor_of(request)
    services = frozenset(request.query_params.getlist("service"))
    uuids = {_uuid(one) for one in request.query_params.getlist("request")}
    if unknown := request.query_params.keys() - {"service", "request"}:
        raise Problem(400, f"unknown parameter {sorted(unknown)[0][:100]!r}; known: service, request")
    if len(uuids) > MOST_FOLLOWED:
        raise Problem(400, f"{len(uuids)} requests; one stream follows at most {MOST_FOLLOWED}; open several")
    if not services and not uuids:
        services = frozenset([ALL])
    if services:
        await feed.counts.look(visitor)
    return EventStream(feed, visitor, services, uuids, request.headers.get("last-event-id"))


def _uuid(text: str) -> str:
    plain = ids.plain(text).lower()
    if ids.parse(plain.encode()) is None:
        raise Problem(400, f"{text[:100]!r} is not a UUID; write its 32 hexadecimal digits")
    return plain


PATHS = {
    "/v1/events": {
        "get": {
            "operationId": "events",
            "summary": "What happens, as server-sent events",
            "parameters": [
                parameter(
                    "query", "service", "Figures of this service; `*`: of all.", {"type": "array", "items": TEXT}
                ),
                parameter("query", "request", "The end of this request.", {"type": "array", "items": TEXT}),
                parameter("header", "Last-Event-ID", "The last event that you have: go on from there.", TEXT),
            ],
            "responses": {
                "200": {
                    "description": "A stream of events `services`, `ended`, `problem` and `reset`.",
                    "content": {"text/event-stream": {"schema": TEXT}},
                },
                **wrong(),
            },
        }
    }
}

ROUTES = [Resource("/v1/events", GET=get_events)]
