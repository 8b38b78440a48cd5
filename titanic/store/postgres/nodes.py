"""The nodes that share the store (titanic/store/cluster.py).

- This process: the numbers under which it claims, and the lease that shows others that it lives.
- The list of nodes in `node`.
- What a node reads of the others, and the recalls that they leave for each other.
- The settings of services, and the limits that they have at all nodes: a row each.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from titanic.errors import OtherLease, StoreError, WriteConflict
from titanic.store import service_settings
from titanic.store.cluster import (
    ClaimRow,
    ClusterView,
    Joined,
    LeaseConfig,
    NodeFacts,
    NodeRow,
    Place,
    Recall,
    Renewed,
    Silent,
    StatusQuery,
)
from titanic.store.postgres import schema
from titanic.store.postgres.connection_pool import ConnectionPool, Outage
from titanic.store.postgres.database_session import Raw, ids, numbers, texts
from titanic.store.postgres.transaction import Row, SnapshotReader, Statement
from titanic.store.postgres.writing import PostgresWriting
from titanic.store.records import Durability
from titanic.store.service_settings import NOTHING_SET, Limits, ServiceSetting, ServiceSettings

SHARDS = 64
"""Numbers under which nodes count, from 1. Nodes beyond that, and tools, count under 0."""

_LEAVE_PATIENCE = 2.0
"""Seconds that the store has for an answer when the node ends."""

OVER = "n.lease_until = '-infinity' AND (n.abandoned OR NOT {}.kept)"
"""Of a row of `ready`, and the node `n` that has claimed it: the claim does not count any more."""

FREE = f"""(incarnation IS NULL OR EXISTS (
    SELECT FROM titanic.node AS n WHERE n.incarnation = ready.incarnation AND {OVER.format("ready")}))"""
"""Of a row of `ready`: no node has claimed it. "No living node" would be wrong: a statement that waits for a lock finds
the row as it is then, but the nodes as they were before, and would take the claims of a node that has just joined."""

ALIVE = "EXISTS (SELECT FROM node WHERE incarnation = %s AND lease_until > '-infinity')"

_UNTIL = "clock_timestamp() + make_interval(secs => %s::float8)"

STALLED = 10.0
"""Seconds, but a lease at least, after which a session is ended that has locks and waits for its client in the middle
of a transaction: that stands still, and others wait for the locks, or pass over what is locked."""

_END_STALLED = """
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.usename = session_user
    AND a.application_name = current_setting('application_name') AND a.wait_event_type = 'Client' AND a.state <> 'idle'
    AND a.state_change < clock_timestamp() - make_interval(secs => %s::float8)
    AND (a.backend_xid IS NOT NULL OR EXISTS (
        SELECT FROM pg_locks AS l WHERE l.pid = a.pid AND l.locktype = 'advisory'))
    AND EXISTS (SELECT FROM node AS n WHERE n.lease_until = '-infinity'
        AND (n.ended_at IS NULL OR n.ended_at > now() - interval '10 minutes'))"""
"""Only when a node has ended lately: one that lives, and sends large replies over a slow line, looks the same.
PostgreSQL's own limit, `idle_in_transaction_session_timeout`, is not enough: within a pipeline a session is not
idle, and psycopg may send a Flush behind that, after which its time does not run."""

_LOCK = 0x7469_7461_6E69_6302
"""The advisory lock for joining: each node must get a shard of its own."""

_SHARD = f"""
SELECT coalesce(min(n), 0) FROM generate_series(1, {SHARDS}) AS n WHERE NOT EXISTS (
    SELECT FROM node AS o WHERE o.shard = n AND o.lease_until > '-infinity' AND o.incarnation IS DISTINCT FROM %s)"""

_OTHERS = """
ARRAY(SELECT o.incarnation FROM node AS o WHERE o.lease_until > '-infinity' AND o.incarnation <> %s
    ORDER BY o.incarnation),
ARRAY(SELECT (extract(epoch FROM o.lease_until) * 1000000)::bigint FROM node AS o
    WHERE o.lease_until > '-infinity' AND o.incarnation <> %s ORDER BY o.incarnation),
