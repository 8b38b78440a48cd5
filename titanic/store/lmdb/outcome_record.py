"""How a request ended, and before that how its attempts went.

The record of its end, little-endian, in database `replies` under the request's id. It is written once.

    offset  size  field
         0     1  record format: 129 (record.py)
         1     1  status (states.Status); + 128 = the reply is in a blob
         2     2  attempts made
         4     4  CRC-32 (record.py)
         8     8  dispatched_at, µs since the epoch, of the last attempt; 0 = never
        16     8  finished_at, µs since the epoch
        24     4  r: bytes of reason
        28     4  number of frames
        32     r  reason, UTF-8, for people; empty when DONE
      32+r        reply: frames, or a reference to them (record.py)

*Retries* are what is remembered of a request that didn't simply wait and run.

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
from collections.abc import Collection
from typing import NamedTuple

from titanic.errors import RecordCorrupt
from titanic.store import states
from titanic.store.lmdb.record import (
    FORMAT_1,
    REF_SIZE,
    FetchBlob,
    PutBlob,
    Ref,
    join_frames,
    read_frames,
    refuse_blob,
    seal,
    unpack_ref,
    verify,
)
from titanic.store.lmdb.schema import BODIES, DEAD, INLINE, KEPT, REPLIED, timer_key
from titanic.store.records import Outcome
from titanic.store.rules import body_until, kept_until, shortened
from titanic.store.states import Status

DATABASE = "replies"
RETRIES = "retries"

_IN_BLOB = 0x80
_HEADER = struct.Struct("<BBHIQQII")
HEADER_SIZE = _HEADER.size
_PREFIX = struct.Struct("<BBH")
_REST = struct.Struct("<QQII")
_STATUS = {int(status): status for status in Status}

_ENDLESS = 1
_EXPIRES_HERE = 2
_DELIVERIES_HERE = 4
_RETRY_HEADER = struct.Struct("<BBHIQQ")
_RETRY_REST = struct.Struct("<QQ")
_EXPIRES_AT = struct.Struct("<Q")
_DELIVERIES = struct.Struct("<H")


class OutcomeHeader(NamedTuple):
    """An outcome without its frames, which are in the record from `body_at` on, or at `ref`."""

    status: Status
    attempts: int
    dispatched_at: int
    finished_at: int
    reason: str
    frame_count: int
    body_at: int
    body_size: int  # with their lengths
    ref: Ref | None

    @property
    def size(self) -> int:
        """Bytes of the outcome, for the load of its request's owner."""
        return self.body_at + self.body_size


def retention_timers(uuid: bytes, end: Outcome | OutcomeHeader, options: bytes, frames: int) -> list[bytes]:
    """The keys in `timers` of a request with these options, and so many frames in its body, that ended so."""
    if until := kept_until(options, end.status, end.finished_at):
        timers = [timer_key(KEPT, until, uuid)]
    else:
        timers = [timer_key(DEAD if end.status in states.DEAD else REPLIED, end.finished_at, uuid)]
    if frames and (until := body_until(options, end.status, end.finished_at)):
        timers.append(timer_key(BODIES, until, uuid))
    return timers


def encode(uuid: bytes, outcome: Outcome, put_blob: PutBlob | None = None) -> bytes:
    """The record of an outcome. Attempts beyond 65535 are written as 65535, long reasons are cut.

    Frames that are too large for the row are given to `put_blob`.
    """
    status, frames, reason, attempts, dispatched_at, finished_at = outcome
    text = shortened(reason)
    body = join_frames(frames)
    kind = int(status)
    if put_blob is not None and _HEADER.size + len(text) + len(body) > INLINE:
        body = put_blob(body).pack()
        kind |= _IN_BLOB
    prefix = _PREFIX.pack(FORMAT_1, kind, min(attempts, 0xFFFF))
    return seal(uuid, prefix, _REST.pack(dispatched_at, finished_at, len(text), len(frames)) + text + body)


