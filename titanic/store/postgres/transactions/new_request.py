"""What a request must be to be stored, how long its texts may be, and how many bytes it counts.

The limits and the bytes are those of the engine on LMDB: what one store takes, the other takes, too, and an owner's
load is the same in both.
"""

from __future__ import annotations

from collections.abc import Sequence

from titanic.errors import InvalidRequest
from titanic.protocol.submit_options import MAX_PRIORITY
from titanic.store.postgres.transactions.foreseen import request_size
from titanic.store.records import NewRequest
from titanic.store.rules import MAX_OPTIONS, check_owner, check_service
from titanic.util.ids import SIZE

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
