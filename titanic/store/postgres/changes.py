"""The changes that a transaction has made and the database does not have yet: rows by table, and counters.

They contain each request once. Before it changes again, they are written to the database (writing.py), as a few
statements, each with an array for each column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from titanic.store.agreement import Agreement
from titanic.store.attempt_history import CLOSED, closed_history_key, history_key
from titanic.store.postgres.database_session import Raw, ids, lists, numbers, texts
from titanic.store.postgres.rows import (
    KEY,
    REQUEST_COLUMNS,
    ClosedRow,
    KeyRow,
    LaterRow,
    ReadyColumns,
    ReplyRow,
    RequestRow,
    listed,
)
from titanic.store.postgres.transaction import REQUEST_SIZE, RequestSnapshot, Row, Statement, by_key
from titanic.store.request import KEY_SIZE, LASTING, key_size
from titanic.store.states import State
from titanic.util.ids import SIZE

_REQUEST_ARRAYS = [
    "titanic.frames" if type_ == "bytea[]" else type_ if type_ in ("uuid", "bytea") else "bigint"
    for type_ in REQUEST_COLUMNS.values()
]
_INSERT_REQUEST = f"""
INSERT INTO request ({listed(REQUEST_COLUMNS)})
SELECT * FROM unnest({", ".join(f"%s::{type_}[]" for type_ in _REQUEST_ARRAYS)})"""

_INSERT_READY = """
INSERT INTO ready (uuid, service, rank, attempts, dispatched_at, expires_at, reason, deliveries)
SELECT * FROM unnest(%s::uuid[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[],
    %s::bigint[])"""

_INSERT_LATER = """
INSERT INTO later (uuid, due, attempts, dispatched_at, expires_at, priority, service, reason, deliveries)
SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[],
    %s::bytea[], %s::bigint[])"""

_INSERT_EXPIRING = "INSERT INTO expiring (expires_at, uuid) SELECT * FROM unnest(%s::bigint[], %s::uuid[])"

_INSERT_REPLY = """
INSERT INTO reply (uuid, status, attempts, dispatched_at, finished_at, frames_bytes, frames_count, frames, reason,
    service, owner, until, body_until)
SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::titanic.frames[], %s::bytea[], %s::bytea[], %s::bytea[], %s::bigint[], %s::bigint[])"""

_INSERT_KEYS = """
INSERT INTO key (owner, key, until, given, uuids)
SELECT owner, key, until, given, (%s::uuid[])[first:last]
FROM unnest(%s::bytea[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
AS fresh (owner, key, until, given, first, last)"""

_PUT_FACTS = """
INSERT INTO facts (key, value) SELECT * FROM unnest(%s::bytea[], %s::bytea[])
ON CONFLICT (key) DO UPDATE SET value = excluded.value"""

_DELETE_FACTS = "DELETE FROM facts WHERE key = ANY(%s::bytea[])"

_CLOSE_HISTORY = """
UPDATE facts AS f SET key = %s::bytea || int8send(numbers.before + g.n)
FROM numbers CROSS JOIN unnest(%s::bytea[]) WITH ORDINALITY AS g (key, n)
WHERE f.key = ANY(%s::bytea[]) AND f.key = g.key"""
"""The history of attempts of what is closed in the statement goes on under its number."""

_DROP_HISTORY = "DELETE FROM facts WHERE key >= %s AND key < %s"

_LOCK = "SELECT body_frames + body_bytes AS size FROM request WHERE uuid = ANY(%s::uuid[]) ORDER BY uuid FOR UPDATE"

_DELETE_READY = """
DELETE FROM ready AS r USING unnest(%s::uuid[], %s::bytea[], %s::bigint[]) AS gone (uuid, service, rank)
WHERE r.service = gone.service AND r.rank = gone.rank AND r.uuid = gone.uuid"""

_DELETE_ONE_READY = """
DELETE FROM ready AS r WHERE r.uuid = (%s::uuid[])[1] AND r.service = %s AND r.rank = %s::bigint"""
"""A join reads all of a table that is thought to be empty (`by_key`): too much for one request."""

_WHOSE = " RETURNING r.uuid, r.incarnation"

# Not "that lives": a node that has joined since the statement began is not to be seen, but what it has claimed is.
_RECALL = """
INSERT INTO recall (uuid, incarnation)
SELECT q.uuid, q.incarnation FROM from_ready AS q
WHERE q.uuid = ANY(%s::uuid[]) AND q.incarnation <> %s
    AND NOT EXISTS (SELECT FROM node AS n WHERE n.incarnation = q.incarnation AND n.lease_until = '-infinity')"""
"""What another node has claimed and is closed now (titanic/store/cluster.py)."""

_DELETE_EXPIRING = """
DELETE FROM expiring AS e USING unnest(%s::bigint[], %s::uuid[]) AS gone (expires_at, uuid)
WHERE e.expires_at = gone.expires_at AND e.uuid = gone.uuid"""

_COUNT_NO_MORE = """
DELETE FROM bounded AS b USING unnest(%s::bytea[], %s::uuid[], %s::bigint[]) AS done (service, uuid, incarnation)
WHERE b.service = done.service AND b.uuid = done.uuid AND b.incarnation = done.incarnation"""

_DROP_BODIES = """
UPDATE request SET body = '{}', body_frames = 0, body_bytes = 0 WHERE uuid = ANY(%s::uuid[])"""

_DELETE = "DELETE FROM {} WHERE uuid = ANY(%s::uuid[])"
_DELETE_LATER, _DELETE_REPLY, _DELETE_REQUEST = map(_DELETE.format, ("later", "reply", "request"))

FORGET = f"""
DELETE FROM key AS k USING unnest(%s::bytea[], %s::bytea[], %s::uuid[]) AS gone (owner, key, uuid)
WHERE k.owner = gone.owner AND k.key = gone.key
    AND (gone.uuid = '00000000-0000-0000-0000-000000000000'::uuid OR (gone.uuid = ANY(k.uuids) AND NOT EXISTS (
        SELECT FROM unnest(k.uuids) AS w (uuid) {by_key("request", "r", "t.uuid = w.uuid", "INNER")}
        WHERE w.uuid <> ALL(%s::uuid[]))))
RETURNING k.owner, length(k.key) AS length, cardinality(k.uuids) AS requests"""
"""Keys, whatever they stand for, or if they stand for a request, and for none that is not closed."""

_LOCK_KEYS = """
SELECT FROM key AS k JOIN unnest(%s::bytea[], %s::bytea[]) AS gone (owner, key)
    ON k.owner = gone.owner AND k.key = gone.key ORDER BY k.owner, k.key FOR UPDATE OF k"""
"""A statement before FORGET: that one must see what others with these keys accepted and closed meanwhile."""

_GIVE_NUMBERS = "UPDATE meta SET closed_last = closed_last + %s RETURNING closed_last - %s AS before, registered"

_CLOSE = f"""
INSERT INTO closed (seq, {listed(LASTING)}, dispatched_at, replied_at, closed_at, request_bytes, reply_bytes, cost,
    attempts, request_frames, reply_frames, status, unclaimed, error, request, reply)
SELECT numbers.before + g.n, {listed(LASTING, "r")}, g.dispatched_at, g.replied_at, g.closed_at, r.body_bytes,
    coalesce(p.frames_bytes, 0), g.cost, g.attempts, r.body_frames, coalesce(p.frames_count, 0), g.status,
    g.flags & 1 <> 0, g.error, CASE WHEN g.flags & 2 <> 0 THEN r.body END,
    CASE WHEN g.flags & 4 <> 0 THEN coalesce(p.frames, '{{}}') END
FROM numbers CROSS JOIN unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::bytea[]) WITH ORDINALITY
AS g (uuid, status, attempts, dispatched_at, replied_at, closed_at, cost, flags, error, n)
{by_key("request", "r", "t.uuid = g.uuid", "INNER")} {by_key("reply", "p", "t.uuid = g.uuid")}"""

_AGREE = """
WITH agreed AS (
    UPDATE meta SET registered = %s <> 0, archived_upto = %s, archivist_id = %s::uuid, archivist_name = %s
    WHERE registered = (%s <> 0) AND archived_upto = %s AND archivist_id IS NOT DISTINCT FROM %s::uuid
    RETURNING 1
)
SELECT 1 / count(*) FROM agreed"""
"""It fails, by a division by zero, when another transaction has changed the agreement meanwhile."""

_LOADS_GIVEN = """
SELECT encode(kind, 'escape')::"char", name, %s, waiting, bytes, ready
FROM unnest(%s::bytea[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[])
AS given (kind, name, waiting, bytes, ready)"""

_LOADS_FORGOTTEN = f"""
SELECT 'o'::"char", owner, %s, 0, -({KEY_SIZE} + length(owner) + length + {SIZE} * requests), 0
FROM forgotten WHERE owner <> ''"""
"""Of the keys that are forgotten in the statement (`key_size`)."""

_LOADS_CLOSED = """
SELECT 'o'::"char", owner, %s, 0, cost, 0 FROM unnest(%s::bytea[], %s::bigint[]) AS waits (owner, cost)
WHERE (SELECT registered FROM numbers)"""
"""Of what is closed in the statement, if it waits for an archive."""

_LOADS_SUMMED = """
SELECT kind, name, shard, sum(waiting)::bigint, sum(bytes)::bigint, sum(ready)::bigint
FROM ({}) AS one (kind, name, shard, waiting, bytes, ready) GROUP BY 1, 2, 3"""

_COUNT_LOADS = """
INSERT INTO titanic.load AS l (kind, name, shard, waiting, bytes, ready) {}
ON CONFLICT (kind, name, shard) DO UPDATE
SET waiting = l.waiting + excluded.waiting, bytes = l.bytes + excluded.bytes, ready = l.ready + excluded.ready"""

REPLY_SIZE = "(32 + octet_length(p.reason) + 4 * p.frames_count + p.frames_bytes)"

LOADS = f"""
    SELECT 's'::"char" AS kind, r.service AS name, count(*) AS waiting, sum({REQUEST_SIZE}) AS bytes,
        count(q.uuid) AS ready
    FROM titanic.request r LEFT JOIN titanic.reply p ON p.uuid = r.uuid LEFT JOIN titanic.ready q ON q.uuid = r.uuid
    WHERE p.uuid IS NULL GROUP BY r.service
    UNION ALL
    SELECT 'o', owner, sum(waiting), sum(bytes), 0 FROM (
        SELECT r.owner, count(*) FILTER (WHERE p.uuid IS NULL) AS waiting, sum({REQUEST_SIZE})
            + coalesce(sum({REPLY_SIZE}), 0) AS bytes
        FROM titanic.request r LEFT JOIN titanic.reply p ON p.uuid = r.uuid WHERE r.owner <> '' GROUP BY r.owner
        UNION ALL
        SELECT owner, 0, sum(2 + octet_length(owner) + octet_length(key) + 16 + {SIZE} * cardinality(uuids))
        FROM titanic.key WHERE owner <> '' GROUP BY owner
        UNION ALL
        SELECT owner, 0, sum(cost) FROM titanic.closed, titanic.meta
        WHERE owner <> '' AND registered AND seq > archived_upto AND seq >= closed_first GROUP BY owner
    ) owned GROUP BY owner"""
"""What loads must say, counted from what is there."""

RECOUNT = _COUNT_LOADS.format(f"""
SELECT kind, name, 0, sum(waiting)::bigint, sum(bytes)::bigint, sum(ready)::bigint FROM (
    {LOADS}
    UNION ALL SELECT kind, name, -waiting, -bytes, -ready FROM titanic.load
) AS one GROUP BY 1, 2 HAVING (sum(waiting), sum(bytes), sum(ready)) <> (0, 0, 0)""")
"""Correct them by how much they differ: nodes go on counting."""

_COUNT_WAITING = _COUNT_LOADS.format("""
SELECT 'o'::"char", owner, %s, 0, (%s::bigint * sum(cost))::bigint, 0 FROM closed
WHERE seq > %s AND seq <= %s AND seq >= (SELECT closed_first FROM meta) AND owner <> ''
    AND EXISTS (SELECT FROM load WHERE kind = 'o')
GROUP BY owner""")
"""Closed requests of owners begin (1) or cease (-1) to wait for the archive. A statement behind `_AGREE`: it must see
what others closed before they let go of `meta`."""

_DROP_WAITING = _COUNT_LOADS.format("""
SELECT 'o'::"char", owner, %s, 0, -sum(cost)::bigint, 0 FROM closed
WHERE seq >= (SELECT greatest(closed_first, archived_upto + 1) FROM first) AND seq < %s AND owner <> ''
    AND (SELECT registered FROM first)
GROUP BY owner""")

_DROP = f"""
WITH first AS (
    SELECT closed_first, archived_upto, registered FROM meta FOR UPDATE
), dropped AS (
    SELECT coalesce(sum(cost), 0)::bigint AS size FROM closed
    WHERE seq >= (SELECT closed_first FROM first) AND seq < %s
), counted AS (
    UPDATE meta SET closed_first = greatest(closed_first, %s), lost = lost + CASE WHEN registered
        THEN greatest(0, %s - 1 - greatest(archived_upto, closed_first - 1)) ELSE 0 END
), waited AS ({_DROP_WAITING})
UPDATE usage SET used = used - (SELECT size FROM dropped) WHERE shard = %s"""

_COUNT_USAGE = """
UPDATE usage AS u SET requests = requests + %s, waiting = waiting + %s, delayed = delayed + %s, replies = replies + %s,
    used = used + %s{}{}
WHERE shard = %s
RETURNING used + (SELECT coalesce(sum(o.used), 0)::bigint FROM usage AS o WHERE o.shard <> u.shard)"""


_AFTER_LOCKS = " AND (SELECT count(*) FROM locked) > 0"
_COUNTED = " RETURNING 1"
"""At the end of what deletes rows of requests that are relied on: first they are locked."""

_END_BITS = (1 << 30) - 1
_ENDS = f" RETURNING finished_at & {_END_BITS} AS ended"
"""That of a reply: another node may have retried the request since, and it ended again."""

_DELETED = {"from_ready": "0", "from_expiring": "0", "from_later": "0", "from_reply": "ended", "gone": "0"}
_AS_HOPED = " + (SELECT 0 / (count(*) = %s AND sum(size) = %s)::integer FROM ({}) AS there)"
"""Fails, by a division by zero, unless all rows were there that were to be locked and deleted, and the bodies of the
requests had these sizes: another node may have changed one."""

_FORGOTTEN = f" - (SELECT coalesce(sum({KEY} + {SIZE} * requests), 0)::bigint FROM forgotten)"

_Encoder = Callable[[Any], Raw]
_T, _N, _I = texts, numbers, ids
_READY = (_I, _T, _N, _N, _N, _N, _T, _N)
_LATER = (_I, _N, _N, _N, _N, _N, _T, _T, _N)
_EXPIRING = (_N, _I)
_PLACES = (_I, _T, _N)
_CLOSED = (_I, _N, _N, _N, _N, _N, _N, _N, _T)
_LOADS: tuple[_Encoder, ...] = (_T, _T, _N, _N, _N)

_ALL = 2**63 - 1
"""As the last number that the archive has: no request waits for it."""


_NOTHING = (b"s", b"", 0, 0, 0)
"""A change of the load of no service."""


ANY = bytes(SIZE)


class Changes:
    """What is to be written. `touched` are the requests in it, `closed` those that get a number."""

    def __init__(self) -> None:
        self.touched: set[bytes] = set()
        self.relied: dict[bytes, int] = {}
        """Those of them that were neither verified nor locked since they were read, with the sizes of their bodies."""
        self.requests: list[RequestRow] = []
        self.ready: list[ReadyColumns] = []
        self.later: list[LaterRow] = []
        self.replies: list[ReplyRow] = []
        self.without_body: list[bytes] = []
        """Requests that have succeeded, and do not keep their bodies."""
        self.expiring: list[tuple[int, bytes]] = []
        self.closed: list[ClosedRow] = []
        self.keys: list[KeyRow] = []
        self.to_forget: set[tuple[bytes, bytes, bytes]] = set()
        """Owners and keys that are forgotten: if they stand for this request, or (ANY) in any case. Nodes lock them in
        their order."""
        self.uncounted: list[tuple[bytes, bytes, int]] = []
        """Services, requests and incarnations: their rows of `bounded` go."""
        self._not_ready: list[tuple[bytes, bytes, int]] = []
        self._not_later: list[bytes] = []
        self._not_replies: list[bytes] = []
        self._ends = 0
        self._not_expiring: list[tuple[int, bytes]] = []
        self.gone: list[bytes] = []
        """Requests that are closed."""
        self._loads: dict[tuple[bytes, bytes], list[int]] = {}
        self._closed_costs: dict[bytes, int] = {}
        """What is closed costs, by owner."""
        self._usage = [0, 0, 0, 0, 0]
        self.facts: dict[bytes, bytes | None] = {}
        """By their keys; None: it goes."""
        self.agreement: tuple[Agreement, Agreement] | None = None
        """With the archive: that before, and that now."""
        self.drop_before = 0
        """Closed requests with lower numbers do not count any more."""
        self.dropped_bytes = 0

    def leave(self, one: RequestSnapshot) -> None:
        """The request leaves the place where it is."""
        self.touched.add(one.uuid)
        if one.state is State.WAITING:
            self._not_ready.append((one.uuid, one.service, 9 - one.priority))
        elif one.state is State.DELAYED:
            self._not_later.append(one.uuid)
        else:
            self._not_replies.append(one.uuid)
            self._ends += one.finished_at & _END_BITS

    def expire_no_more(self, one: RequestSnapshot) -> None:
        """The request does not expire any more."""
        if one.ends_at:
            self._not_expiring.append((one.ends_at, one.uuid))

    def remove(self, uuid: bytes) -> None:
        """The request is closed."""
        self.gone.append(uuid)

    def keep_closed(self, row: ClosedRow, owner: bytes) -> None:
        """The request is kept as a closed one. It counts for its owner while it waits for an archive."""
        self.closed.append(row)
        self.count(used=row.cost)
        if owner:
            self._closed_costs[owner] = self._closed_costs.get(owner, 0) + row.cost

    def drop_closed(self, before: int, size: int) -> None:
        """The closed requests with lower numbers, which come to so many bytes, do not count any more."""
        self.drop_before = max(self.drop_before, before)
        self.dropped_bytes += size

    # -- counters --------------------------------------------------------------------------------------------

    def count_service(self, service: bytes, *, waiting: int = 0, size: int = 0, ready: int = 0) -> None:
        """A service has so many more requests that have not ended, their bytes, and rows of `ready`."""
        self._count(b"s", service, waiting, size, ready)

    def count_owner(self, owner: bytes, *, waiting: int = 0, size: int = 0) -> None:
        """Add requests that have not ended, and bytes, to the load of an owner."""
        if owner:
            self._count(b"o", owner, waiting, size, 0)

    def _count(self, kind: bytes, name: bytes, *change: int) -> None:
        found = self._loads.get((kind, name))
        self._loads[kind, name] = [*change] if found is None else [a + b for a, b in zip(found, change, strict=True)]

    def count(self, *, requests: int = 0, waiting: int = 0, delayed: int = 0, replies: int = 0, used: int = 0) -> None:
        """There are so many more in all."""
        usage = self._usage
        usage[0] += requests
        usage[1] += waiting
        usage[2] += delayed
        usage[3] += replies
        usage[4] += used

    def count_keys_gone(self, rows: Sequence[Row]) -> None:
        """Keys are gone, of which their owner, their length and how many requests they had are in `rows`."""
        for owner, length, requests in rows:
            self.count_owner(owner, size=-key_size(owner, length, requests))
            self.count(used=-KEY - SIZE * requests)

    @property
    def used(self) -> int:
        """By how many bytes more is used with them."""
        return self._usage[4] - self.dropped_bytes

    # -- statements ------------------------------------------------------------------------------------------

    @property
    def locks(self) -> list[Statement]:
        """What must be executed before FORGET, as a statement of its own."""
        names = sorted({one[:2] for one in self.to_forget if one[2] != ANY})
        return [Statement(_LOCK_KEYS, tuple(map(texts, zip(*names, strict=True))))] if names else []

    @property
    def any(self) -> bool:
        """Whether there are any."""
        counted = self._loads or any(self._usage)
        others = self.drop_before or self.to_forget or self.agreement or self.uncounted or self.facts
        return bool(self.touched or counted or others)

    def statements(self, lists_type: int, shard: int, own: int = 0) -> list[Statement]:
        """What puts them into the database. The first one returns how many bytes are used now, but for what is dropped.
        `own`: the incarnation of this node.

        Its parts are one statement, which saves half of the work of a small commit. They see the tables as these were
        before it: a request is copied to `closed` and deleted at once. What concerns `meta` comes last, because other
        nodes wait for that.
        """
        parts: list[tuple[str, str]] = []
        given: list[object] = []
        after, counted = (_AFTER_LOCKS, _COUNTED) if self.relied else ("", "")
        if self.relied:
            parts.append(("locked", _LOCK))
            given.append(ids(sorted(self.relied)))

        def add(name: str, text: str, rows: Sequence[tuple[Any, ...]], encoders: Sequence[_Encoder]) -> None:
            if rows:
                parts.append((name, text))
                columns = zip(*rows, strict=True)
                given.extend([encode(one) for encode, one in zip(encoders, columns, strict=True)])

        def bodies(values: Sequence[Sequence[bytes]]) -> Raw:
            return lists(values, lists_type)

        if self.to_forget:
            add("forgotten", FORGET, sorted(self.to_forget), (_T, _T, _I))
            given.append(ids(self.gone))
        if self.keys:
            uuids, rows = _key_rows(self.keys)
            given.append(ids(uuids))
            add("keys", _INSERT_KEYS, rows, (_T, _T, _N, _N, _N, _N))
        if self.requests:
            encoders: dict[str, _Encoder] = {"uuid": ids, "bytea": texts, "titanic.frames": bodies}
            add("requests", _INSERT_REQUEST, self.requests, [encoders.get(one, numbers) for one in _REQUEST_ARRAYS])
        add("to_ready", _INSERT_READY, self.ready, _READY)
        add("to_later", _INSERT_LATER, self.later, _LATER)
        add("to_expiring", _INSERT_EXPIRING, self.expiring, _EXPIRING)
        add("to_reply", _INSERT_REPLY, self.replies, (_I, _N, _N, _N, _N, _N, _N, bodies, _T, _T, _T, _N, _N))
        add("no_more", _COUNT_NO_MORE, self.uncounted, (_T, _I, _N))
        facts = sorted(self.facts.items())
        add("put_facts", _PUT_FACTS, [(key, value) for key, value in facts if value is not None], (_T, _T))
        add("no_facts", _DELETE_FACTS, [(key,) for key, value in facts if value is None], (_T,))
        recalls = bool(self.gone and self._not_ready)
        if len(self._not_ready) == 1:
            ((uuid, service, rank),) = self._not_ready
            parts.append(("from_ready", _DELETE_ONE_READY + after + (_WHOSE if recalls else counted)))
            given += (ids([uuid]), service, rank)
        else:
            add("from_ready", _DELETE_READY + after + (_WHOSE if recalls else counted), self._not_ready, _PLACES)
        add("from_expiring", _DELETE_EXPIRING + after + counted, self._not_expiring, _EXPIRING)
        for name, text, uuids in (
            ("from_later", _DELETE_LATER, self._not_later),
            ("from_reply", _DELETE_REPLY, self._not_replies),
            ("gone", _DELETE_REQUEST, self.gone),
        ):
            if uuids:
                found_too = _ENDS if self.relied and name == "from_reply" else counted
                parts.append((name, text + after + found_too))
                given.append(ids(uuids))
        if self.without_body:
            parts.append(("bodies", _DROP_BODIES + after))
            given.append(ids(self.without_body))
        if recalls:
            parts.append(("recalled", _RECALL))
            given += (ids(self.gone), own)
        loads = [(*name, *change) for name, change in self._loads.items() if any(change)]
        owned = any(owner for owner, *_ in self.to_forget)
        costs = self._closed_costs
        if n := len(self.closed):
            parts.append(("numbers", _GIVE_NUMBERS))
            given += (n, n)
        if loads or owned or costs:
            counts = [_LOADS_GIVEN] + [_LOADS_FORGOTTEN] * owned + [_LOADS_CLOSED] * bool(costs)
            summed = _LOADS_GIVEN if len(counts) == 1 else _LOADS_SUMMED.format(" UNION ALL ".join(counts))
            given.append(shard)
            add("loads", _COUNT_LOADS.format(summed), loads or [_NOTHING], _LOADS)
            given.extend([shard] if owned else [])
            given.extend((shard, texts([*costs]), numbers([*costs.values()])) if costs else ())
        if self.closed:
            add("closed_now", _CLOSE, self.closed, _CLOSED)
            parts.append(("closed_history", _CLOSE_HISTORY))
            histories = texts([history_key(row.uuid) for row in self.closed])
            given += (CLOSED, histories, histories)
        elif self.gone:
            parts.append(("no_history", _DELETE_FACTS))
            given.append(texts(list(map(history_key, self.gone))))
        given += self._usage
        if self.relied:
            gone: tuple[Sequence[object], ...] = (
                self._not_ready,
                self._not_expiring,
                self._not_later,
                self._not_replies,
                self.gone,
            )
            given += (len(self.relied) + sum(map(len, gone)), sum(self.relied.values()) + self._ends)
        found = [Statement(_joined(tuple(parts)), [*given, shard])]
        if self.agreement is not None:
            before, now = self.agreement
            id_ = None if now.archivist is None else Raw(now.archivist.id)
            name = "" if now.archivist is None else now.archivist.name
            known = None if before.archivist is None else Raw(before.archivist.id)
            given_now = int(now.registered), now.upto, id_, name
            found.append(Statement(_AGREE, (*given_now, int(before.registered), before.upto, known)))
            had, has = (one.upto if one.registered else _ALL for one in self.agreement)
            if had != has:
                sign = 1 if has < had else -1
                found.append(Statement(_COUNT_WAITING, (shard, sign, min(had, has), max(had, has))))
        if self.drop_before:
            found.append(Statement(_DROP, (*[self.drop_before] * 3, shard, self.drop_before, shard)))
            found.append(Statement(_DROP_HISTORY, (CLOSED, closed_history_key(self.drop_before))))
        return found


@lru_cache(maxsize=256)
def _joined(parts: tuple[tuple[str, str], ...]) -> str:
    """The parts as one statement, which counts the usage."""
    commons = ", ".join(f"{name} AS ({text})" for name, text in parts)
    names = [name for name, _ in parts]
    forgotten = _FORGOTTEN if "forgotten" in names else ""
    hoped = ""
    if "locked" in names:
        deleted = [f"SELECT {_DELETED[name]} FROM {name}" for name in names if name in _DELETED]
        hoped = _AS_HOPED.format(" UNION ALL ".join(["SELECT size FROM locked", *deleted]))
    counted = _COUNT_USAGE.format(forgotten, hoped)
    return f"WITH {commons} {counted}" if commons else counted


def _key_rows(keys: Sequence[KeyRow]) -> tuple[list[bytes], list[tuple[Any, ...]]]:
    """The ids of all, and rows that say which of them each has. They are in the order of the keys, in which all nodes
    take them, so that none waits for another that waits for it."""
    uuids: list[bytes] = []
    rows: list[tuple[Any, ...]] = []
    for row in sorted(keys):
        rows.append((*row[:-1], len(uuids) + 1, len(uuids) + len(row.uuids)))
        uuids += row.uuids
    return uuids, rows
