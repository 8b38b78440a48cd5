"""`closed`: the ring of closed requests, oldest first, and the agreement with the archive that reads it.

    archived_upto          first                      last
          │                  │                          │
      ────┴── dropped ───────┴─── can be read ──────────┴── numbers to come

Numbers have no gaps. The oldest entries are dropped when their retention is over or their room is needed, but not
before the archive has them, if one is registered (except with `drop_unarchived`).

One record at a time costs microseconds in Python. A reader of millions (`closed_bulk`) takes their bytes in one piece,
and reads the fields of all of them with a few operations on arrays: `CLOSED_LAYOUT` says where they are.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from itertools import accumulate, count, islice
from operator import itemgetter
from zlib import crc32

from titanic.errors import RecordCorrupt
from titanic.store.agreement import Agreement
from titanic.store.lmdb import closed_record
from titanic.store.lmdb.closed_record import ClosedRecord
from titanic.store.lmdb.record import BODY, PREFIX, verify
from titanic.store.lmdb.schema import (
    ARCHIVE,
    ARCHIVE_KEY,
    ARCHIVIST_KEY,
    CHARGED_KEY,
    U64,
    closed_key,
    odd_row,
    sequence_of,
)
from titanic.store.lmdb.transaction import Reading, Writing
from titanic.store.records import ArchiveState, Archivist
from titanic.store.request import CLOSED_FORMAT, ClosedBulk, ClosedRequest, pack_closed
from titanic.util.ids import SIZE

_sizes = closed_record.fields("request_size", "reply_size")
_places = closed_record.fields("format", "crc", "request_where", "reply_where", "request_frames", "reply_frames")
_head = struct.Struct(f">Q{PREFIX}s")
"""A key (schema.closed_key) and what stands in its record before the checksum."""

_rest = itemgetter(slice(BODY, None))

_AT_ONCE = 1000
"""Records of which the sums are made before the next are read."""
_MOST_NAME = 255
"""Bytes of an archivist's name that are kept."""


def closed_range(tx: Reading) -> tuple[int, int]:
    """The first and the last number that can be read; the first is one above the last when there are none."""
    last = tx.last_sequence()
    cursor = tx.raw.cursor(tx.db.closed)
    return (sequence_of(cursor.key()) if cursor.first() else last + 1), last


def oldest_closing(tx: Reading) -> list[int]:
    cursor = tx.raw.cursor(tx.db.closed)
    if not cursor.first():
        return []
    sequence = sequence_of(cursor.key())
    registered, upto = tx.archived()
    if registered and sequence > upto:
        return []  # waits for the archive, not for its time
    try:
        return [closed_record.decode_header(sequence, cursor.value()).closed_at]
    except RecordCorrupt:
        return [0]


def closed_bulk(tx: Reading, first: int, last: int, max_bytes: int = 16 << 20) -> ClosedBulk:
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
            found = [row]
            if not _plain(number, found):
                verify(closed_key(number), row, closed_record.DATABASE)
                header = closed_record.decode_header(number, memoryview(row))
                whole = apart[number - first] = closed_record.decode_rest(number, header, tx.fetch)
                if row[0] != CLOSED_FORMAT:
                    row = pack_closed(whole, header.request.frames, header.reply.frames)
                found = [row, *whole.request, *whole.reply]
            starts.append(at)
            parts += found
            at += sum(map(len, found))
            number += 1
    return ClosedBulk(first, b"".join(parts), starts, apart)


def cut_closed(tx: Reading, first: int, last: int, max_bytes: int) -> int:
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


def _plain(number: int, rows: list[bytes]) -> bool:
    """Whether records, the first of which has this number, pass their checksums and hold at most one frame each way.

    The sum is over the key: a number that is missing is found, too. All that is done for each is done in C.
    """
    sums = map(crc32, map(_rest, rows), map(crc32, map(_head.pack, count(number), rows)))
    try:
        for total, (format_, crc, request_frames, reply_frames, request_where, reply_where) in zip(
            sums, map(_places.unpack_from, rows), strict=True
        ):
            if total != crc or format_ != CLOSED_FORMAT:
                return False
            if request_where or reply_where or request_frames > 1 or reply_frames > 1:
                return False
    except struct.error:  # it is too short
        return False
    return True


