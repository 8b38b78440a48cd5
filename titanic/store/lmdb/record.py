"""What all records share: the checksum, how a list of frames is written, and where a large body is.

Every record begins alike, little-endian:

    offset  size  field
         0     1  128 + format of this record; a reader refuses what it doesn't know
         1     1  its kind's first byte (flags, status)
         2     2  its kind's next two bytes
         4     4  CRC-32 over the key, then over the record without this field

LMDB 0.9 has no checksums on its pages, so a flipped bit would be served as a reply. The key is part of the
sum so that a whole, valid record under the wrong key is noticed too.

Frames follow each other as a u32 length and the bytes: the *body* of a record. When the record with its body would
not fit into a row (schema.INLINE), a reference to a *blob* replaces the body.

Each kind counts its formats by itself: requests, outcomes and retries have FORMAT_1 only, closed requests those in
CLOSED_LAYOUTS (store/request.py). Records from before the first release begin with a smaller byte.

To change a record: give it the next format number, keep the decoder of the old one, and write only the new.
Records are never rewritten, so both will be found in a store until the old requests are closed. Only a change
of the keys, or of what a database means, takes a new store format (STEPS in opening.py). A further text of a
request takes a new store format, but no new record format: LAYOUT (request_record.py).

Some readers take fields from a request's record without decoding it, at the places of the only format. With a second
format each must ask for the format first: where the header is longer, the service's name moves, and they answer wrongly
without an error.

    request_record.py    changed, is_of, service_in, owner_in (of an unknown format: no owner), row_key_in
    listing.py           _service_test
    tools/batches.py     requests, _count_requests, replies; rows of other formats must go to check.py
    tools/check.py       the priority in a `ready` row

*Blobs.* LMDB would put a large value on pages of its own that follow each other. After requests have come and gone for
some time, free pages are scattered, and there are no longer enough of them in one piece: the file would have to grow,
or a request be refused, although there is plenty of room. So a large body is cut into equal pieces, of which a page
takes two (the largest, that fill it exactly) or three. Any free page will do for them: what is free can be used, down
to the last page, and the file can have a size that it never exceeds.

    database blobs, key big-endian
        id, u64 + index, u32   →   a piece of the body, at most CHUNK bytes

A record refers to its blob in 16 bytes, little-endian, with a checksum over the body. The record's own checksum
covers the reference. So a closing request hands its body on to its entry in `closed` without anybody reading it.

    offset  size  field
         0     8  id
         8     4  bytes
        12     4  CRC-32 of the bytes

An id is one above the highest that is in use, so pieces are appended. It doesn't matter that an id comes back when the
highest was deleted: with the blob went every reference to it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

import lmdb

from titanic.errors import RecordCorrupt
from titanic.store.lmdb.schema import NODE_MAX, PAGE, odd_row

FORMAT_1 = 0x81
"""First byte of a record of its kind's first format."""

PREFIX = 4
"""Bytes of a record before its checksum."""

BODY = 8
"""Offset of the first byte after the checksum."""

CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_pack_length = _LENGTH.pack

_BLOB_KEY = struct.Struct(">QI")
_BLOB_ID = struct.Struct(">Q")
_REF = struct.Struct("<QII")
REF_SIZE = _REF.size
BLOB_KEY_SIZE = _BLOB_KEY.size
GRAVE_KEY_SIZE = _BLOB_ID.size
CHUNK = NODE_MAX - 8 - _BLOB_KEY.size


