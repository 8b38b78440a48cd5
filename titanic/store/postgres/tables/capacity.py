"""The capacity as a quota: how many bytes the store may count, not what PostgreSQL has on its disk.

Counted are the bytes of requests, replies, closed requests and keys, with about what PostgreSQL needs beside them for
rows and indexes. The sum over all nodes stands in `usage`. What a request needs for its end is counted when it is
accepted, so ending is never refused. The fuller the store is, the fewer kinds of changes are allowed:

    0 ............................... accept ........... reply ........... capacity
      requests and replies,              replies with       ends, postponing,
      closed requests, which make way    frames             closed without frames
"""

from __future__ import annotations

from typing import NamedTuple

from titanic.errors import CapacityTooSmall
from titanic.store.records import MIN_CAPACITY

REQUEST = 512
"""Bytes that a request counts beyond its own: its rows and those of its end, with their places in indexes."""
REPLY = 64
"""The same of frames of a reply."""
CLOSED = 256
KEY = 192

_MIN_RESERVE = 2 << 20
_MAX_RESERVE = 256 << 20


class Quota(NamedTuple):
    """Up to how many bytes requests are accepted, and replies with frames are kept."""

    capacity: int
    accept: int
    reply: int


def divide(capacity: int) -> Quota:
    """Divide a capacity."""
    reserve = min(max(capacity // 8, _MIN_RESERVE), _MAX_RESERVE)
    return Quota(capacity, capacity - reserve, capacity - reserve // 4)


def expect_large_enough(capacity: int) -> None:
    """Raise CapacityTooSmall."""
    if capacity < MIN_CAPACITY:
        fact, advice = f"it is {capacity} bytes", f"choose at least {MIN_CAPACITY >> 20} MiB"
        raise CapacityTooSmall("the capacity is too small", fact, advice)
