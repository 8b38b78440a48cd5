"""Bodies of requests, which are read no further than they may be large."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import ClientDisconnect, Request

from titanic.aio import Client
from titanic.client.calls import LARGE
from titanic.web.auth.places import hold
from titanic.web.fields import fields
from titanic.web.gateway import gateway_of
from titanic.web.problems import Problem

DIGITS = 18
"""A length with more of them is too large for anything."""


async def most_bytes(request: Request, client: Client) -> int:
    """The bytes that a body may have: as many as this gateway and the broker behind it take, if that has been asked
    already or the body is known to be large."""
    most = gateway_of(request).settings.max_body
    limits = client.calls.limits
    known = limits.max_body
    if not known and declared(request) > LARGE:
        await limits.is_ours()
        known = limits.max_body
    return min(most, known or most)


def declared(request: Request) -> int:
    """The length that the body is said to have; 0: it is not said."""
    length = fields(request.scope).get(b"content-length", b"")
    if not length.isdigit():
        return 0
    return int(length) if len(length) <= DIGITS else 10**DIGITS


async def read(request: Request, most: int) -> bytes:
    """The body. Raises Problem as soon as it is known to be too large, and ClientDisconnect."""
    if declared(request) > most:
        raise too_large(most)
    message = await request.receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > most:
            raise too_large(most)
        return body
    gathered = bytearray()
    while message["type"] == "http.request":
        gathered += message.get("body", b"")
        if len(gathered) > most:
            raise too_large(most)
        hold(request.scope, len(gathered))
        if not message.get("more_body", False):
            return bytes(gathered)
        message = await request.receive()
    raise ClientDisconnect


async def parts(request: Request) -> AsyncGenerator[bytes, None]:
    """The body as it comes in. Raises ClientDisconnect."""
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            return


def too_large(most: int) -> Problem:
    """The answer to a body of more bytes."""
    detail = f"the body has more than {most} bytes; no more are taken here; send it in parts, or have --max-body raised"
    return Problem(413, detail, headers={"Connection": "close"})
