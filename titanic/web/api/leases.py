"""Workers by HTTP: take a request, and say how it ended. See ../leases/leases.py.

A lease is one attempt. Without `:done`, `:failed` or `:extend` in its time it lapses, which is a failed attempt.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from broker import RemoteError
from titanic import Failed, Retry
from titanic.protocol.submit_options import MOST_SECONDS
from titanic.protocol.tsp import Frames
from titanic.util.text import quoted
from titanic.web.api.requests import (
    DECLARED,
    REPLY_TYPE,
    frames_response,
    guess_type,
    read_service,
    unless_disconnected,
)
from titanic.web.api.resource import ApiRoute, max_body, read_body
from titanic.web.api.responses import json_response
from titanic.web.api.schemas import ANY_ANSWER, ANY_BODY, SERVICE, TEXT, answer, header, parameter, record, wrong
from titanic.web.app_state import app_state, visitor_of
from titanic.web.leases import Lease
from titanic.web.problems import Problem
from titanic.web.request_headers import read_number, read_query

MAX_TAKE_WAIT = 60.0
MAX_LEASE = 3600.0
MIN_LEASE = 1.0
"""Seconds that a lease lasts at least; nobody waits less for one: a connection to the server takes its time, too."""

MAX_TEXT = 64 << 10
"""Bytes that a worker may say of a failure."""

FORM = "application/x-www-form-urlencoded"
"""What curl says of any body: it is no content type of a reply."""


async def post_take(request: Request) -> Response:
    """A request, for the time of the lease; 204: none came in time."""
    given = read_query(request, ("wait", "lease"))
    wait = max(MIN_LEASE, read_number("wait", given.get("wait", "30"), 0, MAX_TAKE_WAIT))
    seconds = _lease_time(given)
    service = read_service(request)
    leases, user = app_state(request).leases, visitor_of(request).user
    await read_body(request, MAX_TEXT)  # nothing is expected in it
    lease = await unless_disconnected(request.receive, leases.take(user, service, wait, seconds))
    return Response(status_code=204) if lease is None else _leased(lease)


def _leased(lease: Lease) -> Response:
    context = lease.context
    more = {"Titanic-Lease": lease.id, "Titanic-Deadline": _time(lease.deadline)}
    if context:  # not of a plain call, which nobody stores
        more |= {"Titanic-Request": context.uuid, "Titanic-Attempt": str(context.attempt)}
    if context.trace:
        more["traceparent"] = context.trace
    return frames_response(lease.body, more, type=context.type)


async def post_done(request: Request) -> Response:
    """The body is the reply; 204: the server has it."""
    read_query(request, ())
    visitor, leases = visitor_of(request), app_state(request).leases
    if leases.is_done(visitor.user, _id(request)):
        return Response(status_code=204)
    leases.find(visitor.user, _id(request))  # before a large body is read
    body = await read_body(request, await max_body(request, visitor.client))
    await leases.done(leases.find(visitor.user, _id(request)), _reply(request, body))
    return Response(status_code=204)


def _reply(request: Request, body: bytes) -> Frames:
    """The frames of a reply. Its type stands before it only if it is not what anybody would take it for."""
    type = request.headers.get("content-type", FORM)
    if type.partition(";")[0].strip().lower() == FORM or _plain(type) == _plain(guess_type(body)):
        return [body]
    frame = DECLARED + type.encode("latin-1")
    if not REPLY_TYPE.fullmatch(frame.removeprefix(DECLARED)):
        raise Problem(400, f"Content-Type is {quoted(type)}; write it like image/png, or leave it out")
    return [frame, body]


def _plain(type: str) -> str:
    return type.lower().replace(" ", "")


async def post_failed(request: Request) -> Response:
    """The body is text for people: the first line says why, more is kept as detail."""
    given = read_query(request, ("fatal", "retry-after"))
    fatal = given.get("fatal", "false")
    if fatal not in ("true", "false"):
        raise Problem(400, f"fatal is {quoted(fatal)}; write true or false")
    after = read_number("retry-after", given["retry-after"], 0, MOST_SECONDS) if "retry-after" in given else None
    if fatal == "true" and after is not None:
        raise Problem(400, "fatal and retry-after exclude each other; a fatal failure is not tried again")
    leases, user = app_state(request).leases, visitor_of(request).user
    text = (await read_body(request, MAX_TEXT)).decode(errors="replace").strip()
    lease = leases.find(user, _id(request))
    first, _, rest = text.partition("\n")
    await leases.failed(lease, _failure(first.strip() or "failed", rest, after, fatal=fatal == "true"))
    return Response(status_code=204)


def _failure(text: str, rest: str, after: float | None, *, fatal: bool) -> RemoteError:
    detail = [rest] if rest.strip() else []
    if fatal:
        return Failed(text, *detail)
    return (
        RemoteError(500, text, [one.encode() for one in detail]) if after is None else Retry(text, *detail, after=after)
    )


async def post_extend(request: Request) -> Response:
    """The lease lasts so long from now on."""
    seconds = _lease_time(read_query(request, ("lease",)))
    lease = app_state(request).leases.find(visitor_of(request).user, _id(request))
    lease.extend(seconds)
    uuid = lease.context.uuid if lease.context else ""
    return json_response({"lease": lease.id, "request": uuid, "deadline": _time(lease.deadline)})


def _lease_time(given: dict[str, str]) -> float:
    return read_number("lease", given.get("lease", "60"), MIN_LEASE, MAX_LEASE)


def _id(request: Request) -> str:
    id_: str = request.path_params["lease"]
    return id_


def _time(seconds: float) -> str:
    """As RFC 3339 has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(name: str, text: str, most: float, least: float = 0) -> dict[str, Any]:
    return parameter("query", name, text, {"type": "number", "minimum": least, "maximum": most})


