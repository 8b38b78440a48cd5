"""Answers that several calls give: documents, links, and what is said of requests that are not there or have failed."""

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
"""How far the clocks of server and gateway may differ."""

MAX_DETAIL = 64 << 10
"""Bytes that are told of what a worker said of a failure."""


def json_response(data: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON document."""
    return Response(json.dumps(data).encode(), status, headers, "application/json")


def links(uuid: str) -> dict[str, str]:
    """Where more is to be had of a request."""
    return {"self": f"/v1/requests/{uuid}", "reply": f"/v1/requests/{uuid}/reply"}


def timestamp(microseconds: int | None) -> str | None:
    """A moment since 1970 as RFC 3339 has it; None for none."""
    if not microseconds:
        return None
    return (datetime(1970, 1, 1) + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds") + "Z"


def path_uuid(text: str) -> str:
    """A UUID as the server knows it. Raises Problem when it is none."""
    if (uuid := ids.parse(ids.plain(text).encode())) is None:
        raise Problem(404, "the path has no valid UUID; a UUID is 32 hexadecimal digits, with or without dashes")
    return uuid.hex()


def query_uuid(name: str, text: str) -> str:
    """The same for a parameter."""
    if (uuid := ids.parse(ids.plain(text).encode())) is None:
        raise Problem(400, f"{name} is {quoted(text)}; a UUID is 32 hexadecimal digits, with or without dashes")
    return uuid.hex()


def unknown_request(uuid: str) -> Problem:
    """What is said of a request that the server does not know.

    It forgets what was closed, and cannot tell that from what never was. But a UUID tells when it was made: one that
    looks like those of a Titanic and is not of the future was most probably given to somebody who was told that his
    request is stored. To him 410 is the truth. Any other UUID is no Titanic's.
    """
    raw = bytes.fromhex(uuid)
    fact = "it was closed, deleted after its time, or never accepted"
    if raw[6] >> 4 == 7 and raw[8] >> 6 == 2 and not ids.may_be_after(raw, time.time_ns() // 1000 + CLOCK_TOLERANCE_US):
        return Problem(410, f"unknown UUID {uuid}; {fact}", type="unknown-request")
    return Problem(404, f"unknown UUID {uuid}; no server can have made it; check its digits", type="unknown-request")


def failed_request(uuid: str, error: RequestFailed, headers: dict[str, str] | None = None) -> Problem:
    """What is said of a request that has ended without a reply."""
    more: dict[str, Any] = {"uuid": uuid, "state": error.state, "worker": _texts(error.detail)}
    title = {"expired": "Expired", "cancelled": "Cancelled"}.get(error.state, "")
    detail = f"{error}; retry it, or close it"
    return Problem(424, detail, title=title, type=f"request-{error.state}", headers=headers, members=more)


def _texts(frames: list[bytes]) -> list[str]:
    """Frames as texts, as far as they are told."""
    texts: list[str] = []
    left = MAX_DETAIL
    for frame in frames:
        if left <= 0:
            break
        texts.append(frame[:left].decode(errors="replace"))
        left -= len(frame)
    return texts
