"""Reading closed requests, one by one or in bulk, and the agreement with the archive about them.

Dropping the oldest closed requests: for their age, or for the room that new requests need.

What is dropped only counts no more (`meta.closed_first`); its rows go with their partition
(partitions.py).

The agreement with the archive that reads the closed requests: none is dropped before the archive has it.

It is stored in `meta`; the row of that table is locked last of all. So the agreement is read without a lock, and
changed with the other changes of the transaction if no other transaction has changed it since.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from titanic.errors import RecordCorrupt
from titanic.store.agreement import Agreement
from titanic.store.postgres.queries import expect_frames
from titanic.store.postgres.rows import CLOSED_COLUMNS, listed
from titanic.store.postgres.transaction import Row, SnapshotReader
from titanic.store.postgres.writing import PostgresWriting
from titanic.store.records import ArchiveState, Archivist
from titanic.store.request import ClosedBulk, ClosedRequest
from titanic.store.states import Status

AT_ONCE = 5_000
"""Rows that one query returns at most, for bulk readers."""

READ_COLUMNS = {name: type_ for name, type_ in CLOSED_COLUMNS.items() if name != "cost"}
"""What `decoded` takes, before `request` and `reply`."""

_CLOSED = f"""
    SELECT {listed(READ_COLUMNS)}, request, reply
    FROM (
        SELECT *, sum(stored) OVER (ORDER BY seq) AS size FROM titanic.closed, LATERAL (
            SELECT CASE WHEN request IS NULL THEN 0 ELSE request_bytes END
                + CASE WHEN reply IS NULL THEN 0 ELSE reply_bytes END AS stored
        ) kept
        WHERE seq >= (SELECT greatest(closed_first, %s) FROM titanic.meta) AND seq <= %s ORDER BY seq LIMIT %s
    ) one
    WHERE size <= greatest(stored, %s) ORDER BY seq"""

_SIZES = """
    SELECT seq, request_bytes + reply_bytes + 4 * (request_frames + reply_frames) FROM titanic.closed
    WHERE seq >= greatest(%s, (SELECT closed_first FROM titanic.meta)) AND seq <= %s ORDER BY seq LIMIT %s"""

_RANGE = "SELECT closed_first, closed_last FROM titanic.meta"
_ARCHIVE = """
    SELECT registered, archived_upto, archivist_id, archivist_name, closed_first, closed_last, lost FROM titanic.meta"""

_LAST = 2**63 - 1
_NUMBER = struct.Struct(">Q")
_STATUS = {int(status): status for status in Status}


class DecodedRow(NamedTuple):
    """A closed request, and how many frames it and its reply had, also if they were left out."""

    request: ClosedRequest
    request_frames: int
    reply_frames: int


def closed_range(tx: SnapshotReader) -> tuple[int, int]:
    """The first and the last number that can be read; the first is one above the last when there are none."""
    first, last = tx.fetch_row(_RANGE)
    return first, last


def archive(tx: SnapshotReader) -> ArchiveState:
    registered, upto, id_, name, first, last, lost = tx.fetch_row(_ARCHIVE)
    return ArchiveState(registered, upto, first, last, lost, None if id_ is None else Archivist(id_, name))


def closed_bulk(tx: SnapshotReader, first: int, last: int, max_bytes: int = 16 << 20) -> ClosedBulk:
    if first < closed_range(tx)[0]:
        return ClosedBulk(first, b"", [], {})
    return ClosedBulk.of(first, _gapless(_run(tx, first, last, max_bytes), first), max_bytes)


def _gapless(rows: Iterator[Row], first: int) -> Iterator[DecodedRow]:
    for number, row in enumerate(rows, first):
        if row[0] != number:
            raise RecordCorrupt(_NUMBER.pack(number), "closed", "it is missing")
        yield decoded(row)


def cut_closed(tx: SnapshotReader, first: int, last: int, max_bytes: int) -> int:
    size, number = 0, first - 1
    while rows := tx.fetch(_SIZES, number + 1, last, AT_ONCE):
        for found, more in rows:
            size += more
            if number >= first and size > max_bytes:
                return number
            number = found
    return number


def _run(tx: SnapshotReader, first: int, last: int, max_bytes: int) -> Iterator[Row]:
    """The rows of these numbers, in order, a part at a time."""
    while rows := tx.fetch(_CLOSED, first, last, AT_ONCE, max_bytes):
        yield from rows
        first = rows[-1][0] + 1


def decoded(row: Row) -> DecodedRow:
    """What a row with READ_COLUMNS, `request` and `reply` says."""
    fields = dict(zip(READ_COLUMNS, row, strict=False))
    *_, request, reply = row
    number, counts = fields.pop("seq"), (fields.pop("request_frames"), fields.pop("reply_frames"))
    try:
        for frames, count, size in zip(
            (request, reply), counts, (fields["request_bytes"], fields["reply_bytes"]), strict=True
        ):
            if frames is not None:
                expect_frames(fields["uuid"], "closed", frames, count, size)
        fields["status"] = _STATUS[fields["status"]]
    except (RecordCorrupt, KeyError) as fault:
        raise RecordCorrupt(_NUMBER.pack(number), "closed", f"it is invalid: {fault}") from fault
    fields["error"] = fields["error"].decode(errors="replace")
    found = ClosedRequest(
        **fields,
        sequence=number,
        request=request or [],
        reply=reply or [],
        request_left_out=request is None,
        reply_left_out=reply is None,
    )
    return DecodedRow(found, *counts)


# -- drops -----------------------------------------------------------------------------------------------------


_AT_ONCE = 256
"""A part of the capacity: so much is made free at least when room is needed, so that it is rarely needed."""
_MOST = 50_000
"""Closed requests that are searched for room."""

_MAY_GO = """
SELECT seq, cost, closed_at FROM closed
WHERE seq >= greatest(%s, (SELECT closed_first FROM meta))
    AND seq <= (SELECT CASE WHEN registered AND %s = 0 THEN archived_upto ELSE closed_last END FROM meta)
