"""The lifecycle of accepted requests: finish, postpone, promote, expire, retry."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from titanic.errors import RecordCorrupt, StoreCorrupt
from titanic.store.lmdb import outcome_record, request_record, schema
from titanic.store.lmdb.accept import expect_room
from titanic.store.lmdb.capacity import CHARGE
from titanic.store.lmdb.free_space import fits, make_room, refusal
from titanic.store.lmdb.outcome_record import RetryRecord
from titanic.store.lmdb.record import REF_SIZE, Ref, refer
from titanic.store.lmdb.request_record import RequestHeader
from titanic.store.lmdb.schema import (
    EXPIRY,
    PAGE,
    cost,
    due_of,
    later_key,
    ready_prefix,
    service_of,
    timer_key,
    uuid_of,
)
from titanic.store.lmdb.transaction import Writing
from titanic.store.records import Outcome
from titanic.store.request import as_new
from titanic.store.rules import drops_body, late, times_again
from titanic.store.states import ENDING, TRANSITIONS, Event, State, Status
from titanic.store.uniqueness import name_to_retry
from titanic.util.ids import SIZE

_TO_BE_DROPPED = 200
_SHORT_REASON = 80
"""Bytes of a reason for which the charge has room (capacity.py)."""


class QueuePlace(NamedTuple):
    """Where a request is that has not ended: its row in `ready` or `later` (empty: none), and what is known of it."""

    state: State
    key: bytes
    prefix: bytes
    header: RequestHeader | None
    past: RetryRecord | None

    @property
    def service(self) -> bytes | None:
        """None when it is unknown."""
        if self.header is not None:
            return self.header.service
        return service_of(self.prefix) if self.prefix else None


def _shortened(reason: str) -> str:
    return reason.encode(errors="replace")[:_SHORT_REASON].decode(errors="ignore") + "…"


def finish(
    tx: Writing,
    uuid: bytes,
    status: Status,
    frames: Sequence[bytes],
    *,
    attempts: int,
    dispatched_at: int,
    finished_at: int,
    reason: str = "",
) -> bool:
    place = find(tx, uuid)
    if place is None or (place.state, ENDING[status]) not in TRANSITIONS:
        return False
    _end(tx, uuid, place, Outcome(status, list(frames), reason, attempts, dispatched_at, finished_at))
    return True


def postpone(
    tx: Writing, uuid: bytes, *, due: int, attempts: int, dispatched_at: int, reason: str, deliveries: int = 0
) -> bool:
    place = find(tx, uuid)
    if place is None or (place.state, Event.POSTPONE) not in TRANSITIONS:
        return False
    if not place.key:
        raise StoreCorrupt("the store is damaged", f"{uuid.hex()} is in no queue", schema.REPAIR)
    _take_out(tx, place)
    due = max(due, 1)  # 0 would say that it is ready
    expires_at = None if place.past is None else place.past.expires_at
    past = RetryRecord(attempts, due, dispatched_at, reason, expires_at, deliveries if deliveries > attempts else 0)
    record = outcome_record.encode_retry(uuid, past)
    needed = cost(SIZE, len(record))
    if needed > CHARGE and not fits(tx, needed, tx.room.reply):
        record = outcome_record.encode_retry(uuid, past._replace(reason=_shortened(reason)))
    tx.put(tx.db.later, later_key(due, uuid), place.prefix)
    tx.put(tx.db.retries, uuid, record)
    tx.added += cost(SIZE, len(record))
    return True


def promote(tx: Writing, now_us: int, limit: int = 1000) -> list[tuple[bytes, int]]:
    due: list[tuple[bytes, bytes]] = []
    for view, value in tx.raw.cursor(tx.db.later).iternext():
        if len(due) >= limit or due_of(view) > now_us:
            break
        due.append((bytes(view), bytes(value)))
    promoted: dict[bytes, int] = {}
    for key, prefix in due:
        uuid, service = uuid_of(key), service_of(prefix)
        tx.delete(tx.db.later, key)
        tx.put(tx.db.ready, prefix + uuid, b"")
        tx.count_load(service, ready=1)
        _forget_delay(tx, uuid)
        promoted[service] = promoted.get(service, 0) + 1
    return list(promoted.items())


def expire(
    tx: Writing, now_us: int, limit: int = 1000, skip: Collection[bytes] = (), ahead_us: int = 0
) -> list[tuple[bytes, bytes]]:
    due: list[tuple[bytes, bytes]] = []
    for key, time, uuid in tx.timers(EXPIRY):
        if time > now_us - ahead_us or len(due) == limit:
            break
        if uuid not in skip:
            due.append((key, uuid))
    expired: list[tuple[bytes, bytes]] = []
    for key, uuid in due:
        place = find(tx, uuid)
        if place is None:
            tx.delete(tx.db.timers, key)
            continue
        attempts, dispatched_at = (place.past.attempts, place.past.dispatched_at) if place.past else (0, 0)
        _end(tx, uuid, place, Outcome(Status.EXPIRED, [], late(attempts), attempts, dispatched_at, now_us))
        tx.delete(tx.db.timers, key)
        expired.append((uuid, place.service or b""))
    return expired


def retry(tx: Writing, uuid: bytes, now_us: int) -> bool:
    record, reply = tx.raw.get(uuid, db=tx.db.requests), tx.raw.get(uuid, db=tx.db.replies)
    if record is None or reply is None:
        return False
    try:
        header, end = request_record.decode_header(uuid, record), outcome_record.decode_header(uuid, reply)
    except RecordCorrupt:
        return False
    if (State(end.status), Event.RETRY) not in TRANSITIONS:
        return False
    if name := name_to_retry(header, header.submitted_at, now_us):
        holder = tx.key_holder(request_record.row_key(name, header.owner))
        if holder is None or holder.uuid != uuid:
            return False
    for timer in outcome_record.retention_timers(uuid, end, header.options, header.frame_count):
        tx.delete(tx.db.timers, timer)
    tx.delete(tx.db.replies, uuid)
    tx.drop_blob(end.ref)
    prefix = ready_prefix(header.service, header.priority)
    due, expires_at = times_again(header.submitted_at, header.not_before, header.expires_at, end.attempts, now_us)
    past = RetryRecord(0, due, expires_at=None if expires_at == header.expires_at else expires_at)
    put_unended(tx, uuid, prefix, past, expires_at)
    tx.count_load(header.service, ready=0 if past.due else 1, pending=1, size=header.size)
    if header.owner:
        tx.count_owned(header.owner, pending=1, size=-end.size)
    return True


def put_unended(tx: Writing, uuid: bytes, prefix: bytes, past: RetryRecord, expires_at: int) -> None:
    """Put the rows of a request that has not ended, besides its record: in `ready` or `later`, with `prefix`."""
    if past.due:
        tx.put(tx.db.later, later_key(past.due, uuid), prefix)
    else:
        tx.put(tx.db.ready, prefix + uuid, b"")
    if past.due or past.matters:
        tx.put(tx.db.retries, uuid, outcome_record.encode_retry(uuid, past))
    if expires_at:
        tx.put(tx.db.timers, timer_key(EXPIRY, expires_at, uuid), b"")


def change(
    tx: Writing,
    uuid: bytes,
    now_us: int,
    *,
    priority: int | None = None,
    due: int | None = None,
    body: Sequence[bytes] | None = None,
) -> tuple[bytes, State] | None:
    """Change the priority of a request that has not ended, when it is due, and its body. None: it has, or is
    damaged. Raises StoreFull before it changes anything."""
    place = find(tx, uuid)
    record = tx.raw.get(uuid, db=tx.db.requests)
    if place is None or place.header is None or not place.key or record is None:
        return None
    header, past = place.header, place.past or RetryRecord(0, 0)
    not_before = header.not_before
    if due is not None:
        not_before = due if due > now_us else 0
        past = past._replace(due=not_before)
    priority = header.priority if priority is None else priority
    if body is None:
        changed = request_record.changed(uuid, record, priority, not_before)
    else:
        changed = _with_body(tx, uuid, header, body, priority, not_before)
    _take_out(tx, place)
    tx.put(tx.db.requests, uuid, changed)
    prefix = ready_prefix(header.service, priority)
    if past.due:
        tx.put(tx.db.later, later_key(past.due, uuid), prefix)
    else:
        tx.put(tx.db.ready, prefix + uuid, b"")
        tx.count_load(header.service, ready=1)
    if past.due or past.matters:
        retry_record = outcome_record.encode_retry(uuid, past)
        tx.put(tx.db.retries, uuid, retry_record)
        tx.added += cost(SIZE, len(retry_record))
    else:
        tx.delete(tx.db.retries, uuid)
    return header.service, State.DELAYED if past.due else State.WAITING


def _with_body(
    tx: Writing, uuid: bytes, header: RequestHeader, body: Sequence[bytes], priority: int, not_before: int
) -> bytes:
    """Return the record with another body, whose blob is put in place of the old one. Raises StoreFull before that."""
    blobs: list[tuple[Ref, bytes]] = []

    def place_body(frames: bytes) -> Ref:
        blobs.append((refer(tx.new_blob(), frames), frames))
        return blobs[0][0]

    service, owner = header.service, header.owner
    new = as_new(header, body)._replace(priority=priority, not_before=not_before)
    record = request_record.encode(uuid, new, header.submitted_at, place_body)
    expect_room(tx, [len(record)], {0: sum(ref.pages * PAGE for ref, _ in blobs)})
    for ref, frames in blobs:
        tx.put_blob(ref, frames)
    tx.drop_blob(header.ref)  # after the new one has its id, which is above all others
    more = len(record) + sum(ref.size - REF_SIZE for ref, _ in blobs) - header.size
    tx.count_load(service, size=more)
    if owner:
        tx.count_owned(owner, size=more)
    return record


def drop_body(tx: Writing, uuid: bytes, header: RequestHeader) -> None:
    """Write the record of a request that has ended without its body."""
    record = request_record.encode(uuid, as_new(header, []), header.submitted_at)
    tx.put(tx.db.requests, uuid, record)
    tx.drop_blob(header.ref)
    if header.owner:
        tx.count_owned(header.owner, size=len(record) - header.size)


def _end(tx: Writing, uuid: bytes, place: QueuePlace, end: Outcome) -> None:
    bodies: list[tuple[Ref, bytes]] = []

    def place_body(body: bytes) -> Ref:
        bodies.append((refer(tx.new_blob(), body), body))
        return bodies[0][0]

    record = outcome_record.encode(uuid, end, place_body)
    needed = cost(SIZE, len(record)) + sum(ref.pages * PAGE for ref, _ in bodies)
    limit = tx.room.reply
    if needed > CHARGE and not make_room(tx, needed, limit, most=_TO_BE_DROPPED, at_once=20):
        if end.frames:
            raise refusal(tx, needed, limit)
        record = outcome_record.encode(uuid, end._replace(reason=_shortened(end.reason)))
    leave(tx, uuid, place)
    tx.put(tx.db.replies, uuid, record)
    header = place.header
    options, frame_count = (b"", 0) if header is None else (header.options, header.frame_count)
    for timer in outcome_record.retention_timers(uuid, end, options, frame_count):
        tx.put(tx.db.timers, timer, b"")
    for ref, body in bodies:
        tx.put_blob(ref, body)
    if header is not None and drops_body(options, end.status):
        drop_body(tx, uuid, header)
    if header is not None and header.owner:
        size = len(record) + sum(ref.size - REF_SIZE for ref, _ in bodies)
        tx.count_owned(header.owner, size=size)
    tx.added += cost(SIZE, len(record)) - CHARGE


def leave(tx: Writing, uuid: bytes, place: QueuePlace) -> None:
    """Delete all that only a request has that has not ended."""
    _take_out(tx, place)
    if place.past is not None:
        tx.delete(tx.db.retries, uuid)
    header = place.header
    if header is None:
        drop_timers(tx, uuid)
    elif expires_at := outcome_record.expiry(header.expires_at, place.past):
        tx.delete(tx.db.timers, timer_key(EXPIRY, expires_at, uuid))
    if place.service is not None:
        tx.count_load(place.service, pending=-1, size=-header.size if header else 0)
    if header is not None and header.owner:
        tx.count_owned(header.owner, pending=-1)


def _forget_delay(tx: Writing, uuid: bytes) -> None:
    """Record that the request is ready again. One that never failed needs no record."""
    try:
        past = tx.past(uuid)
    except RecordCorrupt:
        past = None  # one attempt too many is better than a request that never runs
    if past is not None and past.matters:
        tx.put(tx.db.retries, uuid, outcome_record.encode_retry(uuid, past._replace(due=0)))
    else:
        tx.delete(tx.db.retries, uuid)


def find(tx: Writing, uuid: bytes) -> QueuePlace | None:
    """Where the request is; None when it is unknown or has ended."""
    raw, db = tx.raw, tx.db
    record = raw.get(uuid, db=db.requests)
    if record is None or raw.get(uuid, db=db.replies) is not None:
        return None
    header = past = None
    try:
        header = request_record.decode_header(uuid, record)
        past = tx.past(uuid)
        prefix = ready_prefix(header.service, header.priority)
        if past and past.due:
            key = later_key(past.due, uuid)
            if raw.get(key, db=db.later) is not None:
                return QueuePlace(State.DELAYED, key, prefix, header, past)
        elif raw.get(prefix + uuid, db=db.ready) is not None:
            return QueuePlace(State.WAITING, prefix + uuid, prefix, header, past)
    except RecordCorrupt:
        past = past or RetryRecord(0, 0)  # perhaps this is what is damaged
    return search(tx, uuid, header, past)


def search(
    tx: Writing, uuid: bytes, header: RequestHeader | None = None, past: RetryRecord | None = None
) -> QueuePlace:
    """`find` for a request with damaged records: it searches all rows."""
    for view in tx.raw.cursor(tx.db.ready).iternext(keys=True, values=False):
        if view[-SIZE:] == uuid:
            return QueuePlace(State.WAITING, bytes(view), bytes(view[:-SIZE]), header, past)
    for view, prefix in tx.raw.cursor(tx.db.later).iternext():
        if view[-SIZE:] == uuid:
            return QueuePlace(State.DELAYED, bytes(view), bytes(prefix), header, past)
    return QueuePlace(State.WAITING, b"", b"", header, past)


def drop_timers(tx: Writing, uuid: bytes) -> None:
    """Delete all timers of a request with damaged records: it searches all rows."""
    timers = tx.raw.cursor(tx.db.timers).iternext(values=False)
    found = [bytes(view) for view in timers if view[-SIZE:] == uuid and view[:1] != schema.KEY]
    for key in found:
        tx.delete(tx.db.timers, key)


def _take_out(tx: Writing, place: QueuePlace) -> None:
    """Delete the row in `ready` or `later`."""
    if not place.key:
        return
    if place.state is State.WAITING:
        tx.delete(tx.db.ready, place.key)
        tx.count_load(service_of(place.prefix), ready=-1)
    else:
        tx.delete(tx.db.later, place.key)
