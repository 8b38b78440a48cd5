"""Facts: what the server remembers of its work, in small rows of any kind (`titanic/facts/` says which there are).

A value is cut into pieces of a page, as bodies are: a full store may have no free pages in a row. The rows of database
`facts`, little-endian:

    key + u8, number of the piece       u8 pieces · u32 CRC-32 of key and value · value
    the same, from 1 on                 the rest of the value

A damaged value is left out when it is read; check() finds it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from zlib import crc32

from titanic.store.lmdb.schema import PAGE
from titanic.store.lmdb.transaction import Reading, Writing
from titanic.store.rules import MAX_FACT_KEY, check_fact

_HEAD = struct.Struct("<BI")
_PIECE = PAGE - 16 - _HEAD.size
"""Bytes of a piece: it fills a page of its own."""

Row = tuple[bytes, bytes | None]
"""Key and value; None: the value is damaged."""


def facts(
    tx: Reading, prefix: bytes, after: bytes = b"", limit: int = 1000, newest: bool = False
) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    if limit > 0:
        for key, value in rows(tx, prefix, after, newest):
            if value is not None:
                found.append((key, value))
                if len(found) >= limit:
                    break
    return found


def rows(tx: Reading, prefix: bytes = b"", after: bytes = b"", newest: bool = False) -> Iterator[Row]:
    """The same, also damaged ones, without a limit."""
    key, pieces = b"", list[bytes]()
    for row_key, piece in _pieces(tx, prefix, after, newest):
        if row_key[:-1] != key and pieces:
            yield key, _joined(key, pieces)
            pieces = []
        key = row_key[:-1]
        pieces.insert(0 if newest else len(pieces), piece)
    if pieces:
        yield key, _joined(key, pieces)


def _pieces(tx: Reading, prefix: bytes, after: bytes, newest: bool) -> Iterator[tuple[bytes, bytes]]:
    cursor = tx.raw.cursor(tx.db.facts)
    if newest:
        behind = cursor.set_range(after or prefix + b"\xff" * (MAX_FACT_KEY + 1))
        if not (cursor.prev() if behind else cursor.last()):
            return
        found = cursor.iterprev()
    elif cursor.set_range(max(prefix, after)):
        found = cursor.iternext()
    else:
        return
    for view, piece in found:
        key = bytes(view)
        if not key.startswith(prefix):
            if newest and key > prefix:
                continue
            return
        if after and not newest and key[:-1] == after:
            continue
        yield key, bytes(piece)


def value(tx: Reading, key: bytes) -> bytes | None:
    """The value of one fact; None: there is none, or it is damaged."""
    if tx.raw.get(key + b"\0", db=tx.db.facts) is None:
        return None
    return dict(rows(tx, key)).get(key)


def piece_keys(tx: Reading, key: bytes) -> list[bytes]:
    """The keys of the rows that the fact `key` has."""
    return [row_key for row_key, _ in _pieces(tx, key, b"", False) if row_key[:-1] == key]


def _joined(key: bytes, pieces: list[bytes]) -> bytes | None:
    first = pieces[0]
    if len(first) < _HEAD.size:
        return None
    count, checksum = _HEAD.unpack_from(first)
    value = first[_HEAD.size :] + b"".join(pieces[1:])
    return value if count == len(pieces) and checksum == crc32(value, crc32(key)) else None


def put_facts(tx: Writing, changed: Iterable[Row]) -> None:
    for key, value in changed:
        check_fact(key, value)
        pieces = [] if value is None else [value[at : at + _PIECE] for at in range(0, len(value), _PIECE)] or [b""]
        old = tx.raw.get(key + b"\0", db=tx.db.facts)
        for number in range(len(pieces), old[0] if old else 0):
            tx.delete(tx.db.facts, key + bytes([number]))
        for number, piece in enumerate(pieces):
            if number == 0:
                piece = _HEAD.pack(len(pieces), crc32(value or b"", crc32(key))) + piece
            tx.put(tx.db.facts, key + bytes([number]), piece)


def facts_bytes(tx: Reading) -> int:
    """Bytes that all facts take in the file."""
    return PAGE * tx.pages(tx.db.facts)