ARRAY(SELECT o.incarnation FROM node AS o WHERE o.lease_until = '-infinity' AND NOT o.abandoned)"""

_OTHER_LEASE = """
SELECT name, lease FROM node WHERE lease <> %s::float8 AND lease_until > clock_timestamp()
    AND incarnation IS DISTINCT FROM %s LIMIT 1"""
"""Not of dead nodes that were not ended yet: a cluster that was killed may come back with another lease."""

_JOIN = f"""
WITH born AS (
    INSERT INTO node AS mine
        (incarnation, name, version, endpoints, services, access, draining, shard, lease, lease_until)
    SELECT %s, %s, %s, %s::text[], %s::jsonb, %s,
        coalesce((SELECT o.draining FROM node AS o WHERE o.incarnation = %s FOR UPDATE), false),
        ({_SHARD}), %s::float8, {_UNTIL}
    FROM meta WHERE {schema.SERVED}
    ON CONFLICT (incarnation) DO UPDATE
    SET lease_until = greatest(mine.lease_until + interval '1 microsecond', {_UNTIL})
    WHERE mine.lease_until > '-infinity' RETURNING mine.xmax = 0 AS now, mine.shard
), counted AS (
    INSERT INTO usage (shard) SELECT shard FROM born ON CONFLICT DO NOTHING
), ended AS (
    UPDATE node SET lease_until = '-infinity', abandoned = true WHERE incarnation = %s AND (SELECT now FROM born)
), held AS (
    SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::uuid[]) AS held (service, rank, uuid)
), taken AS (
    UPDATE ready AS r SET incarnation = %s FROM held AS h
    WHERE r.service = h.service AND r.rank = h.rank AND r.uuid = h.uuid AND r.incarnation = %s
        AND (SELECT now FROM born) RETURNING r.uuid
), counting AS (
    UPDATE bounded AS b SET incarnation = %s FROM held AS h
    WHERE b.service = h.service AND b.uuid = h.uuid AND b.incarnation = %s AND (SELECT now FROM born)
)
SELECT store_format, oldest, (SELECT shard FROM born), ARRAY(
    SELECT uuid FROM taken UNION SELECT r.uuid FROM held AS h
    JOIN ready AS r ON r.service = h.service AND r.rank = h.rank AND r.uuid = h.uuid WHERE r.incarnation = %s),
    {_OTHERS} FROM meta"""
"""`xmax` is 0 for a row that was inserted, and not updated."""

_RENEW = f"""
WITH mine AS (
    UPDATE node SET services = %s::jsonb, endpoints = %s::text[], access = %s,
        lease_until = greatest(lease_until + interval '1 microsecond', {_UNTIL})
    WHERE incarnation = %s AND lease_until > '-infinity' AND {schema.SERVED} RETURNING draining
), silent AS (
    SELECT n.incarnation FROM node AS n JOIN unnest(%s::bigint[], %s::bigint[]) AS s (incarnation, lease)
        ON n.incarnation = s.incarnation AND (extract(epoch FROM n.lease_until) * 1000000)::bigint = s.lease
    WHERE n.lease_until > '-infinity' AND EXISTS (SELECT FROM mine) FOR NO KEY UPDATE OF n SKIP LOCKED
), ended AS (
    UPDATE node SET lease_until = '-infinity' WHERE incarnation IN (SELECT incarnation FROM silent)
), abandoned AS (
    UPDATE node SET abandoned = true
    WHERE incarnation = ANY(%s::bigint[]) AND lease_until = '-infinity' AND EXISTS (SELECT FROM mine)
)
SELECT store_format, oldest, (SELECT draining FROM mine), {_OTHERS} FROM meta"""

_LEAVE = """
INSERT INTO node (incarnation, name, version, endpoints, lease_until)
SELECT incarnation, '', '', '{}', '-infinity' FROM unnest(%s::bigint[]) AS gone (incarnation)
ON CONFLICT (incarnation) DO UPDATE SET lease_until = '-infinity', endpoints = '{}'"""

_NOTE_END = "UPDATE node SET ended_at = now() WHERE lease_until = '-infinity' AND ended_at IS NULL"

_FORGET_DEAD = """
DELETE FROM node WHERE incarnation IN (
    SELECT incarnation FROM node WHERE ended_at < now() - interval '1 day' AND incarnation NOT IN (
        SELECT incarnation FROM ready WHERE incarnation IS NOT NULL UNION ALL SELECT incarnation FROM bounded)
    FOR UPDATE SKIP LOCKED)"""
"""A claim that is not committed yet locks its node, and is passed over."""

COUNTS = """(n.lease_until > '-infinity' OR NOT n.abandoned AND EXISTS (
    SELECT FROM request AS r JOIN ready AS q ON q.service = r.service AND q.rank = 9 - r.priority AND q.uuid = r.uuid
    WHERE r.uuid = b.uuid AND q.incarnation = b.incarnation AND q.kept OFFSET 0))"""
"""Of a row `b` of `bounded`, and its node `n`. OFFSET: PostgreSQL looks up the few of ended nodes by their keys."""

_COUNT_NO_MORE = f"DELETE FROM bounded AS b USING node AS n WHERE n.incarnation = b.incarnation AND NOT {COUNTS}"

_FORGET_LOADS = """
WITH idle AS (
    SELECT name FROM load WHERE kind = 's' GROUP BY name
    HAVING (sum(waiting), sum(bytes), sum(ready)) = (0, 0, 0) LIMIT 50000
), locked AS (
    SELECT l.* FROM idle AS i CROSS JOIN LATERAL (
        SELECT * FROM load WHERE kind = 's' AND name = i.name FOR UPDATE SKIP LOCKED) AS l
), summed AS (
    SELECT name, shard, (sum(waiting) OVER n, sum(bytes) OVER n, sum(ready) OVER n) = (0, 0, 0) AS is_idle
    FROM locked WINDOW n AS (PARTITION BY name)
)
DELETE FROM load AS l USING summed AS s WHERE s.is_idle AND l.kind = 's' AND l.name = s.name AND l.shard = s.shard"""
"""Clients name services. Rows of several shards add up to nothing, as they are when they are locked."""


class Membership:
    """The node's row in `node`, by a connection of its own. One thread at a time may call."""

    def __init__(
        self, url: str, durability: Durability | None, outage: Outage, suspect: Callable[[float], None]
    ) -> None:
        """`suspect`: called with the seconds that an answer may take, when connections made so far may be dead."""
        self._suspect = suspect
        self._url = url
        self._outage = outage
        self._durability = durability
        self._pool: ConnectionPool | None = None
        self._patience = _LEAVE_PATIENCE
        self._joined: set[int] = set()
        self.lapses_at = math.inf
        """When the lease is over if it is not renewed, by the monotonic clock; never, while no other node lives."""
        self.shard = 0

    def join(
        self, incarnation: int, before: int | None, held: Sequence[Place], facts: NodeFacts, config: LeaseConfig
    ) -> Joined:
        self._patience = config.renew
        self._outage.logged = True  # only servers join
        self._joined.add(incarnation)
        places = places_of(held)
        about = list(facts.endpoints), _services(facts.services), facts.access
        node = incarnation, facts.name, facts.version, *about, before
        moves = incarnation, before, incarnation, before
        given = *node, before, *[config.lease] * 3, before, *places, *moves, incarnation
        row = self._ask(_JOIN, (*given, incarnation, incarnation), joins=(config.lease, before))
        format_, oldest, shard, mine, others, leases, gone = row
        self._refuse_others(format_, oldest)
        if shard is None:
            return Joined(False, (), ())
        self.shard = shard
        return Joined(True, {bytes(uuid) for uuid in mine}, _silent(others, leases), gone)

    def renew(
        self,
        incarnation: int,
        silent: Sequence[Silent],
        facts: NodeFacts,
        config: LeaseConfig,
        abandoned: Sequence[int] = (),
    ) -> Renewed:
        self._patience = config.renew
        ended, leases = [one.incarnation for one in silent], [one.lease_until for one in silent]
        given = _services(facts.services), list(facts.endpoints), facts.access, config.lease, incarnation
        others_ended = numbers(ended), numbers(leases), numbers(abandoned)
        row = self._ask(_RENEW, (*given, *others_ended, incarnation, incarnation))
        format_, oldest, draining, others, leases, gone = row
        self._refuse_others(format_, oldest)
        self.lapses_at = time.monotonic() + config.lease if others else math.inf
        with contextlib.suppress(StoreError):  # the lease is renewed; this is tried again with the next renewal
            self._ask(_END_STALLED, (max(STALLED, config.lease),))
        return Renewed(draining is not None, bool(draining), _silent(others, leases), gone)

    def leave(self, incarnations: Sequence[int]) -> None:
        self._ask(_LEAVE, (numbers(incarnations),))
        self._joined.difference_update(incarnations)

    def end(self) -> None:
        """What was joined is over, and so is the connection."""
        if self._joined:
            with contextlib.suppress(StoreError):  # others see it when they have not heard of it for a lease
                self.leave(list(self._joined))
        if self._pool is not None:
            self._pool.close()

    def _ask(self, text: str, given: Sequence[object], *, joins: tuple[float, int | None] | None = None) -> Row:
        """Execute a statement as a transaction of its own, which ends although this process stands still meanwhile.
        Returns its first row. `joins`: the lease of a node that joins, and its incarnation before."""
        if self._pool is None:
            self._pool = ConnectionPool(self._url, self._durability, patience=self._patience, outage=self._outage)
        try:
            with self._pool.borrow() as connection, connection.transaction() if joins else contextlib.nullcontext():
                if joins is not None:
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
                    if (other := connection.execute(_OTHER_LEASE, joins).fetchone()) is not None:
                        what = "the lease differs from that of the other nodes"
                        fact = f"it is {joins[0]:g} s here and {other[1]:g} s at {other[0]}"
                        raise OtherLease(what, fact, "use the same on all; to change it, stop all first")
                found = connection.execute(text, given, binary=True)
                row = (found.fetchone() or ()) if found.description else ()
        except StoreError:
            if time.monotonic() > self.lapses_at:  # what waits for an answer here can go on at another node
                self._suspect(self._patience)
            raise
        if self._pool.guard.has_cut:
            self._pool.guard.has_cut = False
            self._suspect(self._patience)
        return row

    def _refuse_others(self, format_: int, oldest: int) -> None:
        assert self._pool is not None
        schema.refuse_others(format_, oldest, self._pool.place)


