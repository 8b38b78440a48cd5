"""HTTP workers: lease a request, and report how it ended. See ../leases.py.

A lease is one attempt. If there is no `:done`, `:failed` or `:extend` before it lapses, the attempt has failed.
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
"""Minimum duration of a lease, and of the wait for one: connecting to the server takes time, too."""

MAX_TEXT = 64 << 10
"""Maximum bytes of the description of a failure."""

FORM = "application/x-www-form-urlencoded"
"""The content type that curl sends with any body: it does not describe a reply."""


async def post_take(request: Request) -> Response:
    """Lease a request; 204: none arrived in time."""
    given = read_query(request, ("wait", "lease"))
    wait = max(MIN_LEASE, read_number("wait", given.get("wait", "30"), 0, MAX_TAKE_WAIT))
    seconds = _lease_time(given)
    service = read_service(request)
    leases, user = app_state(request).leases, visitor_of(request).user
    await read_body(request, MAX_TEXT)  # it is ignored
    lease = await unless_disconnected(request.receive, leases.take(user, service, wait, seconds))
    return Response(status_code=204) if lease is None else _leased(lease)


def _leased(lease: Lease) -> Response:
    context = lease.context
    more = {"Titanic-Lease": lease.id, "Titanic-Deadline": _time(lease.deadline)}
    if context:  # plain calls are not stored: they have neither a UUID nor attempts
        more |= {"Titanic-Request": context.uuid, "Titanic-Attempt": str(context.attempt)}
    if context.trace:
        more["traceparent"] = context.trace
    return frames_response(lease.body, more, type=context.type)


async def post_done(request: Request) -> Response:
    """Reply to the request with the body; 204: the server has it."""
    read_query(request, ())
    visitor, leases = visitor_of(request), app_state(request).leases
    if leases.is_done(visitor.user, _id(request)):
        return Response(status_code=204)
    leases.find(visitor.user, _id(request))  # before a large body is read
    body = await read_body(request, await max_body(request, visitor.client))
    await leases.done(leases.find(visitor.user, _id(request)), _reply(request, body))
    return Response(status_code=204)


def _reply(request: Request, body: bytes) -> Frames:
    """The frames of a reply. A frame with the content type precedes it, unless the type is the one that is guessed."""
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
    """Fail the attempt. The first line of the body is the reason, the rest is stored as detail."""
    given = read_query(request, ("fatal", "retry-after"))
    fatal = given.get("fatal", "false")
    if fatal not in ("true", "false"):
        raise Problem(400, f"fatal is {quoted(fatal)}; write true or false")
    after = read_number("retry-after", given["retry-after"], 0, MOST_SECONDS) if "retry-after" in given else None
    if fatal == "true" and after is not None:
        raise Problem(400, "fatal and retry-after exclude each other; a fatal failure is not retried")
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
    """Extend the lease: it lasts so many seconds from now."""
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
    """Format a time as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(name: str, text: str, most: float, least: float = 0) -> dict[str, Any]:
    return parameter("query", name, text, {"type": "number", "minimum": least, "maximum": most})


_LEASE = parameter("path", "lease", "The value of `Titanic-Lease`.", {"type": "string", "minLength": 1})
_LASTS = _seconds("lease", "Duration of the lease in seconds; default: 60.", MAX_LEASE, MIN_LEASE)
_TAKEN = {
    "Titanic-Lease": header("The id of the lease, for reporting its end."),
    "Titanic-Deadline": header("When the lease ends (RFC 3339)."),
    "Titanic-Request": header("The UUID; absent for a plain call.", required=False),
    "Titanic-Attempt": header("Which attempt this is, from 1.", required=False),
    "traceparent": header("The trace that it belongs to.", required=False),
}
_WAIT = "Seconds to wait for a request; default: 30. At least one second, because connecting takes time."
_TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string", "maxLength": MAX_TEXT // 4}}}}


def _ending(name: str, summary: str, **more: Any) -> dict[str, Any]:
    responses = {"204": answer("The server has it."), **wrong(410, 413)}
    return {"parameters": [_LEASE], "post": {"operationId": name, "summary": summary, "responses": responses, **more}}


PATHS: dict[str, dict[str, Any]] = {
    "/v1/services/{service}:take": {
        "parameters": [SERVICE],
        "post": {
            "operationId": "take",
            "summary": "Lease a request to work on",
            "parameters": [_seconds("wait", _WAIT, MAX_TAKE_WAIT), _LASTS],
            "responses": {
                "200": {
                    "description": "Its body, with the content type of its submission, or a guessed one.",
                    "headers": _TAKEN,
                    "content": ANY_ANSWER,
                },
                "204": answer("No request arrived in time."),
                **wrong(413),
            },
        },
    },
    "/v1/leases/{lease}:done": _ending(
        "done",
        "Reply to the request with the body",
        requestBody={"content": ANY_BODY},
    ),
    "/v1/leases/{lease}:failed": _ending(
        "failed",
        "Fail the attempt: the first line of the body is the reason",
        requestBody=_TEXT,
        parameters=[
            parameter("query", "fatal", "Do not retry it.", {"type": "boolean"}),
            _seconds("retry-after", "Seconds until it is retried.", MOST_SECONDS),
        ],
    ),
    "/v1/leases/{lease}:extend": {
        "parameters": [_LEASE],
        "post": {
            "operationId": "extend",
            "summary": "Extend a lease",
            "parameters": [_LASTS],
            "responses": {
                "200": answer("The new deadline.", record({"lease": TEXT, "request": TEXT, "deadline": TEXT})),
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
