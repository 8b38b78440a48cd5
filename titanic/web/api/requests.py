"""Requests: submit one, get its status, body and reply, close it, retry it; list them, a page at a time."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
from collections.abc import Coroutine, Mapping
from typing import Annotated, Any, NoReturn, TypeVar

from msgspec import UNSET, Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from titanic.aio import Client
from titanic.client.batching import KEY_PREFIX
from titanic.client.request_queue import Found as FoundUuid
from titanic.errors import Forbidden, InvalidRequest, RequestFailed, TimedOut, TitanicError, UnknownRequest
from titanic.protocol.answers import BODY_GONE, lacks_body
from titanic.protocol.documents import RequestInfo
from titanic.protocol.messages import AnyState
from titanic.protocol.tsp import Frames
from titanic.util.text import quoted
from titanic.web.api import openapi
from titanic.web.api.openapi import (
    AFTER,
    ANY_ANSWER,
    ANY_BODY,
    FLAG,
    LIMIT,
    RETRY_AFTER,
    SUBMIT_HEADERS,
    Accepted,
    Path,
    RequestPage,
    answer,
    endpoint,
    header,
    paged,
    parameter,
    wrong,
)
from titanic.web.api.resource import (
    ApiRoute,
    body_too_large,
    failed_request,
    flag,
    json_response,
    links,
    max_body,
    page,
    page_size,
    path_uuid,
    query_of,
    query_uuid,
    read_body,
    read_document,
    unknown_request,
    with_times,
)
from titanic.web.api.services import read_service
from titanic.web.app_state import app_state, release_body, visitor_of
from titanic.web.problems import HTTPProblem
from titanic.web.request_filter import STATES, RequestFilter, find_page
from titanic.web.request_headers import (
    MAX_WAIT,
    ROOT,
    read_content_type,
    read_number,
    read_preferred_wait,
    read_submit_options,
    read_time,
)

TIMES = (
    *("submitted_at", "not_before", "expires_at", "dispatched_at", "running_since", "due", "finished_at"),
    *("until", "started_at", "ended_at", "replaced_at"),
)
"""The fields of a request that are times."""


async def post_request(request: Request) -> Response:
    """Store a request with the posted body. With `Prefer: wait=…`, wait for the reply."""
    service = read_service(request)
    options = read_submit_options(request)
    if (type := read_content_type(request)) is not None:
        options["type"] = type
    seconds = read_preferred_wait(request)
    client = visitor_of(request).client
    most = await max_body(request, client)
    body = await read_body(request, most)
    if "key" in options:
        options["digest"] = digest(service, type or "", body)
    try:
        uuid = await app_state(request).submissions.submit(client, service, body, options)
    except InvalidRequest as error:
        most = client.calls.limits.max_body
        if 0 < most < len(body):  # the server's limit was not known before
            raise body_too_large(most) from error
        raise
    if "key" in options and not isinstance(uuid, FoundUuid):
        await check_digest(client, uuid, options["digest"])
    if seconds is not None:
        del body
        release_body(request.scope)
        return await _replied(request, client, uuid, seconds)
    return accepted(uuid)


def digest(*parts: str | bytes) -> str:
    """A digest that distinguishes requests that were submitted with the same key."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(b"%d:" % len(data))
        found.update(data)
    return found.hexdigest()


async def check_digest(client: Client, uuid: str, expected: str) -> None:
    """Raise HTTPProblem when a request was submitted with another digest. A request passes if it is closed, if the user
    may not read it, or if it has no digest because it was not submitted over HTTP."""
    try:
        row = await client.show(uuid)
    except (Forbidden, UnknownRequest):
        return
    if row.get("digest", expected) != expected:
        what, fact = "the Idempotency-Key is in use", f"request {uuid} has another body, content type or service"
        problem = HTTPProblem(422, f"{what}; {fact}; choose another key, or send what you sent before")
        problem.members["uuid"] = uuid
        raise problem


