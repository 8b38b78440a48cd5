"""Rules that all engines keep: what a request must be to be stored, and its times when it is tried again."""

from __future__ import annotations

from functools import lru_cache

from broker import service_fault
from titanic.errors import InvalidRequest, StoreTooOld
from titanic.protocol.submit_options import MAX_KEY, MAX_PRIORITY, MOST_TOGETHER, NEVER, read_policy
from titanic.store.request import LASTING_TEXTS, NewRequest
from titanic.store.states import DEAD, Status
from titanic.util.clock import capped

MAX_OPTIONS = 1000
MAX_OWNER = 32
MAX_REASON = 1000
MAX_TEXT = 255
"""Bytes of a reason that are kept, and of any other text."""
MAX_FACT_KEY = 400
MAX_FACT = 64 << 10
"""Bytes of a key and of a value of facts."""
FACTS_ROOM = 64 << 20
"""Bytes that facts may take, at most; `Store.facts_room` says how many it is in a small store."""
LATEST = 2**63 - 1
"""The latest time that every engine has room for, in 290,000 years. Later ones are no different."""

_COARSE = 60.0
"""Seconds from which on a `keep` ends at a whole second: what is due in the same one is closed in one commit."""

_OTHER_TEXTS = [name for name in LASTING_TEXTS if name not in ("service", "key", "owner")]


@lru_cache(maxsize=4096)
def check_service(service: bytes) -> None:
    """Raise InvalidRequest unless `service` can be a name (which excludes NUL)."""
    if (fault := service_fault(service)) is not None:
        raise InvalidRequest(fault, repr(service[:40]), "choose another")


@lru_cache(maxsize=4096)
def check_owner(owner: bytes) -> None:
    """Raise InvalidRequest unless `owner` is at most 32 bytes of printable UTF-8."""
    try:
        right = len(owner) <= MAX_OWNER and owner.decode().isprintable()
    except UnicodeDecodeError:
        right = False
    if not right:
        raise InvalidRequest("the owner is invalid", repr(owner[:40]), f"use 1 to {MAX_OWNER} printable bytes")


def check_key(key: bytes, until: int) -> None:
    """Raise InvalidRequest unless `key` is at most 255 bytes of UTF-8 and says until when it counts."""
    if len(key) > MAX_KEY:
        raise InvalidRequest("the idempotency key is too long", f"{len(key)} bytes", f"use 1 to {MAX_KEY}")
    if not 0 < until < 2**64:
        raise InvalidRequest("the idempotency key has no expiry", f"it is valid until {until}", "set a later time")
    try:
        key.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the idempotency key is not UTF-8", repr(key[:40]), "choose another") from error


def check_together(together: int, there: int) -> int:
    """How many requests a key stands for, of so many that there are from it on. Raises InvalidRequest when it can't."""
    count = max(1, together)
    if count > min(there, MOST_TOGETHER):
        raise InvalidRequest("the key covers too many requests", str(count), f"use it for 1 to {MOST_TOGETHER}")
    return count


def check_request(new: NewRequest) -> int:
    """How many bytes the request counts. Raises InvalidRequest when it can't be stored."""
    not_before, expires_at = new.not_before, new.expires_at
    check_service(new.service)
    if not 0 <= new.priority <= MAX_PRIORITY:
        raise InvalidRequest("the priority is invalid", str(new.priority), "use 0 to 9")
    if len(new.options) > MAX_OPTIONS:
        raise InvalidRequest("the options are too long", f"{len(new.options)} bytes", f"use at most {MAX_OPTIONS}")
    if new.owner:
        check_owner(new.owner)
    for name in _OTHER_TEXTS:
        if (size := len(getattr(new, name))) > MAX_TEXT:
            raise InvalidRequest(f"the {name} is too long", f"{size} bytes", f"use at most {MAX_TEXT}")
    if not (0 <= not_before < 2**64 and 0 <= expires_at < 2**64 and 0 <= new.max_attempts < 2**16):
        fact = f"not before {not_before}, expires at {expires_at}, {new.max_attempts} attempts"
        raise InvalidRequest("a number or size in the request is out of range", fact, "use smaller ones")
    return new.size


def shortened(reason: str) -> bytes:
    """A reason as it is stored: at most MAX_REASON bytes of UTF-8, and no half letter at the end."""
    if not reason:
        return b""  # mostly
    text = reason.encode(errors="replace")
    return text[:MAX_REASON].decode(errors="ignore").encode() if len(text) > MAX_REASON else text


def times_again(submitted_at: int, not_before: int, expires_at: int, attempts: int, now_us: int) -> tuple[int, int]:
    """When a request is due that is tried again as if it had never been tried, and when it expires; 0: at once, never.

    One that was tried before does not wait for its delay. What is left of either time is never more than the whole: the
    clock may have been set back.
    """
    due = 0 if attempts else capped(not_before, submitted_at, now_us)
    ends_at = expires_at and capped(expires_at, submitted_at, now_us)
    return (due if due > now_us else 0), (ends_at if ends_at > now_us else 0)


def kept_until(options: bytes, status: Status, finished_at: int) -> int:
    """Until when a request that ended so is kept by its own options; 0: for the server's time."""
    if b'"keep' not in options:
        return 0  # mostly
    policy = read_policy(options)
    return _until(policy.keep_failed if status in DEAD else policy.keep, finished_at)


def body_until(options: bytes, status: Status, finished_at: int) -> int:
    """Until when the body of a request that ended so is kept by its own options; 0: as long as the request."""
    if b'"keep_body"' not in options:
        return 0  # mostly
    kept = read_policy(options).keep_body
    until = 0 if isinstance(kept, str) else _until(kept, finished_at)
    whole = kept_until(options, status, finished_at)
    return 0 if 0 < whole <= until else until


def _until(kept: float, finished_at: int) -> int:
    until = finished_at + int(kept * 1e6)
    if kept >= _COARSE:
        until += -until % 1_000_000
    return until if kept > 0 else 0


def drops_body(options: bytes, status: Status) -> bool:
    """Whether the body of a request that ended so goes at once, by its own options: nothing needs it any more."""
    return status is Status.DONE and b'"keep_body"' in options and read_policy(options).keep_body == NEVER


def check_fact(key: bytes, value: bytes | None) -> None:
    """Raise InvalidRequest when a fact cannot be stored."""
    size = 0 if value is None else len(value)
    if not 0 < len(key) <= MAX_FACT_KEY or size > MAX_FACT:
        fact = f"its key has {len(key)} bytes, its value {size}"
        raise InvalidRequest("the fact is too long", fact, f"use at most {MAX_FACT_KEY} and {MAX_FACT}")


def unreleased(place: str, format_: int) -> StoreTooOld:
    """The exception for a store that was written before the first release."""
    return StoreTooOld(
        f"the store in {place} was written before the first release of Titanic",
        f"its format {format_} of that time cannot be converted",
        "use another place for the store, or the version that wrote it",
    )


def late(attempts: int) -> str:
    """Return the reason of a request that failed because its TTL was over."""
    return f"not done in time, after {attempts} attempts"
