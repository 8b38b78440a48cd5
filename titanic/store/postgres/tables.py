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

from collections.abc import Sequence
from typing import NamedTuple

from titanic.errors import CapacityTooSmall, InvalidRequest
from titanic.protocol.submit_options import MAX_PRIORITY
from titanic.store.postgres.transaction import request_size
from titanic.store.records import MIN_CAPACITY, Archivist, NewRequest
from titanic.store.rules import MAX_OPTIONS, check_owner, check_service
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


# -- changed rows ----------------------------------------------------------------------------------------------


class RequestRow(NamedTuple):
    uuid: bytes
    service: bytes
    body: Sequence[bytes]
    body_bytes: int
    body_frames: int
    priority: int
    submitted_at: int
    not_before: int
    expires_at: int
    max_attempts: int
    options: bytes
    key: bytes
    owner: bytes


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
    """What is agreed with an archive: whether it is registered, up to which number it has the closed requests, and
    whose it is."""

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
    """Bytes of an idempotency key, for the load of its owner; 0 when it is nobody's."""
    return 2 + len(owner) + key_bytes + KEY_TIMES + SIZE * requests if owner else 0


def shortened(reason: str) -> bytes:
    """A reason as it is stored: at most MAX_REASON bytes of UTF-8, and no half letter at the end."""
    if not reason:
        return b""  # mostly
    text = reason.encode(errors="replace")
    return text[:MAX_REASON].decode(errors="ignore").encode() if len(text) > MAX_REASON else text


def check(request: NewRequest) -> int:
    """How many bytes the request counts. Raises InvalidRequest when it can't be stored."""
    service, body, priority, not_before, expires_at, max_attempts, options, key, _, together, owner = request
    check_service(service)
    if not 0 <= priority <= MAX_PRIORITY:
        raise InvalidRequest("no such priority", str(priority), "use 0 to 9")
    if options and len(options) > MAX_OPTIONS:
        raise InvalidRequest("the options are too long", f"{len(options)} bytes", f"use at most {MAX_OPTIONS}")
    if owner:
        check_owner(owner)
    body_bytes = sum(map(len, body))
    if not (0 <= not_before < 2**64 and 0 <= expires_at < 2**64 and 0 <= max_attempts < 2**16):
        fact = f"not before {not_before}, expires at {expires_at}, {max_attempts} attempts"
        raise InvalidRequest("a number or size in the request is out of range", fact, "use smaller ones")
    if body_bytes + 4 * len(body) >= _MAX_BODY:
        raise InvalidRequest("the body is too large for PostgreSQL", f"{body_bytes} bytes", "use less than 1 GiB")
    return request_size(service, b"" if together else key, owner, options, len(body), body_bytes)


def sizes(frames: Sequence[bytes]) -> int:
    """Bytes of all frames."""
    return sum(map(len, frames))