def forget_dead(pool: ConnectionPool) -> None:
    """Remove the rows of nodes that ended long ago, and of services, of which no request is left.

    Raises StoreFailed and the like."""
    with pool.borrow() as connection:
        connection.execute(_COUNT_NO_MORE)
        connection.execute(_NOTE_END)
        connection.execute(_FORGET_DEAD)
        connection.execute(_FORGET_LOADS)


def places_of(held: Sequence[Place]) -> tuple[Raw, Raw, Raw]:
    """For `unnest(%s::bytea[], %s::bigint[], %s::uuid[])`."""
    services, ranks, uuids = zip(*held, strict=True) if held else ((), (), ())
    return texts(services), numbers(ranks), ids(uuids)


def _services(services: Mapping[bytes, tuple[int, int]]) -> str:
    return json.dumps({name.decode(errors="replace").replace("\0", "�"): counts for name, counts in services.items()})


def _silent(incarnations: Sequence[int], leases: Sequence[int]) -> list[Silent]:
    return [Silent(*one) for one in zip(incarnations, leases, strict=True)]


# -- node rows -------------------------------------------------------------------------------------------------


_COLUMNS = """n.incarnation, n.name, n.version, n.endpoints, (extract(epoch FROM n.started_at) * 1000000)::bigint,
CASE WHEN n.lease_until > '-infinity' THEN extract(epoch FROM n.lease_until - clock_timestamp())::float8 END,
n.services, n.draining, n.shard, n.access"""

