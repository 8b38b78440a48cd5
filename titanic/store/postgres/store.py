"""A persistent queue in a database of PostgreSQL, which several nodes may share.

The tables are in tables/schema.py. What makes the engine quick is that it says little: a batch of changes decides in
Python from what one statement has read (`foresee`), gathers its changes, and puts all of them with one statement that
takes arrays, in one message with COMMIT (transactions/writing.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from titanic.store.claiming import Joined, LeaseConfig, NodeFacts, Place, Renewed, Silent
from titanic.store.news import NewsLine
from titanic.store.postgres import opening
from titanic.store.postgres.caretaker import Caretaker
from titanic.store.postgres.connection import expect_durable
from titanic.store.postgres.nodes import Membership, forget_dead
from titanic.store.postgres.notify import PostgresNews
from titanic.store.postgres.partitions import Partitions
from titanic.store.postgres.pool import Outage, Pool
from titanic.store.postgres.queries import readers
from titanic.store.postgres.read_transaction import PostgresReadTransaction
from titanic.store.postgres.tables import expect_large_enough
from titanic.store.postgres.transaction import Settings
from titanic.store.postgres.write_transaction import PostgresWriteTransaction
from titanic.store.postgres.writing import WriterState
from titanic.store.records import Durability, StoreReader

FORGET_EVERY = 3600.0
"""Seconds between looks for rows of nodes that ended long ago."""

READERS_EVERY = 10.0
"""Seconds between looks for readers that take long."""


class PostgresStore:
    """A store in PostgreSQL (titanic/store/interface.py, titanic/store/claiming.py)."""

    remote = True
    batch = 1000

    def __init__(self, pool: Pool, settings: Settings, writer: WriterState, membership: Membership, made: bool) -> None:
        """`made`: whether this opening has made the tables."""
        self.place = pool.place
        self.now_us = pool.clock.now_us
        self.capacity = settings.capacity
        self.durability = settings.durability
        self.pool = pool
        self.settings = settings
        self.writer = writer
        self._membership = membership
        self._forget_at = time.monotonic() + FORGET_EVERY
        self._readers: list[StoreReader] = []
        self._readers_at = 0.0
        self.news: NewsLine | None = PostgresNews(pool)
        self._made = made
        self._partitions = Partitions(pool)
        self._looking_after = threading.Lock()
        self.caretaker: Caretaker | None = None

    @classmethod
    def open(
        cls,
        url: str,
        *,
        capacity: int | None = None,
        keep_closed: bool = True,
        closed_body_limit: int = 64 << 10,
        drop_unarchived: bool = False,
        durability: Durability = "synced",
    ) -> PostgresStore:
        """Open the store in a database, as `titanic.store.open_store` does. It makes its tables if there are none."""
        expect_durable(durability)
        if capacity is not None:
            expect_large_enough(capacity)
        outage = Outage()
        pool = Pool(url, durability, outage=outage)
        try:
            made = opening.prepare(pool)
            settings = Settings(0, keep_closed, closed_body_limit, drop_unarchived, durability)
            writer = opening.set_up(pool, settings, capacity)
            settings = settings._replace(capacity=writer.quota.capacity)
            store = cls(pool, settings, writer, Membership(url, durability, outage, pool.suspect), made)
        except BaseException:
            pool.close()
            raise
        store.caretaker = Caretaker([pool.look_at_clock, store.look_after])
        return store

    def read(self) -> PostgresReadTransaction:
        """A transaction that sees the store as it is now."""
        return PostgresReadTransaction(self.pool, self.settings)

    def write(self) -> PostgresWriteTransaction:
        """The one transaction of this process that can change the store."""
        return PostgresWriteTransaction(self.pool, self.settings, self.writer)

    @property
    def usable(self) -> bool:
        """Whether transactions can begin, as soon as the server is there."""
        return not self.pool.closed

    def sync(self) -> None:
        """Nothing: what commits wait for is PostgreSQL's business, and what `relaxed` leaves out it writes soon."""

    def join(
        self, incarnation: int, before: int | None, held: Sequence[Place], facts: NodeFacts, config: LeaseConfig
    ) -> Joined:
        """Begin an incarnation in place of the one before."""
        answer = self._membership.join(incarnation, before, held, facts, config)
        self.settings = self.settings._replace(shard=self._membership.shard, incarnation=incarnation)
        return answer

    def renew(self, incarnation: int, silent: Sequence[Silent], facts: NodeFacts, config: LeaseConfig) -> Renewed:
        """Begin the lease anew, and end the silent."""
        return self._membership.renew(incarnation, silent, facts, config)

    def leave(self, incarnations: Sequence[int]) -> None:
        """End them: what they have claimed is free."""
        self._membership.leave(incarnations)

    def look_after(self) -> None:
        """Do what is due of what a thread does by itself: make and drop partitions, forget nodes that ended long ago,
        look for readers. Raises StoreFailed and the like."""
        with self._looking_after:
            try:
                if time.monotonic() >= self._forget_at:
                    self._forget_at = time.monotonic() + FORGET_EVERY
                    forget_dead(self.pool)
                if time.monotonic() >= self._readers_at:
                    self._readers_at = time.monotonic() + READERS_EVERY
                    self._readers = readers(self.pool)
            finally:
                self._partitions.look_after()

    def reader_check(self) -> int:
        """None: a reader that was killed has lost its connection, and PostgreSQL ends its transaction."""
        return 0

    def readers(self) -> list[StoreReader]:
        """Transactions that take long, as they were when they were looked for last."""
        return self._readers

    def close(self) -> None:
        """Close the store; its transactions must have ended. Closing again does nothing."""
        if self.news is not None:
            self.news.stop()
        if self.caretaker is not None:
            self.caretaker.stop()
        self._membership.end()
        self.pool.close()

    def discard(self) -> None:
        """Close the store. If this opening has made it, and nothing was ever kept in it, it goes."""
        if self.news is not None:
            self.news.stop()
        if self.caretaker is not None:
            self.caretaker.stop()
        self._membership.end()
        if self._made and self.usable:
            opening.remove_untouched(self.pool)
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
