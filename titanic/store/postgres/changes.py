"""The changes that a transaction has made and the database does not have yet: rows by table, and counters.

A request is changed once in them. Who changes it again puts them into the database first (writing.py). Then they are a
few statements, each with an array for each column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from titanic.store.postgres.arrays import Raw, ids, lists, numbers, texts
from titanic.store.postgres.capacity import KEY
from titanic.store.postgres.foreseen import Seen
from titanic.store.postgres.new_request import key_size
from titanic.store.postgres.transaction import Row, Statement
from titanic.store.states import State
from titanic.util.ids import SIZE


class RequestRow(NamedTuple):
    uuid: bytes
    service: bytes
    body: Sequence[bytes]
    body_bytes: int
    body_frames: int
    priority: int
    submitted_at: int
    not_before: int
    expires_at: int
    max_attempts: int
    options: bytes
    key: bytes
    owner: bytes


class ReadyRow(NamedTuple):
    uuid: bytes
    service: bytes
    rank: int
    attempts: int = 0
    dispatched_at: int = 0
    expires_at: int = 0
    reason: bytes = b""


class LaterRow(NamedTuple):
    uuid: bytes
    due: int
    attempts: int
    dispatched_at: int
    expires_at: int
    priority: int
    service: bytes
    reason: bytes


class ReplyRow(NamedTuple):
    uuid: bytes
    status: int
    attempts: int
    dispatched_at: int
    finished_at: int
    frames_bytes: int
    frames_count: int
    frames: Sequence[bytes]
    reason: bytes
    service: bytes
    owner: bytes


class ClosedRow(NamedTuple):
    """What is kept of a closed request, beside what its rows say themselves. `flags` are of UNCLAIMED, WITH_REQUEST and
    WITH_REPLY."""

    uuid: bytes
    status: int
    attempts: int
    dispatched_at: int
    replied_at: int
    closed_at: int
    cost: int
    flags: int
    error: bytes


UNCLAIMED, WITH_REQUEST, WITH_REPLY = 1, 2, 4


_INSERT_REQUEST = """
INSERT INTO request (uuid, service, body, body_bytes, body_frames, priority, submitted_at, not_before, expires_at,
    max_attempts, options, key, owner)
SELECT * FROM unnest(%s::uuid[], %s::bytea[], %s::titanic.frames[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[], %s::bytea[], %s::bytea[])"""

_INSERT_READY = """
INSERT INTO ready (uuid, service, rank, attempts, dispatched_at, expires_at, reason)
SELECT * FROM unnest(%s::uuid[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[])"""

_INSERT_LATER = """
INSERT INTO later (uuid, due, attempts, dispatched_at, expires_at, priority, service, reason)
SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[],
    %s::bytea[])"""

_INSERT_EXPIRING = "INSERT INTO expiring (expires_at, uuid) SELECT * FROM unnest(%s::bigint[], %s::uuid[])"

_INSERT_REPLY = """
INSERT INTO reply (uuid, status, attempts, dispatched_at, finished_at, frames_bytes, frames_count, frames, reason,
    service, owner)
SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::titanic.frames[], %s::bytea[], %s::bytea[], %s::bytea[])"""

_DELETE_READY = """
DELETE FROM ready AS r USING unnest(%s::uuid[], %s::bytea[], %s::bigint[]) AS gone (uuid, service, rank)
WHERE r.service = gone.service AND r.rank = gone.rank AND r.uuid = gone.uuid"""

_DELETE_EXPIRING = """
DELETE FROM expiring AS e USING unnest(%s::bigint[], %s::uuid[]) AS gone (expires_at, uuid)
WHERE e.expires_at = gone.expires_at AND e.uuid = gone.uuid"""

_DELETE = "DELETE FROM {} WHERE uuid = ANY(%s::uuid[])"
_DELETE_LATER, _DELETE_REPLY, _DELETE_REQUEST = map(_DELETE.format, ("later", "reply", "request"))

FORGET = """
DELETE FROM key AS k USING unnest(%s::bytea[], %s::bytea[]) AS gone (owner, key)
WHERE k.owner = gone.owner AND k.key = gone.key RETURNING k.owner, length(k.key), cardinality(k.uuids)"""
"""Keys, whatever they stand for."""

_GIVE_NUMBERS = "UPDATE meta SET closed_last = closed_last + %s RETURNING closed_last - %s AS before"

_CLOSE = """
INSERT INTO closed (seq, uuid, submitted_at, dispatched_at, replied_at, closed_at, request_bytes, reply_bytes, cost,
    attempts, request_frames, reply_frames, status, priority, unclaimed, service, key, owner, error, request, reply)
