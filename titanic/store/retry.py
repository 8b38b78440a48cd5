"""What is remembered of a request that didn't simply wait and run.

The record, little-endian, in database `retries` under the request's id. Only a request has one that is delayed, has
failed at least once, or runs again after it had expired. It is the one record that is written again, once per
failure, and it is small.

    offset  size  field
         0     1  record format, 2
         1     1  flags: 1 = the expiry in the request doesn't count any more
         2     2  attempts made
         4     4  CRC-32 (record.py)
         8     8  due, µs since the epoch: when it becomes ready; 0 = it is ready
        16     8  dispatched_at, µs since the epoch, of the last attempt; 0 = never
        24        reason of the last failure, UTF-8, to the end; 1000 bytes at most

Format 1 has no flags: their byte is 0.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from titanic.errors import RecordCorrupt
from titanic.store.record import cut, seal, verify

DATABASE = "retries"

_FORMAT = 2
_FORMATS = (1, 2)
_ENDLESS = 1
_HEADER = struct.Struct("<BBHIQQ")
_PREFIX = struct.Struct("<BBH")
_REST = struct.Struct("<QQ")


class Retry(NamedTuple):
    """A delay or the failures so far. Times are µs since the epoch; `due` is 0 while the request is ready.

    `endless`: it was given another life after its time was over, and has no expiry in that one.
    """

    attempts: int
    due: int
    dispatched_at: int = 0
    reason: str = ""
    endless: bool = False


def encode(uuid: bytes, retry: Retry) -> bytes:
    """The record. Attempts beyond 65535 are written as 65535, long reasons are cut."""
    prefix = _PREFIX.pack(_FORMAT, _ENDLESS if retry.endless else 0, min(retry.attempts, 0xFFFF))
    return seal(uuid, prefix, _REST.pack(retry.due, retry.dispatched_at) + cut(retry.reason))


def decode(uuid: bytes, record: memoryview) -> Retry:
    """The retry. Raises RecordCorrupt when the checksum is wrong."""
    verify(uuid, record, DATABASE)
    if len(record) < _HEADER.size or record[0] not in _FORMATS:
        raise RecordCorrupt(uuid, DATABASE, "its header makes no sense")
    _, flags, attempts, _, due, dispatched_at = _HEADER.unpack_from(record)
    reason = bytes(record[_HEADER.size :]).decode(errors="ignore")
    return Retry(attempts, due, dispatched_at, reason, bool(flags & _ENDLESS))
