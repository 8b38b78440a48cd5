"""A request: submit it, see what has become of it, close it, have it tried again."""

from __future__ import annotations

import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from titanic.aio import Client
from titanic.client.batching import KEY_PREFIX
from titanic.errors import Forbidden, InvalidRequest, RequestFailed, TitanicError, UnknownRequest
from titanic.protocol import tsp
from titanic.protocol.answers import RequestInfo
from titanic.web.api import answers, bodies, headers, reply
from titanic.web.api.resource import Resource
from titanic.web.api.schemas import (
    ANY_ANSWER,
    ANY_BODY,
    PATH,
    REQUEST,
    SERVICE,
    SUBMIT_HEADERS,
    answer,
    header,
    parameter,
    ref,
    wrong,
)
from titanic.web.auth.places import let_go
from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.problems import Problem

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
    headers.query(request, ())
    service = read_service(request)
    options = headers.submit_options(request)
    if (type := headers.content_type(request)) is not None:
        options["type"] = type
    seconds = headers.preferred_wait(request)
    client = visitor_of(request).client
    most = await bodies.most_bytes(request, client)
    body = await bodies.read(request, most)
    if "key" in options:
        options["digest"] = digest(service, type or "", body)
    try:
        uuid = await gateway_of(request).submissions.submit(client, service, body, options)
    except InvalidRequest as error:
        most = client.calls.limits.max_body
        if 0 < most < len(body):  # that was found out only now
            raise bodies.too_large(most) from error
        raise
    if "key" in options:
        await check_digest(client, uuid, options["digest"])
    if seconds is not None:
        del body
        let_go(request.scope)
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
        frames = await reply.unless_left(request.receive, reply.wait(request, uuid, seconds))
    except RequestFailed as error:
        raise answers.failed(uuid, error, said) from None
    except UnknownRequest:
        problem = answers.unknown(uuid)
        problem.headers.update(said)
        raise problem from None
    except TitanicError:
        frames = None
    return accepted(uuid, said) if frames is None else reply.as_response(frames, said)


async def get_request(request: Request) -> Response:
    """All that is known of a request but its body and its reply."""
    headers.query(request, ())
    uuid = answers.read_uuid(request.path_params["uuid"])
    return answers.document(described(await _show(visitor_of(request).client, uuid)))


def described(row: RequestInfo) -> dict[str, Any]:
    """What the door says of a request. A key that a client has made up for itself says nothing to anybody."""
    key = "" if row["key"].startswith(KEY_PREFIX) else row["key"]
    known: dict[str, Any] = {**row}
    times = {name: answers.moment(known[name]) for name in TIMES if name in known}
    return {**known, **times, "key": key, "links": answers.links(row["uuid"])}


async def _show(client: Client, uuid: str) -> RequestInfo:
    try:
        return await client.show(uuid)
    except UnknownRequest:
        raise answers.unknown(uuid) from None


async def get_body(request: Request) -> Response:
    """The bytes that were submitted."""
    headers.query(request, ())
    uuid = answers.read_uuid(request.path_params["uuid"])
    try:
        found = await visitor_of(request).client.look(uuid, None)
    except UnknownRequest:
        raise answers.unknown(uuid) from None
    return reply.as_response(found.body, type=found.info.get("type", ""))


async def delete_request(request: Request) -> Response:
    """Close a request. That it is gone then is true of one that was never there as well."""
    headers.query(request, ())
    await visitor_of(request).client.close(answers.read_uuid(request.path_params["uuid"]))
    return Response(status_code=204)


async def retry_request(request: Request) -> Response:
    """Have a request tried again that has failed or expired."""
    headers.query(request, ())
    uuid = answers.read_uuid(request.path_params["uuid"])
    client = visitor_of(request).client
    if await client.retry(uuid):
        return accepted(uuid)
    state = (await _show(client, uuid))["state"]
    if state in ("failed", "expired"):
        raise Problem(403, "you may see this request, but not submit to its service; ask for that permission")
    raise Problem(409, f"the request is {state}; only what has failed or expired is tried again")


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
}

ROUTES = [
    Resource("/v1/services/{service}/requests", POST=post_request),
    Resource("/v1/requests/{uuid}:retry", POST=retry_request),
    Resource("/v1/requests/{uuid}/body", GET=get_body),
    Resource("/v1/requests/{uuid}", GET=get_request, DELETE=delete_request),
]
