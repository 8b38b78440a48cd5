"""The whole life of a request, kept when it is closed.

The record, little-endian, in database `closed` under its number in the sequence. It is written once, in the
transaction that closes the request. Numbers are given out without gaps and in the order of the commits (LMDB has one
writer), so whoever has read up to a number has seen all there was. The ids can't do that: requests close in another
order than they came.

    offset  size  field
         0     1  record format, 1
         1     1  status (state.Status); + 128 = nobody closed it, its retention ended
         2     2  attempts made
         4     4  CRC-32 (record.py), over the number as the key
         8     8  submitted_at, µs since the epoch
        16     8  dispatched_at, µs since the epoch, of the last attempt; 0 = never
        24     8  replied_at, µs since the epoch: when it ended; 0 = it was closed before
        32     8  closed_at, µs since the epoch
        40    16  id of the request
        56     1  s: bytes of the service's name; 0 = unknown, the request was damaged
        57     1  k: bytes of idempotency key
        58     2  e: bytes of error
        60     1  where the request's frames are (Where)
        61     1  where the reply's frames are (Where)
        62     1  priority
        63     1  reserved, 0
        64     4  number of the request's frames
        68     4  bytes of the request's frames, with their lengths
        72     4  number of the reply's frames
        76     4  bytes of the reply's frames, with their lengths
        80     s  service
      80+s     k  idempotency key
    80+s+k     e  error, UTF-8: why it failed or expired
  80+s+k+e        the request's frames (record.py), a reference to them (blob.py), or nothing
                  the same of the reply
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

from titanic.errors import RecordCorrupt
from titanic.store.lmdb import blob
from titanic.store.lmdb.blob import Ref
from titanic.store.lmdb.record import Fetch, cut, refuse_blob, seal, split_frames, verify
from titanic.store.lmdb.schema import closed_key
from titanic.store.state import Status

DATABASE = "closed"

LAYOUT = (
    ("format", "B"),
    ("kind", "B"),
    ("attempts", "H"),
    ("crc", "I"),
    ("submitted_at", "Q"),
    ("dispatched_at", "Q"),
    ("replied_at", "Q"),
    ("closed_at", "Q"),
    ("uuid", "16s"),
    ("service_size", "B"),
    ("key_size", "B"),
    ("error_size", "H"),
    ("request_where", "B"),
    ("reply_where", "B"),
    ("priority", "B"),
    ("reserved", "B"),
    ("request_frames", "I"),
    ("request_size", "I"),
    ("reply_frames", "I"),
    ("reply_size", "I"),
)
"""The fields of fixed size with their codes in `struct`, for whoever decodes many records at once (bulk_read.py)."""

UNCLAIMED = 0x80
"""In `kind`: nobody closed it."""

_FORMAT = 1
_HEADER = struct.Struct("<" + "".join(code for _, code in LAYOUT))
_PREFIX = struct.Struct("<BBH")
_REST = struct.Struct("<QQQQ16sBBHBBBBIIII")
_PARTS = struct.Struct("<BBBBIIII")
_PARTS_AT = struct.calcsize("<" + "".join(code for _, code in LAYOUT[:12]))
_STATUS = {int(status): status for status in Status}


class Where(IntEnum):
    """Where the frames of a closed request or its reply are. The numbers are on disk."""

    HERE = 0
    BLOB = 1
    LEFT_OUT = 2  # larger than is kept, or there was no room
    DAMAGED = 3  # they were found damaged when the request was closed


_IN_BLOB = int(Where.BLOB)


class Part(NamedTuple):
    """The frames of the request or of the reply, as they are written."""

    where: Where
    frames: int
    size: int  # with their lengths
    data: bytes  # the frames, a reference, or nothing


NO_FRAMES = Part(Where.HERE, 0, 0, b"")


class Life(NamedTuple):
    """A request that is being closed, ready to be written."""

    status: Status
    unclaimed: bool
    attempts: int
    submitted_at: int
    dispatched_at: int
    replied_at: int
    closed_at: int
    uuid: bytes
    service: bytes
    key: bytes
    error: str
    priority: int
    request: Part
    reply: Part


class ClosedRequest(NamedTuple):
    """A closed request as it is read back. Times are µs since the epoch, 0 = none; sizes are bytes.

    Frames that were `left_out` because they were larger than is kept (or found damaged) are an empty list; their
    size is known all the same. `unclaimed`: nobody closed it, its retention ended.
    """

    sequence: int
    uuid: bytes
    service: bytes
    key: bytes
    status: Status
    attempts: int
    submitted_at: int
    dispatched_at: int
    replied_at: int
    closed_at: int
    request: list[bytes]
    reply: list[bytes]
    error: str
    priority: int
    unclaimed: bool
    request_bytes: int
    reply_bytes: int
    request_left_out: bool
    reply_left_out: bool


class StoredPart(NamedTuple):
    """The frames of the request or of the reply, as they are found: from `at` on in the record, or at `ref`."""

    where: Where
    frames: int
    size: int
    at: int
    ref: Ref | None

    @property
    def is_left_out(self) -> bool:
        """Whether there were frames that aren't there."""
        return self.where in (Where.LEFT_OUT, Where.DAMAGED)

    @property
    def bytes(self) -> int:
        """Bytes in the frames."""
        return max(0, self.size - 4 * self.frames)


