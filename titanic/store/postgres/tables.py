"""The capacity as a quota: how many bytes the store may count, not what PostgreSQL has on its disk.

Counted are the bytes of requests, replies, closed requests and keys, with about what PostgreSQL needs beside them for
rows and indexes. The sum over all nodes stands in `usage`. What a request needs for its end is counted when it is
accepted, so ending is never refused. The fuller the store is, the fewer kinds of changes are allowed:

    0 ............................... accept ........... reply ........... capacity
      requests and replies,              replies with       ends, postponing,
      closed requests, which make way    frames             closed without frames

The rows of changes, as they go into the tables.

What a request must be to be stored, how long its texts may be, and how many bytes it counts.

The limits and the bytes are those of the engine on LMDB: what one store takes, the other takes, too, and an owner's
load is the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from titanic.errors import CapacityTooSmall, InvalidRequest
from titanic.protocol.submit_options import MAX_PRIORITY
from titanic.store.records import MIN_CAPACITY, Archivist
from titanic.store.request import COLUMNS, LASTING, LASTING_TEXTS, NewRequest
from titanic.store.rules import LATEST, MAX_OPTIONS, check_owner, check_service
from titanic.util.ids import SIZE

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

_given: Callable[[NewRequest], tuple[Any, ...]] = attrgetter(*(name for name in COLUMNS if name in NewRequest._fields))


_OTHER_TEXTS = [name for name in LASTING_TEXTS if name not in ("service", "key", "owner")]
"""Those without a rule of their own."""

MAX_TEXT = 255
"""Bytes of each."""


def request_row(uuid: bytes, submitted_at: int, new: NewRequest) -> RequestRow:
    """The row of a request."""
    body = new.body
    if new.together or new.not_before > LATEST or new.expires_at > LATEST:
        key = b"" if new.together else new.key
        not_before, expires_at = min(new.not_before, LATEST), min(new.expires_at, LATEST)
        new = new._replace(key=key, not_before=not_before, expires_at=expires_at)
    return (uuid, submitted_at, *_given(new), body, len(body), sizes(body))


assert [*COLUMNS][:2] == ["uuid", "submitted_at"]  # which the store adds


class ReadyRow(NamedTuple):
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


class KeyRow(NamedTuple):
    """An idempotency key that is new, as far as is known."""

    owner: bytes
    key: bytes
    until: int
    given: int
    uuids: Sequence[bytes]


class Agreement(NamedTuple):
    """What is agreed with an archive: whether it is registered, up to which number it has the closed requests, and its
    owner."""

    registered: bool
    upto: int
    archivist: Archivist | None


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


MAX_REASON = 1000
"""Bytes of a reason that are kept."""

KEY_TIMES = 16
"""Bytes of the times of an idempotency key."""
_MAX_BODY = 1 << 30  # PostgreSQL has no larger values


def key_size(owner: bytes, key_bytes: int, requests: int) -> int:
    """Bytes of an idempotency key, for the load of its owner; 0 when it has none."""
    return 2 + len(owner) + key_bytes + KEY_TIMES + SIZE * requests if owner else 0


def shortened(reason: str) -> bytes:
    """A reason as it is stored: at most MAX_REASON bytes of UTF-8, and no half letter at the end."""
    if not reason:
        return b""  # mostly
    text = reason.encode(errors="replace")
    return text[:MAX_REASON].decode(errors="ignore").encode() if len(text) > MAX_REASON else text


def check(new: NewRequest) -> int:
    """How many bytes the request counts. Raises InvalidRequest when it can't be stored."""
    body, options, not_before, expires_at = new.body, new.options, new.not_before, new.expires_at
    check_service(new.service)
    if not 0 <= new.priority <= MAX_PRIORITY:
        raise InvalidRequest("no such priority", str(new.priority), "use 0 to 9")
    if options and len(options) > MAX_OPTIONS:
        raise InvalidRequest("the options are too long", f"{len(options)} bytes", f"use at most {MAX_OPTIONS}")
    if new.owner:
        check_owner(new.owner)
    for name in _OTHER_TEXTS:
        if len(getattr(new, name)) > MAX_TEXT:
            raise InvalidRequest(
                f"the {name} is too long", f"{len(getattr(new, name))} bytes", f"use at most {MAX_TEXT}"
            )
    body_bytes = sum(map(len, body))
    if not (0 <= not_before < 2**64 and 0 <= expires_at < 2**64 and 0 <= new.max_attempts < 2**16):
        fact = f"not before {not_before}, expires at {expires_at}, {new.max_attempts} attempts"
        raise InvalidRequest("a number or size in the request is out of range", fact, "use smaller ones")
    if body_bytes + 4 * len(body) >= _MAX_BODY:
        raise InvalidRequest("the body is too large for PostgreSQL", f"{body_bytes} bytes", "use less than 1 GiB")
    return new.size


def sizes(frames: Sequence[bytes]) -> int:
    """Bytes of all frames."""
    return sum(map(len, frames))