# -- the archive ---------------------------------------------------------------------------------------------


def archive(tx: Reading) -> ArchiveState:
    tx.put_counters()
    registered, upto = tx.archived()
    return ArchiveState(registered, upto, *closed_range(tx), tx.lost_count(), known_archivist(tx))


def known_archivist(tx: Reading) -> Archivist | None:
    """The owner of the archive that is registered, or was last; None when it is unknown."""
    row = tx.raw.get(ARCHIVIST_KEY, db=tx.db.meta)
    if row is None:
        return None
    if len(row) < SIZE:
        raise odd_row("meta", ARCHIVIST_KEY, row)
    return Archivist(bytes(row[:SIZE]), bytes(row[SIZE:]).decode(errors="replace"))


def charge(tx: Writing, sequence: int, closed: ClosedRecord, size: int) -> None:
    """Count a closed request for its owner, while an archive is registered: nothing may make way before it has it."""
    since = charged_since(tx)
    if since is None:
        if not closed.owner or not tx.archived()[0]:
            return
        tx.raw.put(CHARGED_KEY, U64.pack(sequence - 1), db=tx.db.meta)
    tx.count_owned(closed.owner, size=kept(closed, size))


def charged_since(tx: Reading) -> int | None:
    """The number above which closed requests are counted for their owners; None: none are."""
    row = tx.meta_row(CHARGED_KEY, U64)
    return None if row is None else row[0]


def kept(closed: ClosedRecord, size: int) -> int:
    """Bytes that are kept of a closed request with a record of this size."""
    return size + sum(ref.size for ref in closed.refs)


def charges_to_end(tx: Reading) -> bool:
    """Whether requests are counted that the archive has."""
    since = charged_since(tx)
    registered, upto = tx.archived()
    return since is not None and (not registered or since < min(upto, tx.last_sequence()))


def end_charges(tx: Writing, limit: int) -> None:
    """Count no longer, of up to `limit` requests, what the archive has."""
    since = charged_since(tx)
    if since is None or not charges_to_end(tx):
        return
    registered, upto = tx.archived()
    last = tx.last_sequence()
    end = min(upto, last) if registered else last
    cursor = tx.raw.cursor(tx.db.closed)
    rows = islice(cursor.iternext(), limit) if cursor.set_range(closed_key(since + 1)) else iter(())
    number = end
    for n, (view, record) in enumerate(rows, 1):
        sequence = sequence_of(view)
        if sequence > end:
            break
        with suppress(RecordCorrupt):  # a check finds it
            closed = closed_record.decode_header(sequence, record)
            tx.count_owned(closed.owner, size=-kept(closed, len(record)))
        if n == limit:
            number = sequence
    if number < last or registered:
        tx.raw.put(CHARGED_KEY, U64.pack(number), db=tx.db.meta)
    else:
        tx.raw.delete(CHARGED_KEY, db=tx.db.meta)


def update_archive(
    tx: Writing,
    archivist: Archivist | None = None,
    *,
    register: bool | None = None,
    upto: int | None = None,
    uuid: bytes | None = None,
) -> ArchiveState:
    first, last = closed_range(tx)
    before = now = Agreement(*tx.archived(), known_archivist(tx))
    if register:
        now = now.with_archive(archivist, first)
    elif register is not None:
        now = now._replace(registered=False)
    if upto is not None:
        record = (
            tx.raw.get(closed_key(upto), db=tx.db.closed) if uuid is not None and before.upto < upto <= last else None
        )
        here = None if record is None else closed_record.decode_header(upto, record).uuid
        now = now.acknowledged(upto, archivist, last, (uuid, here))
    if now.archivist is not None and now.archivist != before.archivist:
        row = now.archivist.id + now.archivist.name.encode(errors="replace")[:_MOST_NAME]
        tx.raw.put(ARCHIVIST_KEY, row, db=tx.db.meta)
    if now[:2] != before[:2]:
        tx.raw.put(ARCHIVE_KEY, ARCHIVE.pack(now.registered, now.upto), db=tx.db.meta)
    return archive(tx)
