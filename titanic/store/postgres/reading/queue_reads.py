"""Reading the queues: what is to be done next, and when."""

from __future__ import annotations

from collections.abc import Collection, Container

from titanic.store.postgres.connection import ids
from titanic.store.postgres.reading.request_reads import expect_frames
from titanic.store.postgres.transaction import REQUEST_SIZE, Looking
from titanic.store.records import QueueFigures, ReadyRow, Retention
from titanic.util.ids import SIZE, time_of

_NO_ID = "00000000-0000-0000-0000-000000000000"
_FRONT = (-1, _NO_ID)

_PLACES = """
    SELECT rank, uuid FROM titanic.ready WHERE service = %s AND (rank, uuid) > (%s, %s::uuid)
    ORDER BY rank, uuid LIMIT %s"""

READY_COLUMNS = """q.rank, r.uuid, q.attempts, r.body, r.max_attempts, q.expires_at, r.options, r.body_frames,
    r.body_bytes, q.deliveries"""
"""What `ready_row` takes, of a request `r` and its row `q` in `ready`."""

_ROWS = f"""
    SELECT r.key, {READY_COLUMNS} FROM (
        SELECT q.uuid, row_number() OVER places AS place, sum({REQUEST_SIZE}) OVER places AS size
        FROM unnest(%s::uuid[]) WITH ORDINALITY AS q (uuid, place) JOIN titanic.request r ON r.uuid = q.uuid
        WINDOW places AS (ORDER BY q.place)
    ) one
    JOIN titanic.request r ON r.uuid = one.uuid
    JOIN titanic.ready q ON q.service = r.service AND q.rank = 9 - r.priority AND q.uuid = r.uuid
    WHERE one.place = 1 OR one.size <= %s ORDER BY one.place"""

_WAITING = "SELECT name, sum(ready)::bigint FROM titanic.load WHERE kind = 's' GROUP BY name HAVING sum(ready) > 0"

_UNCLAIMED = """(incarnation IS NULL OR EXISTS (
    SELECT FROM titanic.node AS n WHERE n.incarnation = ready.incarnation AND n.lease_until = '-infinity'))"""
"""Of a row of `ready`: it waits. What a node has claimed is running, or is about to."""

_OLDEST = f"""
    SELECT one.uuid FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL
    (SELECT uuid FROM titanic.ready WHERE service = %s AND rank = p.rank AND {_UNCLAIMED} ORDER BY uuid LIMIT 1) one"""

_FIRST_DUE = """
    SELECT (SELECT expires_at FROM titanic.expiring WHERE uuid <> ALL(%s::uuid[]) ORDER BY expires_at LIMIT 1),
        (SELECT min(due) FROM titanic.later)"""
_FIRST_TIMES = f"""{_FIRST_DUE},
        (SELECT min(finished_at) FROM titanic.reply WHERE status IN (4, 7)),
        (SELECT min(finished_at) FROM titanic.reply WHERE status IN (5, 6)),
        (SELECT c.closed_at FROM titanic.closed c, titanic.meta m
            WHERE c.seq = m.closed_first AND NOT (m.registered AND c.seq > m.archived_upto)),
        (SELECT min(until) FROM titanic.key)"""


def next_ready(
    tx: Looking, service: bytes, after: bytes | None, limit: int, max_bytes: int, skip: Container[bytes] = ()
) -> list[ReadyRow]:
    """What the service is to do next: oldest first within a priority, higher priorities before."""
    place = (after[-SIZE - 1], after[-SIZE:].hex()) if after else _FRONT
    uuids: list[bytes] = []
    while len(uuids) < limit:
        found = tx.fetch(_PLACES, service, *place, limit)
        uuids += [uuid for _, uuid in found if uuid not in skip]
        if len(found) < limit:
            break
        place = (found[-1][0], found[-1][1].hex())
    if not uuids:
        return []
    rows = tx.fetch(_ROWS, ids(uuids[:limit]), max_bytes)
    return [ready_row(service, *row) for row in rows]


def ready_row(
    service: bytes,
    key: bytes,
    rank: int,
    uuid: bytes,
    attempts: int,
    body: list[bytes],
    max_attempts: int,
    expires_at: int,
    options: bytes,
    frames: int,
    size: int,
    deliveries: int,
) -> ReadyRow:
    """What READY_COLUMNS say, and its idempotency key."""
    expect_frames(uuid, "request", body, frames, size)
    return ReadyRow(_key(service, rank, uuid), uuid, attempts, body, max_attempts, expires_at, options, key, deliveries)


def damaged_row(service: bytes, rank: int, uuid: bytes, attempts: int, *damaged: object) -> ReadyRow:
    """The same of a row that `ready_row` refuses, without what cannot be trusted."""
    return ReadyRow(_key(service, rank, uuid), uuid, attempts, [], 0, 0, b"")


def _key(service: bytes, rank: int, uuid: bytes) -> bytes:
    return b"%b\0%c" % (service, rank) + uuid


def next_due(
    tx: Looking, policy: Retention | None = None, skip: Collection[bytes] = (), ahead_us: int = 0
) -> int | None:
    """When there is something to do next, in µs since the epoch; None when nothing waits for its time."""
    ((expires_at, due, *firsts),) = tx.fetch_once(_FIRST_DUE if policy is None else _FIRST_TIMES, ids(list(skip)))
    times = [] if expires_at is None else [expires_at]
    if policy is not None:
        replied, dead, closed, key = firsts
        for first, kept in (
            (replied, policy.reply_retention),
            (dead, policy.dead_retention),
            (closed, policy.closed_retention),
        ):
            if first is not None and kept:
                times.append(first + kept)
        if key is not None:
            times.append(key)
    times = [time + ahead_us for time in times]
    if due is not None:
        times.append(due)
    return min(times, default=None)


_QUEUES = f"""
SELECT l.name, l.ready, l.waiting, l.bytes, ARRAY(
    SELECT one.uuid FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
        SELECT uuid FROM titanic.ready WHERE service = l.name AND rank = p.rank AND {_UNCLAIMED} ORDER BY uuid LIMIT 1
    ) AS one WHERE l.ready > 0)
FROM (
    SELECT name, sum(ready)::bigint AS ready, sum(waiting)::bigint AS waiting, sum(bytes)::bigint AS bytes
    FROM titanic.load WHERE kind = 's' GROUP BY name
) AS l WHERE l.waiting > 0"""


def waiting(tx: Looking) -> dict[bytes, int]:
    """How many requests each service has in the queue. Services without any are absent."""
    return dict(tx.fetch(_WAITING))


def oldest(tx: Looking, service: bytes, skip: Container[bytes] = ()) -> int | None:
    """When the oldest request in the service's queue was submitted that no node has claimed, in µs since the epoch;
    None: there is none."""
    return min(
        (
            time_of(uuid)
            for (uuid,) in tx.fetch(
                _OLDEST,
                service,
            )
        ),
        default=None,
    )


def queues(tx: Looking, skip: Container[bytes] = ()) -> dict[bytes, QueueFigures]:
    """What each service has to do, of those that have something."""
    found: dict[bytes, QueueFigures] = {}
    for name, ready, unended, size, firsts in tx.fetch(_QUEUES):
        found[name] = QueueFigures(ready, unended, size, min(map(time_of, firsts), default=None))
    return found