class Ref(NamedTuple):
    """Where a body is, how long it is, and its checksum."""

    id: int
    size: int
    crc: int

    def pack(self) -> bytes:
        """The reference as it is written in a record."""
        return _REF.pack(*self)

    @property
    def pieces(self) -> int:
        """How many rows it takes."""
        return -(-self.size // CHUNK)

    @property
    def pages(self) -> int:
        """How many pages of the file it takes."""
        return self.pieces // 2 + 1


PutBlob = Callable[[bytes], Ref]
"""Stores a body as a blob, and says where."""

FetchBlob = Callable[[Ref], bytes]
"""Reads a blob. ValueError when it is damaged."""


Layout = Sequence[tuple[str, str]]
"""The fields of a header in their order, each with its code in `struct`; little-endian, without padding."""


def header_reader(layout: Layout, *names: str) -> struct.Struct:
    """What reads these fields of a header, in its order, and skips the others."""
    return struct.Struct("<" + "".join(code if name in names else f"{struct.calcsize(code)}x" for name, code in layout))


def seal(uuid: bytes, prefix: bytes, rest: bytes) -> bytes:
    """Join a record's first four bytes and all that follows the checksum, with the checksum in between."""
    return prefix + CRC.pack(crc32(rest, crc32(prefix, crc32(uuid)))) + rest


def verify(uuid: bytes, record: memoryview | bytes, database: str) -> None:
    """Raise RecordCorrupt unless the record's checksum fits."""
    if len(record) < BODY:
        raise RecordCorrupt(uuid, database, f"it has {len(record)} bytes")
    (stored,) = CRC.unpack_from(record, PREFIX)
    actual = crc32(record[BODY:], crc32(record[:PREFIX], crc32(uuid)))
    if stored != actual:
        raise RecordCorrupt(uuid, database, f"its checksum is {actual:08x}, stored was {stored:08x}")


def join_frames(frames: Sequence[bytes]) -> bytes:
    """The frames one after the other, each behind its length."""
    if len(frames) == 1:  # nearly all
        return _pack_length(len(frames[0])) + frames[0]
    parts: list[bytes] = []
    for frame in frames:
        parts += (_pack_length(len(frame)), frame)
    return b"".join(parts)


def refuse_blob(ref: Ref) -> bytes:
    """The `Fetch` of callers without blobs."""
    raise ValueError(f"its body is in blob {ref.id}")


def split_frames(record: memoryview | bytes, offset: int, count: int) -> list[bytes]:
    """The `count` frames written from `offset` to the record's end. ValueError when they don't fill it."""
    frames: list[bytes] = []
    for _ in range(count):
        if offset + 4 > len(record):
            raise ValueError("its frames end early")
        (length,) = _LENGTH.unpack_from(record, offset)
        offset += 4
        frames.append(bytes(record[offset : offset + length]))
        offset += length
    if offset != len(record):
        raise ValueError(f"its frames end at byte {offset} of {len(record)}")
    return frames


def read_frames(
    uuid: bytes, database: str, record: memoryview | bytes, at: int, count: int, ref: Ref | None, fetch: FetchBlob
) -> list[bytes]:
    """The frames that stand in a record from `at` on, or in a blob. Raises RecordCorrupt."""
    try:
        return split_frames(record, at, count) if ref is None else split_frames(fetch(ref), 0, count)
    except ValueError as error:
        raise RecordCorrupt(uuid, database, str(error)) from error


# -- blobs -----------------------------------------------------------------------------------------------------


def unpack_ref(record: memoryview | bytes, offset: int) -> Ref:
    """The reference that stands at `offset`. struct.error when the record ends before."""
    return Ref(*_REF.unpack_from(record, offset))


def refer(blob_id: int, body: bytes) -> Ref:
    """The reference to a body that is to be stored as `blob_id`."""
    return Ref(blob_id, len(body), crc32(body))


def blob_rows(blob_id: int, body: bytes) -> list[tuple[bytes, memoryview]]:
    """What is to be put into `blobs`."""
    view, pack = memoryview(body), _BLOB_KEY.pack
    pieces = -(-len(body) // CHUNK)
    step = -(-len(body) // pieces)
    return [(pack(blob_id, n), view[n * step : (n + 1) * step]) for n in range(pieces)]


def blob_key(blob_id: int, index: int) -> bytes:
    """The key of a piece."""
    return _BLOB_KEY.pack(blob_id, index)


def grave_key(blob_id: int) -> bytes:
    """The key in `graves`."""
    return _BLOB_ID.pack(blob_id)


def blob_id_of(key: bytes | memoryview, database: str = "blobs") -> int:
    """The blob's id in a key of `blobs` or `graves`. Raises StoreCorrupt when the key has the wrong length."""
    if len(key) != (BLOB_KEY_SIZE if database == "blobs" else GRAVE_KEY_SIZE):
        raise odd_row(database, key, key)
    blob_id: int = _BLOB_ID.unpack_from(key)[0]
    return blob_id


def read_blob(txn: lmdb.Transaction[memoryview], database: lmdb._Database, ref: Ref) -> bytes:
    """The body. ValueError when it isn't what was stored."""
    parts: list[memoryview] = []
    missing = ref.size
    cursor = txn.cursor(database)
    if cursor.set_key(_BLOB_KEY.pack(ref.id, 0)):
        for piece in cursor.iternext(keys=False):
            parts.append(piece)
            missing -= len(piece)
            if missing <= 0:
                break
    body = b"".join(parts)
    if missing or crc32(body) != ref.crc:
        raise ValueError(f"its body, blob {ref.id}, is damaged")
    return body


assert 2 * (8 + _BLOB_KEY.size + CHUNK + 2) == PAGE - 16  # two pieces fill a page
