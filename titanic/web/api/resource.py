"""A route of the HTTP API, how its handlers read queries and bodies, and the answers that several of them give.

Paths are matched before decoding: the name of a service may contain a slash, which is written %2F.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Message, Receive, Scope, Send

from broker import TimedOut
from titanic.aio import Client
from titanic.client.calls import LARGE
from titanic.errors import RequestFailed
from titanic.protocol.messages import Message as Options
from titanic.protocol.messages import read
from titanic.protocol.submit_options import MOST_UUIDS
from titanic.util import ids
from titanic.util.text import quoted
from titanic.web import problems
from titanic.web.app_state import app_state, hold_body, release_body
from titanic.web.problems import HTTPProblem
from titanic.web.request_headers import ROOT, header_of, headers_of, read_integer, read_query

Handler = Callable[[Request], Awaitable[Response]]

Document = TypeVar("Document", bound=Options)

LINGER = 2.0
"""Seconds for which the rest of a rejected body is read and discarded."""

QUERY = "titanic.query"
"""The key of the scope for the parameters in the query."""

_PARAMETER = re.compile(r"\{(\w+)\}")
_PATTERNS = {"uuid": b"[^/:]+"}
"""The patterns of parameters; the default is anything without a slash. A service's name may contain colons, so a route
that ends in `{service}` also matches `/v1/services/upper:take`: it must come after those that end in `{service}:…`."""


class Endpoint(NamedTuple):
    """What one method of a path does, and how the OpenAPI document describes it. `query`: the parameters that its query
    may have, each once; None: the handler reads it."""

    handler: Handler
    operation: dict[str, Any]
    query: tuple[str, ...] | None


class ApiRoute(BaseRoute):
    """A path such as `/v1/requests/{uuid}`, and the endpoint of each method. HEAD is handled like GET.

    The decoded parameters are in `request.path_params`; `query_of` returns those of the query.
    """

    def __init__(self, path: str, **endpoints: Endpoint) -> None:
        """`endpoints`: by method."""
        self.path = path
        self.operations = {method.lower(): endpoint.operation for method, endpoint in endpoints.items()}
        self.methods = endpoints | ({"HEAD": endpoints["GET"]} if "GET" in endpoints else {})
        self.allow = ", ".join([*self.methods, "OPTIONS"])
        parts = _PARAMETER.split(path)
        self.names = parts[1::2]
        pattern = b""
        for literal, name in zip(parts[::2], [*self.names, ""], strict=True):
            pattern += re.escape(literal.encode())
            pattern += b"(" + _PATTERNS.get(name, b"[^/]+") + b")" if name else b""
        self._matched = re.compile(pattern).fullmatch

    def parameters(self, raw_path: bytes) -> dict[str, str] | None:
        """The decoded parameters in a path; None: the path does not match. Raises HTTPProblem."""
        if (found := self._matched(raw_path)) is None:
            return None
        parameters: dict[str, str] = {}
        for name, value in zip(self.names, found.groups(), strict=True):
            try:
                parameters[name] = unquote_to_bytes(value).decode()
            except UnicodeDecodeError:
                raise HTTPProblem(400, f"the {name} in the path is not UTF-8; percent-encode its UTF-8 bytes") from None
        return parameters

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request by its path; `handle` answers other methods with 405."""
        if scope["type"] != "http" or (parameters := self.parameters(scope["raw_path"])) is None:
            return Match.NONE, {}
        return Match.FULL, {"path_params": parameters}

    def url_path_for(self, name: str, /, **path_params: object) -> NoReturn:
        """Routes of the API have no names."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; its scope has the parameters in `path_params`. The application reports the errors that a
        handler raises."""
        is_complete = False

        async def received() -> Message:
            nonlocal is_complete
            message = await receive()
            is_complete = is_complete or not message.get("more_body", False)
            return message

        try:
            if (coding := header_of(scope, b"content-encoding", "identity").lower()) != "identity":
                what, fact = f"the body has the Content-Encoding {coding[:100]!r}", "workers do not get that header"
                advice = "send it unencoded, or declare the encoding in Content-Type"
                raise HTTPProblem(415, f"{what}; {fact}; {advice}", headers={"Accept-Encoding": "identity"})
            request = Request(scope, received, send)
            response = await self._handler(request)(request)
        except ClientDisconnect:
            return
        except HTTPProblem as problem:
            if is_complete or problem.status not in (413, 429, 503):
                raise
            release_body(scope)
            await _linger(problems.answer(problem), scope, receive, send)
            return
        await response(scope, receive, send)

    def _handler(self, request: Request) -> Handler:
        """The handler of this method, for which the query is read. Raises HTTPProblem."""
        if request.method == "OPTIONS":
            return self._options
        if (endpoint := self.methods.get(request.method)) is None:
            what = f"{self.path} does not allow {request.method}"
            raise HTTPProblem(405, f"{what}; it allows {self.allow}", headers={"Allow": self.allow})
        if endpoint.query is not None:
            request.scope[QUERY] = read_query(request, endpoint.query)
        return endpoint.handler

    async def _options(self, request: Request) -> Response:
        return Response(status_code=204, headers={"Allow": self.allow})


