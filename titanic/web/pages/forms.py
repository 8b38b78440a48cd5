"""Forms of the pages: they are read here and nowhere else, because each must prove that it came from a page of ours.

A page puts `visitor.csrf` into the hidden field `csrf`; a script may send it as the header X-CSRF-Token. A page from
elsewhere can have a browser send a form, with the cookie and the certificate of its user, but cannot read that token.
"""

from __future__ import annotations

import hmac
import re
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from titanic.web.auth.places import hold
from titanic.web.gateway import visitor_of
from titanic.web.problems import Problem

MOST_BYTES, MOST_FIELDS = 1 << 20, 20_000
"""Of a form: enough for as many UUIDs as a page lists."""

UUID = re.compile("[0-9a-f]{32}")

MOST_SHOWN = 10
"""UUIDs that a line of the log has."""

TYPE = "application/x-www-form-urlencoded"

Form = ImmutableMultiDict[str, str]


async def read(request: Request) -> Form:
    """The fields of a form, without `csrf`; `getlist` has all values of one. Raises Problem when it is not a form, is
    too large, or did not come from a page of ours."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != TYPE:
        raise Problem(415, f"this takes a form, {TYPE}; what came is {kind[:100] or 'without a type'}")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise Problem(413, f"this form is larger than {MOST_BYTES >> 20} MiB; choose fewer requests")
        hold(request.scope, len(body))
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=MOST_FIELDS
        )
    except ValueError as error:  # UnicodeDecodeError is one
        if not body:
            pairs = []
        else:
            raise Problem(400, f"this is no form: {error}; send it from its page") from error
    given = request.headers.get("x-csrf-token") or next((value for name, value in pairs if name == "csrf"), "")
    check(request, given)
    request.state.about = _about(pairs)
    return ImmutableMultiDict([(name, value) for name, value in pairs if name != "csrf"])


def check(request: Request, given: str) -> None:
    """Raise Problem unless `given` is the visitor's CSRF token. Who shows a bearer token needs none: no page can have
    a browser send that."""
    visitor = visitor_of(request)
    if not visitor.needs_csrf:
        return
    if not visitor.csrf or not hmac.compare_digest(given.encode(), visitor.csrf.encode()):
        what, fact = "nothing was changed", "the form is not from a page of this log-in, or the log-in has ended since"
        raise Problem(403, f"{what}: {fact}; open its page again, and send it from there")


def _about(pairs: list[tuple[str, str]]) -> str:
    """What the log says of an action: which requests, which service; never anything else that was filled in."""
    uuids = [value for name, value in pairs if name == "uuid" and UUID.fullmatch(value)]
    services = [value for name, value in pairs if name == "service"]
    found = [f"service {service[:255]!r}" for service in services[:1]]
    if uuids:
        more = f" and {len(uuids) - MOST_SHOWN} more" if len(uuids) > MOST_SHOWN else ""
        found.append(" ".join(uuids[:MOST_SHOWN]) + more)
    return ", ".join(found)