_NODES = f"""
SELECT {_COLUMNS}, NULL::bigint FROM titanic.node AS n
WHERE n.lease_until > '-infinity' ORDER BY n.name, n.started_at, n.incarnation"""

_NODES_AND_CLAIMS = f"""
WITH held AS (
    SELECT incarnation, count(*) AS claims FROM titanic.ready WHERE incarnation IS NOT NULL GROUP BY incarnation
)
SELECT {_COLUMNS}, coalesce(h.claims, 0) FROM titanic.node AS n LEFT JOIN held AS h ON h.incarnation = n.incarnation
WHERE n.lease_until > '-infinity' OR h.claims > 0 OR (
    n.endpoints <> '{{}}' AND coalesce(n.ended_at, now()) > now() - interval '1 hour' AND NOT EXISTS (
        SELECT FROM titanic.node AS o WHERE o.name = n.name AND o.started_at > n.started_at))
ORDER BY n.name, n.started_at, n.incarnation"""
"""A node that ended without leaving stays for one or two hours (`ended_at` is noted once an hour), or until one of its
name has joined."""

_DRAIN = """
UPDATE titanic.node SET draining = true WHERE incarnation = ANY(%s::bigint[]) AND lease_until > '-infinity'
RETURNING incarnation
"""


def nodes(tx: SnapshotReader) -> list[NodeRow]:
    return [_node(*row) for row in tx.fetch(_NODES)]


