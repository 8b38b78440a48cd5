"""Replies: waiting for them, and as HTTP has them."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from titanic.errors import RequestFailed, TimedOut, UnknownRequest
from titanic.protocol.tsp import Frames
from titanic.web.api import answers, headers
from titanic.web.api.resource import Resource
from titanic.web.api.schemas import ANY_ANSWER, REQUEST, RETRY_AFTER, answer, parameter, ref, wrong
from titanic.web.gateway import gateway_of, visitor_of

Found = TypeVar("Found")

LOOKED_AT = 1 << 20
"""Bytes up to which a reply is looked at, whether it is JSON or text."""

DECLARED = b"Content-Type: "
TYPE = re.compile(rb"[A-Za-z0-9!#$&^_.+-]{1,63}/[A-Za-z0-9!#$&^_.+-]{1,63}(?:; ?[A-Za-z0-9-]{1,30}=[!-~]{1,60}){0,2}")

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


async def unless_left(receive: Receive, waiting: Coroutine[Any, Any, Found]) -> Found:
    """What a coroutine returns, as long as the client is there. Raises ClientDisconnect when it has left: what it
    waits for goes on without it."""
    task, leaving = asyncio.ensure_future(waiting), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def wait(request: Request, uuid: str, seconds: float) -> Frames | None:
    """The reply as soon as it is there; None: it is pending after so many seconds, or when this process is about to
    end. Raises as `Client.reply`."""
    client = visitor_of(request).client
    if seconds > 0:
        waiting = asyncio.create_task(client.wait(uuid, seconds))
        ending = asyncio.create_task(gateway_of(request).ending.wait())
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
    given = headers.query(request, ("wait",))
    seconds = headers.number("wait", given["wait"], 0, headers.MOST_WAIT) if "wait" in given else 0.0
    uuid = answers.read_uuid(request.path_params["uuid"])
    client = visitor_of(request).client
    try:
        if seconds:
            frames = await unless_left(request.receive, wait(request, uuid, seconds))
        else:
            frames = await client.reply(uuid)
    except UnknownRequest:
        raise answers.unknown(uuid) from None
    except RequestFailed as error:
        raise answers.failed(uuid, error) from None
    return pending(uuid) if frames is None else as_response(frames)


def pending(uuid: str, more: Mapping[str, str] | None = None) -> Response:
    """The answer when there is no reply yet."""
    return answers.document({"uuid": uuid, "links": answers.links(uuid)}, 202, {"Retry-After": "1", **(more or {})})


def as_response(frames: Frames, more: Mapping[str, str] | None = None, *, type: str = "") -> Response:
    """The bytes, with their type; several frames are parts of a multipart/mixed. `type`: what somebody has said that
    the only frame is."""
    found, body = as_body(frames)
    type = type if type and len(frames) == 1 else found
    said = {"Content-Security-Policy": "sandbox", **(more or {})}
    if type.partition(";")[0].lower() not in INERT:
        said["Content-Disposition"] = "attachment"
    response = Response(body, 200, said)
    response.headers["Content-Type"] = type  # Response itself would put a charset behind each text
    return response


def as_body(frames: Frames) -> tuple[str, bytes]:
    """The content type of a reply, and its bytes."""
    if len(frames) > 1 and (declared := _declared(frames[0])) is not None:
        frames = frames[1:]
        if len(frames) == 1:
            return declared, frames[0]
    if len(frames) == 1:
        return type_of(frames[0]), frames[0]
    boundary = secrets.token_hex(16)  # nobody can have put it into a frame
    head = [f"--{boundary}\r\nContent-Type: {type_of(frame)}\r\n\r\n".encode() for frame in frames]
    parts = [part for pair in zip(head, frames, strict=True) for part in (*pair, b"\r\n")]
    return f"multipart/mixed; boundary={boundary}", b"".join([*parts, f"--{boundary}--\r\n".encode()])


def _declared(frame: bytes) -> str | None:
    type = frame.removeprefix(DECLARED)
    return type.decode() if len(type) < len(frame) and TYPE.fullmatch(type) else None


def type_of(frame: bytes) -> str:
    """The type of a frame for which no worker has named one."""
    if len(frame) > LOOKED_AT:
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


_SECONDS = {"type": "number", "minimum": 0, "maximum": headers.MOST_WAIT}

PATHS = {
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
    }
}

ROUTES = [Resource("/v1/requests/{uuid}/reply", GET=get_reply)]
