"""A request: submit it, see what has become of it, close it, have it tried again."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from titanic.aio import Client
from titanic.client.batching import KEY_PREFIX
from titanic.errors import Forbidden, InvalidRequest, RequestFailed, TimedOut, TitanicError, UnknownRequest
from titanic.protocol import tsp
from titanic.protocol.answers import RequestInfo
from titanic.protocol.tsp import Frames
from titanic.web.api.resource import ApiRoute, body_too_large, max_body, read_body
from titanic.web.api.responses import failed_request, json_response, links, path_uuid, timestamp, unknown_request
from titanic.web.api.schemas import (
    ANY_ANSWER,
    ANY_BODY,
    PATH,
    REQUEST,
    RETRY_AFTER,
    SERVICE,
    SUBMIT_HEADERS,
    answer,
    header,
    parameter,
    ref,
    wrong,
)
from titanic.web.app_state import app_state, visitor_of
from titanic.web.auth.quota import release_body
from titanic.web.problems import Problem
from titanic.web.request_headers import (
    MAX_WAIT,
    read_content_type,
    read_number,
    read_preferred_wait,
    read_query,
    read_submit_options,
)

TIMES = ("submitted_at", "not_before", "expires_at", "dispatched_at", "running_since", "due", "finished_at")
"""What is a moment of what is known of a request."""


def read_service(request: Request) -> str:
    """The service in the path. Raises Problem when it cannot be one."""
    service: str = request.scope["path_params"]["service"]
    if fault := tsp.request_fault([service.encode(), b""]):
        raise Problem(400, fault)
    return service


async def post_request(request: Request) -> Response:
    """Store a request: its body is what was posted. With `Prefer: wait=…`, wait for the reply."""
    read_query(request, ())
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
        if 0 < most < len(body):  # that was found out only now
            raise body_too_large(most) from error
        raise
    if "key" in options:
        await check_digest(client, uuid, options["digest"])
    if seconds is not None:
        del body
        release_body(request.scope)
        return await _replied(request, client, uuid, seconds)
    return accepted(uuid)


def digest(*parts: str | bytes) -> str:
    """What tells apart requests that were submitted with the same key."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(b"%d:" % len(data))
        found.update(data)
    return found.hexdigest()


async def check_digest(client: Client, uuid: str, expected: str) -> None:
    """Raise Problem when a request was submitted with another digest. One that cannot be looked at, as it is closed or
    he may not read, passes; and so does one without, which was not submitted by HTTP."""
    try:
        row = await client.show(uuid)
    except (Forbidden, UnknownRequest):
        return
    if row.get("digest", expected) != expected:
        what, fact = "the Idempotency-Key is in use", f"request {uuid} has another body, content type or service"
        problem = Problem(422, f"{what}; {fact}; choose another key, or send what you sent before")
        problem.members["uuid"] = uuid
        raise problem


def accepted(uuid: str, more: dict[str, str] | None = None) -> Response:
    """The answer when a request is stored."""
    response = _Accepted(uuid)
    if more is not None:
        response.headers.update(more)
    return response


class _Accepted(Response):
    """Is made in fewer steps: this is the answer that is given most often."""

    def __init__(self, uuid: str) -> None:
        path = f"/v1/requests/{uuid}"
        text = f'{{"uuid": "{uuid}", "links": {{"self": "{path}", "reply": "{path}/reply"}}}}'  # json.dumps is slower
        self.status_code = 202
        self.background = None
        self.body = text.encode()
        self.raw_headers = [
            (b"location", path.encode()),
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]


async def _replied(request: Request, client: Client, uuid: str, seconds: int) -> Response:
    """The reply, if it comes in time. The request is stored in any case: whatever goes wrong with waiting, or if he may
    not read, he is told that."""
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
    """All that is known of a request but its body and its reply."""
    read_query(request, ())
    uuid = path_uuid(request.path_params["uuid"])
    return json_response(described(await _show(visitor_of(request).client, uuid)))


def described(row: RequestInfo) -> dict[str, Any]:
    """What the door says of a request. A key that a client has made up for itself says nothing to anybody."""
    key = "" if row["key"].startswith(KEY_PREFIX) else row["key"]
    known: dict[str, Any] = {**row}
    times = {name: timestamp(known[name]) for name in TIMES if name in known}
    return {**known, **times, "key": key, "links": links(row["uuid"])}


