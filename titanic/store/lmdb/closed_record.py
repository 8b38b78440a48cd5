"""The record of a closed request.

The record, little-endian, in database `closed` under its number in the sequence. It is written once, in the
transaction that closes the request. Numbers are given out without gaps and in the order of the commits (LMDB has one
writer), so a reader that has read up to a number has seen all entries before it. The ids can't do that: requests close
in another order than they came.

    offset  size  field
         0     1  record format: 129 (record.py), the last in CLOSED_LAYOUTS (store/request.py)
         1     1  status (states.Status); + 128 = no client closed it, its retention ended
         2     2  attempts made
         4     4  CRC-32 (record.py), over the number as the key
         8     8  submitted_at, µs since the epoch
        16     8  dispatched_at, µs since the epoch, of the last attempt; 0 = never
        24     8  replied_at, µs since the epoch: when it ended; 0 = it was closed before
        32     8  closed_at, µs since the epoch
        40    16  id of the request
        56     4  number of the request's frames
        60     4  bytes of the request's frames, with their lengths
        64     4  number of the reply's frames
        68     4  bytes of the reply's frames, with their lengths
        72     1  where the request's frames are (Where)
        73     1  where the reply's frames are (Where)
        74     1  priority
        75        for each text of its format (CLOSED_LAYOUTS) its size: 1 byte; for the error (why it failed or
                  expired, UTF-8) 2
                  the texts; a service of 0 bytes is unknown: the request was damaged
                  the request's frames, a reference to them (record.py), or nothing
                  the same of the reply
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from titanic.errors import RecordCorrupt
from titanic.store.lmdb.record import (
    REF_SIZE,
    FetchBlob,
    Ref,
    header_reader,
    read_frames,
    refuse_blob,
    unpack_ref,
    verify,
)
from titanic.store.lmdb.schema import closed_key
from titanic.store.request import (
    CLOSED_LAYOUT,
    CLOSED_LAYOUTS,
    LASTING_TEXTS,
    UNCLAIMED,
    ClosedFields,
    ClosedRequest,
    encode_closed,
    lasting_texts,
    lasting_values,
)
from titanic.store.rules import shortened
from titanic.store.states import Status

DATABASE = "closed"


def fields(*names: str) -> struct.Struct:
    """What reads these fields of the header of a record of today's format, in its order, and skips the others."""
    return header_reader(CLOSED_LAYOUT, *names)


_HEADER = fields(*dict(CLOSED_LAYOUT))
_PARTS = fields("request_where", "reply_where", "request_size", "reply_size")
_STATUS = {int(status): status for status in Status}


class Where(IntEnum):
    """Where the frames of a closed request or its reply are. The numbers are on disk."""

    HERE = 0
    BLOB = 1
    LEFT_OUT = 2  # larger than is kept, or there was no room
    DAMAGED = 3  # they were found damaged when the request was closed


_IN_BLOB = int(Where.BLOB)


class Part(NamedTuple):
    """The frames of the request or of the reply, as they are in the record."""

    where: Where
    frames: int = 0
    size: int = 0  # with their lengths
    data: bytes | memoryview = b""  # the frames, a reference, or nothing

    @property
    def ref(self) -> Ref | None:
        """The blob that has them."""
        return unpack_ref(self.data, 0) if self.where is Where.BLOB else None

    @property
    def is_left_out(self) -> bool:
        """Whether there were frames that are not there."""
        return self.where in (Where.LEFT_OUT, Where.DAMAGED)

    @property
    def frame_bytes(self) -> int:
        """Bytes in the frames."""
        return max(0, self.size - 4 * self.frames)


NO_FRAMES = Part(Where.HERE)


class ClosedRecord(ClosedFields, kw_only=True):  # which mypyc ignores: so each field needs a default
    """A record, decoded. Times are µs since the epoch, 0 = none."""

    request: Part = NO_FRAMES
    reply: Part = NO_FRAMES

    @property
    def refs(self) -> list[Ref]:
        """The blobs that belong to it."""
        return [ref for part in (self.request, self.reply) if (ref := part.ref) is not None]


def encode(sequence: int, closed: ClosedRecord) -> bytes:
    """The record."""
    a, b = closed.request, closed.reply
    sizes = a.frames, a.size, b.frames, b.size, a.where, b.where
    return encode_closed(sequence, closed, shortened(closed.error), sizes, (a.data, b.data))