_LEASE = parameter("path", "lease", "What `Titanic-Lease` said.", {"type": "string", "minLength": 1})
_LASTS = _seconds("lease", "Seconds that the lease lasts; 60 if you do not say.", MAX_LEASE, MIN_LEASE)
_TAKEN = {
    "Titanic-Lease": header("What its end is to be told with."),
    "Titanic-Deadline": header("When it ends (RFC 3339)."),
    "Titanic-Request": header("The UUID; absent for a plain call.", required=False),
    "Titanic-Attempt": header("Which attempt this is, from 1.", required=False),
    "traceparent": header("The trace that it belongs to.", required=False),
}
_WAIT = "Seconds to wait for one; 30 if you do not say. Less than one is taken as one: to connect takes its time."
_TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string", "maxLength": MAX_TEXT // 4}}}}


def _ending(name: str, summary: str, **more: Any) -> dict[str, Any]:
    responses = {"204": answer("It is on its way to the server."), **wrong(410, 413)}
    return {"parameters": [_LEASE], "post": {"operationId": name, "summary": summary, "responses": responses, **more}}


PATHS: dict[str, dict[str, Any]] = {
    "/v1/services/{service}:take": {
        "parameters": [SERVICE],
        "post": {
            "operationId": "take",
            "summary": "Take a request to work on, for the time of a lease",
            "parameters": [_seconds("wait", _WAIT, MAX_TAKE_WAIT), _LASTS],
            "responses": {
                "200": {
                    "description": "Its body, with the content type of its submission, or what it looks like.",
                    "headers": _TAKEN,
                    "content": ANY_ANSWER,
                },
                "204": answer("None came in time."),
                **wrong(413),
            },
        },
    },
    "/v1/leases/{lease}:done": _ending(
        "done",
        "The request is done: the body is its reply",
        requestBody={"content": ANY_BODY},
    ),
    "/v1/leases/{lease}:failed": _ending(
        "failed",
        "The attempt has failed: the first line of the body says why",
        requestBody=_TEXT,
        parameters=[
            parameter("query", "fatal", "Do not try it again.", {"type": "boolean"}),
            _seconds("retry-after", "Seconds until it is tried again.", MOST_SECONDS),
        ],
    ),
    "/v1/leases/{lease}:extend": {
        "parameters": [_LEASE],
        "post": {
            "operationId": "extend",
            "summary": "The lease lasts so long from now on",
            "parameters": [_LASTS],
            "responses": {
                "200": answer("When it ends now.", record({"lease": TEXT, "request": TEXT, "deadline": TEXT})),
                **wrong(410),
            },
        },
    },
}

ROUTES = [
    ApiRoute("/v1/services/{service}:take", POST=post_take),
    ApiRoute("/v1/leases/{lease}:done", POST=post_done),
    ApiRoute("/v1/leases/{lease}:failed", POST=post_failed),
    ApiRoute("/v1/leases/{lease}:extend", POST=post_extend),
]
