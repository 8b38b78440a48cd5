"""Reading single requests.

Reading the queues: what is to be done next, and when.

Choosing requests: by id, by state, by service, page by page or part by part.

Reading totals, which are counted where they change: what is to be done, how much there is, whether it is full.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import Any, NamedTuple

from titanic.errors import RecordCorrupt
from titanic.protocol.submit_options import MAX_KEY
from titanic.store.postgres.connection_pool import ConnectionPool
from titanic.store.postgres.database_session import ids, texts
from titanic.store.postgres.nodes import CLAIMED, FREE
from titanic.store.postgres.rows import divide
from titanic.store.postgres.transaction import PLACES, REASON, REQUEST_SIZE, SEEN, STATE, SnapshotReader, seen
from titanic.store.records import (
    Counts,
    Load,
    Outcome,
    Page,
    Pending,
    QueueFigures,
    ReadyRow,
    ReadyRows,
    Retention,
    Space,
    StoreReader,
)
from titanic.store.request import Description, StoredRequest, values_of
from titanic.store.rules import MAX_FACT_KEY
from titanic.store.states import ENDED, State
from titanic.util.ids import SIZE, time_of

_BODY = "SELECT body FROM titanic.request WHERE uuid = %s::uuid"
_FRAMES = "SELECT frames FROM titanic.reply WHERE uuid = %s::uuid"
_HOLDERS = "SELECT key, uuids[1] FROM titanic.key WHERE owner = %s AND key = ANY(%s)"


def owner(tx: SnapshotReader, uuid: bytes) -> bytes | None:
    if (found := tx.answers.get(uuid)) is not None:
        return found.owner
    one = tx.seen[uuid] if uuid in tx.seen else tx.snapshot(uuid)  # it never changes, so what is relied on will do
    return None if one is None else one.owner


def describe(tx: SnapshotReader, uuid: bytes) -> Description | None:
    one = tx.snapshot(uuid)
    return None if one is None else one.description


def request(tx: SnapshotReader, uuid: bytes) -> StoredRequest | None:
    one = tx.snapshot(uuid)
    if one is None:
        return None
    rows = tx.fetch(_BODY, uuid.hex())
    if not rows:
        return None  # it was closed since it was prefetched
    ((body,),) = rows
    expect_frames(uuid, "request", body, one.body_frames, one.body_bytes)
    return StoredRequest(*values_of(one), body=body)


def reply(tx: SnapshotReader, uuid: bytes) -> Outcome | Pending | None:
    if not tx.LOCKS:
        found = tx.answer(uuid)
        if found is None:
            return None
        if found.frames is not None:
            expect_frames(uuid, "reply", found.frames, found.reply_frames, found.reply_bytes)
            return found.answer
    one = tx.snapshot(uuid, reply=True)
    if one is not None and one.has_ended and one.frames is None:
        one = tx.reread(uuid)  # it may have been tried again since it was prefetched, or closed
    if one is None:
        return None
    if one.has_ended and one.frames is None:
        (one.frames,) = tx.fetch_row(
            _FRAMES,
            uuid.hex(),
        )
    if one.frames is not None:
        expect_frames(uuid, "reply", one.frames, one.reply_frames, one.reply_bytes)
    return one.answer


def holders(tx: SnapshotReader, keys: Sequence[bytes], owner: bytes = b"") -> dict[bytes, bytes]:
    return dict(tx.fetch(_HOLDERS, owner, texts([key for key in keys if 0 < len(key) <= MAX_KEY])))


def expect_frames(uuid: bytes, table: str, frames: Sequence[bytes], count: int, size: int) -> None:
    """Raise RecordCorrupt unless the frames are those that were counted when they were stored."""
    there = sum(map(len, frames))
    if len(frames) != count or there != size:
        fact = f"it has {len(frames)} frames of {there} bytes, not {count} of {size}"
        raise RecordCorrupt(uuid, table, fact)


# -- queue reads -----------------------------------------------------------------------------------------------


_NO_ID = "00000000-0000-0000-0000-000000000000"
_FRONT = (-1, _NO_ID)

_PLACES = """
    SELECT rank, uuid FROM titanic.ready WHERE service = %s AND (rank, uuid) > (%s, %s::uuid)
    ORDER BY rank, uuid LIMIT %s"""

READY_COLUMNS = """q.rank, r.uuid, q.attempts, r.body, r.max_attempts, q.expires_at, r.options, r.body_frames,
    r.body_bytes, q.deliveries, r.not_before"""
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

_FIRST_DUE = """
    SELECT (SELECT expires_at FROM titanic.expiring WHERE uuid <> ALL(%s::uuid[]) ORDER BY expires_at LIMIT 1),
        (SELECT min(due) FROM titanic.later)"""
_FIRST_TIMES = f"""{_FIRST_DUE},
        (SELECT min(until) FROM titanic.reply WHERE until > 0),
        (SELECT min(body_until) FROM titanic.reply WHERE body_until > 0),
        (SELECT min(finished_at) FROM titanic.reply WHERE status IN (4, 7) AND until = 0),
        (SELECT min(finished_at) FROM titanic.reply WHERE status IN (5, 6) AND until = 0),
        (SELECT c.closed_at FROM titanic.closed c, titanic.meta m
            WHERE c.seq = m.closed_first AND NOT (m.registered AND c.seq > m.archived_upto)),
        (SELECT min(until) FROM titanic.key)"""


def next_ready(
    tx: SnapshotReader, service: bytes, after: bytes | None, limit: int, max_bytes: int, skip: Container[bytes] = ()
) -> ReadyRows:
    place = (after[-SIZE - 1], after[-SIZE:].hex()) if after else _FRONT
    uuids: list[bytes] = []
    while len(uuids) < limit:
        found = tx.fetch(_PLACES, service, *place, limit)
        uuids += [uuid for _, uuid in found if uuid not in skip]
        if len(found) < limit:
            break
        place = (found[-1][0], found[-1][1].hex())
    if not uuids:
        return ReadyRows()
    rows = tx.fetch(_ROWS, ids(uuids[:limit]), max_bytes)
    return ReadyRows(ready_row(service, *row) for row in rows)


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
    not_before: int,
) -> ReadyRow:
    """What READY_COLUMNS say, and its idempotency key."""
    expect_frames(uuid, "request", body, frames, size)
    past = options, key, deliveries, not_before
    return ReadyRow(_key(service, rank, uuid), uuid, attempts, body, max_attempts, expires_at, *past)


def damaged_row(service: bytes, rank: int, uuid: bytes, attempts: int, *damaged: object) -> ReadyRow:
    """The same of a row that `ready_row` refuses, without what cannot be trusted."""
    return ReadyRow(_key(service, rank, uuid), uuid, attempts, [], 0, 0, b"")


def _key(service: bytes, rank: int, uuid: bytes) -> bytes:
    return b"%b\0%c" % (service, rank) + uuid


_AHEAD = f"""
SELECT count(*) FROM (
    SELECT FROM titanic.ready WHERE service = %s AND (rank, uuid) < (%s, %s::uuid) AND {FREE} LIMIT %s
) AS one"""


def ahead_of(
    tx: SnapshotReader,
    service: bytes,
    priority: int,
    uuid: bytes,
    most: int = 10_000,
    skip: Collection[bytes] = (),
) -> int:
    (count,) = tx.fetch_row(_AHEAD, service, 9 - priority, uuid.hex(), most)
    return int(count)


def next_due(
    tx: SnapshotReader, policy: Retention | None = None, skip: Collection[bytes] = (), ahead_us: int = 0
) -> int | None:
    ((expires_at, due, *firsts),) = tx.fetch_once(_FIRST_DUE if policy is None else _FIRST_TIMES, ids(list(skip)))
    times = [] if expires_at is None else [expires_at]
    if policy is not None:
        until, bodies, replied, dead, closed, key = firsts
        for first, kept in (
            (replied, policy.reply_retention),
            (dead, policy.dead_retention),
            (closed, policy.closed_retention),
        ):
            if first is not None and kept:
                times.append(first + kept)
        times += [first for first in (until, bodies, key) if first is not None]
    times = [time + ahead_us for time in times]
    if due is not None:
        times.append(due)
    return min(times, default=None)


_QUEUES = """
SELECT l.name, l.ready, l.waiting, l.bytes, {firsts}
FROM (
    SELECT name, sum(ready)::bigint AS ready, sum(waiting)::bigint AS waiting, sum(bytes)::bigint AS bytes
    FROM titanic.load WHERE kind = 's' AND {which} GROUP BY name HAVING sum(waiting) > 0
    ORDER BY name LIMIT %s
) AS l ORDER BY name"""

_OLDEST = f"""ARRAY(
    SELECT one.uuid FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
        SELECT uuid FROM titanic.ready WHERE service = l.name AND rank = p.rank AND {FREE} ORDER BY uuid LIMIT 1
    ) AS one WHERE l.ready > 0)"""


def queues(
    tx: SnapshotReader,
    services: Collection[bytes] | None = None,
    skip: Container[bytes] | None = None,
    after: bytes = b"",
    limit: int | None = None,
) -> dict[bytes, QueueFigures]:
    firsts = "'{}'::uuid[]" if skip is None else _OLDEST
    which, names = ("name > %s", after) if services is None else ("name = ANY(%s)", texts(list(services)))
    return {
        name: QueueFigures(ready, unended, size, min(map(time_of, uuids), default=None))
        for name, ready, unended, size, uuids in tx.fetch(_QUEUES.format(firsts=firsts, which=which), names, limit)
    }


# -- listing ---------------------------------------------------------------------------------------------------


LOOKED_AT = 10_000
"""Requests that one call of `select` examines, at most, while it is given no time for more."""
_WITH_TIME = 10
"""How often as many it examines with time, if only their service is to be read: 100,000 rows in some 50 ms.

