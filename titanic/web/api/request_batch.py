"""POST …/requests:batch: many requests in one call, parsed and stored a message at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Protocol

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from broker import TimedOut
from titanic.aio import Client
from titanic.errors import Forbidden, TitanicError
from titanic.protocol.submit_options import MOST_UUIDS
from titanic.util.text import quoted
from titanic.web import problems
from titanic.web.api.openapi import SUBMIT_HEADERS, AcceptedBatch, answer, endpoint, json_content, schema, wrong
from titanic.web.api.requests import check_digest, digest
from titanic.web.api.resource import ApiRoute, body_parts, body_too_large, json_response, max_body
from titanic.web.api.services import read_service
from titanic.web.app_state import hold_body, visitor_of
from titanic.web.problems import HTTPProblem
from titanic.web.request_headers import read_submit_options

_MARK = re.compile(rb'["\[\]{},]')
_IN_TEXT = re.compile(rb'["\\]')
BLANK = b" \t\r\n"


class Items(Protocol):
    """Splits a body that arrives in parts into items."""

    @property
    def held(self) -> int:
        """Bytes of the incomplete item."""

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Yield the items that this part completes. Raises HTTPProblem."""

    def end(self) -> Iterator[bytes]:
        """Yield the last item. Raises HTTPProblem when the body is truncated."""