SELECT numbers.before + g.n, g.uuid, r.submitted_at, g.dispatched_at, g.replied_at, g.closed_at, r.body_bytes,
    coalesce(p.frames_bytes, 0), g.cost, g.attempts, r.body_frames, coalesce(p.frames_count, 0), g.status, r.priority,
    g.flags & 1 <> 0, r.service, r.key, r.owner, g.error, CASE WHEN g.flags & 2 <> 0 THEN r.body END,
    CASE WHEN g.flags & 4 <> 0 THEN coalesce(p.frames, '{}') END
FROM numbers CROSS JOIN unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::bytea[]) WITH ORDINALITY
AS g (uuid, status, attempts, dispatched_at, replied_at, closed_at, cost, flags, error, n)
JOIN request AS r ON r.uuid = g.uuid LEFT JOIN reply AS p ON p.uuid = g.uuid"""

_DROP = """
WITH first AS (
    SELECT closed_first FROM meta FOR UPDATE
), dropped AS (
    SELECT coalesce(sum(cost), 0)::bigint AS size FROM closed
    WHERE seq >= (SELECT closed_first FROM first) AND seq < %s
), counted AS (
    UPDATE meta SET closed_first = greatest(closed_first, %s), lost = lost + CASE WHEN registered
        THEN greatest(0, %s - 1 - greatest(archived_upto, closed_first - 1)) ELSE 0 END
)
UPDATE usage SET used = used - (SELECT size FROM dropped) WHERE shard = %s"""

_COUNT_LOADS = """
INSERT INTO load AS l (kind, name, shard, waiting, bytes, ready)
SELECT encode(kind, 'escape')::"char", name, %s, waiting, bytes, ready
FROM unnest(%s::bytea[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[])
AS given (kind, name, waiting, bytes, ready)
ON CONFLICT (kind, name, shard) DO UPDATE
SET waiting = l.waiting + excluded.waiting, bytes = l.bytes + excluded.bytes, ready = l.ready + excluded.ready"""

_COUNT_USAGE = """
UPDATE usage AS u SET requests = requests + %s, waiting = waiting + %s, delayed = delayed + %s, replies = replies + %s,
    used = used + %s
WHERE shard = %s
RETURNING used + (SELECT coalesce(sum(o.used), 0)::bigint FROM usage AS o WHERE o.shard <> u.shard)"""


_Encoder = Callable[[Any], Raw]
_T, _N, _I = texts, numbers, ids
_READY = (_I, _T, _N, _N, _N, _N, _T)
_LATER = (_I, _N, _N, _N, _N, _N, _T, _T)
_EXPIRING = (_N, _I)
_PLACES = (_I, _T, _N)
_CLOSED = (_I, _N, _N, _N, _N, _N, _N, _N, _T)
_LOADS: tuple[_Encoder, ...] = (_T, _T, _N, _N, _N)


class Changes:
    """What is to be written. `touched` are the requests in it, `closed` those that get a number."""

    def __init__(self) -> None:
        self.touched: set[bytes] = set()
        self.requests: list[RequestRow] = []
        self.ready: list[ReadyRow] = []
        self.later: list[LaterRow] = []
        self.replies: list[ReplyRow] = []
        self.expiring: list[tuple[int, bytes]] = []
        self.closed: list[ClosedRow] = []
        self._not_ready: list[tuple[bytes, bytes, int]] = []
        self._not_later: list[bytes] = []
        self._not_replies: list[bytes] = []
        self._not_expiring: list[tuple[int, bytes]] = []
        self._gone: list[bytes] = []
        self._loads: dict[tuple[bytes, bytes], list[int]] = {}
        self._usage = [0, 0, 0, 0, 0]
        self.drop_before = 0
        """Closed requests with lower numbers do not count any more."""
        self._dropped_bytes = 0

    def leave(self, one: Seen) -> None:
        """The request leaves the place where it is."""
        self.touched.add(one.uuid)
        if one.state is State.WAITING:
            self._not_ready.append((one.uuid, one.service, 9 - one.priority))
        elif one.state is State.DELAYED:
            self._not_later.append(one.uuid)
        else:
            self._not_replies.append(one.uuid)

    def expire_no_more(self, one: Seen) -> None:
        """The request does not expire any more."""
        if one.ends_at:
            self._not_expiring.append((one.ends_at, one.uuid))

    def remove(self, uuid: bytes) -> None:
        """The request is closed."""
        self._gone.append(uuid)

    def drop_closed(self, before: int, size: int) -> None:
        """The closed requests with lower numbers, which come to so many bytes, do not count any more."""
        self.drop_before = max(self.drop_before, before)
        self._dropped_bytes += size

    # -- counters --------------------------------------------------------------------------------------------

    def count_service(self, service: bytes, *, waiting: int = 0, size: int = 0, ready: int = 0) -> None:
        """A service has so many more requests that have not ended, their bytes, and rows of `ready`."""
        self._count(b"s", service, waiting, size, ready)

    def count_owner(self, owner: bytes, *, waiting: int = 0, size: int = 0) -> None:
        """An owner has so many more requests that have not ended, and so many bytes more of all that is his."""
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
        return self._usage[4] - self._dropped_bytes

    # -- statements ------------------------------------------------------------------------------------------

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.touched or self._loads or any(self._usage) or self.drop_before)

    def statements(self, lists_type: int, shard: int) -> list[Statement]:
        """What puts them into the database; the last one returns how many bytes are used now.

        All parts are one statement, which saves half of the work of a small commit. They see the tables as these were
        before it: a request is copied to `closed` and deleted at once. Numbers of closed requests are given out last,
        because other nodes wait for that.
        """
        parts: list[tuple[str, str]] = []
        given: list[object] = []

        def add(name: str, text: str, rows: Sequence[tuple[Any, ...]], encoders: Sequence[_Encoder]) -> None:
            if rows:
                parts.append((name, text))
                columns = zip(*rows, strict=True)
                given.extend([encode(one) for encode, one in zip(encoders, columns, strict=True)])

        def bodies(values: Sequence[Sequence[bytes]]) -> Raw:
            return lists(values, lists_type)

        add("requests", _INSERT_REQUEST, self.requests, (_I, _T, bodies, _N, _N, _N, _N, _N, _N, _N, _T, _T, _T))
        add("to_ready", _INSERT_READY, self.ready, _READY)
        add("to_later", _INSERT_LATER, self.later, _LATER)
        add("to_expiring", _INSERT_EXPIRING, self.expiring, _EXPIRING)
        add("to_reply", _INSERT_REPLY, self.replies, (_I, _N, _N, _N, _N, _N, _N, bodies, _T, _T, _T))
        add("from_ready", _DELETE_READY, self._not_ready, _PLACES)
        add("from_expiring", _DELETE_EXPIRING, self._not_expiring, _EXPIRING)
        for name, text, uuids in (
            ("from_later", _DELETE_LATER, self._not_later),
            ("from_reply", _DELETE_REPLY, self._not_replies),
            ("gone", _DELETE_REQUEST, self._gone),
        ):
            if uuids:
                parts.append((name, text))
                given.append(ids(uuids))
        loads = [(*name, *change) for name, change in self._loads.items() if any(change)]
        if loads:
            given.append(shard)
            add("loads", _COUNT_LOADS, loads, _LOADS)
        if n := len(self.closed):
            parts.append(("numbers", _GIVE_NUMBERS))
            given += (n, n)
            add("closed_now", _CLOSE, self.closed, _CLOSED)
        drop = [Statement(_DROP, (*[self.drop_before] * 3, shard))] if self.drop_before else []
        return [*drop, Statement(_joined(tuple(parts)), [*given, *self._usage, shard])]


@lru_cache(maxsize=256)
def _joined(parts: tuple[tuple[str, str], ...]) -> str:
    """The parts as one statement, which counts the usage."""
    commons = ", ".join(f"{name} AS ({text})" for name, text in parts)
    return f"WITH {commons} {_COUNT_USAGE}" if commons else _COUNT_USAGE