def nodes_and_claims(tx: SnapshotReader) -> list[NodeRow]:
    return [_node(*row) for row in tx.fetch(_NODES_AND_CLAIMS)]


def drain_nodes(tx: PostgresWriting, incarnations: Collection[int]) -> None:
    """Have these end. Raises WriteConflict if one has ended, or joined again, since it was read."""
    if len(tx.fetch(_DRAIN, numbers(list(incarnations)))) < len(incarnations):
        raise WriteConflict(
            "a node ended or joined again while it was to be drained", "its incarnation is over", "try again"
        )


def _node(number: int, name: str, version: str, endpoints: list[str], started_at: int, *more: Any) -> NodeRow:
    lease, services, draining, shard, access, claims = more
    counts = {service: (workers, running) for service, (workers, running) in services.items()}
    return NodeRow(number, name, version, endpoints, started_at, lease, counts, draining, shard, claims, access)


# -- sharing ---------------------------------------------------------------------------------------------------


CLAIMED = f"""(q.incarnation IS NOT NULL AND NOT EXISTS (
    SELECT FROM titanic.node n WHERE n.incarnation = q.incarnation AND {OVER.format("q")}))"""
"""Of a row `q` of `ready`: it is not FREE."""

_ENDED = """
SELECT w.uuid FROM unnest(%s::uuid[]) AS w (uuid)
WHERE NOT EXISTS (SELECT FROM titanic.request AS r WHERE r.uuid = w.uuid)
    OR EXISTS (SELECT FROM titanic.reply AS p WHERE p.uuid = w.uuid)"""

_CLOSED = """
SELECT w.uuid FROM unnest(%s::uuid[]) AS w (uuid)
WHERE NOT EXISTS (SELECT FROM titanic.request AS r WHERE r.uuid = w.uuid)"""

_LIVES = "EXISTS (SELECT FROM titanic.node AS n WHERE n.incarnation = c.incarnation AND n.lease_until > '-infinity')"

_RECALLS = f"SELECT c.uuid, c.incarnation, NOT {_LIVES} FROM titanic.recall AS c"
_RECALLS_OF = f"{_RECALLS} WHERE c.incarnation = ANY(%s::bigint[])"
_RECALLED = f"{_RECALLS} WHERE c.uuid = ANY(%s::uuid[])"

_OTHER_NODES = """
SELECT count(*), count(*) FILTER (WHERE name IN (
    SELECT name FROM titanic.node WHERE incarnation = ANY(%s::bigint[]) AND lease_until > '-infinity'))
FROM titanic.node WHERE lease_until > '-infinity' AND incarnation <> ALL(%s::bigint[])"""

_CLAIMED = f"""
SELECT r.uuid FROM unnest(%s::uuid[]) AS w (uuid) JOIN titanic.request AS r ON r.uuid = w.uuid
JOIN titanic.ready AS q ON q.service = r.service AND q.rank = 9 - r.priority AND q.uuid = r.uuid
WHERE {CLAIMED}"""

_CLAIM = f"""
SELECT n.incarnation, n.name,
    CASE WHEN n.lease_until > '-infinity' THEN extract(epoch FROM n.lease_until - clock_timestamp())::float8 END,
    n.lease
FROM titanic.request AS r
JOIN titanic.ready AS q ON q.service = r.service AND q.rank = 9 - r.priority AND q.uuid = r.uuid
JOIN titanic.node AS n ON n.incarnation = q.incarnation
WHERE r.uuid = %s::uuid AND {CLAIMED}"""

_SETTLE = f"""
DELETE FROM recall AS c USING unnest(%s::uuid[], %s::bigint[]) AS given (uuid, incarnation)
WHERE (c.uuid = given.uuid AND c.incarnation = given.incarnation)
    OR (c.since < now() - interval '1 hour' AND NOT {_LIVES})"""
# The second condition: the node that left it may have ended, too, and then no other node removes it.