class Lines:
    """One item on each line; empty lines are skipped."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    def feed(self, part: bytes) -> Iterator[bytes]:
        *lines, rest = part.split(b"\n")
        for line in lines:
            self._parts.append(line)
            yield from self.end()
        self._parts.append(rest)
        self._held += len(rest)

    def end(self) -> Iterator[bytes]:
        line = b"".join(self._parts).strip(BLANK)
        self._parts.clear()
        self._held = 0
        if line:
            yield line


class Array:
    """The items of a JSON array."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        """How far the buffer has been scanned."""
        self._started = self._ended = self._in_text = False
        self._depth = 0
        self._several = False

    @property
    def held(self) -> int:
        return len(self._buffer)

    def feed(self, part: bytes) -> Iterator[bytes]:
        self._buffer += part
        if not self._started and not self._begin():
            return
        while not self._ended and (mark := self._next()):
            if self._in_text:
                self._in_text = mark != b'"'
                self._at += mark == b"\\"  # what follows it is text
            elif mark == b'"':
                self._in_text = True
            elif mark in b"[{":
                self._depth += 1
            elif self._depth:
                self._depth -= mark in b"]}"
            elif mark == b"}":
                raise HTTPProblem(400, "the body is not a JSON array: a } is between its items; send one, or NDJSON")
            else:
                yield from self._take(mark)
        if self._ended and self._buffer.strip(BLANK):
            raise HTTPProblem(400, "there is data after the end of the array; send one array, or NDJSON")

    def end(self) -> Iterator[bytes]:
        if not self._ended:
            raise HTTPProblem(400, "the body ends before the end of the array; send all of it")
        yield from ()

    def _begin(self) -> bool:
        self._buffer = self._buffer.lstrip(BLANK)
        if bytes(self._buffer[:1]) not in (b"", b"["):
            raise HTTPProblem(400, "the body is not a JSON array; send one, or NDJSON as application/x-ndjson")
        self._started = bool(self._buffer)
        del self._buffer[:1]
        return self._started

    def _next(self) -> bytes:
        found = (_IN_TEXT if self._in_text else _MARK).search(self._buffer, self._at)
        self._at = found.end() if found else max(self._at, len(self._buffer))
        return found[0] if found else b""

    def _take(self, mark: bytes) -> Iterator[bytes]:
        item = bytes(self._buffer[: self._at - 1]).strip(BLANK)
        del self._buffer[: self._at]
        self._at = 0
        self._ended = mark == b"]"
        if item or self._several or not self._ended:  # `[]` has no items
            yield item
        self._several = True


def check_json(item: bytes, number: int) -> None:
    """Raise HTTPProblem for an item that is not JSON. `number`: its index, from 0."""
    try:
        _JSON.decode(item.decode())
    except (ValueError, RecursionError) as error:
        given = quoted(item.decode(errors="replace"))
        raise HTTPProblem(400, f"item {number} is not JSON: {given}; {_fault(item, error)}") from None


def _fault(item: bytes, error: ValueError | RecursionError) -> str:
    """Where the error is, and what to do."""
    if not item:
        return "there is nothing between two commas; remove one of them"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 from byte {error.start} on; send UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply; send it as a string, or submit it alone"
    if isinstance(error, json.JSONDecodeError):
        return f"the error is at character {error.pos}, counted from 0; put strings and names into double quotes"
    return f"{error}; send null, or a string"


def _no_number(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


_JSON = json.JSONDecoder(parse_constant=_no_number, parse_int=len, parse_float=len)
"""Checks only the syntax of numbers: they may have any number of digits."""


MAX_ITEMS = 100_000
"""Maximum number of requests in one call."""

MESSAGE_BYTES = 1 << 20
"""Maximum bytes of bodies in a message with several requests."""

TYPE = "application/json"
"""The content type of each request."""

ARRAY = (TYPE,)
LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")


class Batch:
    """Collects bodies and stores them in messages of up to 1,000. A message is accepted completely or not at all."""

    def __init__(self, client: Client, service: str, options: dict[str, Any], most: int) -> None:
        """`most`: maximum bytes of a body."""
        self.uuids: list[str] = []
        self._client = client
        self._service = service
        self._options = options
        self._key = options.pop("key", None)
        self._most = most
        self._bodies: list[bytes] = []
        self.held = 0
        """Bytes of the collected bodies."""

    async def add(self, body: bytes) -> None:
        """Add a body. Raises HTTPProblem, or what submitting raises."""
        number = len(self.uuids) + len(self._bodies)
        if number == MAX_ITEMS:
            raise HTTPProblem(
                413, f"there are more than {MAX_ITEMS} items, the maximum of one call; send the rest in another"
            )
        self.check_size(len(body))
        check_json(body, number)
        if self.held + len(body) > min(MESSAGE_BYTES, self._most):
            await self.store()
        self._bodies.append(body)
        self.held += len(body)
        if len(self._bodies) == MOST_UUIDS:
            await self.store()

    def check_size(self, size: int) -> None:
        """Raise HTTPProblem if an item of so many bytes, perhaps incomplete, is too large."""
        if size > self._most:
            raise body_too_large(self._most)

    async def store(self) -> None:
        """Store the collected bodies."""
        if not self._bodies:
            return
        if self._key is None:
            self.uuids += await self._client.submit_batch(self._service, self._bodies, **self._options)
        else:
            self.uuids += await self._store_keyed(self._key)
        self._bodies = []
        self.held = 0

    async def _store_keyed(self, key: str) -> list[str]:
        """Store bodies with a key each, derived from the batch's key. Raises HTTPProblem, and stores none, when that
        key, or one of these, was used with other bodies."""
        client, first = self._client, len(self.uuids)
        keys = [f"{key}/{first + number}" for number in range(len(self._bodies))]
        given = digest(self._service, TYPE, *self._bodies)
        with suppress(Forbidden):  # the user may not read
            known, _ = await client.find(keys)
            some = keys[:1] if len(known) == len(keys) else keys  # perhaps some are keys of single requests
            for uuid in [known[key] for key in some if key in known]:
                await check_digest(client, uuid, given)
        uuids = await client.submit_batch(self._service, self._bodies, keys=keys, **self._options, digest=given)
        await check_digest(client, uuids[0], given)  # another client may have used the key in the meantime
        return uuids

    def failed(self, problem: HTTPProblem) -> HTTPProblem:
        """Add to a problem what was stored before it."""
        problem.members |= {"stored": len(self.uuids), "uuids": self.uuids}
        return problem


async def post_batch(request: Request) -> Response:
    """Store a request for each item of an array, or for each line."""
    service = read_service(request)
    found = _format(request)
    client = visitor_of(request).client
    try:
        await client.calls.limits.is_ours()  # learns the maximum size of a message
    except TimedOut as error:
        raise HTTPProblem(504, f"{error}", headers={"Retry-After": "5"}) from None
    batch = Batch(client, service, {**read_submit_options(request), "type": TYPE}, await max_body(request, client))
    try:
        async for part in body_parts(request):
            for item in found.feed(part):
                await batch.add(item)
            batch.check_size(found.held)
            hold_body(request.scope, found.held + batch.held)
        for item in found.end():
            await batch.add(item)
        await batch.store()
    except HTTPProblem as problem:
        raise batch.failed(problem) from None
    except TitanicError as error:
        raise batch.failed(problems.of(error)) from error
    return json_response({"uuids": batch.uuids}, 202)


def _format(request: Request) -> Items:
    type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if type in ARRAY:
        return Array()
    if type in LINES:
        return Lines()
    what = "a batch is a JSON array (application/json) or lines of JSON (application/x-ndjson)"
    raise HTTPProblem(415, f"{what}; Content-Type is {type[:100] or 'missing'}")


_ITEMS = Annotated[list[Any], Meta(max_length=MAX_ITEMS, extra_json_schema={"items": {}})]
_DESCRIPTION = (
    "Each item becomes the body of a request, as it is written. Up to 1,000 requests are "
    "stored at a time, all of them or none. If a later part fails, the problem reports what was stored. "
    "With an `Idempotency-Key` the same batch can be sent again: each item gets its own key."
)

ROUTES = [
    ApiRoute(
        "/v1/services/{service}/requests:batch",
        POST=endpoint(
            post_batch,
            "submitBatch",
            "Store many requests",
            {"202": answer("The requests are stored.", AcceptedBatch), **wrong(413, 415, 422)},
            description=_DESCRIPTION,
            parameters=SUBMIT_HEADERS,
            requestBody={
                "required": True,
                "content": {**json_content(_ITEMS), "application/x-ndjson": {"schema": schema(str)}},
            },
        ),
    )
]
