"""Idempotency keys: one request per key, or one message of several, however often it is submitted.

The row, little-endian, in database `keys` under the key (`row_key`). It outlives its request: a client that repeats a
submission after the reply was fetched and the request closed still gets the first id.

    offset  size  field
         0     8  until, µs since the epoch: when the key is forgotten
         8     8  given, µs since the epoch: when it came; 0 = unknown
        16  16 n  id of the request that had it first; of a message of n requests, the ids of all
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from titanic.protocol.submit_options import MOST_TOGETHER
from titanic.util.ids import SIZE

_TIMES = struct.Struct("<QQ")
PLAIN_SIZE = _TIMES.size + SIZE
"""Bytes of the row of one request."""


def row_key(key: bytes, owner: bytes) -> bytes:
    """The key of the row. Those of an owner are apart from all others: FF is in no UTF-8, so in no key and no owner.

    A key without an owner that begins with FF is stored under an empty owner, which no user has.
    """
    return b"\xff%b\xff%b" % (owner, key) if owner or key[:1] == b"\xff" else key


def owner_of(key: bytes) -> bytes:
    """The owner in the key of a row; empty when it has none."""
    return key[1:].partition(b"\xff")[0] if key[:1] == b"\xff" else b""


class Holder(NamedTuple):
    """The requests that have a key, until when it counts, and when it was given (µs since the epoch)."""

    until: int
    ids: bytes  # concatenated
    given: int = 0

    @property
    def uuid(self) -> bytes:
        """The first request."""
        return self.ids[:SIZE]

    @property
    def requests(self) -> int:
        """How many there are."""
        return len(self.ids) // SIZE

    def at(self, index: int) -> bytes:
        """The request at a place."""
        return self.ids[index * SIZE : (index + 1) * SIZE]


def encode(holder: Holder) -> bytes:
    """The row."""
    return _TIMES.pack(holder.until, holder.given) + holder.ids


def fits(row: memoryview | bytes) -> bool:
    """Whether the row has a length that it can have."""
    ids, rest = divmod(len(row) - _TIMES.size, SIZE)
    return not rest and 1 <= ids <= MOST_TOGETHER


def decode(row: memoryview | bytes) -> Holder | None:
    """The holder of the key; None when the row is damaged."""
    if not fits(row):
        return None
    until, given = _TIMES.unpack_from(row)
    return Holder(until, bytes(row[_TIMES.size :]), given)
