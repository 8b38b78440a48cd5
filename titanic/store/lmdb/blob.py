"""Bodies that are too large for the row of their record.

LMDB would put a large value on pages of its own that follow each other. After requests have come and gone for some
time, free pages are scattered, and there are no longer enough of them in one piece: the file would have to grow, or a
request be refused, although there is plenty of room. So a large body is cut into equal pieces, of which a page takes
two (the largest, that fill it exactly) or three. Any free page will do for them: what is free can be used, down to the
last page, and the file can have a size that it never exceeds.

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
from typing import NamedTuple
from zlib import crc32

import lmdb

from titanic.store.lmdb.schema import NODE_MAX, PAGE, odd_row

_KEY = struct.Struct(">QI")
_ID = struct.Struct(">Q")
_REF = struct.Struct("<QII")
REF_SIZE = _REF.size
KEY_SIZE = _KEY.size
GRAVE_KEY_SIZE = _ID.size
CHUNK = NODE_MAX - 8 - _KEY.size


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


def unpack(record: memoryview | bytes, offset: int) -> Ref:
    """The reference that stands at `offset`. struct.error when the record ends before."""
    return Ref(*_REF.unpack_from(record, offset))


def refer(blob_id: int, body: bytes) -> Ref:
    """The reference to a body that is to be stored as `blob_id`."""
    return Ref(blob_id, len(body), crc32(body))


def rows(blob_id: int, body: bytes) -> list[tuple[bytes, memoryview]]:
    """What is to be put into `blobs`."""
    view, pack = memoryview(body), _KEY.pack
    pieces = -(-len(body) // CHUNK)
    step = -(-len(body) // pieces)
    return [(pack(blob_id, n), view[n * step : (n + 1) * step]) for n in range(pieces)]


def key(blob_id: int, index: int) -> bytes:
    """The key of a piece."""
    return _KEY.pack(blob_id, index)


def grave_key(blob_id: int) -> bytes:
    """The key in `graves`."""
    return _ID.pack(blob_id)


def id_of(key: bytes | memoryview, database: str = "blobs") -> int:
    """The blob's id in a key of `blobs` or `graves`. Raises StoreCorrupt when the key has a wrong length."""
    if len(key) != (KEY_SIZE if database == "blobs" else GRAVE_KEY_SIZE):
        raise odd_row(database, key, key)
    blob_id: int = _ID.unpack_from(key)[0]
    return blob_id


def read(txn: lmdb.Transaction[memoryview], database: lmdb._Database, ref: Ref) -> bytes:
    """The body. ValueError when it isn't what was stored."""
    parts: list[memoryview] = []
    missing = ref.size
    cursor = txn.cursor(database)
    if cursor.set_key(_KEY.pack(ref.id, 0)):
        for piece in cursor.iternext(keys=False):
            parts.append(piece)
            missing -= len(piece)
            if missing <= 0:
                break
    body = b"".join(parts)
    if missing or crc32(body) != ref.crc:
        raise ValueError(f"its body, blob {ref.id}, is damaged")
    return body


assert 2 * (8 + _KEY.size + CHUNK + 2) == PAGE - 16  # two pieces fill a page
