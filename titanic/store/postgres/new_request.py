"""What a request must be to be stored, how long its texts may be, and how many bytes it counts.

The limits and the bytes are those of the engine on LMDB: what one store takes, the other takes, too, and an owner's
load is the same in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from titanic.errors import InvalidRequest
from titanic.protocol.submit_options import MAX_KEY, MAX_PRIORITY, MOST_TOGETHER
from titanic.store.postgres.foreseen import request_size
from titanic.store.records import NewRequest
from titanic.util.ids import SIZE

MAX_SERVICE = 255
MAX_OPTIONS = 1000
MAX_OWNER = 32
MAX_REASON = 1000
"""Bytes of a reason that are kept."""
LATEST = 2**63 - 1
"""The latest time that a column has room for."""

_KEY_TIMES = 16
_MAX_BODY = 1 << 30  # PostgreSQL has no larger values


def key_size(owner: bytes, key_bytes: int, requests: int) -> int:
    """Bytes of an idempotency key, for the load of its owner; 0 when it is nobody's."""
    return 2 + len(owner) + key_bytes + _KEY_TIMES + SIZE * requests if owner else 0


def shortened(reason: str) -> bytes:
    """A reason as it is stored: at most MAX_REASON bytes of UTF-8, and no half letter at the end."""
    if not reason:
        return b""  # mostly
    text = reason.encode(errors="replace")
    return text[:MAX_REASON].decode(errors="ignore").encode() if len(text) > MAX_REASON else text


@lru_cache(maxsize=4096)
def check_service(service: bytes) -> None:
    """Raise InvalidRequest unless `service` is 1 … 255 bytes of printable UTF-8 (which excludes NUL)."""
    if not 1 <= len(service) <= MAX_SERVICE:
        raise InvalidRequest("the service's name has a wrong length", f"{len(service)} bytes", "use 1 to 255")
    try:
        printable = service.decode().isprintable()
    except UnicodeDecodeError:
        printable = False
    if not printable:
        raise InvalidRequest("the service's name isn't printable UTF-8", repr(service[:40]), "choose another")


@lru_cache(maxsize=4096)
def check_owner(owner: bytes) -> None:
    """Raise InvalidRequest unless `owner` is at most 32 bytes of printable UTF-8."""
    try:
        right = len(owner) <= MAX_OWNER and owner.decode().isprintable()
    except UnicodeDecodeError:
        right = False
    if not right:
        raise InvalidRequest("the owner can't be one", repr(owner[:40]), f"use 1 to {MAX_OWNER} printable bytes")


def check_key(key: bytes, until: int) -> None:
    """Raise InvalidRequest unless `key` is at most 255 bytes of UTF-8 and says until when it counts."""
    if len(key) > MAX_KEY:
        raise InvalidRequest("the idempotency key is too long", f"{len(key)} bytes", f"use 1 to {MAX_KEY}")
    if not 0 < until < 2**64:
        raise InvalidRequest("the idempotency key has no end", f"it counts until {until}", "say until when it counts")
    try:
        key.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the idempotency key isn't UTF-8", repr(key[:40]), "choose another") from error


def check_together(together: int, there: int) -> int:
    """How many requests a key stands for, of so many that there are from it on. Raises InvalidRequest when it can't."""
    count = max(1, together)
    if count > min(there, MOST_TOGETHER):
        raise InvalidRequest("one key stands for too many requests", str(count), f"give it to 1 to {MOST_TOGETHER}")
    return count


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
