"""POST …/requests:batch: many requests in one call, read, stored and forgotten a message at a time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from titanic.aio import Client
from titanic.errors import Forbidden, TitanicError
from titanic.protocol.submit_options import MOST_UUIDS
from titanic.web import problems
from titanic.web.api import answers, bodies, headers, items, requests
from titanic.web.api.requests import read_service
from titanic.web.api.resource import Resource
from titanic.web.api.schemas import SERVICE, SUBMIT_HEADERS, UUID, answer, listed, record, wrong
from titanic.web.auth.places import hold
from titanic.web.gateway import visitor_of
from titanic.web.problems import Problem

MOST_ITEMS = 100_000
"""Requests in one call."""

MESSAGE = 1 << 20
"""Bytes of bodies in a message of several."""

TYPE = "application/json"
"""What each request is."""

ARRAY = (TYPE,)
LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")


class Batch:
    """Gathers bodies and stores them, up to 1,000 in a message, each of which is accepted whole or not at all."""

    def __init__(self, client: Client, service: str, options: dict[str, Any], most: int) -> None:
        """`most`: bytes that a body may have."""
        self.uuids: list[str] = []
        self._client = client
        self._service = service
        self._options = options
        self._key = options.pop("key", None)
        self._most = most
        self._bodies: list[bytes] = []
        self.held = 0
        """Bytes that have gathered."""

    async def add(self, body: bytes) -> None:
        """Take a body. Raises Problem, or what submitting raises."""
        number = len(self.uuids) + len(self._bodies)
        if number == MOST_ITEMS:
            raise Problem(
                413, f"there are more than {MOST_ITEMS} items; no call may have more; send the rest in another"
            )
        self.check_size(len(body))
        items.check(body, number)
        if self.held + len(body) > min(MESSAGE, self._most):
            await self.store()
        self._bodies.append(body)
        self.held += len(body)
        if len(self._bodies) == MOST_UUIDS:
            await self.store()

    def check_size(self, size: int) -> None:
        """Raise Problem for an item of so many bytes, perhaps not whole yet, that is too large."""
        if size > self._most:
            raise bodies.too_large(self._most)

    async def store(self) -> None:
        """Have stored what has gathered."""
        if not self._bodies:
            return
        if self._key is None:
            self.uuids += await self._client.submit_batch(self._service, self._bodies, **self._options)
        else:
            self.uuids += await self._store_keyed(self._key)
        self._bodies = []
        self.held = 0

    async def _store_keyed(self, key: str) -> list[str]:
        """Each has a key of its own, made of this one. Raises Problem when that was used with other bodies: of these,
        none is stored."""
        client, first = self._client, len(self.uuids)
        keys = [f"{key}/{first + number}" for number in range(len(self._bodies))]
        digest = requests.digest(self._service, TYPE, *self._bodies)
        with suppress(Forbidden):  # he may not read
            for uuid in (await client.find(keys[:1]))[0].values():
                await requests.check_digest(client, uuid, digest)
        uuids = await client.submit_batch(self._service, self._bodies, keys=keys, **self._options, digest=digest)
        await requests.check_digest(client, uuids[0], digest)  # somebody may have been quicker
        return uuids

    def failed(self, problem: Problem) -> Problem:
        """The problem, with how far it came."""
        problem.members |= {"stored": len(self.uuids), "uuids": self.uuids}
        return problem


async def post_batch(request: Request) -> Response:
    """Store a request for each item of an array, or for each line."""
    headers.query(request, ())
    service = read_service(request)
    found = _format(request)
    client = visitor_of(request).client
    await client.calls.limits.is_ours()  # then it is known how large a message may be
    batch = Batch(
        client, service, {**headers.submit_options(request), "type": TYPE}, await bodies.most_bytes(request, client)
    )
    try:
        async for part in bodies.parts(request):
            for item in found.feed(part):
                await batch.add(item)
            batch.check_size(found.held)
            hold(request.scope, found.held + batch.held)
        for item in found.end():
            await batch.add(item)
        await batch.store()
    except Problem as problem:
        raise batch.failed(problem) from None
    except TitanicError as error:
        raise batch.failed(problems.of(error)) from error
    return answers.document({"uuids": batch.uuids}, 202)


def _format(request: Request) -> items.Items:
    type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if type in ARRAY:
        return items.Array()
    if type in LINES:
        return items.Lines()
    what = "a batch is a JSON array (application/json) or lines of JSON (application/x-ndjson)"
    raise Problem(415, f"{what}; Content-Type is {type[:100] or 'missing'}")


PATHS = {
    "/v1/services/{service}/requests:batch": {
        "parameters": [SERVICE],
        "post": {
            "operationId": "submitBatch",
            "summary": "Store many requests",
            "description": "One for each item, whose body is the item as it is written. They are stored up to 1,000 at "
            "a time, all of these or none. When something goes wrong later, the problem says how far it came. "
            "With an `Idempotency-Key` the same batch can be sent again: each item has a key of its own.",
            "parameters": SUBMIT_HEADERS,
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": {"type": "array", "maxItems": MOST_ITEMS}},
                    "application/x-ndjson": {"schema": {"type": "string"}},
                },
            },
            "responses": {
                "202": answer("They are stored.", record({"uuids": listed(UUID)})),
                **wrong(413, 415, 422),
            },
        },
    }
}

ROUTES = [Resource("/v1/services/{service}/requests:batch", POST=post_batch)]