async def _show(client: Client, uuid: str) -> RequestInfo:
    try:
        return await client.show(uuid)
    except UnknownRequest:
        raise unknown_request(uuid) from None


async def get_body(request: Request) -> Response:
    """The bytes that were submitted."""
    read_query(request, ())
    uuid = path_uuid(request.path_params["uuid"])
    try:
        found = await visitor_of(request).client.look(uuid, None)
    except UnknownRequest:
        raise unknown_request(uuid) from None
    return frames_response(found.body, type=found.info.get("type", ""))


async def delete_request(request: Request) -> Response:
    """Close a request. That it is gone then is true of one that was never there as well."""
    read_query(request, ())
    await visitor_of(request).client.close(path_uuid(request.path_params["uuid"]))
    return Response(status_code=204)


async def retry_request(request: Request) -> Response:
    """Have a request tried again that has failed or expired."""
    read_query(request, ())
    uuid = path_uuid(request.path_params["uuid"])
    client = visitor_of(request).client
    if await client.retry(uuid):
        return accepted(uuid)
    state = (await _show(client, uuid))["state"]
    if state in ("failed", "expired"):
        raise Problem(403, "you may see this request, but not submit to its service; ask for that permission")
    raise Problem(409, f"the request is {state}; only what has failed or expired is tried again")


Found = TypeVar("Found")

MAX_GUESSED = 1 << 20
"""Bytes up to which a reply is looked at, whether it is JSON or text."""

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
"""Types in which a browser finds nothing to execute. A reply of another type is to be saved, not shown."""


