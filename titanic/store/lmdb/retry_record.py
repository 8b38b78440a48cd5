"""What is remembered of a request that didn't simply wait and run.

The record, little-endian, in database `retries` under the request's id. Only a request has one that is delayed, has
failed at least once, runs again after it had expired, or was given its time to live by a clock that was ahead. It is
the one record that is written again, once per failure, and it is small.

    offset  size  field
         0     1  record format: 129 (record.py)
         1     1  flags: 1 = the expiry in the request doesn't count any more; 2 = it is here; 4 = deliveries are
         2     2  attempts made
         4     4  CRC-32 (record.py)
         8     8  due, µs since the epoch: when it becomes ready; 0 = it is ready
        16     8  dispatched_at, µs since the epoch, of the last attempt; 0 = never
        24     8  with flag 2: expires_at, µs since the epoch
     24/32     2  with flag 4: how often workers had it, which is more often than `attempts`
  24 to 34        reason of the last failure, UTF-8, to the end; 1000 bytes at most
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from titanic.errors import RecordCorrupt
from titanic.store.lmdb.record import FORMAT_1, cut, seal, verify

DATABASE = "retries"

_ENDLESS = 1
_EXPIRES_HERE = 2
_DELIVERIES_HERE = 4
_HEADER = struct.Struct("<BBHIQQ")
_PREFIX = struct.Struct("<BBH")
_REST = struct.Struct("<QQ")
_EXPIRES_AT = struct.Struct("<Q")
_DELIVERIES = struct.Struct("<H")


class Retry(NamedTuple):
    """A delay or the failures so far. Times are µs since the epoch; `due` is 0 while the request is ready.

    `expires_at` counts instead of the request's own; 0: it never expires, because it was
    retried after it had expired. None: the request's own counts.
    """

    attempts: int
    due: int
    dispatched_at: int = 0
    reason: str = ""
    expires_at: int | None = None
    deliveries: int = 0

    @property
    def matters(self) -> bool:
        """Whether it is to be remembered while the request isn't delayed."""
        return bool(self.attempts or self.deliveries) or self.expires_at is not None


def expiry(own: int, past: Retry | None) -> int:
    """When a request expires of which its record says `own`; 0 = never."""
    return own if past is None or past.expires_at is None else past.expires_at


def encode(uuid: bytes, retry: Retry) -> bytes:
    """The record. Attempts and deliveries beyond 65535 are written as 65535, long reasons are cut."""
    flags, rest = 0, _REST.pack(retry.due, retry.dispatched_at)
    if retry.expires_at:
        flags, rest = _EXPIRES_HERE, rest + _EXPIRES_AT.pack(retry.expires_at)
    elif retry.expires_at == 0:
        flags = _ENDLESS
    if retry.deliveries > retry.attempts:
        flags |= _DELIVERIES_HERE
        rest += _DELIVERIES.pack(min(retry.deliveries, 0xFFFF))
    return seal(uuid, _PREFIX.pack(FORMAT_1, flags, min(retry.attempts, 0xFFFF)), rest + cut(retry.reason))


def decode(uuid: bytes, record: memoryview | bytes) -> Retry:
    """The retry. Raises RecordCorrupt when the checksum is wrong."""
    verify(uuid, record, DATABASE)
    if len(record) < _HEADER.size or record[0] != FORMAT_1:
        raise RecordCorrupt(uuid, DATABASE, "its header makes no sense")
    _, flags, attempts, _, due, dispatched_at = _HEADER.unpack_from(record)
    at, expires_at = _HEADER.size, 0 if flags & _ENDLESS else None
    if flags & _EXPIRES_HERE:
        if len(record) < at + _EXPIRES_AT.size:
            raise RecordCorrupt(uuid, DATABASE, "it ends before its expiry")
        (expires_at,) = _EXPIRES_AT.unpack_from(record, at)
        at += _EXPIRES_AT.size
    deliveries = 0
    if flags & _DELIVERIES_HERE:
        if len(record) < at + _DELIVERIES.size:
            raise RecordCorrupt(uuid, DATABASE, "it ends before its deliveries")
        (deliveries,) = _DELIVERIES.unpack_from(record, at)
        at += _DELIVERIES.size
    return Retry(attempts, due, dispatched_at, bytes(record[at:]).decode(errors="ignore"), expires_at, deliveries)
