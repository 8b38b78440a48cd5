"""Closing requests: out of the queue, and into the ring of those that are remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from titanic.errors import RecordCorrupt
from titanic.store.attempt_history import closed_history_key, history_key
from titanic.store.lmdb import closed_record, facts, outcome_record, request_record
from titanic.store.lmdb.closed_record import NO_FRAMES, ClosedRecord, Part, Where
from titanic.store.lmdb.closed_ring import charge
from titanic.store.lmdb.facts import put_facts
from titanic.store.lmdb.free_space import fits, make_room, refusal
from titanic.store.lmdb.lifecycle import drop_timers, find, leave
from titanic.store.lmdb.outcome_record import OutcomeHeader, RetryRecord
from titanic.store.lmdb.record import Ref, refer, verify
from titanic.store.lmdb.request_record import RequestHeader, row_key
from titanic.store.lmdb.schema import INLINE, PAGE, TIME_SIZE, closed_key, cost
from titanic.store.lmdb.transaction import Writing
from titanic.store.records import CloseResult
from titanic.store.request import lasting_values
from titanic.store.states import State, Status
from titanic.store.uniqueness import outlives, unique_name
from titanic.util.clock import wall_us

Header = TypeVar("Header", RequestHeader, OutcomeHeader)

_MOST_DROPPED = 20
_DAMAGED = Part(Where.DAMAGED)
_UNREADABLE = RequestHeader()
_NEVER_TRIED = RetryRecord(0, 0)


def close(tx: Writing, uuid: bytes, now_us: int | None = None) -> CloseResult | None:
    return close_request(tx, uuid, wall_us() if now_us is None else now_us)


def close_request(tx: Writing, uuid: bytes, now_us: int, unclaimed: bool = False) -> CloseResult | None:
    txn, db = tx.raw, tx.db
    view = txn.get(uuid, db=db.requests)
    if view is None:
        return None
    record = bytes(view)
    view = txn.get(uuid, db=db.replies)
    reply = None if view is None else bytes(view)
    header, request_part = _read(tx, uuid, record, request_record.decode_header)
    place = find(tx, uuid) if reply is None else None
    end, reply_part = (None, NO_FRAMES) if reply is None else _read(tx, uuid, reply, outcome_record.decode_header)
    if place is not None:
        state, status = place.state, Status.CANCELLED
    else:
        status = end.status if end else Status.FAILED
        state = State(status)
    kept: list[Ref] = []
    last = tx.last_sequence()
    tried = end or (place and place.past) or _NEVER_TRIED
    if tx.environment.settings.keep_closed:
        closed = ClosedRecord(
            *lasting_values(header or _UNREADABLE),
            status=status,
            unclaimed=unclaimed,
            attempts=tried.attempts,
            dispatched_at=tried.dispatched_at,
            replied_at=end.finished_at if end else 0,
            closed_at=now_us,
            error=tried.reason if header else "the request was damaged",
            request=request_part,
            reply=reply_part,
        )
        closed.uuid = uuid
        kept = _remember(tx, closed)
    if (history := facts.value(tx, history_key(uuid))) is not None:
        number = tx.last_sequence()
        put_facts(tx, [(history_key(uuid), None), *([(closed_history_key(number), history)] if number > last else [])])
    if place is not None:
        leave(tx, uuid, place)
    elif header is not None and end is not None:
        for timer in outcome_record.retention_timers(uuid, end, header.options, header.frame_count):
            tx.delete(db.timers, timer)
    else:
        drop_timers(tx, uuid)
    for row, database in ((record, db.requests), (reply, db.replies)):
        if row is not None:
            tx.delete(database, uuid)
            tx.freed += len(row) // PAGE
    if place is None:
        txn.delete(uuid, db=db.retries)
    if header is not None and (name := unique_name(header)) and not outlives(name, unclaimed, status):
        tx.forget_key(row_key(name, header.owner), uuid)
    if header is not None and header.owner:
        tx.count_owned(header.owner, size=-header.size - (end.size if end is not None else 0))
    for found in (header, end):
        if found is not None and found.ref not in kept:
            tx.drop_blob(found.ref)
    if header is None:
        return CloseResult(b"", state)
    run_us = end.finished_at - tried.dispatched_at if end is not None and tried.dispatched_at else None
    return CloseResult(header.service, state, header.key, header.owner, run_us)


def _read(
    tx: Writing, uuid: bytes, record: bytes, decode_header: Callable[[bytes, bytes], Header]
) -> tuple[Header | None, Part]:
    """A record's header, and what is remembered of its frames."""
    try:
        header = decode_header(uuid, record)
    except RecordCorrupt:
        return None, _DAMAGED
    count, size, ref = header.frame_count, header.body_size, header.ref
    try:
        # Here damage would get a new, valid checksum. (That of a blob is handed on with it.)
        verify(uuid, memoryview(record), "")
    except RecordCorrupt:
        return header, Part(Where.DAMAGED, count, size)
    if size - 4 * count > tx.environment.settings.closed_body_limit:
        return header, Part(Where.LEFT_OUT, count, size)
    if ref is not None:
        return header, Part(Where.BLOB, count, size, ref.pack())
    return header, Part(Where.HERE, count, size, record[header.body_at :])


def _remember(tx: Writing, closed: ClosedRecord) -> list[Ref]:
    """Put a request into the ring, or what there is room for. Returns the blobs that it has taken over."""
    room = tx.room
    blobs: list[tuple[Ref, bytes]] = []
    size = closed_record.size(closed)
    while size > INLINE and len(blobs) < 2:  # the larger of two inline bodies makes way, then the other
        in_request = _inline_size(closed.request) >= _inline_size(closed.reply)
        part = closed.request if in_request else closed.reply
        body = bytes(part.data)
        ref = refer(tx.new_blob(), body)
        blobs.append((ref, body))
        part = part._replace(where=Where.BLOB, data=ref.pack())
        if in_request:
            closed.request = part
        else:
            closed.reply = part
        size = closed_record.size(closed)
    row = cost(TIME_SIZE, size)
    needed = row + sum(ref.pages * PAGE for ref, _ in blobs)
    if not make_room(tx, needed, room.reply, most=_MOST_DROPPED, at_once=4):
        closed.request, closed.reply = _without_frames(closed.request), _without_frames(closed.reply)
        blobs = []
        row = needed = cost(TIME_SIZE, closed_record.size(closed))
    if not fits(tx, needed, room.least):
        if tx.archived()[0] and not tx.environment.settings.drop_unarchived:
            raise refusal(tx, needed, room.least)
        tx.lost += 1
        return []
    tx.sequence = sequence = tx.last_sequence() + 1
    record = closed_record.encode(sequence, closed)
    tx.raw.put(closed_key(sequence), record, db=tx.db.closed, append=True)
    charge(tx, sequence, closed, len(record))
    for ref, body in blobs:
        tx.put_blob(ref, body)
    tx.added += row
    return closed.refs


def _inline_size(part: Part) -> int:
    return part.size if part.where is Where.HERE else -1


def _without_frames(part: Part) -> Part:
    if part.size == 0 or part.where is Where.DAMAGED:
        return part
    return Part(Where.LEFT_OUT, part.frames, part.size)
