"""The rows of changes, as they go into the tables; the bytes that they count; and the capacity as a quota.

The quota is how many bytes the store may count, not what PostgreSQL has on its disk.

Counted are the bytes of requests, replies, closed requests and keys, with about what PostgreSQL needs beside them for
rows and indexes. The sum over all nodes stands in `usage`. What a request needs for its end is counted when it is
accepted, so ending is never refused. The fuller the store is, the fewer kinds of changes are allowed:

    0 ............................... accept ........... reply ........... capacity
      requests and replies,              replies with       ends, postponing,
      closed requests, which make way    frames             closed without frames

The limits and the bytes are those of the engine on LMDB: what one store takes, the other takes, too, and an owner's
load is the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from titanic.errors import CapacityTooSmall, InvalidRequest
from titanic.store.records import MIN_CAPACITY
from titanic.store.request import COLUMNS, LASTING, NewRequest, given_values
from titanic.store.rules import LATEST, check_request

REQUEST = 512
"""Bytes that a request counts beyond its own: its rows and those of its end, with their places in indexes."""
REPLY = 64
"""The same of frames of a reply."""
CLOSED = 256
KEY = 192

_MIN_RESERVE = 2 << 20
_MAX_RESERVE = 256 << 20


class Quota(NamedTuple):
    """Up to how many bytes requests are accepted, and replies with frames are kept."""

    capacity: int
    accept: int
    reply: int


def divide(capacity: int) -> Quota:
    """Divide a capacity."""
    reserve = min(max(capacity // 8, _MIN_RESERVE), _MAX_RESERVE)
    return Quota(capacity, capacity - reserve, capacity - reserve // 4)


def expect_large_enough(capacity: int) -> None:
    """Raise CapacityTooSmall."""
    if capacity < MIN_CAPACITY:
        fact, advice = f"it is {capacity} bytes", f"choose at least {MIN_CAPACITY >> 20} MiB"
        raise CapacityTooSmall("the capacity is too small", fact, advice)


# -- the columns of requests -----------------------------------------------------------------------------------


REQUEST_COLUMNS = COLUMNS | {"body": "bytea[]", "body_frames": "integer", "body_bytes": "bigint"}
"""Those of `request`, with their types."""

CLOSED_COLUMNS = {
    "seq": "bigint",
    **{name: COLUMNS[name] for name in LASTING},
    "dispatched_at": "bigint",
    "replied_at": "bigint",
    "closed_at": "bigint",
    "request_bytes": "bigint",
    "reply_bytes": "bigint",
    "cost": "bigint",
    "attempts": "integer",
    "request_frames": "integer",
    "reply_frames": "integer",
    "status": "smallint",
    "unclaimed": "boolean",
    "error": "bytea",
}
"""Those of `closed`, but `request` and `reply`."""

_BINARY = {"smallint": "int2", "integer": "int4", "bigint": "int8", "boolean": "bool"}


def listed(columns: Iterable[str], table: str = "") -> str:
    """The names of columns, of a table if it is given, as a list in SQL."""
    return ", ".join(f"{table}.{name}" if table else name for name in columns)


def declared(columns: Mapping[str, str]) -> str:
    """Columns as CREATE TABLE has them."""
    return ",\n".join(f"    {name:<15} {type_} NOT NULL" for name, type_ in columns.items())


def binary_types(columns: Mapping[str, str]) -> str:
    """Their types as COPY has them."""
    return " ".join(_BINARY.get(type_, type_) for type_ in columns.values())


# -- changed rows ----------------------------------------------------------------------------------------------


RequestRow = tuple[Any, ...]
"""The values of REQUEST_COLUMNS."""


def request_row(uuid: bytes, submitted_at: int, new: NewRequest) -> RequestRow:
    """The row of a request."""
    body = new.body
    if new.together or new.not_before > LATEST or new.expires_at > LATEST:
        key = b"" if new.together else new.key
        not_before, expires_at = min(new.not_before, LATEST), min(new.expires_at, LATEST)
        new = new._replace(key=key, not_before=not_before, expires_at=expires_at)
    return (uuid, submitted_at, *given_values(new), body, len(body), sizes(body))


class ReadyColumns(NamedTuple):
    uuid: bytes
    service: bytes
    rank: int
    attempts: int = 0
    dispatched_at: int = 0
    expires_at: int = 0
    reason: bytes = b""
    deliveries: int = 0


class LaterRow(NamedTuple):
    uuid: bytes
    due: int
    attempts: int
    dispatched_at: int
    expires_at: int
    priority: int
    service: bytes
    reason: bytes
    deliveries: int = 0


class ReplyRow(NamedTuple):
    uuid: bytes
    status: int
    attempts: int
    dispatched_at: int
    finished_at: int
    frames_bytes: int
    frames_count: int
    frames: Sequence[bytes]
    reason: bytes
    service: bytes
    owner: bytes
    until: int
    body_until: int


class KeyRow(NamedTuple):
    """An idempotency key that is new, as far as is known."""

    owner: bytes
    key: bytes
    until: int
    given: int
    uuids: Sequence[bytes]


class ClosedRow(NamedTuple):
    """What is kept of a closed request, beside what its rows say themselves. `flags` are of UNCLAIMED, WITH_REQUEST and
    WITH_REPLY."""

    uuid: bytes
    status: int
    attempts: int
    dispatched_at: int
    replied_at: int
    closed_at: int
    cost: int
    flags: int
    error: bytes


UNCLAIMED, WITH_REQUEST, WITH_REPLY = 1, 2, 4


# -- new request -----------------------------------------------------------------------------------------------


_MAX_BODY = 1 << 30  # PostgreSQL has no larger values


def check(new: NewRequest) -> int:
    """How many bytes the request counts. Raises InvalidRequest when it can't be stored."""
    size, body_bytes = check_request(new), sum(map(len, new.body))
    if body_bytes + 4 * len(new.body) >= _MAX_BODY:
        raise InvalidRequest("the body is too large for PostgreSQL", f"{body_bytes} bytes", "use less than 1 GiB")
    return size


def sizes(frames: Sequence[bytes]) -> int:
    """Bytes of all frames."""
    return sum(map(len, frames))