An index of replies by service would find rare ones at once, but each reply would be put into it and taken out of it
again (lmdb/listing.py has figures for such an index)."""

_FEW_WAIT = """
SELECT (SELECT count(*) FROM (SELECT FROM titanic.reply LIMIT %s) ended) = %s
    AND (SELECT count(*) FROM (SELECT FROM titanic.ready LIMIT %s) waiting) < %s"""

_DEAD = {State.FAILED, State.EXPIRED}
_BEYOND = "ff" * SIZE

Query = tuple[Any, ...]
"""SQL and its parameters."""


class _Order(NamedTuple):
    """The direction of a listing, in SQL: `behind` is the comparison with the place to go on from."""

    behind: str
    order: str
    place: bytes

    @property
    def limited(self) -> str:
        return f"ORDER BY uuid {self.order} LIMIT %s"


_OLDEST_FIRST = _Order(">", "", b"\0")
_NEWEST_FIRST = _Order("<", "DESC", b"\xff")

_MENTIONS = "position(%s in lower(encode({}, 'escape') COLLATE \"C\")) > 0"
"""Whether bytes contain a text, ignoring the case of ASCII letters. A text can equal escaped bytes, so rows that are
found are checked again."""

_UNENDED = f"""
    SELECT * FROM (
        SELECT {SEEN}, CASE WHEN p.uuid IS NULL AND c.before < %s THEN r.body END, c.before >= %s FROM (
            SELECT r.uuid, coalesce(sum(CASE WHEN p.uuid IS NULL THEN r.body_bytes END) OVER
                (ORDER BY r.uuid ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
            FROM (
                SELECT uuid, body_bytes FROM titanic.request WHERE uuid >= %s::uuid AND uuid < %s::uuid
                ORDER BY uuid LIMIT %s
            ) r LEFT JOIN titanic.reply p ON p.uuid = r.uuid
        ) c JOIN titanic.request r ON r.uuid = c.uuid {PLACES}
    ) one ORDER BY 1"""


def select(
    tx: SnapshotReader,
    states: Collection[State] | None = None,
    *,
    service: bytes | None = None,
    older_than: int | None = None,
    owner: bytes | None = None,
    after: bytes | None = None,
    limit: int = 100,
    newest: bool = False,
    text: str | None = None,
    seconds: float = 0.0,
) -> Page:
    order = _NEWEST_FIRST if newest else _OLDEST_FIRST
    most = LOOKED_AT
    if seconds and service is not None and text is None:
        most *= _WITH_TIME
    candidates = _candidates(tx, states, service, owner, after, order, most)
    query = _select(candidates, states, service, older_than, owner, text, order, limit + 1)
    return _page(tx, candidates, query, after, limit, order, text, most)


def list_running(
    tx: SnapshotReader,
    *,
    service: bytes | None,
    owner: bytes | None,
    after: bytes | None,
    limit: int,
    newest: bool = False,
    text: str | None = None,
) -> Page:
    order = _NEWEST_FIRST if newest else _OLDEST_FIRST
    candidates = _candidates(tx, (State.WAITING,), service, owner, after, order, LOOKED_AT)
    query = _select(candidates, (State.WAITING,), service, None, owner, text, order, limit + 1, CLAIMED)
    return _page(tx, candidates, query, after, limit, order, text, LOOKED_AT)


def _page(
    tx: SnapshotReader,
    candidates: Query,
    query: Query,
    after: bytes | None,
    limit: int,
    order: _Order,
    text: str | None,
    most: int,
) -> Page:
    rows = [seen(row).description for row in tx.fetch(*query)]
    page = Page(row for row in rows[:limit] if text is None or row.mentions(text))
    if len(rows) > limit:
        page.next = rows[limit - 1].uuid if limit else after
        return page
    candidate, *parameters = candidates
    sought = f"SELECT uuid FROM ({candidate}) c ORDER BY uuid {order.order} OFFSET %s LIMIT 1"
    last = tx.fetch(sought, *parameters, most - 1)
    page.next = last[0][0] if last else None
    return page


def request_ids(tx: SnapshotReader, every: int) -> list[bytes]:
    numbered = "SELECT uuid, row_number() OVER (ORDER BY uuid) - 1 AS n FROM titanic.request"
    rows = tx.fetch(
        f"SELECT uuid FROM ({numbered}) one WHERE n %% %s = 0 ORDER BY uuid",
        every,
    )
    return [uuid for (uuid,) in rows]


def unended(
    tx: SnapshotReader, begin: bytes, end: bytes | None, limit: int, max_bytes: int = 16 << 20
) -> tuple[list[tuple[Description, list[bytes]]], bytes | None]:
    beyond = _BEYOND if end is None else _whole(end)
    rows = tx.fetch(_UNENDED, max_bytes, max_bytes, _whole(begin), beyond, limit + 1)
    left_out = next((n for n, row in enumerate(rows) if n == limit or row[-1]), len(rows))
    following = rows[left_out][0] if left_out < len(rows) else None
    found: list[tuple[Description, list[bytes]]] = []
    for *columns, body, _ in rows[:left_out]:
        one = seen(tuple(columns))
        if not one.has_ended:
            expect_frames(one.uuid, "request", body, one.body_frames, one.body_bytes)
            found.append((one.description, body))
    return found, following


def _candidates(
    tx: SnapshotReader,
    states: Collection[State] | None,
    service: bytes | None,
    owner: bytes | None,
    after: bytes | None,
    order: _Order,
    most: int,
) -> Query:
    """A query for ids behind `after` and their services, in order, all of those that can be in these states among them;
    at most so many.

    It walks over the smallest index that has them all. Few that wait among many that have ended are sorted.
    """
    wanted = set(State if states is None else states)
    behind = _whole(after or b"", order.place)
    beyond, limited = f"uuid {order.behind} %s::uuid", order.limited
    requests = f"SELECT uuid, service FROM titanic.request WHERE {beyond}"
    replies = f"SELECT uuid, service FROM titanic.reply WHERE {beyond}"
    if owner:
        return (f"{requests} AND owner = %s AND owner <> '' {limited}", behind, owner, most)
    if wanted <= _DEAD:
        return (f"{replies} AND status IN (5, 6) {limited}", behind, most)
    if wanted <= ENDED:
        return (f"{replies} {limited}", behind, most)
    later = f"SELECT uuid, service FROM titanic.later WHERE {beyond}"
    if wanted == {State.DELAYED}:
        return (f"{later} {limited}", behind, most)
    queue: Query
    if service is not None:
        text = f"""
    SELECT one.uuid, one.service FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
        SELECT uuid, service FROM titanic.ready WHERE service = %s AND rank = p.rank AND {beyond} {limited}
    ) one"""
        queue = (text, service, behind, most)
    elif wanted.isdisjoint(ENDED) and _few_wait(tx):
        queue = (f"SELECT uuid, service FROM titanic.ready WHERE {beyond}", behind)
    else:
        return (f"{requests} {limited}", behind, most)
    found, *parameters = queue
    if wanted != {State.WAITING}:
        found, parameters = f"{found} UNION ALL ({later} {limited})", [*parameters, behind, most]
    if not wanted.isdisjoint(ENDED):
        found, parameters = f"{found} UNION ALL ({replies} {limited})", [*parameters, behind, most]
    return (f"{found} {limited}", *parameters, most)


def _few_wait(tx: SnapshotReader) -> bool:
    """Whether more have ended than a call examines, and few enough wait to be sorted."""
    few = LOOKED_AT * _WITH_TIME
    return bool(tx.fetch_row(_FEW_WAIT, LOOKED_AT, LOOKED_AT, few, few)[0])


def _select(
    candidates: Query,
    states: Collection[State] | None,
    service: bytes | None,
    older_than: int | None,
    owner: bytes | None,
    text: str | None,
    order: _Order,
    limit: int,
    test: str = "TRUE",
) -> Query:
    """A query for those candidates that are asked for."""
    query, *parameters = candidates
    tests = [test]
    for test, value in (
        (f"{STATE} = ANY(%s)", None if states is None else [int(state) for state in states]),
        ("c.service = %s", service),  # before the tables are joined
        ("r.owner = %s", owner),
        ("coalesce(p.finished_at, r.submitted_at) < %s", older_than),
    ):
        if value is not None:
            tests.append(test)
            parameters.append(value)
    if text is not None:
        tests.append(f"({_MENTIONS.format(REASON)} OR {_MENTIONS.format('r.key')})")
        parameters += [_escaped(text)] * 2
    where = " AND ".join(tests)
    query = f"SELECT {SEEN} FROM ({query}) c JOIN titanic.request r ON r.uuid = c.uuid {PLACES} WHERE {where}"
    return (f"{query} ORDER BY r.uuid {order.order} LIMIT %s", *parameters, limit)


def _escaped(text: str) -> str:
    """A text as `_MENTIONS` wants it."""
    shown = {0: "\\000", ord("\\"): "\\\\"} | {byte: f"\\{byte:03o}" for byte in range(128, 256)}
    return "".join(shown.get(byte) or chr(byte) for byte in text.encode(errors="replace")).lower()


def _whole(place: bytes, fill: bytes = b"\0") -> str:
    """An id that is not below a beginning of ids, as text; with another `fill`, not above it."""
    return place.ljust(SIZE, fill)[:SIZE].hex()


# -- totals ----------------------------------------------------------------------------------------------------


SMALL_REQUEST = 4096
"""Bytes for which there must be room, or the store is full."""

_LOAD = """
    SELECT coalesce(sum(waiting), 0)::bigint, coalesce(sum(bytes), 0)::bigint
    FROM titanic.load WHERE kind = 'o' AND name = %s"""

_COUNTS = """
    SELECT u.requests, u.waiting, u.delayed, u.replies, u.used, m.capacity, m.closed_last - m.closed_first + 1, m.lost
    FROM titanic.meta m, (
        SELECT coalesce(sum(requests), 0)::bigint AS requests, coalesce(sum(waiting), 0)::bigint AS waiting,
            coalesce(sum(delayed), 0)::bigint AS delayed, coalesce(sum(replies), 0)::bigint AS replies,
            coalesce(sum(used), 0)::bigint AS used
        FROM titanic.usage
    ) u"""

_USED = "SELECT coalesce(sum(used), 0)::bigint FROM titanic.usage"

_READERS = """
    SELECT a.pid, coalesce(nullif(a.application_name, ''), a.usename::text, ''),
        extract(epoch FROM clock_timestamp() - a.xact_start)::float8, dead.bytes
    FROM pg_stat_activity AS a, (
        SELECT coalesce(sum(pg_table_size(relid) * n_dead_tup / greatest(1, n_live_tup + n_dead_tup)), 0)::bigint
            AS bytes
        FROM pg_stat_user_tables WHERE schemaname = 'titanic'
    ) AS dead
    WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL
        AND a.xact_start < clock_timestamp() - make_interval(secs => %s::float8)
    ORDER BY a.xact_start LIMIT 20"""

LONG = 300.0
"""Seconds; a transaction that takes longer is one that counts as a reader of the store."""

_MOST_LOOKED_AT = 50_000
"""Closed requests that are searched for room."""

_CAN_MAKE_WAY = """
    SELECT coalesce(sum(cost), 0)::bigint FROM (
        SELECT cost FROM titanic.closed WHERE seq >= (SELECT closed_first FROM titanic.meta)
            AND seq <= (SELECT CASE WHEN registered AND NOT %s THEN archived_upto ELSE closed_last END
                FROM titanic.meta)
        ORDER BY seq LIMIT %s
    ) one"""


def readers(pool: ConnectionPool) -> list[StoreReader]:
    """Transactions in the database that take long: rows that are dead since stay. Only those are seen that this user
    may see: its own, or all with pg_read_all_stats."""
    with pool.borrow() as connection:
        return [StoreReader(*row) for row in connection.execute(_READERS, [LONG])]


_DROPPABLE = """
    SELECT coalesce((SELECT avg(cost) FROM (
        SELECT cost FROM titanic.closed WHERE seq >= m.closed_first ORDER BY seq LIMIT 500) AS one), 0)::float8
        * greatest(0, CASE WHEN registered AND NOT %s THEN archived_upto ELSE closed_last END - closed_first + 1)
    FROM titanic.meta AS m"""
"""The same of all, by what the first ones cost."""


def load(tx: SnapshotReader, owner: bytes) -> Load:
    return Load(*tx.fetch_row(_LOAD, owner))


def counts(tx: SnapshotReader) -> Counts:
    return Counts(*tx.fetch_row(_COUNTS))


_FIRST_FACTS = "SELECT key, value FROM titanic.facts WHERE key >= %s AND key > %s AND key < %s ORDER BY key LIMIT %s"
_LAST_FACTS = "SELECT key, value FROM titanic.facts WHERE key >= %s AND key < %s ORDER BY key DESC LIMIT %s"


def facts(
    tx: SnapshotReader, prefix: bytes, after: bytes = b"", limit: int = 1000, newest: bool = False
) -> list[tuple[bytes, bytes]]:
    end = prefix + b"\xff" * (MAX_FACT_KEY + 1)
    if newest:
        rows = tx.fetch(_LAST_FACTS, prefix, min(end, after) if after else end, limit)
    else:
        rows = tx.fetch(_FIRST_FACTS, prefix, after, end, limit)
    return [(bytes(key), bytes(value)) for key, value in rows]


def facts_bytes(tx: SnapshotReader) -> int:
    """Bytes that all facts take on disk, with their index and what is dead."""
    return int(tx.fetch_row("SELECT pg_total_relation_size('titanic.facts')")[0])


def identity(tx: SnapshotReader) -> bytes | None:
    (uuid,) = tx.fetch_row("SELECT store_id FROM titanic.meta")
    return bytes(uuid)


def space(tx: SnapshotReader) -> Space:
    """Whether there is room for new requests. The server's disk cannot be seen from here; when full, it refuses."""
    missing = tx.fetch_row(_USED)[0] + SMALL_REQUEST - divide(tx.settings.capacity).accept
    if missing <= 0:
        return Space(False, False)
    (size,) = tx.fetch_row(_CAN_MAKE_WAY, tx.settings.drop_unarchived, _MOST_LOOKED_AT)
    return Space(bool(size < missing), False)


def room_left(tx: SnapshotReader) -> int:
    (size,) = tx.fetch_row(_DROPPABLE, tx.settings.drop_unarchived)
    return max(0, divide(tx.settings.capacity).accept - int(tx.fetch_row(_USED)[0]) + int(size))
