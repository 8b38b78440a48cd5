"""Forms of the pages, and what a visitor may not see.

Every form that changes something is read with `read`, which checks that it came from one of our own pages: it has
`visitor.csrf` in the hidden field `csrf`, or a script sends that in the header X-CSRF-Token. Another site can have a
browser send a form with its user's cookie and certificate, but cannot read that token.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from titanic.errors import Forbidden
from titanic.web.app_state import hold_body, visitor_of
from titanic.web.problems import HTTPProblem

MAX_BYTES, MAX_FIELDS = 1 << 20, 20_000
"""Of a form: enough for the UUIDs of a page."""

UUID = re.compile("[0-9a-f]{32}")

MAX_LOGGED = 10
"""UUIDs in a line of the log."""

TYPE = "application/x-www-form-urlencoded"

Form = ImmutableMultiDict[str, str]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NotPermitted:
    """A part of a page that the visitor may not see, and why: the missing permission."""

    what: str
    why: str


async def unless_forbidden(what: str, result: Awaitable[T]) -> T | NotPermitted:
    """Return the result, or NotPermitted when it raises Forbidden. `what`: its name on the page."""
    try:
        return await result
    except Forbidden as error:
        return NotPermitted(what, str(error).removeprefix("forbidden: "))


async def read(request: Request) -> Form:
    """Return the fields of a form without `csrf`; `getlist` returns all values of one. Raises HTTPProblem when it is no
    form, is too large, or did not come from one of our pages."""
    body = await read_body(request, MAX_BYTES)
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError as error:  # UnicodeDecodeError is one
        if body:
            raise HTTPProblem(400, f"the form is invalid: {error}; submit it from the console") from error
        pairs = []
    given = request.headers.get("x-csrf-token") or next((value for name, value in pairs if name == "csrf"), "")
    check_csrf(request, given)
    request.state.about = _about(pairs)
    return ImmutableMultiDict([(name, value) for name, value in pairs if name != "csrf"])


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a form, unchecked. Raises HTTPProblem when it is no form or has more bytes than `limit`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != TYPE:
        raise HTTPProblem(
            415, f"expected a form, {TYPE}, but got {kind[:100] or 'no content type'}; submit it from the console"
        )
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise HTTPProblem(413, f"the form is larger than {limit >> 10:,} KiB; send less")
        hold_body(request.scope, len(body))
    return bytes(body)


def check_csrf(request: Request, given: str) -> None:
    """Raise HTTPProblem unless `given` is the visitor's CSRF token. Requests with a bearer token need none: another
    site cannot have a browser send that."""
    visitor = visitor_of(request)
    if not visitor.needs_csrf:
        return
    if not visitor.csrf or not hmac.compare_digest(given.encode(), visitor.csrf.encode()):
        what, fact = "nothing was changed", "the form belongs to another session, or yours has ended"
        raise HTTPProblem(403, f"{what}: {fact}; reload the page and submit it again")


def _about(pairs: list[tuple[str, str]]) -> str:
    """Which requests and which service an action is about, for the log; no other field is ever logged."""
    uuids = [value for name, value in pairs if name == "uuid" and UUID.fullmatch(value)]
    services = [value for name, value in pairs if name == "service"]
    found = [f"service {service[:255]!r}" for service in services[:1]]
    if uuids:
        more = f" and {len(uuids) - MAX_LOGGED} more" if len(uuids) > MAX_LOGGED else ""
        found.append(" ".join(uuids[:MAX_LOGGED]) + more)
    return ", ".join(found)
