"""What is remembered of a request that didn't simply wait and run.

The record, little-endian, in database `retries` under the request's id. Only a request that is delayed or has
failed at least once has one. It is the one record that is written again, once per failure, and it is small.

    offset  size  field
         0     1  record format, 1
         1     1  reserved, 0
         2     2  attempts made
         4     4  CRC-32 (record.py)
         8     8  due, µs since the epoch: when it becomes ready; 0 = it is ready
        16     8  dispatched_at, µs since the epoch, of the last attempt; 0 = never
        24        reason of the last failure, UTF-8, to the end; 1000 bytes at most
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from titanic.errors import RecordCorrupt
from titanic.store.record import seal, verify

DATABASE = "retries"

_FORMAT = 1
_REASON_MAX = 1000
_HEADER = struct.Struct("<BBHIQQ")
_PREFIX = struct.Struct("<BBH")
_REST = struct.Struct("<QQ")


class Retry(NamedTuple):
    """A delay or the failures so far. Times are µs since the epoch; `due` is 0 while the request is ready."""

    attempts: int
    due: int
    dispatched_at: int = 0
    reason: str = ""


def encode(uuid: bytes, retry: Retry) -> bytes:
    """The record. Attempts beyond 65535 are written as 65535."""
    prefix = _PREFIX.pack(_FORMAT, 0, min(retry.attempts, 0xFFFF))
    text = retry.reason.encode(errors="replace")[:_REASON_MAX]
    return seal(uuid, prefix, _REST.pack(retry.due, retry.dispatched_at) + text)


def decode(uuid: bytes, record: memoryview) -> Retry:
    """The retry. Raises RecordCorrupt when the checksum is wrong."""
    verify(uuid, record, DATABASE)
    if len(record) < _HEADER.size or record[0] != _FORMAT:
        raise RecordCorrupt(uuid, DATABASE, "its header makes no sense")
    _, _, attempts, _, due, dispatched_at = _HEADER.unpack_from(record)
    return Retry(attempts, due, dispatched_at, bytes(record[_HEADER.size :]).decode(errors="ignore"))