def accepted(uuid: str, more: dict[str, str] | None = None) -> Response:
    """The answer for a stored request."""
    if isinstance(uuid, FoundUuid):
        said = {"uuid": uuid, "links": links(uuid), "found": True}
        return json_response(said, 202, {"Location": f"/v1/requests/{uuid}", **(more or {})})
    response = _Accepted(uuid)
    if more is not None:
        response.headers.update(more)
    return response


class _Accepted(Response):
    """Built in fewer steps than other responses, because it is the most frequent one."""

    def __init__(self, uuid: str) -> None:
        path = f"/v1/requests/{uuid}"
        link = ROOT.get() + path
        text = f'{{"uuid": "{uuid}", "links": {{"self": "{link}", "reply": "{link}/reply"}}}}'  # json.dumps is slower
        self.status_code = 202
        self.background = None
        self.body = text.encode()
        self.raw_headers = [
            (b"location", path.encode()),
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]


async def _replied(request: Request, client: Client, uuid: str, seconds: int) -> Response:
    """The reply, if it arrives in time. Otherwise, and if waiting fails or the user may not read, the answer is that
    the request is stored."""
    said = {"Location": f"/v1/requests/{uuid}", "Preference-Applied": f"wait={seconds}"}
    try:
        frames = await unless_disconnected(request.receive, wait_for_reply(request, uuid, seconds))
    except RequestFailed as error:
        raise failed_request(uuid, error, said) from None
    except UnknownRequest:
        problem = unknown_request(uuid)
        problem.headers.update(said)
        raise problem from None
    except TitanicError:
        frames = None
    return accepted(uuid, said) if frames is None else frames_response(frames, said)


async def get_request(request: Request) -> Response:
    """Get a request's status, without its body and its reply."""
    why = flag(query_of(request), "why")
    uuid = path_uuid(request.path_params["uuid"])
    return json_response(described(await _show(visitor_of(request).client, uuid, why=why)))


def described(row: RequestInfo) -> dict[str, Any]:
    """A request's row for the API. Keys that clients generated are left out: they mean nothing to users."""
    key = "" if row["key"].startswith(KEY_PREFIX) else row["key"]
    return {**with_times(row, *TIMES), "key": key, "links": links(row["uuid"])}


async def _show(client: Client, uuid: str, *, why: bool = False) -> RequestInfo:
    try:
        return await client.show(uuid, why=why)
    except UnknownRequest:
        raise unknown_request(uuid) from None


async def get_body(request: Request) -> Response:
    """Get the body of a request."""
    uuid = path_uuid(request.path_params["uuid"])
    try:
        found = await visitor_of(request).client.look(uuid, None)
    except UnknownRequest:
        raise unknown_request(uuid) from None
    if not found.body:
        raise HTTPProblem(410, BODY_GONE)
    return frames_response(found.body, type=found.info.get("type", ""))


async def delete_request(request: Request) -> Response:
    """Close a request. It is no error if the request does not exist."""
    kill = flag(query_of(request), "kill")
    alive = await visitor_of(request).client.close(path_uuid(request.path_params["uuid"]), kill=kill)
    return Response(status_code=202 if alive else 204)


async def change_request(request: Request) -> Response:
    """Change the priority of a waiting or delayed request, or when it may start."""
    uuid, client = path_uuid(request.path_params["uuid"]), visitor_of(request).client
    given = await read_document(request, openapi.ChangeRequest, MAX_CHANGE, '{"priority": 9, "delay": 0}')
    priority = None if given.priority is UNSET else given.priority
    delay = None if given.delay is UNSET else given.delay
    at = None if given.at is UNSET else read_time("at", given.at)
    return await _change(client, uuid, priority=priority, delay=delay, at=at)


async def put_body(request: Request) -> Response:
    """Replace the body of a waiting or delayed request; with `retry` that of a failed or expired one, and retry it."""
    again = flag(query_of(request), "retry")
    uuid, client = path_uuid(request.path_params["uuid"]), visitor_of(request).client
    body = await read_body(request, await max_body(request, client))
    if not again:
        return await _change(client, uuid, body=[body])
    return Response(status_code=204) if await client.retry(uuid, body=[body]) else await _not_retried(client, uuid)


