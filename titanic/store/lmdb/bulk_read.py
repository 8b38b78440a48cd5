"""Reading many records at a time, for those who make columns of them.

One record at a time costs microseconds in Python. A reader of millions takes their bytes in one piece, and reads the
fields of all of them with a few operations on arrays: `CLOSED_LAYOUT` says where they are. The checksums are
verified here.
"""

from __future__ import annotations

import struct
from itertools import accumulate, count, islice
from operator import itemgetter
from zlib import crc32

from titanic.store.lmdb import closed_record, request_record
from titanic.store.lmdb.listing import describe
from titanic.store.lmdb.record import BODY, PREFIX
from titanic.store.lmdb.schema import closed_key
from titanic.store.lmdb.transaction import Reading
from titanic.store.records import CLOSED_LAYOUT, ClosedBulk, ClosedRequest, Description
from titanic.store.states import State

_sizes = struct.Struct(
    "<" + "".join(c if n in ("request_size", "reply_size") else f"{struct.calcsize(c)}x" for n, c in CLOSED_LAYOUT)
)
_LOOKED_AT = ("format", "crc", "request_where", "reply_where", "request_frames", "reply_frames")
_fields = struct.Struct("<" + "".join(c if n in _LOOKED_AT else f"{struct.calcsize(c)}x" for n, c in CLOSED_LAYOUT))
_head = struct.Struct(f">Q{PREFIX}s")
"""A key (schema.closed_key) and what stands in its record before the checksum."""

_rest = itemgetter(slice(BODY, None))

_FORMAT = 1
_AT_ONCE = 1000
"""Records of which the sums are made before the next are read."""


def closed_bulk(tx: Reading, first: int, last: int, max_bytes: int = 16 << 20) -> ClosedBulk:
    """The closed requests number `first` to `last`, or those of them that come to `max_bytes`; one however large."""
    parts: list[bytes] = []
    starts: list[int] = []
    apart: dict[int, ClosedRequest] = {}
    cursor = tx.raw.cursor(tx.db.closed)
    if last < first or not cursor.set_key(closed_key(first)):
        return ClosedBulk(first, b"", starts, apart)
    at, number = 0, first
    records = islice(cursor.iternext(keys=False), last - first + 1)
    while at < max_bytes and (rows := list(map(bytes, islice(records, _AT_ONCE)))):  # of views, pieces cost more
        begins = list(accumulate(map(len, rows), initial=at))
        end = begins.pop()
        if begins[-1] < max_bytes and _plain(number, rows):
            at = end
            starts += begins
            parts += rows
            number += len(rows)
            continue
        for row in rows:
            if at >= max_bytes:
                break
            starts.append(at)
            parts.append(row)
            at += len(row)
            if not _plain(number, [row]):
                whole = apart[number - first] = closed_record.decode(number, memoryview(row), tx.fetch)
                frames = [*whole.request, *whole.reply]
                parts += frames
                at += sum(map(len, frames))
            number += 1
    return ClosedBulk(first, b"".join(parts), starts, apart)


def cut_closed(tx: Reading, first: int, last: int, max_bytes: int) -> int:
    """The last number, at most `last`, so that the frames from number `first` on come to `max_bytes`; one at least."""
    cursor = tx.raw.cursor(tx.db.closed)
    size, number = 0, first - 1
    if cursor.set_key(closed_key(first)):
        for record in cursor.iternext(keys=False):
            if number >= last:
                break
            if len(record) >= _sizes.size:
                size += sum(_sizes.unpack_from(record))  # of the request and of the reply
            if number >= first and size > max_bytes:
                break
            number += 1
    return number


def request_ids(tx: Reading, every: int) -> list[bytes]:
    """The id of every stored request that begins a part of `every` of them, oldest first."""
    cursor = tx.raw.cursor(tx.db.requests)
    return [bytes(key) for n, key in enumerate(cursor.iternext(values=False)) if n % every == 0]


def unended(
    tx: Reading, begin: bytes, end: bytes | None, limit: int, max_bytes: int = 16 << 20
) -> tuple[list[tuple[Description, list[bytes]]], bytes | None]:
    """The requests of a range that wait or are delayed, with their bodies, and where to go on."""
    found: list[tuple[Description, list[bytes]]] = []
    cursor = tx.raw.cursor(tx.db.requests)
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
        if tx.raw.get(uuid, db=tx.db.replies) is not None:
            continue
        row = describe(tx, uuid)
        if row is not None and row.state in (State.WAITING, State.DELAYED):
            found.append((row, request_record.decode(uuid, record, tx.fetch).body))
            size += row.body_bytes
    return found, None


def _plain(number: int, rows: list[bytes]) -> bool:
    """Whether records, of which the first has this number, are whole and have one frame each at most, in them.

    The sum is over the key: a number that is missing is found, too. All that is done for each is done in C.
    """
    sums = map(crc32, map(_rest, rows), map(crc32, map(_head.pack, count(number), rows)))
    try:
        for total, (format_, crc, request_where, reply_where, request_frames, reply_frames) in zip(
            sums, map(_fields.unpack_from, rows), strict=True
        ):
            if total != crc or format_ != _FORMAT:
                return False
            if request_where or reply_where or request_frames > 1 or reply_frames > 1:
                return False
    except struct.error:  # it is too short
        return False
    return True