async def unless_disconnected(receive: Receive, waiting: Coroutine[Any, Any, Found]) -> Found:
    """What a coroutine returns, as long as the client is there. Raises ClientDisconnect when it has left: what it
    waits for goes on without it."""
    task, leaving = asyncio.ensure_future(waiting), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def wait_for_reply(request: Request, uuid: str, seconds: float) -> Frames | None:
    """The reply as soon as it is there; None: it is pending after so many seconds, or when this process is about to
    end. Raises as `Client.reply`."""
    client = visitor_of(request).client
    if seconds > 0:
        waiting = asyncio.create_task(client.wait(uuid, seconds))
        ending = asyncio.create_task(app_state(request).ending.wait())
        try:
            await asyncio.wait((waiting, ending), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
        except TimedOut:
            pass  # either it is pending, or nobody answers: the next look tells
        finally:
            waiting.cancel()
            ending.cancel()
    return await client.reply(uuid)


async def get_reply(request: Request) -> Response:
    """The reply's bytes; 202 while it is pending."""
    given = read_query(request, ("wait",))
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
    return pending_response(uuid) if frames is None else frames_response(frames)


def pending_response(uuid: str, more: Mapping[str, str] | None = None) -> Response:
    """The answer when there is no reply yet."""
    return json_response({"uuid": uuid, "links": links(uuid)}, 202, {"Retry-After": "1", **(more or {})})


def frames_response(frames: Frames, more: Mapping[str, str] | None = None, *, type: str = "") -> Response:
    """The bytes, with their type; several frames are parts of a multipart/mixed. `type`: what somebody has said that
    the only frame is."""
    found, body = join_frames(frames)
    type = type if type and len(frames) == 1 else found
    said = {"Content-Security-Policy": "sandbox", **(more or {})}
    if type.partition(";")[0].lower() not in INERT:
        said["Content-Disposition"] = "attachment"
    response = Response(body, 200, said)
    response.headers["Content-Type"] = type  # Response itself would put a charset behind each text
    return response


def join_frames(frames: Frames) -> tuple[str, bytes]:
    """The content type of a reply, and its bytes."""
    if len(frames) > 1 and (declared := _declared(frames[0])) is not None:
        frames = frames[1:]
        if len(frames) == 1:
            return declared, frames[0]
    if len(frames) == 1:
        return guess_type(frames[0]), frames[0]
    boundary = secrets.token_hex(16)  # nobody can have put it into a frame
    head = [f"--{boundary}\r\nContent-Type: {guess_type(frame)}\r\n\r\n".encode() for frame in frames]
    parts = [part for pair in zip(head, frames, strict=True) for part in (*pair, b"\r\n")]
    return f"multipart/mixed; boundary={boundary}", b"".join([*parts, f"--{boundary}--\r\n".encode()])


def _declared(frame: bytes) -> str | None:
    type = frame.removeprefix(DECLARED)
    return type.decode() if len(type) < len(frame) and REPLY_TYPE.fullmatch(type) else None


def guess_type(frame: bytes) -> str:
    """The type of a frame for which no worker has named one."""
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


_SECONDS = {"type": "number", "minimum": 0, "maximum": MAX_WAIT}

_PREFER = parameter("header", "Prefer", "`wait=30`: the reply, if it comes in so many seconds.", {"type": "string"})
_APPLIED = {
    "Location": header("The request.", PATH, required=False),
    "Preference-Applied": header("`wait=` and how long.", required=False),
}

PATHS = {
    "/v1/services/{service}/requests": {
        "parameters": [SERVICE],
        "post": {
            "operationId": "submit",
            "summary": "Store a request",
            "description": "It is on disk when the answer comes. The body is what its worker gets.",
            "parameters": [*SUBMIT_HEADERS, _PREFER],
            "requestBody": {
                "content": ANY_BODY,
                "description": "Anything, of any content type.",
            },
            "responses": {
                "200": {
                    "description": "The reply, as `reply` gives it.",
                    "headers": _APPLIED,
                    "content": ANY_ANSWER,
                },
                "202": answer(
                    "It is stored.", ref("schemas", "Accepted"), {**_APPLIED, "Location": header("It.", PATH)}
                ),
                **wrong(410, 413, 422, 424),
            },
        },
    },
    "/v1/requests/{uuid}": {
        "parameters": [REQUEST],
        "get": {
            "operationId": "show",
            "summary": "What has become of a request",
            "responses": {
                "200": answer("All but its body and its reply.", ref("schemas", "Request")),
                **wrong(404, 410),
            },
        },
        "delete": {
            "operationId": "close",
            "summary": "Delete a request and its reply",
            "description": "What no worker has begun is cancelled. It is no error if it is not there.",
            "responses": {"204": answer("It is not there any more."), **wrong(404)},
        },
    },
    "/v1/requests/{uuid}/body": {
        "parameters": [REQUEST],
        "get": {
            "operationId": "body",
            "summary": "The body of a request",
            "responses": {
                "200": {
                    "description": "Its bytes, with the content type of its submission, or what they look like. "
                    "Several frames are the parts of a `multipart/mixed`.",
                    "content": ANY_ANSWER,
                },
                **wrong(404, 410),
            },
        },
    },
    "/v1/requests/{uuid}:retry": {
        "parameters": [REQUEST],
        "post": {
            "operationId": "retry",
            "summary": "Have a request tried again that has failed or expired",
            "responses": {
                "202": answer("It waits again.", ref("schemas", "Accepted"), {"Location": header("It.", PATH)}),
                **wrong(404, 409, 410),
            },
        },
    },
    "/v1/requests/{uuid}/reply": {
        "parameters": [REQUEST],
        "get": {
            "operationId": "reply",
            "summary": "The reply",
            "parameters": [parameter("query", "wait", "Seconds to wait for it.", _SECONDS)],
            "responses": {
                "200": {
                    "description": "Its bytes, with the content type that its worker named, or what they look like. "
                    "Several frames are the parts of a `multipart/mixed`.",
                    "content": ANY_ANSWER,
                },
                "202": answer("It is not there yet.", ref("schemas", "Accepted"), RETRY_AFTER),
                **wrong(404, 410, 424),
            },
        },
    },
}

ROUTES = [
    ApiRoute("/v1/services/{service}/requests", POST=post_request),
    ApiRoute("/v1/requests/{uuid}:retry", POST=retry_request),
    ApiRoute("/v1/requests/{uuid}/body", GET=get_body),
    ApiRoute("/v1/requests/{uuid}", GET=get_request, DELETE=delete_request),
    ApiRoute("/v1/requests/{uuid}/reply", GET=get_reply),
]
