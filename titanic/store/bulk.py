"""Reading much of the store at a time, for those who make columns of it.

A record at a time costs microseconds in Python. Who wants a million of them takes their bytes in one piece, and reads
the fields of all with a few operations on arrays: `closed.LAYOUT` says where they are. The checksums are verified here.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import NamedTuple
from zlib import crc32

from titanic.store import closed, request
from titanic.store.closed import ClosedRequest
from titanic.store.record import BODY, PREFIX
from titanic.store.schema import closed_key
from titanic.store.selection import Selection
from titanic.store.state import State
from titanic.store.views import Description

_SIZES = ("request_frames", "request_size", "reply_frames", "reply_size")
_LOOKED_AT = ("format", "crc", "request_where", "reply_where", *_SIZES)
_fields = struct.Struct(
    "<" + "".join(code if name in _LOOKED_AT else f"{struct.calcsize(code)}x" for name, code in closed.LAYOUT)
)
_head = struct.Struct(f">Q{PREFIX}s")
"""A key (schema.closed_key) and what stands in its record before the checksum."""

_FORMAT = 1


class ClosedBulk(NamedTuple):
    """The records of closed requests with the numbers from `first` on, without gaps.

    `data` has them one after the other, each beginning where `starts` says. A record is the header of closed.LAYOUT,
    then service, key and error, then the request's frames and the reply's: at most one of each, as a u32 length and the
    bytes. Of all others (several frames, or a body that is elsewhere) `apart` has the whole under their place in
    `starts`; their frames follow the record, the request's and then the reply's, without lengths.
    """

    first: int
    data: bytes
    starts: list[int]
    apart: dict[int, ClosedRequest]


class Bulk(Selection):
    """The part of a read transaction that reads much at a time."""

    def closed_bulk(self, first: int, last: int, max_bytes: int = 16 << 20) -> ClosedBulk:
        """The closed requests number `first` to `last`, or those of them that come to `max_bytes`; one however large.

        Empty when `first` is not in the ring (any more): see `closed_range`. Raises RecordCorrupt when a record is
        damaged, or missing although it is newer than the first.
        """
        parts: list[bytes] = []
        starts: list[int] = []
        apart: dict[int, ClosedRequest] = {}
        cursor = self._txn.cursor(self._db.closed)
        if last < first or not cursor.set_key(closed_key(first)):
            return ClosedBulk(first, b"", starts, apart)
        at = 0
        add_start, add_part, fields, head = starts.append, parts.append, _fields.unpack_from, _head.pack
        for number, record in enumerate(islice(cursor.iternext(keys=False), last - first + 1), first):
            if at >= max_bytes:
                break
            row = bytes(record)  # pieces of views cost more than the copy
            try:
                format_, crc, request_where, reply_where, request_frames, _, reply_frames, _ = fields(row)
            except struct.error:
                closed.decode_header(number, record)  # says what is wrong
                raise
            # The sum is over the key: a number that is missing is found, too.
            if crc != crc32(row[BODY:], crc32(head(number, row))) or format_ != _FORMAT:
                closed.decode(number, record)  # says what is wrong
            add_start(at)
            add_part(row)
            at += len(row)
            if request_where or reply_where or request_frames > 1 or reply_frames > 1:
                whole = closed.decode(number, record, self._fetch)
                apart[number - first] = whole
                for part in (*whole.request, *whole.reply):
                    add_part(part)
                    at += len(part)
        return ClosedBulk(first, b"".join(parts), starts, apart)

    def cut_closed(self, first: int, last: int, max_bytes: int) -> int:
        """The last number, at most `last`, so that the frames from number `first` on come to `max_bytes`; one at least.

        For those who must know a range before they read it.
        """
        cursor = self._txn.cursor(self._db.closed)
        size, number = 0, first - 1
        if cursor.set_key(closed_key(first)):
            for record in cursor.iternext(keys=False):
                if number >= last:
                    break
                if len(record) >= _fields.size:
                    size += sum(_fields.unpack_from(record)[5::2])  # of the request and of the reply
                if number >= first and size > max_bytes:
                    break
                number += 1
        return number

    def request_ids(self, every: int) -> list[bytes]:
        """The id of every stored request that begins a part of `every` of them, oldest first."""
        cursor = self._txn.cursor(self._db.requests)
        return [bytes(key) for n, key in enumerate(cursor.iternext(values=False)) if n % every == 0]

    def unended(
        self, begin: bytes, end: bytes | None, limit: int, max_bytes: int = 16 << 20
    ) -> tuple[list[tuple[Description, list[bytes]]], bytes | None]:
        """The requests with ids from `begin` up to `end` (not included; None: all) that wait or are delayed, with their
        bodies, and where to go on; None at the end. Looks at `limit` requests at most.

        Raises RecordCorrupt.
        """
        found: list[tuple[Description, list[bytes]]] = []
        cursor = self._txn.cursor(self._db.requests)
        size = looked_at = 0
        if not cursor.set_range(begin):
            return found, None
        for view, record in cursor.iternext():
            uuid = bytes(view)
            if end is not None and uuid >= end:
                break
            if looked_at >= limit or size >= max_bytes:
                return found, uuid
            looked_at += 1
            if self._txn.get(uuid, db=self._db.replies) is not None:
                continue
            row = self.describe(uuid)
            if row is not None and row.state in (State.WAITING, State.DELAYED):
                found.append((row, request.decode(uuid, record, self._fetch).body))
                size += row.body_bytes
        return found, None