def size(closed: ClosedRecord) -> int:
    """Bytes of the record."""
    texts = sum(map(len, lasting_texts(closed))) + len(shortened(closed.error))
    return _HEADER.size + texts + len(closed.request.data) + len(closed.reply.data)


def pages_elsewhere(record: memoryview | bytes) -> int:
    """Pages that an entry has in blobs, at most, without decoding it; 0 when it makes no sense."""
    if len(record) < _HEADER.size:
        return 0
    request_size, reply_size, request, reply = _PARTS.unpack_from(record)
    pages = Ref(0, request_size, 0).pages if request == _IN_BLOB else 0
    return pages + Ref(0, reply_size, 0).pages if reply == _IN_BLOB else pages


def decode_header(sequence: int, record: memoryview | bytes) -> ClosedRecord:
    """The record's fields, without looking at the checksum. Raises RecordCorrupt when it makes no sense.

    The frames are views of the record and last as long as it does.
    """
    key = closed_key(sequence)
    layout = CLOSED_LAYOUTS.get(record[0]) if len(record) else None
    header = _HEADER if layout is None else layout.header
    if len(record) < header.size:
        raise RecordCorrupt(key, DATABASE, f"it has {len(record)} bytes")
    if layout is None:
        raise RecordCorrupt(key, DATABASE, f"record format {record[0]} is unknown")
    _, kind, attempts, _, submitted_at, dispatched_at, replied_at, closed_at, uuid, *rest = header.unpack_from(record)
    frames, length, other_frames, other_length, where, other_where, priority, *sizes = rest
    status = _STATUS.get(kind & ~UNCLAIMED)
    at = header.size
    texts: dict[str, bytes] = {}
    for name, text_size in zip(layout.texts, sizes, strict=True):
        texts[name] = bytes(record[at : at + text_size])
        at += text_size
    parts: list[Part] = []
    try:
        for number, count, part_size in ((where, frames, length), (other_where, other_frames, other_length)):
            place = Where(number)
            stored = REF_SIZE if place is Where.BLOB else part_size if place is Where.HERE else 0
            parts.append(Part(place, count, part_size, record[at : at + stored]))
            at += stored
    except ValueError as fault:
        raise RecordCorrupt(key, DATABASE, "its header is invalid") from fault
    if at != len(record) or status is None:
        raise RecordCorrupt(key, DATABASE, "its header is invalid")
    return ClosedRecord(
        uuid,
        submitted_at,
        priority,
        *[texts.get(name, b"") for name in LASTING_TEXTS],
        status=status,
        unclaimed=bool(kind & UNCLAIMED),
        attempts=attempts,
        dispatched_at=dispatched_at,
        replied_at=replied_at,
        closed_at=closed_at,
        error=texts["error"].decode(errors="replace"),
        request=parts[0],
        reply=parts[1],
    )


def decode(sequence: int, record: memoryview | bytes, fetch: FetchBlob = refuse_blob) -> ClosedRequest:
    """The whole of it. Raises RecordCorrupt when a checksum is wrong."""
    verify(closed_key(sequence), record, DATABASE)
    return decode_rest(sequence, decode_header(sequence, record), fetch)


def decode_rest(sequence: int, closed: ClosedRecord, fetch: FetchBlob) -> ClosedRequest:
    """The whole of it, when the header was decoded and the checksum verified before."""
    return ClosedRequest(
        *lasting_values(closed),
        sequence=sequence,
        status=closed.status,
        attempts=closed.attempts,
        dispatched_at=closed.dispatched_at,
        replied_at=closed.replied_at,
        closed_at=closed.closed_at,
        request=_frames(sequence, closed.request, fetch),
        reply=_frames(sequence, closed.reply, fetch),
        error=closed.error,
        unclaimed=closed.unclaimed,
        request_bytes=closed.request.frame_bytes,
        reply_bytes=closed.reply.frame_bytes,
        request_left_out=closed.request.is_left_out,
        reply_left_out=closed.reply.is_left_out,
    )


def _frames(sequence: int, part: Part, fetch: FetchBlob) -> list[bytes]:
    if part.is_left_out:
        return []
    return read_frames(closed_key(sequence), DATABASE, part.data, 0, part.frames, part.ref, fetch)
