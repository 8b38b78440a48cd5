"""Which services have requests in each minute of the store, so that a listing of one skips the other minutes.

Ids begin with their time, and ascend: requests leave a minute (closed, removed), but none comes to one that is over. So
the writer notes the services of what it stores since the store was opened, which costs less than 1 µs for each service
of a commit; and what was there before is known of each minute that a listing has read to its end. Nothing of it is on
disk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import reduce
from operator import or_
from zlib import crc32

from titanic.store.lmdb.schema import odd_row
from titanic.util.ids import SIZE

_MINUTE = struct.Struct(">I")
"""The beginning of an id, which ids of the same 65.5 s share (ids.py)."""

_SIEVE = 4096
"""Bits for the services of a minute."""

MOST_MINUTES = 8192
"""Minutes that are remembered, at most: the last six days that had requests, in some 5 MiB."""


class ServicesByMinute:
    """The services of minutes, as bits of the hashes of their names. One thread notes, any thread asks and learns.

    `last`: the highest id when the store was opened, whole or damaged. `most`: minutes that are remembered; 0 where
    another process writes.
    """

    def __init__(self, last: bytes | None, most: int) -> None:
        self._opened = -1 if last is None else minute_of(last[:SIZE].ljust(SIZE, b"\xff"))
        """The last minute that had requests before anything was noted."""
        self._most = most
        self._noted = dict[int, int]()
        self._read = dict[int, int]()

    def note(self, first: bytes, last: bytes, services: Iterable[bytes]) -> None:
        """The services of requests between two ids. Called before their commit."""
        bits = reduce(or_, map(_bit, services))
        for minute in {minute_of(first), minute_of(last)}:
            if minute not in self._noted and len(self._noted) >= self._most:
                self._opened = max(self._opened, oldest := min(self._noted))
                del self._noted[oldest]
                self._read.pop(oldest, None)
            self._noted[minute] = self._noted.get(minute, 0) | bits

    def learn(self, minute: int, services: Iterable[bytes]) -> None:
        """All services that a minute had, in a transaction that began after the opening."""
        if len(self._read) < self._most:
            self._read[minute] = reduce(or_, map(_bit, services), 0)

    def knows(self, minute: int) -> bool:
        """Whether all services of a minute are known."""
        return minute > self._opened or minute in self._read

    def lacks(self, minute: int, service: bytes) -> bool:
        """Whether it is known that a minute has no request of a service."""
        return self.knows(minute) and not (self._noted.get(minute, 0) | self._read.get(minute, 0)) & _bit(service)


def minute_of(uuid: bytes | memoryview) -> int:
    """The minute of an id. Raises StoreCorrupt when it is too short."""
    if len(uuid) < _MINUTE.size:
        raise odd_row("requests", uuid, uuid)
    return int(_MINUTE.unpack_from(uuid)[0])


def beginning(minute: int) -> bytes:
    """What the ids of a minute begin with."""
    return _MINUTE.pack(minute)


def _bit(service: bytes) -> int:
    return 1 << crc32(service) % _SIEVE
