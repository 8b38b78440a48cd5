"""Idempotency keys: one request per key, however often it is handed in.

The row, little-endian, in database `keys` under the key. It outlives its request: a client that repeats a
submission after the reply was fetched and the request closed still gets the first id.

    offset  size  field
         0     8  until, µs since the epoch: when the key is forgotten
         8    16  id of the request that had it first
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from titanic.ids import SIZE

_ROW = struct.Struct(f"<Q{SIZE}s")
ROW_SIZE = _ROW.size


class Holder(NamedTuple):
    """Who has a key, and until when (µs since the epoch)."""

    until: int
    uuid: bytes


def encode(holder: Holder) -> bytes:
    """The row."""
    return _ROW.pack(*holder)


def decode(row: memoryview | bytes) -> Holder | None:
    """Who has the key; None when the row makes no sense."""
    return Holder(*_ROW.unpack(row)) if len(row) == ROW_SIZE else None