ORDER BY seq LIMIT %s"""

_UP_TO = f"""
SELECT seq, total::bigint FROM (
    SELECT seq, sum(cost) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total FROM ({_MAY_GO}) AS one
) AS summed
WHERE total >= %s ORDER BY seq LIMIT 1"""


def make_room(tx: PostgresWriting, needed: int, limit: int) -> bool:
    """Whether so many more bytes can be used, up to a limit. Closed requests make way if that suffices."""
    if tx.used() + needed <= limit:
        return True
    tx.count_used()
    missing = tx.used() + needed - limit
    if missing <= 0:
        return True
    for wanted in (missing + tx.writer.quota.capacity // _AT_ONCE, missing):
        may_go = tx.changes.drop_before, tx.settings.drop_unarchived, _MOST
        if found := tx.fetch_apart(_UP_TO, *map(int, may_go), wanted):
            last, size = found[0]
            tx.changes.drop_closed(last + 1, size)
            return True
    return False


def drop_older(tx: PostgresWriting, closed_before: int, limit: int) -> int:
    """Drop closed requests, the oldest first, up to one that was closed at that time or later, and return how many. The
    archive, if there is one, must have them."""
    count = size = last = 0
    for seq, cost, closed_at in tx.fetch(_MAY_GO, tx.changes.drop_before, 0, limit):
        if closed_at >= closed_before:
            break
        count, size, last = count + 1, size + cost, seq
    if count:
        tx.changes.drop_closed(last + 1, size)
    return count


# -- archive ---------------------------------------------------------------------------------------------------


_MOST_NAME = 255
"""Letters of an archivist's name that are kept."""

_ID_OF = "SELECT uuid FROM closed WHERE seq = %s AND seq >= (SELECT closed_first FROM meta)"


def current_archive(tx: PostgresWriting) -> ArchiveState:
    """Whether an archive is registered, what it has, and what there is, with the changes of this transaction."""
    return _known(tx)[0]


def update_archive(
    tx: PostgresWriting,
    archivist: Archivist | None = None,
    *,
    register: bool | None = None,
    upto: int | None = None,
    uuid: bytes | None = None,
) -> ArchiveState:
    found, before = _known(tx)
    now = before
    if register:
        now = now.with_archive(None if archivist is None else _storable(archivist), found.first)
    elif register is not None:
        now = now._replace(registered=False)
    if upto is not None:
        row = tx.fetch_apart(_ID_OF, upto) if uuid is not None and before.upto < upto <= found.last else ()
        now = now.acknowledged(upto, archivist, found.last, (uuid, row[0][0] if row else None))
    if now != before:
        first = tx.changes.agreement
        tx.changes.agreement = (before if first is None else first[0], now)
    return found._replace(registered=now.registered, archived_upto=now.upto, archivist=now.archivist)


def _storable(archivist: Archivist) -> Archivist:
    name = archivist.name.replace("\0", "").encode(errors="replace").decode(errors="replace")[:_MOST_NAME]
    return Archivist(archivist.id, name)


def _known(tx: PostgresWriting) -> tuple[ArchiveState, Agreement]:
    """What there is, with the changes that are not in the database yet."""
    if tx.changes.drop_before:
        tx.flush()
    ((registered, upto, id_, name, first, last, lost),) = tx.fetch_apart(_ARCHIVE)
    agreed = Agreement(registered, upto, None if id_ is None else Archivist(id_, name))
    if tx.changes.agreement is not None:
        agreed = tx.changes.agreement[1]
    state = ArchiveState(agreed.registered, agreed.upto, first, last + len(tx.changes.closed), lost, agreed.archivist)
    return state, agreed