async def _change(client: Client, uuid: str, **given: Any) -> Response:
    try:
        await client.change(uuid, **given)
    except UnknownRequest:
        raise unknown_request(uuid) from None
    except InvalidRequest as error:
        state = (await _show(client, uuid))["state"]
        if state in ("waiting", "delayed"):
            raise HTTPProblem(400, str(error)) from None
        raise HTTPProblem(409, f"the request is {state}; only waiting and delayed ones can be changed") from None
    return Response(status_code=204)


async def retry_request(request: Request) -> Response:
    """Retry a failed or expired request."""
    uuid = path_uuid(request.path_params["uuid"])
    client = visitor_of(request).client
    return accepted(uuid) if await client.retry(uuid) else await _not_retried(client, uuid)


async def _not_retried(client: Client, uuid: str) -> NoReturn:
    row = await _show(client, uuid)
    state = row["state"]
    if lacks_body(row):
        raise HTTPProblem(410, f"the request cannot be retried without a new body: {BODY_GONE}")
    if state in ("failed", "expired"):
        raise HTTPProblem(403, "you may see this request, but not submit to its service; ask for that permission")
    raise HTTPProblem(409, f"the request is {state}; only failed and expired requests can be retried")


Found = TypeVar("Found")

MAX_CHANGE = 1 << 10
"""Maximum bytes of a document that changes a request."""

MAX_GUESSED = 1 << 20
"""Maximum bytes of a reply to guess the type of."""

DECLARED = b"Content-Type: "
REPLY_TYPE = re.compile(
    rb"[A-Za-z0-9!#$&^_.+-]{1,63}/[A-Za-z0-9!#$&^_.+-]{1,63}(?:; ?[A-Za-z0-9-]{1,30}=[!-~]{1,60}){0,2}"
)

INERT = {
    "application/json",
    "application/octet-stream",
    "application/problem+json",
    "application/x-ndjson",
    "audio/mpeg",
    "audio/ogg",
    "image/gif",
    "image/jpeg",
    "image/png",
    "image/webp",
    "multipart/mixed",
    "text/csv",
    "text/plain",
    "video/mp4",
    "video/webm",
}
"""Types without active content. Browsers save replies of other types instead of displaying them."""


