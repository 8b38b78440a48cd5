"""Responses that several calls share: documents, links, and problems for unknown and failed requests."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from titanic.errors import RequestFailed
from titanic.util import ids
from titanic.util.text import quoted
from titanic.web.problems import Problem

CLOCK_TOLERANCE_US = 60_000_000
"""Maximum difference between the clocks of server and gateway."""

MAX_DETAIL = 64 << 10
"""Maximum bytes of a failure's detail in a response."""


def json_response(data: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Make a JSON response."""
    return Response(json.dumps(data).encode(), status, headers, "application/json")


def links(uuid: str) -> dict[str, str]:
    """The links of a request."""
    return {"self": f"/v1/requests/{uuid}", "reply": f"/v1/requests/{uuid}/reply"}


def timestamp(microseconds: int | None) -> str | None:
    """Format microseconds since 1970 as RFC 3339; None for 0 and None."""
    if not microseconds:
        return None
    return (datetime(1970, 1, 1) + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds") + "Z"


def path_uuid(text: str) -> str:
    """Parse a UUID in a path. Raises Problem."""
    if (uuid := ids.parse(ids.plain(text).encode())) is None:
        raise Problem(404, "the path has no valid UUID; a UUID is 32 hexadecimal digits, with or without dashes")
    return uuid.hex()


def query_uuid(name: str, text: str) -> str:
    """Parse a UUID in a query parameter. Raises Problem."""
    if (uuid := ids.parse(ids.plain(text).encode())) is None:
        raise Problem(400, f"{name} is {quoted(text)}; a UUID is 32 hexadecimal digits, with or without dashes")
    return uuid.hex()


def unknown_request(uuid: str) -> Problem:
    """The problem for a request that the server does not know.

    The server forgets closed requests and cannot distinguish them from those that never existed. But a UUID contains
    the time when it was made. If it has the format of a Titanic's UUIDs and is not from the future, most probably a
    server accepted the request: the answer is 410. No server made any other UUID: 404.
    """
    raw = bytes.fromhex(uuid)
    fact = "it was closed, deleted after its time, or never accepted"
    if raw[6] >> 4 == 7 and raw[8] >> 6 == 2 and not ids.may_be_after(raw, time.time_ns() // 1000 + CLOCK_TOLERANCE_US):
        return Problem(410, f"unknown UUID {uuid}; {fact}", type="unknown-request")
    return Problem(404, f"unknown UUID {uuid}; no server can have made it; check its digits", type="unknown-request")


def failed_request(uuid: str, error: RequestFailed, headers: dict[str, str] | None = None) -> Problem:
    """The problem for a request that ended without a reply."""
    more: dict[str, Any] = {"uuid": uuid, "state": error.state, "worker": _texts(error.detail)}
    title = {"expired": "Expired", "cancelled": "Cancelled"}.get(error.state, "")
    detail = f"{error}; retry it, or close it"
    return Problem(424, detail, title=title, type=f"request-{error.state}", headers=headers, members=more)


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