def cluster_view(tx: SnapshotReader, question: StatusQuery) -> ClusterView:
    own = numbers(list(question.incarnations))
    ended, closed, recalls, recalled, ((others, namesakes),) = tx.fetch_all(
        Statement(_ENDED, (ids(list(question.awaited)),)),
        Statement(_CLOSED, (ids(list(question.flights)),)),
        Statement(_RECALLS_OF, (own,)),
        Statement(_RECALLED, (ids(list(question.recalled)),)),
        Statement(_OTHER_NODES, (own, own)),
    )
    return ClusterView(
        [uuid for (uuid,) in ended],
        [uuid for (uuid,) in closed],
        [Recall(*row) for row in recalls],
        [Recall(*row) for row in recalled],
        others,
        namesakes,
    )


def recalled(tx: SnapshotReader, uuids: Collection[bytes]) -> Sequence[Recall]:
    return [Recall(*row) for row in tx.fetch(_RECALLED, ids(list(uuids)))]


def running(tx: SnapshotReader, uuids: Collection[bytes]) -> set[bytes]:
    return {uuid for (uuid,) in tx.fetch(_CLAIMED, ids(list(uuids)))} if uuids else set()


def claim_of(tx: SnapshotReader, uuid: bytes) -> ClaimRow | None:
    for incarnation, name, left, lease in tx.fetch(_CLAIM, uuid.hex()):
        return ClaimRow(incarnation, name, left, 0.0 if left is None else max(0.0, lease - left))
    return None


def settle(tx: PostgresWriting, recalls: Iterable[tuple[bytes, int]]) -> None:
    if pairs := list(recalls):
        uuids, incarnations = zip(*pairs, strict=True)
        tx.fetch(_SETTLE, ids(uuids), numbers(incarnations))


def delivery_key(tx: SnapshotReader) -> bytes:
    (key,) = tx.fetch_row("SELECT delivery_key FROM titanic.meta")
    return bytes(key)


# -- service rows ----------------------------------------------------------------------------------------------


_ALL = "SELECT name, paused, on_end FROM titanic.service"
_SET = """
INSERT INTO titanic.service AS old (name, paused, on_end) VALUES (%s, %s, %s)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, on_end = excluded.on_end RETURNING 1"""
_FORGET = "DELETE FROM titanic.service WHERE name = %s RETURNING 1"


_LIMITS = "SELECT service, waiting, bytes, running, rate FROM titanic.service_limit"
_SET_LIMITS = """
INSERT INTO titanic.service_limit (service, waiting, bytes, running, rate)
SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[])
ON CONFLICT (service) DO UPDATE SET waiting = excluded.waiting, bytes = excluded.bytes, running = excluded.running,
    rate = excluded.rate"""
_AGREE = f"{_SET_LIMITS} WHERE NOT EXISTS (SELECT FROM titanic.node WHERE lease_until > clock_timestamp())"
_NO_LIMITS = "DELETE FROM titanic.service_limit WHERE service = ANY(%s::bytea[])"


def settings(tx: SnapshotReader) -> ServiceSettings:
    """What is set for services."""
    return {name: ServiceSetting(paused, on_end) for name, paused, on_end in tx.fetch(_ALL)}


def set_service(tx: PostgresWriting, service: bytes, setting: ServiceSetting) -> ServiceSettings:
    found = service_settings.changed(settings(tx), service, setting)
    if setting == NOTHING_SET:
        tx.fetch(_FORGET, service)
    else:
        tx.fetch(_SET, service, setting.paused, setting.on_end)
    return found


def service_limits(tx: SnapshotReader) -> dict[bytes, Limits]:
    return {service: Limits(*rest) for service, *rest in tx.fetch_once(_LIMITS)}


def agree_limits(tx: PostgresWriting, given: Mapping[bytes, Limits]) -> None:
    _set_limits(tx, _AGREE, given)


def change_limits(tx: PostgresWriting, changes: Mapping[bytes, Limits | None]) -> None:
    tx.fetch(_NO_LIMITS, texts([name for name, limits in changes.items() if limits is None]))
    _set_limits(tx, _SET_LIMITS, {name: limits for name, limits in changes.items() if limits is not None})


def _set_limits(tx: PostgresWriting, statement: str, given: Mapping[bytes, Limits]) -> None:
    if given:
        waiting, size, running, rate = zip(*given.values(), strict=True)
        tx.fetch(statement, texts([*given]), numbers(waiting), numbers(size), numbers(running), list(map(float, rate)))