def query_of(request: Request) -> dict[str, str]:
    """The parameters in the query of a request."""
    query: dict[str, str] = request.scope[QUERY]
    return query


async def _linger(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer to a client that is still sending, and read on for a while. Closing a connection with unread bytes
    resets it, and the answer may be lost."""

    async def sent(message: Message) -> None:
        if message["type"] != "http.response.body":
            await send(message)
            return
        await send({**message, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body"})

    await response(scope, receive, sent)


MAX_DIGITS = 18
"""A Content-Length with more digits exceeds every limit."""


async def max_body(request: Request, client: Client) -> int:
    """The maximum bytes of a body at this gateway and at the broker. The broker is asked for its limit unless the body
    is known to be small."""
    most = app_state(request).settings.max_body
    limits = client.calls.limits
    known = limits.max_body
    if not known and (declared_length(request) > LARGE or b"transfer-encoding" in headers_of(request.scope)):
        with suppress(TimedOut):  # the call that sends the body reports it
            await limits.is_ours(retries=0)
        known = limits.max_body
    return min(most, known or most)


def declared_length(request: Request) -> int:
    """The declared length of the body; 0: unknown."""
    length = headers_of(request.scope).get(b"content-length", b"")
    if not length.isdigit():
        return 0
    return int(length) if len(length) <= MAX_DIGITS else 10**MAX_DIGITS


async def read_body(request: Request, most: int) -> bytes:
    """Read the body. Raises HTTPProblem as soon as it is known to be too large, and ClientDisconnect."""
    if declared_length(request) > most:
        raise body_too_large(most)
    message = await request.receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > most:
            raise body_too_large(most)
        return body
    gathered = bytearray()
    while message["type"] == "http.request":
        gathered += message.get("body", b"")
        if len(gathered) > most:
            raise body_too_large(most)
        hold_body(request.scope, len(gathered))
        if not message.get("more_body", False):
            return bytes(gathered)
        message = await request.receive()
    raise ClientDisconnect


async def read_document(request: Request, kind: type[Document], most: int, example: str) -> Document:
    """Read a JSON document of this kind, such as the example. Raises HTTPProblem."""
    try:
        return read(kind, await read_body(request, most))
    except ValueError as error:
        raise HTTPProblem(400, f"{error}; send {example}") from None


async def body_parts(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives. Raises ClientDisconnect."""
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            return


def body_too_large(most: int) -> HTTPProblem:
    """The answer to a body with more bytes."""
    detail = f"the body has more than {most} bytes, the maximum here; send it in parts, or raise --max-body"
    return HTTPProblem(413, detail, headers={"Connection": "close"})


CLOCK_TOLERANCE_US = 60_000_000
"""Maximum difference between the clocks of server and gateway."""

MAX_DETAIL = 64 << 10
"""Maximum bytes of a failure's detail in a response."""


def json_response(data: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Make a JSON response."""
    return Response(json.dumps(data).encode(), status, headers, "application/json")


def links(uuid: str) -> dict[str, str]:
    """The links of a request."""
    path = f"{ROOT.get()}/v1/requests/{uuid}"
    return {"self": path, "reply": f"{path}/reply"}


def timestamp(microseconds: int | None) -> str | None:
    """Format microseconds since 1970 as RFC 3339; None for 0 and None."""
    if not microseconds:
        return None
    return (datetime(1970, 1, 1) + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds") + "Z"


def with_times(value: Any, *names: str) -> Any:
    """Format these members of a document, at any depth, as `timestamp` does."""
    if isinstance(value, dict):
        return {key: timestamp(one) if key in names else with_times(one, *names) for key, one in value.items()}
    return [with_times(one, *names) for one in value] if isinstance(value, list) else value


def flag(given: Mapping[str, str], name: str) -> bool:
    """Read a parameter that is true or false; absent: false."""
    if (value := given.get(name, "false")) not in ("true", "false"):
        raise HTTPProblem(400, f"{name} is {quoted(value)}; it must be true or false")
    return value == "true"


PAGE = 100
"""Default number of rows on a page."""


def page_size(given: dict[str, str]) -> int:
    """The requested number of rows. Raises HTTPProblem."""
    return read_integer("limit", given["limit"], 1, MOST_UUIDS) if "limit" in given else PAGE


def page(path: str, rows: Mapping[str, Any], given: dict[str, str], after: str | None) -> Response:
    """Make a page. `rows`: by name. `given`: the query. `after`: where the next page starts; None: this is the last."""
    following = None if after is None else f"{ROOT.get()}{path}?{urlencode({**given, 'after': after}, quote_via=quote)}"
    headers = None if following is None else {"Link": f'<{following}>; rel="next"'}
    return json_response({**rows, "next": following}, headers=headers)


def path_uuid(text: str) -> str:
    """Parse a UUID in a path. Raises HTTPProblem."""
    if (uuid := ids.parse(ids.plain(text).encode())) is None:
        raise HTTPProblem(404, "the path has no valid UUID; a UUID is 32 hexadecimal digits, with or without dashes")
    return uuid.hex()


def query_uuid(name: str, text: str) -> str:
    """Parse a UUID in a query parameter. Raises HTTPProblem."""
    if (uuid := ids.parse(ids.plain(text).encode())) is None:
        raise HTTPProblem(400, f"{name} is {quoted(text)}; a UUID is 32 hexadecimal digits, with or without dashes")
    return uuid.hex()


def unknown_request(uuid: str) -> HTTPProblem:
    """The problem for a request that the server does not know.

    The server forgets closed requests and cannot distinguish them from those that never existed. But a UUID contains
    the time when it was made. If it has the format of a Titanic's UUIDs and is not from the future, most probably a
    server accepted the request: the answer is 410. No server made any other UUID: 404.
    """
    raw = bytes.fromhex(uuid)
    fact = "it was closed, deleted after its retention time, or never accepted"
    if raw[6] >> 4 == 7 and raw[8] >> 6 == 2 and not ids.may_be_after(raw, time.time_ns() // 1000 + CLOCK_TOLERANCE_US):
        return HTTPProblem(410, f"unknown UUID {uuid}; {fact}", type="unknown-request")
    return HTTPProblem(
        404, f"unknown UUID {uuid}; no server can have made it; check its digits", type="unknown-request"
    )


def failed_request(uuid: str, error: RequestFailed, headers: dict[str, str] | None = None) -> HTTPProblem:
    """The problem for a request that ended without a reply."""
    more: dict[str, Any] = {"uuid": uuid, "state": error.state, "worker": _texts(error.detail)}
    title = {"expired": "Expired", "cancelled": "Cancelled"}.get(error.state, "")
    detail = f"{error}; retry it, or close it"
    return HTTPProblem(424, detail, title=title, type=f"request-{error.state}", headers=headers, members=more)


def _texts(frames: list[bytes]) -> list[str]:
    """Decode frames, up to MAX_DETAIL bytes."""
    texts: list[str] = []
    left = MAX_DETAIL
    for frame in frames:
        if left <= 0:
            break
        texts.append(frame[:left].decode(errors="replace"))
        left -= len(frame)
    return texts
