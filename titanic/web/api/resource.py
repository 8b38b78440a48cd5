"""A route of the HTTP API, and how its handlers read bodies.

Paths are matched before decoding: the name of a service may contain a slash, which is written %2F.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import NoReturn
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Message, Receive, Scope, Send

from titanic.aio import Client
from titanic.client.calls import LARGE
from titanic.web import problems
from titanic.web.app_state import app_state
from titanic.web.auth.quota import hold_body, release_body
from titanic.web.problems import Problem
from titanic.web.request_headers import header_of, headers_of

Handler = Callable[[Request], Awaitable[Response]]

LINGER = 2.0
"""Seconds for which the rest of a rejected body is read and discarded."""

_PARAMETER = re.compile(r"\{(\w+)\}")
_PATTERNS = {"uuid": b"[^/:]+"}
"""The patterns of parameters; the default is anything without a slash."""


class ApiRoute(BaseRoute):
    """A path such as `/v1/requests/{uuid}`, and the handler of each method. HEAD is handled like GET.

    The decoded parameters are in `request.path_params`.
    """

    def __init__(self, path: str, **handlers: Handler) -> None:
        """`handlers`: by method."""
        self.path = path
        self.methods = dict(handlers)
        if "GET" in handlers:
            self.methods["HEAD"] = handlers["GET"]
        self.allow = ", ".join([*self.methods, "OPTIONS"])
        parts = _PARAMETER.split(path)
        self._names = parts[1::2]
        pattern = b""
        for literal, name in zip(parts[::2], [*self._names, ""], strict=True):
            pattern += re.escape(literal.encode())
            pattern += b"(" + _PATTERNS.get(name, b"[^/]+") + b")" if name else b""
        self._matched = re.compile(pattern).fullmatch

    def parameters(self, raw_path: bytes) -> dict[str, str] | None:
        """The decoded parameters in a path; None: the path does not match. Raises Problem."""
        if (found := self._matched(raw_path)) is None:
            return None
        parameters: dict[str, str] = {}
        for name, value in zip(self._names, found.groups(), strict=True):
            try:
                parameters[name] = unquote_to_bytes(value).decode()
            except UnicodeDecodeError:
                raise Problem(400, f"the {name} in the path is not UTF-8; percent-encode its UTF-8 bytes") from None
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
        try:
            if (coding := header_of(scope, b"content-encoding", "identity").lower()) != "identity":
                what, fact = f"the body has the Content-Encoding {coding[:100]!r}", "workers do not get that header"
                advice = "send it unencoded, or declare the encoding in Content-Type"
                raise Problem(415, f"{what}; {fact}; {advice}", headers={"Accept-Encoding": "identity"})
            response = await self._handler(scope)(Request(scope, receive, send))
        except ClientDisconnect:
            return
        except Problem as problem:
            if problem.status not in (413, 429, 503):
                raise
            release_body(scope)
            await _linger(problems.answer(problem), scope, receive, send)
            return
        await response(scope, receive, send)

    def _handler(self, scope: Scope) -> Handler:
        """The handler of this method. Raises Problem."""
        method = scope["method"]
        handler = self._options if method == "OPTIONS" else self.methods.get(method)
        if handler is None:
            what = f"{self.path} does not allow {method}"
            raise Problem(405, f"{what}; it allows {self.allow}", headers={"Allow": self.allow})
        return handler

    async def _options(self, request: Request) -> Response:
        return Response(status_code=204, headers={"Allow": self.allow})


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
    """The maximum bytes of a body at this gateway and at the broker. The broker is asked for its limit only if the body
    is known to be large."""
    most = app_state(request).settings.max_body
    limits = client.calls.limits
    known = limits.max_body
    if not known and declared_length(request) > LARGE:
        await limits.is_ours()
        known = limits.max_body
    return min(most, known or most)


def declared_length(request: Request) -> int:
    """The declared length of the body; 0: unknown."""
    length = headers_of(request.scope).get(b"content-length", b"")
    if not length.isdigit():
        return 0
    return int(length) if len(length) <= MAX_DIGITS else 10**MAX_DIGITS


async def read_body(request: Request, most: int) -> bytes:
    """Read the body. Raises Problem as soon as it is known to be too large, and ClientDisconnect."""
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


def body_too_large(most: int) -> Problem:
    """The answer to a body with more bytes."""
    detail = f"the body has more than {most} bytes, the maximum here; send it in parts, or raise --max-body"
    return Problem(413, detail, headers={"Connection": "close"})
