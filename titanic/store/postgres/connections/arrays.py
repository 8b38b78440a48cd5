"""Arrays as PostgreSQL takes them in binary: rows of a whole batch as one parameter for each column.

psycopg can do this, too, for lists of anything; these know what is in them, and take a tenth of the time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from psycopg import Connection
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper

from titanic.util.ids import SIZE

_BYTEA, _UUID, _BIGINT, _BYTEAS = 17, 2950, 20, 1001
"""PostgreSQL's numbers of these types, which never change."""

_HEAD = struct.Struct(">iiIii")  # dimensions, NULLs or not, type, elements, number of the first
_SIZE = struct.Struct(">i")
_EMPTY = struct.Struct(">iiI")
_COMPOSITE = struct.Struct(">iiIi")  # bytes, columns, type of the first, its bytes
_pack_size = _SIZE.pack


class Raw(bytes):
    """A parameter as it goes over the wire. The statement says what it is: `%s::uuid[]`."""


class _RawDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Raw) -> Buffer:
        return obj


class _IdLoader(Loader):
    """A `uuid` is 16 bytes here."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def adapt(connection: Connection) -> None:
    """Let a connection take `Raw`, and return ids as bytes. All numbers go as `bigint`: psycopg would choose a type by
    their size, and prepare a statement anew for each mixture of them."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(Raw, _RawDumper)
    connection.adapters.register_loader("uuid", _IdLoader)


def ids(values: Sequence[bytes]) -> Raw:
    """For `uuid[]`."""
    if not values:
        return Raw(_EMPTY.pack(0, 0, _UUID))
    size = _pack_size(SIZE)
    return Raw(_HEAD.pack(1, 0, _UUID, len(values), 1) + size + size.join(values))


def numbers(values: Sequence[int]) -> Raw:
    """For `bigint[]`."""
    n = len(values)
    if not n:
        return Raw(_EMPTY.pack(0, 0, _BIGINT))
    return Raw(
        _HEAD.pack(1, 0, _BIGINT, n, 1) + struct.pack(">" + "iq" * n, *chain.from_iterable(zip(repeat(8), values)))
    )


def texts(values: Sequence[bytes]) -> Raw:
    """For `bytea[]`."""
    return Raw(_texts(values))


def lists(values: Iterable[Sequence[bytes]], oid: int) -> Raw:
    """For `titanic.frames[]`, an array of lists of bytes. `oid` is the number that the type `titanic.frames` has."""
    parts = [_texts(one) for one in values]
    if not parts:
        return Raw(_EMPTY.pack(0, 0, oid))
    pack, pieces = _COMPOSITE.pack, [_HEAD.pack(1, 0, oid, len(parts), 1)]
    for part in parts:
        pieces += (pack(12 + len(part), 1, _BYTEAS, len(part)), part)
    return Raw(b"".join(pieces))


def _texts(values: Sequence[bytes]) -> bytes:
    n = len(values)
    if not n:
        return _EMPTY.pack(0, 0, _BYTEA)
    if n == 1:
        return _HEAD.pack(1, 0, _BYTEA, 1, 1) + _pack_size(len(values[0])) + values[0]
    sizes = map(_pack_size, map(len, values))
    return _HEAD.pack(1, 0, _BYTEA, n, 1) + b"".join(chain.from_iterable(zip(sizes, values, strict=True)))
