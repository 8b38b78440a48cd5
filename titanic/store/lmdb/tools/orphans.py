"""Where a leaf belongs that no tree has: its keys are in a gap that a lost page left, and its rows look like it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from titanic.errors import RecordCorrupt
from titanic.store.lmdb import blob, closed_record, idempotency_key, outcome_record, request_record, retry_record
from titanic.store.lmdb.pages import Hole
from titanic.store.lmdb.schema import DEAD, EXPIRY, KEY, LOAD, REPLIED, TIME_SIZE, U32, sequence_of
from titanic.util.ids import SIZE

Row = tuple[bytes, bytes]


def home(leaf: list[Row], holes: Iterable[Hole]) -> str:
    """The database; nothing when there is none that it can be of."""
    if not leaf:
        return ""
    first, last = min(leaf)[0], max(leaf)[0]
    gaps = {hole.tree for hole in holes if hole.low <= first and (hole.high is None or last < hole.high)}
    for name, looks_like in _LOOKS.items():
        if name in gaps and 2 * sum(looks_like(*row) for row in leaf) > len(leaf):
            return name
    return ""


def _record(
    decode_header: Callable[[bytes, bytes], Any], decode: Callable[[bytes, memoryview], object], frames_at: str
) -> Callable[[bytes, bytes], bool]:
    """Whether a row is a record with frames, or with a reference to them at its end."""

    def looks_like(key: bytes, value: bytes) -> bool:
        try:
            header = decode_header(key, value)
            if header.ref is not None:
                return len(key) == SIZE and getattr(header, frames_at) + blob.REF_SIZE == len(value)
            decode(key, memoryview(value))
        except RecordCorrupt:
            return False
        return len(key) == SIZE

    return looks_like


def _is_retry(key: bytes, value: bytes) -> bool:
    try:
        retry_record.decode(key, memoryview(value))
    except RecordCorrupt:
        return False
    return len(key) == SIZE


def _is_life(key: bytes, value: bytes) -> bool:
    if len(key) != TIME_SIZE:
        return False
    try:
        closed_record.decode_header(sequence_of(key), memoryview(value))
    except RecordCorrupt:
        return False
    return True


_LOOKS: dict[str, Callable[[bytes, bytes], bool]] = {
    "requests": _record(request_record.decode_header, request_record.decode, "body_at"),
    "replies": _record(outcome_record.decode_header, outcome_record.decode, "frames_at"),
    "retries": _is_retry,  # of which the other two have all that is looked at
    "closed": _is_life,
    "graves": lambda key, value: len(key) == blob.GRAVE_KEY_SIZE and len(value) == U32.size,
    "blobs": lambda key, value: len(key) == blob.KEY_SIZE and len(value) > 0,
    "later": lambda key, value: len(key) == TIME_SIZE + SIZE and value[-2:-1] == b"\0",
    "ready": lambda key, value: not value and key[-SIZE - 2 : -SIZE - 1] == b"\0" and key[-SIZE - 1] <= 9,
    "timers": lambda key, value: not value and key[:1] in (EXPIRY, REPLIED, DEAD, KEY) and len(key) > 1 + TIME_SIZE,
    "keys": lambda key, value: idempotency_key.fits(value) or idempotency_key.fitted(value),
    "meta": lambda key, value: len(value) <= LOAD.size,
    "aside": lambda key, value: True,
}
"""What rows look like, what is easily mistaken last."""