class Header(NamedTuple):
    """All of a record but the frames. `fields` are those of fixed size as they stand in it."""

    fields: tuple[Any, ...]
    status: Status
    unclaimed: bool
    closed_at: int
    uuid: bytes
    service: bytes
    key: bytes
    error: str
    request: StoredPart
    reply: StoredPart

    @property
    def refs(self) -> list[Ref]:
        """The blobs that belong to it."""
        return [part.ref for part in (self.request, self.reply) if part.ref is not None]


def encode(sequence: int, life: Life) -> bytes:
    """The record."""
    error = cut(life.error)
    request, reply = life.request, life.reply
    kind = int(life.status) | (UNCLAIMED if life.unclaimed else 0)
    rest = _REST.pack(
        life.submitted_at,
        life.dispatched_at,
        life.replied_at,
        life.closed_at,
        life.uuid,
        len(life.service),
        len(life.key),
        len(error),
        request.where,
        reply.where,
        life.priority,
        0,
        request.frames,
        request.size,
        reply.frames,
        reply.size,
    )
    prefix = _PREFIX.pack(_FORMAT, kind, min(life.attempts, 0xFFFF))
    return seal(closed_key(sequence), prefix, b"".join((rest, life.service, life.key, error, request.data, reply.data)))


def size(life: Life) -> int:
    """Bytes of the record."""
    texts = len(life.service) + len(life.key) + len(cut(life.error))
    return _HEADER.size + texts + len(life.request.data) + len(life.reply.data)


def pages_elsewhere(record: memoryview) -> int:
    """Pages that an entry has in blobs, at most, without decoding it; 0 when it makes no sense."""
    if len(record) < _HEADER.size:
        return 0
    request, reply, _, _, _, request_size, _, reply_size = _PARTS.unpack_from(record, _PARTS_AT)
    pages = Ref(0, request_size, 0).pages if request == _IN_BLOB else 0
    return pages + Ref(0, reply_size, 0).pages if reply == _IN_BLOB else pages


def decode_header(sequence: int, record: memoryview) -> Header:
    """All but the frames, without looking at the checksum. Raises RecordCorrupt when it makes no sense."""
    key = closed_key(sequence)
    if len(record) < _HEADER.size:
        raise RecordCorrupt(key, DATABASE, f"it has {len(record)} bytes")
    fields = _HEADER.unpack_from(record)
    format_, kind = fields[:2]
    closed_at, uuid, service_size, key_size, error_size = fields[7:12]
    if format_ != _FORMAT:
        raise RecordCorrupt(key, DATABASE, f"record format {format_} is unknown")
    status = _STATUS.get(kind & ~UNCLAIMED)
    at = _HEADER.size
    texts = []
    for length in (service_size, key_size, error_size):
        texts.append(bytes(record[at : at + length]))
        at += length
    parts: list[StoredPart] = []
    try:
        for number, count, length in ((fields[12], *fields[16:18]), (fields[13], *fields[18:20])):
            where = Where(number)
            ref = blob.unpack(record, at) if where is Where.BLOB else None
            parts.append(StoredPart(where, count, length, at, ref))
            at += blob.REF_SIZE if ref else length if where is Where.HERE else 0
    except (struct.error, ValueError) as fault:
        raise RecordCorrupt(key, DATABASE, "its header makes no sense") from fault
    if at != len(record) or status is None:
        raise RecordCorrupt(key, DATABASE, "its header makes no sense")
    service, name, error = texts
    return Header(
        fields,
        status,
        bool(kind & UNCLAIMED),
        closed_at,
        uuid,
        service,
        name,
        error.decode(errors="replace"),
        request=parts[0],
        reply=parts[1],
    )


def decode(sequence: int, record: memoryview, fetch: Fetch = refuse_blob) -> ClosedRequest:
    """The whole of it. Raises RecordCorrupt when a checksum is wrong."""
    verify(closed_key(sequence), record, DATABASE)
    return decode_rest(sequence, record, decode_header(sequence, record), fetch)


def decode_rest(sequence: int, record: memoryview, header: Header, fetch: Fetch) -> ClosedRequest:
    """The whole of it, when the header was decoded and the checksum verified before."""
    try:
        request = _frames(record, header.request, fetch)
        reply = _frames(record, header.reply, fetch)
    except ValueError as error:
        raise RecordCorrupt(closed_key(sequence), DATABASE, str(error)) from error
    attempts, _, submitted_at, dispatched_at, replied_at = header.fields[2:7]
    return ClosedRequest(
        sequence,
        header.uuid,
        header.service,
        header.key,
        header.status,
        attempts,
        submitted_at,
        dispatched_at,
        replied_at,
        header.closed_at,
        request,
        reply,
        header.error,
        header.fields[14],
        header.unclaimed,
        header.request.bytes,
        header.reply.bytes,
        header.request.is_left_out,
        header.reply.is_left_out,
    )


def _frames(record: memoryview, part: StoredPart, fetch: Fetch) -> list[bytes]:
    if part.ref is not None:
        return split_frames(fetch(part.ref), 0, part.frames)
    if part.where is Where.HERE:
        return split_frames(record[part.at : part.at + part.size], 0, part.frames)
    return []
