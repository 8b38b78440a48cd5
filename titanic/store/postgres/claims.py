"""Claiming requests to dispatch: a claimed request is invisible to other nodes.

A service with a bound on running requests has a row in `bounded` for each request that a node has claimed: until the
node reports that no worker executes it any more, whatever became of the request meanwhile, or the node's incarnation is
over and does not keep it. A service with a rate has a row in `rate`: the time from which the next request may be
claimed. One node at a time claims for such services: a second one does not wait for the lock, because others may wait
for its own locks.

While a transaction with an old snapshot is open, such as that of `pg_dump`, rows that have left `ready` stay in its
index, and each claim would pass all of them. A claim that took long for what it found is followed by some that begin
where it found the first of each priority (`ScanStart`). The next full claim finds what lies before that point, such as
retried requests, ten seconds later at the latest; full claims may take a twentieth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import floor
from operator import itemgetter
from typing import Any
from zlib import crc32

from titanic.errors import RecordCorrupt
from titanic.store.cluster import Bound, Claimed, Place
from titanic.store.postgres.database_session import ids, numbers, texts
from titanic.store.postgres.nodes import ALIVE, COUNTS, FREE, places_of
from titanic.store.postgres.queries import READY_COLUMNS, damaged_row, ready_row
from titanic.store.postgres.rows import listed
from titanic.store.postgres.transaction import RequestSnapshot, Statement, by_key
from titanic.store.postgres.writing import PostgresWriting, ScanStart
from titanic.store.records import ReadyRow, priority_in
from titanic.store.request import COLUMNS
from titanic.util.ids import SIZE

_ALL = (bytes(SIZE),) * 10
_READ = ("uuid", "service", "priority", "max_attempts", "options")
"""What READY_COLUMNS say of a request."""
_OTHERS = [name for name in COLUMNS if name not in _READ]
_MORE = f"{listed(_OTHERS, 'r')}, q.dispatched_at, q.reason"
"""What else this node relies on when the request ends."""
_SIZE_OF_MORE = len(_OTHERS) + 2
_PLACE = itemgetter(0, 2 + _SIZE_OF_MORE, 3 + _SIZE_OF_MORE)
"""The service, the rank and the id of a row that is claimed."""

_FULL = f"""
        SELECT service, rank, uuid FROM ready WHERE service = w.service AND {FREE}
        ORDER BY rank, uuid LIMIT w.most FOR UPDATE SKIP LOCKED"""
_PARTLY = f"""
        SELECT one.* FROM generate_series(0, 9) AS of (rank) CROSS JOIN LATERAL (
            SELECT service, rank, uuid FROM ready WHERE service = w.service AND rank = of.rank
                AND uuid >= (%s::uuid[])[(w.n - 1) * 10 + of.rank + 1] AND {FREE}
            ORDER BY uuid FOR UPDATE SKIP LOCKED) AS one
        LIMIT w.most"""
"""Of each priority from an id on. The highest comes first, and no more is locked than is wanted: a nested loop."""

_CLAIM = f"""
WITH wanted AS (
    SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bigint[]) WITH ORDINALITY AS w (service, most, keeps, n)
), free AS (
    SELECT w.n, w.keeps, f.* FROM wanted AS w CROSS JOIN LATERAL ({{free}}) AS f
), sized AS (
    SELECT f.*, sum(r.body_bytes) OVER (ORDER BY f.n, f.rank, f.uuid) - r.body_bytes AS before,
        row_number() OVER (PARTITION BY f.n ORDER BY f.rank, f.uuid) <= f.keeps AS kept
    FROM free AS f {by_key("request", "r", "t.uuid = f.uuid", "INNER")}
), claimed AS (
    INSERT INTO ready AS q (service, rank, uuid, attempts, dispatched_at, expires_at, reason, kept)
    SELECT s.service, s.rank, s.uuid, 0, 0, 0, '', s.kept FROM sized AS s WHERE s.before < %s AND {ALIVE}
    ON CONFLICT (service, rank, uuid) DO UPDATE SET incarnation = %s, kept = excluded.kept RETURNING q.*
)
SELECT node.lives, extract(epoch FROM clock_timestamp() - statement_timestamp())::float8, found.* FROM (
    SELECT {ALIVE} AS lives) AS node LEFT JOIN (
    SELECT w.n, (SELECT count(*) FROM sized), {_MORE}, {READY_COLUMNS} FROM claimed AS q
    JOIN wanted AS w ON w.service = q.service {by_key("request", "r", "t.uuid = q.uuid", "INNER")}) AS found ON true"""
"""All rows that are inserted are there, and locked: it is an update that finds each by its key, whatever PostgreSQL
thinks of the table (see `by_key`)."""

SLOW, SLOW_ROW = 0.003, 0.000_1
"""Seconds that a full claim takes, and more for each request found, if there are few dead rows."""
REST = 20
"""How many times as long as the full claim took no other is made, if that was slow."""
MOST_REST = 10.0
"""Seconds that this may be at most: what became free meanwhile waits as long."""


_RELEASE = """
UPDATE ready AS q SET incarnation = NULL FROM unnest(%s::bytea[], %s::bigint[], %s::uuid[]) AS h (service, rank, uuid)
WHERE q.service = h.service AND q.rank = h.rank AND q.uuid = h.uuid AND q.incarnation = %s"""

_OWN = f"""
SELECT q.uuid FROM unnest(%s::uuid[]) AS h (uuid) JOIN request AS r ON r.uuid = h.uuid
JOIN ready AS q ON q.service = r.service AND q.rank = 9 - r.priority AND q.uuid = r.uuid
WHERE q.incarnation = %s AND {ALIVE} FOR UPDATE OF q"""

_KEEP = """
UPDATE ready AS q SET kept = true FROM unnest(%s::bytea[], %s::bigint[], %s::uuid[]) AS h (service, rank, uuid)
WHERE q.service = h.service AND q.rank = h.rank AND q.uuid = h.uuid AND q.incarnation = %s"""

_TAKE_OVER = f"""
WITH held AS (
    SELECT q.service, q.rank, q.uuid, q.incarnation, n.lease_until = '-infinity' AS over
    FROM unnest(%s::bytea[], %s::bigint[], %s::uuid[]) AS h (service, rank, uuid)
    JOIN ready AS q ON q.service = h.service AND q.rank = h.rank AND q.uuid = h.uuid
    JOIN node AS n ON n.incarnation = q.incarnation WHERE q.incarnation <> %s
), taken AS (
    UPDATE ready AS q SET incarnation = %s, kept = true FROM held AS h
    WHERE h.over AND q.service = h.service AND q.rank = h.rank AND q.uuid = h.uuid
        AND q.incarnation = h.incarnation AND {ALIVE} RETURNING q.uuid
)
SELECT uuid, uuid IN (SELECT uuid FROM taken) FROM held"""

_LOCK = 0x7469_7462 << 32
_TRY_LOCKS = (
    "SELECT pg_try_advisory_xact_lock(n) FROM unnest(%s::bigint[]) WITH ORDINALITY AS k (n, place) ORDER BY place"
)

_COUNT = f"""
SELECT b.service, count(*) FILTER (WHERE {COUNTS}) FROM bounded AS b JOIN node AS n ON n.incarnation = b.incarnation
WHERE b.service = ANY(%s::bytea[]) GROUP BY b.service"""

_NOTE = """
INSERT INTO bounded (service, uuid, incarnation) SELECT service, uuid, %s
FROM unnest(%s::bytea[], %s::uuid[]) AS h (service, uuid) ON CONFLICT DO NOTHING"""

CONTENDED = 0.02
"""Seconds after which a service with a bound can be asked for again, for which another node was just claiming."""

NONE_KEPT: Mapping[bytes, int] = {}

SPREAD = 0.1
"""Seconds of its rate that a service may catch up at once."""

_NOW = "extract(epoch FROM now())::float8"
_FROM = f"""CASE WHEN r.next_at > {_NOW} + 1 / w.rate + 1 THEN {_NOW}
ELSE greatest(coalesce(r.next_at, 0), {_NOW} - {SPREAD}) END"""
"""A time that this rate cannot have set counts as over: the rate was lower, or the clock of the last primary was ahead.
The second is for a transaction that began before that of the claim that set it."""

_ALLOWED = f"""
SELECT ({_NOW} - {_FROM}) * w.rate FROM unnest(%s::bytea[], %s::float8[]) WITH ORDINALITY AS w (service, rate, place)
LEFT JOIN rate AS r ON r.service = w.service ORDER BY place"""

_BEGAN = f"""
INSERT INTO rate AS old (service, next_at)
SELECT w.service, {_FROM} + w.began / w.rate
FROM unnest(%s::bytea[], %s::float8[], %s::bigint[]) AS w (service, rate, began)
LEFT JOIN rate AS r ON r.service = w.service ON CONFLICT (service) DO UPDATE SET next_at = excluded.next_at"""


def claim(
    tx: PostgresWriting,
    incarnation: int,
    wants: Mapping[bytes, int],
    max_bytes: int,
    bounds: Mapping[bytes, Bound],
    keeps: Mapping[bytes, int] = NONE_KEPT,
) -> Claimed | None:
    again: dict[bytes, float] = {}
    if bounds:
        wants, again = _within(tx, wants, bounds)
    names, limits = list(wants), list(wants.values())
    now, starts = time.monotonic(), tx.writer.scan_starts
    parts = {name: one for name in names if (one := starts.get(name)) is not None and now < one.full_at}
    text = _CLAIM.format(free=_PARTLY if parts else _FULL)
    start = [ids([uuid for name in names for uuid in (parts[name].ids if name in parts else _ALL)])] if parts else []
    kept = numbers([keeps.get(name, 0) for name in names])
    found = tx.fetch_alone(
        text, texts(names), numbers(limits), kept, *start, max_bytes, incarnation, incarnation, incarnation
    )
    lives, took = found[0][:2]
    if not lives:
        return None
    rows = sorted((row[2:] for row in found if row[2] is not None), key=_PLACE)
    claimed: dict[bytes, list[ReadyRow]] = {}
    damaged: dict[bytes, RecordCorrupt] = {}
    for n, _, *columns in rows:
        name = names[n - 1]
        more, columns = columns[:_SIZE_OF_MORE], columns[_SIZE_OF_MORE:]
        try:
            row = ready_row(name, more[_OTHERS.index("key")], *columns)
        except RecordCorrupt as damage:
            row = damaged_row(name, *columns)
            damaged[row.uuid] = damage
        claimed.setdefault(name, []).append(row)
        tx.claimed[row.uuid] = _seen(name, more, columns)
    _note(tx, incarnation, bounds, claimed)
    is_slow = took > SLOW + SLOW_ROW * len(rows)
    for name in names:
        if name not in parts:
            _note_scan(starts, name, now + min(MOST_REST, REST * took) if is_slow else 0.0)
        elif len(claimed.get(name, ())) < wants[name]:
            again.setdefault(name, max(CONTENDED, parts[name].full_at - now))
        for row in reversed(claimed.get(name, ())):
            if name in starts:
                starts[name].ids[9 - priority_in(row.key)] = row.uuid
    # It ended at `max_bytes`: the services behind were not read.
    more = names[rows[-1][0] - 1 :] if rows and len(rows) < rows[0][1] else []
    return Claimed(claimed, more, again, damaged)


def _note_scan(starts: dict[bytes, ScanStart], name: bytes, full_at: float) -> None:
    """Note when the next full claim is made, of which one was just made; 0: the next one is."""
    if not full_at:
        starts.pop(name, None)
    elif name in starts:
        starts[name].full_at = full_at
    else:
        starts[name] = ScanStart(full_at, list(_ALL))


def _seen(service: bytes, more: Sequence[Any], columns: Sequence[Any]) -> RequestSnapshot:
    """What is known of a request that is claimed."""
    *given, dispatched_at, reason = more
    rank, uuid, attempts, _, max_attempts, ends_at, options, frames, size, deliveries, _ = columns
    return RequestSnapshot(
        uuid,
        service=service,
        priority=9 - rank,
        max_attempts=max_attempts,
        options=options,
        **dict(zip(_OTHERS, given, strict=True)),
        body_frames=frames,
        body_bytes=size,
        ends_at=ends_at,
        attempts=attempts,
        dispatched_at=dispatched_at,
        reason=reason,
        deliveries=deliveries,
    )


def release(tx: PostgresWriting, incarnation: int, places: Sequence[Place]) -> None:
    tx.fetch(_RELEASE, *places_of(places), incarnation)


def keep(tx: PostgresWriting, incarnation: int, places: Sequence[Place]) -> None:
    tx.fetch(_KEEP, *places_of(places), incarnation)


def take_over(
    tx: PostgresWriting, incarnation: int, places: Sequence[Place], bounds: Mapping[bytes, Bound]
) -> dict[bytes, bool]:
    held = tx.fetch(_TAKE_OVER, *places_of(places), incarnation, incarnation, incarnation)
    found = {uuid: bool(taken) for uuid, taken in held}
    bounded = {name for name, bound in bounds.items() if bound.running > 0}
    if counted := [(one.service, one.uuid) for one in places if found.get(one.uuid) and one.service in bounded]:
        services, uuids = zip(*counted, strict=True)
        tx.fetch(_NOTE, incarnation, texts(services), ids(uuids))
    return found


def count_no_more(tx: PostgresWriting, incarnation: int, places: Sequence[Place]) -> None:
    tx.changes.uncounted += [(service, uuid, incarnation) for service, _, uuid in places]


def under(tx: PostgresWriting, incarnation: int, failed: Sequence[bytes]) -> None:
    own = {uuid for (uuid,) in tx.fetch_apart(_OWN, ids(failed), incarnation, incarnation)} if failed else ()
    tx.not_own = {uuid for uuid in failed if uuid not in own}


def _within(
    tx: PostgresWriting, wants: Mapping[bytes, int], bounds: Mapping[bytes, Bound]
) -> tuple[dict[bytes, int], dict[bytes, float]]:
    """What can be claimed within the bounds; and the services that may have more, in how many seconds."""
    names = [name for name in bounds if name in wants]
    rated = [name for name in names if bounds[name].rate]
    statements = [
        Statement(_TRY_LOCKS, (numbers([_LOCK | crc32(name) for name in names]),)),
        Statement(_COUNT, (texts(names),)),
    ]
    if rated:
        statements.append(Statement(_ALLOWED, (texts(rated), [bounds[name].rate for name in rated])))
    locked, counts, *allowed = tx.fetch_all(*statements)
    running: dict[bytes, int] = dict(counts)
    left, again = dict(wants), {}
    for name, (mine,) in zip(names, locked, strict=True):
        if bounds[name].running:
            left[name] = min(left[name], max(0, bounds[name].running - running.get(name, 0)))
        if not mine:
            left[name], again[name] = 0, CONTENDED
    for name, (since,) in zip(rated, allowed[0] if allowed else (), strict=True):
        may = floor(since) + 1
        if may < left[name]:
            left[name], again[name] = may, max(CONTENDED, (may - since) / bounds[name].rate)
    return {name: most for name, most in left.items() if most > 0}, again


def _note(
    tx: PostgresWriting, incarnation: int, bounds: Mapping[bytes, Bound], claimed: Mapping[bytes, Sequence[ReadyRow]]
) -> None:
    """What was claimed counts for the bounds."""
    if noted := [(name, row.uuid) for name in bounds if bounds[name].running for row in claimed.get(name, ())]:
        services, uuids = zip(*noted, strict=True)
        tx.fetch(_NOTE, incarnation, texts(services), ids(uuids))
    if began := [name for name in bounds if bounds[name].rate and name in claimed]:
        counts = [len(claimed[name]) for name in began]
        tx.fetch(_BEGAN, texts(began), [bounds[name].rate for name in began], numbers(counts))