def decode_header(uuid: bytes, record: memoryview | bytes) -> OutcomeHeader:
    """All but the frames, without looking at the checksum. Raises RecordCorrupt when it makes no sense."""
    if len(record) < _HEADER.size:
        raise RecordCorrupt(uuid, DATABASE, f"it has {len(record)} bytes")
    format_, kind, attempts, _, dispatched_at, finished_at, size, frame_count = _HEADER.unpack_from(record)
    body_at = _HEADER.size + size
    status = _STATUS.get(kind & ~_IN_BLOB)
    ref_size = REF_SIZE if kind & _IN_BLOB else 0
    if format_ != FORMAT_1:
        raise RecordCorrupt(uuid, DATABASE, f"record format {format_} is unknown")
    if body_at + ref_size > len(record) or status is None:
        raise RecordCorrupt(uuid, DATABASE, "its header is invalid")
    reason = bytes(record[_HEADER.size : body_at]).decode(errors="replace")
    ref = unpack_ref(record, body_at) if ref_size else None
    body_size = ref.size if ref else len(record) - body_at
    return OutcomeHeader(status, attempts, dispatched_at, finished_at, reason, frame_count, body_at, body_size, ref)


def may_be(record: memoryview | bytes, states: Collection[int]) -> bool:
    """Whether a request with this record is in one of these states; True when the record makes no sense."""
    status = record[1] & ~_IN_BLOB if len(record) > 1 else None
    return status in states or status not in _STATUS


def decode(uuid: bytes, record: memoryview | bytes, fetch: FetchBlob = refuse_blob) -> Outcome:
    """The whole outcome. Raises RecordCorrupt when a checksum is wrong."""
    return decode_with(uuid, record, decode_header(uuid, record), fetch)


def decode_with(uuid: bytes, record: memoryview | bytes, header: OutcomeHeader, fetch: FetchBlob) -> Outcome:
    """The whole outcome, when its header is decoded. Raises RecordCorrupt when a checksum is wrong."""
    verify(uuid, record, DATABASE)
    frames = read_frames(uuid, DATABASE, record, header.body_at, header.frame_count, header.ref, fetch)
    return Outcome(header.status, frames, header.reason, header.attempts, header.dispatched_at, header.finished_at)


# -- retries ---------------------------------------------------------------------------------------------------


class RetryRecord(NamedTuple):
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


def expiry(own: int, past: RetryRecord | None) -> int:
    """When a request expires of which its record says `own`; 0 = never."""
    return own if past is None or past.expires_at is None else past.expires_at


def encode_retry(uuid: bytes, retry: RetryRecord) -> bytes:
    """The record. Attempts and deliveries beyond 65535 are written as 65535, long reasons are cut."""
    flags, rest = 0, _RETRY_REST.pack(retry.due, retry.dispatched_at)
    if retry.expires_at:
        flags, rest = _EXPIRES_HERE, rest + _EXPIRES_AT.pack(retry.expires_at)
    elif retry.expires_at == 0:
        flags = _ENDLESS
    if retry.deliveries > retry.attempts:
        flags |= _DELIVERIES_HERE
        rest += _DELIVERIES.pack(min(retry.deliveries, 0xFFFF))
    return seal(uuid, _PREFIX.pack(FORMAT_1, flags, min(retry.attempts, 0xFFFF)), rest + shortened(retry.reason))


def decode_retry(uuid: bytes, record: memoryview | bytes) -> RetryRecord:
    """The retry. Raises RecordCorrupt when the checksum is wrong."""
    verify(uuid, record, RETRIES)
    if len(record) < _RETRY_HEADER.size or record[0] != FORMAT_1:
        raise RecordCorrupt(uuid, RETRIES, "its header is invalid")
    _, flags, attempts, _, due, dispatched_at = _RETRY_HEADER.unpack_from(record)
    at, expires_at = _RETRY_HEADER.size, 0 if flags & _ENDLESS else None
    if flags & _EXPIRES_HERE:
        if len(record) < at + _EXPIRES_AT.size:
            raise RecordCorrupt(uuid, RETRIES, "it ends before its expiry")
        (expires_at,) = _EXPIRES_AT.unpack_from(record, at)
        at += _EXPIRES_AT.size
    deliveries = 0
    if flags & _DELIVERIES_HERE:
        if len(record) < at + _DELIVERIES.size:
            raise RecordCorrupt(uuid, RETRIES, "it ends before its deliveries")
        (deliveries,) = _DELIVERIES.unpack_from(record, at)
        at += _DELIVERIES.size
    return RetryRecord(attempts, due, dispatched_at, bytes(record[at:]).decode(errors="ignore"), expires_at, deliveries)
