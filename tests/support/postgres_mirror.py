"""The tables of a store in memory, as rows in PostgreSQL: what the engine's reads must find there."""

from __future__ import annotations

from collections import defaultdict

from msgspec.structs import asdict
from psycopg import Connection
from support.store_facts import closed_range

from titanic.store.memory import MemoryStore
from titanic.store.memory_tables import size_of
from titanic.store.request import COLUMNS

SHARDS = 2
"""Counters are spread over so many nodes."""

_COUNTED = ("request", "ready", "later", "expiring", "reply", "closed", "key", "load", "usage")


def mirror(store: MemoryStore, connection: Connection) -> None:
    """Have the tables, which were made before, say what the store has."""
    for table in _COUNTED:
        connection.execute(f"DELETE FROM titanic.{table}")
    tables, loads = store.tables, defaultdict(lambda: [0, 0, 0])
    for row in tables.requests.values():
        _put_request(row, connection)
        if row.outcome is None:
            load = loads["s", row.new.service]
            load[:] = load[0] + 1, load[1] + row.size, load[2] + (not row.due)
    for (owner, key), holder in tables.keys.items():
        ids = [uuid.hex() for uuid in holder.uuids]
        _put(connection, "key", owner=owner, key=key, until=holder.until, given=holder.given, uuids=ids)
    for number, one in tables.closed.items():
        _put_closed(number, one, connection)
    with store.read() as read:
        counts, (first, last) = read.counts(), closed_range(read)
        for owner in {row.new.owner for row in tables.requests.values()} | {owner for owner, _ in tables.keys}:
            if owner:
                loads["o", owner][:2] = read.load(owner)
    for (kind, name), load in loads.items():
        for shard in range(SHARDS):
            parts = [n // SHARDS + (n % SHARDS) * (shard == 0) for n in load]
            fields = dict(zip(("waiting", "bytes", "ready"), parts, strict=True))
            _put(connection, "load", kind=kind, name=name, shard=shard, **fields)
    totals = dict(zip(("requests", "waiting", "delayed", "replies", "used"), counts[:5], strict=True))
    _put(connection, "usage", shard=0, **totals)
    connection.execute(
        "UPDATE titanic.meta SET capacity = %s, registered = %s, archived_upto = %s, closed_first = %s,"
        " closed_last = %s",
        [store.capacity, *tables.ring.agreement[:2], first, last],
    )


def _put(connection: Connection, table: str, **fields: object) -> None:
    places = ", ".join(["%s"] * len(fields))
    connection.execute(
        f"INSERT INTO titanic.{table} ({', '.join(fields)}) VALUES ({places})",
        list(fields.values()),
    )


def _put_request(row, connection: Connection) -> None:
    new, end, uuid = row.new, row.outcome, row.uuid.hex()
    asked = {name: getattr(new, name) for name in COLUMNS if name in new._fields} | {"submitted_at": row.submitted_at}
    _put(
        connection,
        "request",
        uuid=uuid,
        body=list(new.body),
        body_frames=len(new.body),
        body_bytes=size_of(new.body),
        **asked,
    )
    last = end or row
    tried = {"attempts": last.attempts, "dispatched_at": last.dispatched_at, "reason": last.reason.encode()}
    tried |= {"uuid": uuid, "service": new.service}
    if end is not None:
        fields = {"status": int(end.status), "frames": end.frames, "frames_bytes": size_of(end.frames)}
        fields["frames_count"] = len(end.frames)
        _put(connection, "reply", owner=new.owner, finished_at=end.finished_at, **fields, **tried)
        return
    tried |= {"expires_at": row.expires_at, "deliveries": row.deliveries}
    if row.due:
        _put(connection, "later", due=row.due, priority=new.priority, **tried)
    else:
        _put(connection, "ready", rank=9 - new.priority, **tried)
    if row.expires_at:
        _put(connection, "expiring", expires_at=row.expires_at, uuid=uuid)


def _put_closed(number: int, one, connection: Connection) -> None:
    fields = asdict(one)
    del fields["sequence"]
    for name in ("request", "reply"):
        left_out = fields.pop(f"{name}_left_out")
        fields[f"{name}_frames"] = 1 if left_out else len(fields[name])
        fields[name] = None if left_out else fields[name]
    fields |= {"uuid": one.uuid.hex(), "error": one.error.encode(), "status": int(one.status)}
    _put(connection, "closed", seq=number, cost=size_of([*one.request, *one.reply]), **fields)
