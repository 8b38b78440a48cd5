"""Reading the store: requests, queues, totals."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence

from titanic.errors import RecordCorrupt
from titanic.protocol.submit_options import MAX_KEY
from titanic.store import service_settings
from titanic.store.lmdb import outcome_record, request_record, schema
from titanic.store.lmdb.capacity import StoreRoom
from titanic.store.lmdb.closed_ring import charges_to_end, oldest_closing
from titanic.store.lmdb.disk import ENOUGH, is_still_refused, room_on_disk
from titanic.store.lmdb.free_space import can_make_way, droppable
from titanic.store.lmdb.outcome_record import expiry
from titanic.store.lmdb.record import verify
from titanic.store.lmdb.request_record import row_key
from titanic.store.lmdb.schema import PAGE, due_of, odd_row, unpack, uuid_of
from titanic.store.lmdb.transaction import Reading
from titanic.store.records import Counts, Load, Outcome, Pending, QueueFigures, ReadyRow, ReadyRows, Retention, Space
from titanic.store.request import StoredRequest
from titanic.store.service_settings import ServiceSettings
from titanic.store.states import State
from titanic.util.ids import SIZE, time_of


def prefetch(tx: Reading, uuids: Sequence[bytes], replies: bool = False) -> None:
    """Nothing: to read them one by one costs no more."""


def state(tx: Reading, uuid: bytes) -> State | None:
    """The state of a request; None when it is unknown. Never RUNNING, which the store does not know."""
    txn, db = tx.raw, tx.db
    if txn.get(uuid, db=db.requests) is None:
        return None
    if (record := txn.get(uuid, db=db.replies)) is not None:
        return State(outcome_record.decode_header(uuid, record).status)
    delay = tx.past(uuid)
    return State.DELAYED if delay and delay.due else State.WAITING


def reply(tx: Reading, uuid: bytes) -> Outcome | Pending | None:
    record = tx.raw.get(uuid, db=tx.db.replies)
    if record is not None:
        return outcome_record.decode(uuid, record, tx.fetch)
    pending = state(tx, uuid)
    return None if pending is None else Pending(pending)


def request(tx: Reading, uuid: bytes) -> StoredRequest | None:
    record = tx.raw.get(uuid, db=tx.db.requests)
    return None if record is None else request_record.decode(uuid, record, tx.fetch)


def owner(tx: Reading, uuid: bytes) -> bytes | None:
    record = tx.raw.get(uuid, db=tx.db.requests)
    return None if record is None else request_record.owner_in(record)


def holders(tx: Reading, keys: Sequence[bytes], owner: bytes = b"") -> dict[bytes, bytes]:
    found = {key: tx.key_holder(row_key(key, owner)) for key in keys if 0 < len(key) <= MAX_KEY}
    return {key: holder.uuid for key, holder in found.items() if holder is not None}


def next_ready(
    tx: Reading, service: bytes, after: bytes | None, limit: int, max_bytes: int, skip: Container[bytes] = ()
) -> ReadyRows:
    rows = ReadyRows()
    txn, requests = tx.raw, tx.db.requests
    prefix = service + b"\0"
    size = 0
    tried = txn.stat(tx.db.retries)["entries"]
    cursor = txn.cursor(tx.db.ready)
    there = cursor.set_range(after or prefix)
    for view in cursor.iternext(keys=True, values=False) if there else ():
        key = bytes(view)
        if not key.startswith(prefix):
            break
        if len(rows) >= limit:
            return rows
        if key == after:
            continue
        uuid = uuid_of(key)
        if uuid in skip:
            continue
        record = txn.get(uuid, db=requests)
        try:
            if record is None:
                raise RecordCorrupt(uuid, request_record.DATABASE, "it is missing")
            verify(uuid, record, request_record.DATABASE)
            header = request_record.decode_header(uuid, record)
            size += header.size
            if rows and size > max_bytes:
                return rows
            body = request_record.decode_body(uuid, record, header, tx.fetch)
            past = tx.past(uuid) if tried else None  # mostly no request was
        except RecordCorrupt:
            if rows:
                return rows
            raise
        expires_at = expiry(header.expires_at, past)
        attempts, deliveries = (past.attempts, past.deliveries) if past else (0, 0)
        most = header.max_attempts
        known = header.options, header.key, deliveries, header.not_before
        rows.append(ReadyRow(key, uuid, attempts, body, most, expires_at, *known))
    rows.more = False
    return rows


def ahead_of(
    tx: Reading, service: bytes, priority: int, uuid: bytes, most: int = 10_000, skip: Collection[bytes] = ()
) -> int:
    cursor, end = tx.raw.cursor(tx.db.ready), schema.ready_prefix(service, priority) + uuid
    found = 0
    if cursor.set_range(service + b"\0"):
        for view in cursor.iternext(keys=True, values=False):
            key = bytes(view)
            if key >= end or found >= most:
                break
            found += uuid_of(key) not in skip
    return found


def next_due(
    tx: Reading, policy: Retention | None = None, skip: Collection[bytes] = (), ahead_us: int = 0
) -> int | None:
    times = _first_time(tx, schema.EXPIRY, skip)
    if policy is not None:
        if policy.reply_retention:
            times += [time + policy.reply_retention for time in _first_time(tx, schema.REPLIED)]
        if policy.dead_retention:
            times += [time + policy.dead_retention for time in _first_time(tx, schema.DEAD)]
        if policy.closed_retention:
            times += [time + policy.closed_retention for time in oldest_closing(tx)]
        times += _first_time(tx, schema.KEPT) + _first_time(tx, schema.BODIES) + _first_time(tx, schema.KEY)
    times = [time + ahead_us for time in times]
    if policy is not None and (tx.raw.stat(tx.db.graves)["entries"] or charges_to_end(tx)):
        times.append(0)
    cursor = tx.raw.cursor(tx.db.later)
    if cursor.first():
        times.append(due_of(cursor.key()))
    return min(times, default=None)


def _oldest(tx: Reading, service: bytes, skip: Container[bytes]) -> int | None:
    cursor = tx.raw.cursor(tx.db.ready)
    times, prefix, rank = [], service + b"\0", 0
    there = cursor.set_range(prefix)
    while there:
        key = bytes(cursor.key())
        if not key.startswith(prefix):
            break
        uuid = uuid_of(key)
        if uuid in skip:
            there = cursor.next()
            continue
        times.append(time_of(uuid))
        rank = key[len(prefix)] + 1
        there = rank < 10 and cursor.set_range(prefix + bytes((rank,)))
    return min(times, default=None)


def queues(
    tx: Reading,
    services: Collection[bytes] | None = None,
    skip: Container[bytes] | None = None,
    after: bytes = b"",
    limit: int | None = None,
) -> dict[bytes, QueueFigures]:
    tx.put_counters()
    found: dict[bytes, QueueFigures] = {}
    for service, load in _loads_by_service(tx, services, after, limit):
        ready, unended, size = load
        oldest = _oldest(tx, service, skip) if ready and skip is not None else None
        found[service] = QueueFigures(ready, unended, size, oldest)
    return found


def load(tx: Reading, owner: bytes) -> Load:
    tx.put_counters()
    return Load(*(tx.meta_row(schema.OWNER_PREFIX + owner, schema.OWNER_LOAD) or (0, 0)))


def counts(tx: Reading) -> Counts:
    tx.put_counters()
    stat, db = tx.raw.stat, tx.db
    return Counts(
        requests=stat(db.requests)["entries"],
        waiting=stat(db.ready)["entries"],
        delayed=stat(db.later)["entries"],
        replies=stat(db.replies)["entries"],
        used=tx.used(),
        capacity=tx.environment.room.capacity,
        closed=stat(db.closed)["entries"],
        lost=tx.lost_count(),
    )


def space(tx: Reading) -> Space:
    return Space(_is_full(tx, tx.environment.room), _is_disk_full(tx), room_on_disk(tx.environment.file))


def room_left(tx: Reading) -> int:
    return max(0, tx.environment.room.accept - tx.used() - tx.charges() + droppable(tx))


def _is_disk_full(tx: Reading) -> bool:
    """Whether the disk has no room for a small request, or refused what was written last."""
    if (refused := tx.environment.pace.disk_refused) is not None:
        return is_still_refused(tx.environment.file, refused)
    room = tx.room
    return room is not tx.environment.room and (room.capacity - tx.used() < ENOUGH or _is_full(tx, room))


def _is_full(tx: Reading, room: StoreRoom) -> bool:
    missing = tx.used() + tx.charges() + PAGE - room.accept
    if pinned := tx.environment.readers.pinned():
        return missing + pinned > 0
    if missing <= 0:
        return False
    for pieces in tx.raw.cursor(tx.db.graves).iternext(keys=False, values=True):
        missing -= int.from_bytes(pieces, "little") // 2 * PAGE  # freed before the next request is taken in
        if missing <= 0:
            return False
    return can_make_way(tx, missing) < missing


def identity(tx: Reading) -> bytes | None:
    row = tx.raw.get(schema.IDENTITY_KEY, db=tx.db.meta)
    if row is not None and len(row) != SIZE:
        raise odd_row("meta", schema.IDENTITY_KEY, row)
    return None if row is None else bytes(row)


def settings_of_services(tx: Reading) -> ServiceSettings:
    """What is set for services. Raises StoreCorrupt."""
    row = tx.raw.get(schema.SERVICES_KEY, db=tx.db.meta)
    if row is None:
        return {}
    try:
        return service_settings.decode(bytes(row))
    except ValueError:
        raise odd_row("meta", schema.SERVICES_KEY, row) from None


def is_untouched(tx: Reading) -> bool:
    """Whether nothing was ever stored, and no archive is registered."""
    kept = sum(tx.raw.stat(database)["entries"] for database in tx.db if database not in (tx.db.meta, tx.db.facts))
    has_settings = tx.raw.get(schema.SERVICES_KEY, db=tx.db.meta) is not None
    return not kept and not tx.last_sequence() and not tx.archived()[0] and not has_settings


def _loads_by_service(
    tx: Reading, services: Collection[bytes] | None, after: bytes, limit: int | None
) -> list[tuple[bytes, tuple[int, ...]]]:
    prefix = schema.LOAD_PREFIX
    loads: list[tuple[bytes, tuple[int, ...]]] = []
    if services is not None:
        for service in services:
            if (row := tx.meta_row(prefix + service, schema.LOAD)) is not None:
                loads.append((service, row))
        return loads
    cursor = tx.raw.cursor(tx.db.meta)
    if cursor.set_range(prefix + after + b"\0" if after else prefix):  # names have no null byte
        for view, value in cursor.iternext():
            key = bytes(view)
            if not key.startswith(prefix) or len(loads) == limit:
                break
            loads.append((key[len(prefix) :], unpack(schema.LOAD, value, "meta", key)))
    return loads


def _first_time(tx: Reading, kind: bytes, skip: Collection[bytes] = ()) -> list[int]:
    """The time of the first timer of this kind, as a list of one, or of none."""
    for _, time, subject in tx.timers(kind):
        if subject not in skip:
            return [time]
    return []
