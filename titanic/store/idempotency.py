"""Idempotency keys: one request per key, or one message of several, however often it is handed in.

The row, little-endian, in database `keys` under the key. It outlives its request: a client that repeats a
submission after the reply was fetched and the request closed still gets the first id.

    offset  size  field
         0     8  until, µs since the epoch: when the key is forgotten
         8  16 n  id of the request that had it first; of a message of n requests, the ids of all
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from titanic.ids import SIZE

MOST_TOGETHER = 100
"""Requests that can share a key. Their row stays in its page (schema.NODE_MAX)."""

_UNTIL = struct.Struct("<Q")


class Holder(NamedTuple):
    """Who has a key, and until when (µs since the epoch)."""

    until: int
    ids: bytes  # one behind the other

    @property
    def uuid(self) -> bytes:
        """The first."""
        return self.ids[:SIZE]

    @property
    def requests(self) -> int:
        """How many there are."""
        return len(self.ids) // SIZE

    def at(self, index: int) -> bytes:
        """One of them."""
        return self.ids[index * SIZE : (index + 1) * SIZE]


def encode(holder: Holder) -> bytes:
    """The row."""
    return _UNTIL.pack(holder.until) + holder.ids


def fits(row: memoryview | bytes) -> bool:
    """Whether the row has a length that it can have."""
    ids, rest = divmod(len(row) - _UNTIL.size, SIZE)
    return not rest and 1 <= ids <= MOST_TOGETHER


def decode(row: memoryview | bytes) -> Holder | None:
    """Who has the key; None when the row makes no sense."""
    return Holder(_UNTIL.unpack_from(row)[0], bytes(row[_UNTIL.size :])) if fits(row) else None
