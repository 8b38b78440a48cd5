"""What all records share: the checksum, and how a list of frames is written.

Every record begins alike, little-endian:

    offset  size  field
         0     1  128 + format of this record; a reader refuses what it doesn't know
         1     1  its kind's first byte (flags, status)
         2     2  its kind's next two bytes
         4     4  CRC-32 over the key, then over the record without this field

LMDB 0.9 has no checksums on its pages, so a flipped bit would be served as a reply. The key is part of the
sum so that a whole, valid record under the wrong key is noticed too.

Frames follow each other as a u32 length and the bytes: the *body* of a record. When the record with its body would
not fit into a row (schema.INLINE), a reference to a blob replaces the body (blob.py).

Each kind counts its formats by itself. All of them have format 1 so far (FORMAT_1). Records from before the first
release begin with a smaller byte.

To change a record: give it the next format number, keep the decoder of the old one, and write only the new.
Records are never rewritten, so both will be found in a store until the old requests are closed. Only a change
of the keys, or of what a database means, takes a new store format (`schema.FORMAT`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from zlib import crc32

from titanic.errors import RecordCorrupt
from titanic.store.lmdb.blob import Ref

PutBlob = Callable[[bytes], Ref]
"""Stores a body as a blob, and says where."""

FetchBlob = Callable[[Ref], bytes]
"""Reads a blob. ValueError when it is damaged."""

REASON_MAX = 1000
"""Bytes of a reason that are kept."""

FORMAT_1 = 0x81
"""First byte of a record."""

PREFIX = 4
"""Bytes of a record before its checksum."""

BODY = 8
"""Offset of the first byte after the checksum."""

CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_pack_length = _LENGTH.pack


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


def cut(reason: str) -> bytes:
    """A reason as it is stored: at most REASON_MAX bytes of UTF-8, and no half letter at the end."""
    if not reason:
        return b""  # mostly
    text = reason.encode(errors="replace")
    if len(text) > REASON_MAX:
        text = text[:REASON_MAX].decode(errors="ignore").encode()
    return text


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