async def unless_disconnected(receive: Receive, waiting: Coroutine[Any, Any, Found]) -> Found:
    """Return what a coroutine returns. Raises ClientDisconnect, and cancels the coroutine, when the client has
    disconnected."""
    task, leaving = asyncio.ensure_future(waiting), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def disconnected(receive: Receive) -> None:
    """Wait until the client has disconnected; the rest of its body is discarded."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def wait_for_reply(request: Request, uuid: str, seconds: float) -> Frames | None:
    """Wait for the reply; None: it is pending after so many seconds, or when this process is shutting down. Raises as
    `Client.reply`."""
    client = visitor_of(request).client
    if seconds > 0:
        waiting = asyncio.create_task(client.wait(uuid, seconds))
        ending = asyncio.create_task(app_state(request).ending.wait())
        try:
            await asyncio.wait((waiting, ending), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
        except TimedOut:
            pass  # it is pending, or no server answers: the next call finds out
        finally:
            waiting.cancel()
            ending.cancel()
    return await client.reply(uuid)


async def get_reply(request: Request) -> Response:
    """Get the reply; 202 while it is pending."""
    given = query_of(request)
    seconds = read_number("wait", given["wait"], 0, MAX_WAIT) if "wait" in given else 0.0
    uuid = path_uuid(request.path_params["uuid"])
    client = visitor_of(request).client
    try:
        if seconds:
            frames = await unless_disconnected(request.receive, wait_for_reply(request, uuid, seconds))
        else:
            frames = await client.reply(uuid)
    except UnknownRequest:
        raise unknown_request(uuid) from None
    except RequestFailed as error:
        raise failed_request(uuid, error) from None
    if frames is None:
        return json_response({"uuid": uuid, "links": links(uuid)}, 202, {"Retry-After": "1"})
    return frames_response(frames)


def frames_response(frames: Frames, more: Mapping[str, str] | None = None, *, type: str = "") -> Response:
    """The frames as a response; several frames become parts of a multipart/mixed. `type`: the declared content type of
    a single frame."""
    found, body = join_frames(frames)
    type = type if type and len(frames) == 1 else found
    said = {"Content-Security-Policy": "sandbox", **(more or {})}
    if type.partition(";")[0].lower() not in INERT:
        said["Content-Disposition"] = "attachment"
    response = Response(body, 200, said)
    response.headers["Content-Type"] = type  # Response itself would append a charset to text types
    return response


def join_frames(frames: Frames) -> tuple[str, bytes]:
    """The content type and the bytes of a reply."""
    if len(frames) > 1 and (declared := _declared(frames[0])) is not None:
        frames = frames[1:]
        if len(frames) == 1:
            return declared, frames[0]
    if len(frames) == 1:
        return guess_type(frames[0]), frames[0]
    boundary = secrets.token_hex(16)  # random: no frame can contain it
    head = [f"--{boundary}\r\nContent-Type: {guess_type(frame)}\r\n\r\n".encode() for frame in frames]
    parts = [part for pair in zip(head, frames, strict=True) for part in (*pair, b"\r\n")]
    return f"multipart/mixed; boundary={boundary}", b"".join([*parts, f"--{boundary}--\r\n".encode()])


def _declared(frame: bytes) -> str | None:
    type = frame.removeprefix(DECLARED)
    return type.decode() if len(type) < len(frame) and REPLY_TYPE.fullmatch(type) else None


def guess_type(frame: bytes) -> str:
    """Guess the content type of a frame without a declared one."""
    if len(frame) > MAX_GUESSED:
        return "application/octet-stream"
    try:
        text = frame.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    if text.lstrip()[:1] in ("{", "["):
        try:
            json.loads(text)
            return "application/json"
        except (ValueError, RecursionError):
            pass
    return "text/plain; charset=utf-8"


_SECONDS = Annotated[float, Meta(ge=0, le=MAX_WAIT)]

_PREFER = parameter("header", "Prefer", "`wait=30`: wait up to 30 seconds for the reply.", str)
_APPLIED = {
    "Location": header("The request.", Path, required=False),
    "Preference-Applied": header("`wait=` and the seconds.", required=False),
}


async def get_requests(request: Request) -> Response:
    """List stored requests, oldest or newest first."""
    given = query_of(request)
    limit = page_size(given)
    if (state := given.get("state")) is not None and state not in STATES:
        raise HTTPProblem(400, f"state is {quoted(state)}; it must be one of {', '.join(STATES)}")
    if given.get("service") == "":
        raise HTTPProblem(400, "service is empty; name one, or leave it out for all")
    if (after := given.get("after")) is not None:
        after = query_uuid("after", after)
    service, text = given.get("service", ""), given.get("text", "")
    begin = int(read_number("begin", given["begin"], 1, 1000)) if "begin" in given else None
    wanted = RequestFilter(
        service, state or "", text, oldest=not flag(given, "newest"), owner=given.get("owner"), begin=begin
    )
    rows, after = await find_page(visitor_of(request).client, wanted, after, limit)
    return page("/v1/requests", {"requests": [described(row) for row in rows]}, given, after)


_LIST = [
    parameter("query", "service", "Only requests for this service.", Annotated[str, Meta(min_length=1)]),
    parameter("query", "state", "Only requests in this state.", AnyState),
    parameter("query", "text", "Only requests with this text in the reason or the key, ignoring case.", str),
    parameter("query", "owner", "Only requests of this user.", str),
    parameter("query", "begin", "Bytes of each body to add as text.", Annotated[int, Meta(ge=1, le=1000)]),
    parameter("query", "newest", "Newest first.", FLAG),
    parameter("query", "after", AFTER, Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}$")]),
    LIMIT,
]
_LOCATION = {"Location": header("The request.", Path)}
_SEVERAL = "Several frames are the parts of a `multipart/mixed`."
_BODY = f"The body, with the content type of its submission, or a guessed one. {_SEVERAL}"
_REPLY = f"The reply, with the content type that its worker declared, or a guessed one. {_SEVERAL}"

ROUTES = [
    ApiRoute(
        "/v1/services/{service}/requests",
        POST=endpoint(
            post_request,
            "submit",
            "Store a request",
            {
                "200": answer("The reply, as from `/reply`.", headers=_APPLIED, content=ANY_BODY),
                "202": answer("The request is stored.", Accepted, {**_APPLIED, **_LOCATION}),
                **wrong(410, 413, 422, 424),
            },
            description="The request is on disk before the answer is sent. Its worker gets the body.",
            parameters=[*SUBMIT_HEADERS, _PREFER],
            requestBody={"content": ANY_BODY, "description": "Anything, of any content type."},
        ),
    ),
    ApiRoute(
        "/v1/requests/{uuid}:retry",
        POST=endpoint(
            retry_request,
            "retry",
            "Retry a failed or expired request",
            {"202": answer("The request is queued again.", Accepted, _LOCATION), **wrong(404, 409, 410)},
        ),
    ),
    ApiRoute(
        "/v1/requests/{uuid}/body",
        GET=endpoint(
            get_body,
            "body",
            "Get the body of a request",
            {"200": answer(_BODY, content=ANY_ANSWER), **wrong(404, 410)},
        ),
        PUT=endpoint(
            put_body,
            "change_body",
            "Replace the body of a waiting or delayed request",
            {"204": answer("The body is replaced."), **wrong(404, 409, 410, 413)},
            description="Its content type and its idempotency key stay as they are.",
            parameters=[parameter("query", "retry", "Replace that of a failed or expired one, and retry it.", FLAG)],
            requestBody={"content": ANY_BODY, "description": "Anything; one frame."},
        ),
    ),
    ApiRoute(
        "/v1/requests/{uuid}",
        GET=endpoint(
            get_request,
            "show",
            "Get a request's status",
            {"200": answer("The request, without its body and its reply.", openapi.Request), **wrong(404, 410)},
            parameters=[parameter("query", "why", "Also why it is in its state.", FLAG)],
        ),
        PATCH=endpoint(
            change_request,
            "change",
            "Change a waiting or delayed request",
            {"204": answer("The request is changed."), **wrong(404, 409, 410, 413)},
            description="Its priority, or when it may start: a `delay` of 0 means now.",
            body=openapi.ChangeRequest,
        ),
        DELETE=endpoint(
            delete_request,
            "close",
            "Delete a request and its reply",
            {
                "202": answer("The request is deleted. Its worker was notified, but cannot be killed."),
                "204": answer("The request is deleted."),
                **wrong(404),
            },
            description="A request that no worker has started is cancelled. An unknown UUID is not an error.",
            parameters=[parameter("query", "kill", "Kill the process of a running request.", FLAG)],
        ),
    ),
    ApiRoute(
        "/v1/requests/{uuid}/reply",
        GET=endpoint(
            get_reply,
            "reply",
            "Get the reply",
            {
                "200": answer(_REPLY, content=ANY_ANSWER),
                "202": answer("The reply is pending.", Accepted, RETRY_AFTER),
                **wrong(404, 410, 424),
            },
            parameters=[parameter("query", "wait", "Seconds to wait for it.", _SECONDS)],
        ),
    ),
    ApiRoute(
        "/v1/requests",
        GET=endpoint(
            get_requests,
            "list",
            "List stored requests, oldest first",
            paged(RequestPage),
            description="A page may be short or empty and still have a next page.",
            parameters=_LIST,
        ),
    ),
]
