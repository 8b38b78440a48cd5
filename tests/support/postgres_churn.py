"""Many lives in PostgreSQL, and what its tables come to meanwhile: rows that are dead, bytes on the disk."""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Any, NamedTuple

from psycopg import Connection
from support.store_facts import accept_all

from titanic.store import LeaseConfig, NewRequest, NodeFacts, Retention, Status
from titanic.store.postgres.store import PostgresStore

_TABLES = """
    SELECT relname, n_dead_tup, n_live_tup, pg_total_relation_size(relid), pg_indexes_size(relid), n_tup_upd,
        n_tup_hot_upd, autovacuum_count
    FROM pg_stat_user_tables WHERE schemaname = 'titanic'"""

BATCH = 500
LIVE = 3_000
"""Requests that are there at a time."""
KEPT = 20_000_000
"""µs for which closed requests are remembered: so many lives of 100 µs each, two partitions."""


_ME = 1
"""The incarnation that claims."""


class Table(NamedTuple):
    name: str
    dead: int
    live: int
    size: int
    indexes: int
    updates: int
    hot: int
    vacuums: int


class Part(NamedTuple):
    """What there was after a part of the lives: of the tables, but for closed requests, which are in partitions."""

    tables: list[Table]
    partitions: list[Table]
    accepts: list[float]

    @property
    def dead(self) -> int:
        return sum(table.dead for table in self.tables)

    @property
    def size(self) -> int:
        return sum(table.size for table in self.tables)

    def quantile(self, percent: int) -> float:
        """Seconds to accept a batch."""
        return sorted(self.accepts)[len(self.accepts) * percent // 100]

    @property
    def p99(self) -> float:
        return self.quantile(99)


class Churn:
    """Requests that are accepted, claimed, executed, partly tried again, and closed, in batches and in disorder."""

    def __init__(self, store: PostgresStore, chance: random.Random) -> None:
        self._store = store
        self._chance = chance
        self._content = chance.randbytes(2000)
        self._ended: deque[bytes] = deque()
        self.now = 1_795_258_520_106_479
        self.passed = 0
        self._accepts: list[float] = []
        store.join(_ME, None, (), NodeFacts("churn", "", [], {}), LeaseConfig())

    def go_on(self, connection: Connection[Any], lives: int) -> Part:
        """Have so many more lives."""
        until = self.passed + lives
        while self.passed < until:
            self._turn()
        connection.execute("SELECT pg_stat_clear_snapshot()")
        rows = [Table(*row) for row in connection.execute(_TABLES).fetchall()]
        partitions = [table for table in rows if table.name.startswith("closed_")]
        accepts, self._accepts = self._accepts, []
        return Part([table for table in rows if table not in partitions], partitions, accepts)

    def _turn(self) -> None:
        self.now += 100 * BATCH
        self._accept()
        self._execute()
        if len(self._ended) > LIVE:
            self._close()
        with self._store.write() as transaction:
            transaction.promote(self.now)
            transaction.expire(self.now)
            transaction.trim(self.now, Retention(closed_retention=KEPT), limit=2 * BATCH)
        self._store.sync()

    def _accept(self) -> None:
        chance = self._chance
        new = [
            NewRequest(
                b"service %d" % chance.randrange(3),
                [self._content[: chance.randrange(300)]],
                chance.randrange(10),
                expires_at=self.now + 10_000_000 if not n % 5 else 0,
                key=chance.randbytes(12).hex().encode() if not n % 2 else b"",
                key_until=self.now + 1_000_000,
                owner=b"shop" if not n % 3 else b"",
            )
            for n in range(BATCH)
        ]
        begin = time.perf_counter()
        with self._store.write() as transaction:
            accept_all(transaction, new, self.now)
        self._accepts.append(time.perf_counter() - begin)

    def _execute(self) -> None:
        with self._store.write() as transaction:
            found = transaction.claim(_ME, {b"service %d" % n: BATCH for n in range(3)}, 64 << 20, {})
        assert found is not None
        uuids = [row.uuid for rows in found.rows.values() for row in rows]
        with self._store.write() as transaction:
            transaction.prefetch(uuids)
            for n, uuid in enumerate(uuids):
                times = {"attempts": 1, "dispatched_at": self.now}
                if not n % 10:
                    transaction.postpone(uuid, due=self.now + 200_000, reason="it failed", **times)
                else:
                    frames = [self._content[: self._chance.randrange(300)]]
                    transaction.finish(uuid, Status.DONE, frames, finished_at=self.now, **times)
                    self._ended.append(uuid)

    def _close(self) -> None:
        self._chance.shuffle(self._ended)
        uuids = [self._ended.popleft() for _ in range(len(self._ended) - LIVE)]
        with self._store.write() as transaction:
            transaction.prefetch(uuids)
            for uuid in uuids:
                transaction.close(uuid, self.now)
        self.passed += len(uuids)
