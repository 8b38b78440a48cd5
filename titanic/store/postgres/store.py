"""A thread of the store's own for what must be done now and then, whatever its user does: partitions, dead nodes.

Opening a store: reach the database, see that it is safe, and make its tables or bring them to today's format.

The read side of the engine as titanic/store/interface.py has it.

The write side of the engine as titanic/store/interface.py has it.

A persistent queue in a database of PostgreSQL, which several nodes may share.

The tables are in schema.py. What makes the engine quick is that it says little: a batch of changes decides in
Python from what one statement has read (`prefetch`), gathers its changes, and puts all of them with one statement that
takes arrays, in one message with COMMIT (writing.py).

A store can be opened read-only, also while nodes use it, and on a standby too: then nothing is made or changed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, Self, Unpack

import psycopg

from titanic.errors import NotAStore, StoreError, StoreFailed, StoreReadOnly, StoreTooNew, StoreTooOld, StoreUnwritable
from titanic.store.cluster import Joined, LeaseConfig, NodeFacts, NotificationChannel, Place, Renewed, Silent
from titanic.store.postgres import accept as accept_module
from titanic.store.postgres import claims, closed, lifecycle, nodes, queries, schema
from titanic.store.postgres import closed as closed_module
from titanic.store.postgres import lifecycle as lifecycle_module
from titanic.store.postgres import nodes as nodes_module
from titanic.store.postgres.connection_pool import ConnectionPool, Outage
from titanic.store.postgres.database_session import (
    DatabaseSession,
    Unsafe,
    advice,
    expect_durable,
    is_disk_full,
    reason_of,
    translate,
    warn,
)
from titanic.store.postgres.nodes import Membership, forget_dead
from titanic.store.postgres.notify import PostgresNotifications
from titanic.store.postgres.partitions import Partitions
from titanic.store.postgres.queries import readers
from titanic.store.postgres.rows import expect_large_enough
from titanic.store.postgres.schema import FORMAT, META, formats
from titanic.store.postgres.transaction import PostgresSettings, SnapshotReader
from titanic.store.postgres.writing import PostgresWriting, WriterState
from titanic.store.records import StoreOptions, StoreReader, StoreSettings
from titanic.store.rules import FACTS_ROOM
from titanic.util.ids import IdMaker

EVERY = 1.0
"""Seconds from one round to the next."""

_PATIENCE = 2.0
"""Seconds that `stop` gives a round under way."""


class Caretaker:
    """Calls functions. While the database is away they fail, which others report."""

    def __init__(self, chores: Sequence[Callable[[], None]]) -> None:
        self._chores = chores
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-caretaker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Do nothing more."""
        self._ended.set()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while not self._ended.wait(EVERY):
            for chore in self._chores:
                with contextlib.suppress(StoreError):
                    chore()


# -- opening ---------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_STATE = "SELECT capacity, (SELECT coalesce(sum(used), 0)::bigint FROM usage) FROM meta"


def reach(pool: ConnectionPool) -> DatabaseSession:
    """The first connection. Raises StoreUnwritable."""
    try:
        return pool.take()
    except StoreFailed as error:
        what = f"the store in {pool.place} can't be opened"
        cause = error.__cause__
        todo = cause.advice if isinstance(cause, Unsafe) else _advice(error.fact)
        raise StoreUnwritable(what, error.fact, todo) from error


def _advice(fact: str) -> str:
    """What to do about what libpq says of a connection that could not be made."""
    if "database" in fact and "does not exist" in fact:
        return "create it with createdb, or correct the URL"
    return advice(fact, "start PostgreSQL, or correct the URL")


def prepare(pool: ConnectionPool) -> bool:
    """Have the tables as they must be. True when they were made now. Raises StoreUnwritable, StoreTooNew, NotAStore."""
    session = reach(pool)
    try:
        made = schema.prepare(session.connection, pool.place)
    except psycopg.Error as error:
        what = f"the store in {pool.place} can't be written"
        todo = "free some disk space" if is_disk_full(error) else "grant its user CREATE on the database"
        raise StoreUnwritable(what, reason_of(error), advice(reason_of(error), todo)) from error
    finally:
        pool.drop(session)  # what it knows of the database may be from before the tables were made
    warn(session, pool.durability, pool.place)
    return made


def set_up(pool: ConnectionPool, settings: PostgresSettings, capacity: int | None) -> WriterState:
    """Note the capacity, if one is given, and have a row for this node's counters. Returns what the first write
    transaction is to know."""
    session = pool.take()
    connection = session.connection
    try:
        with connection.pipeline():
            if capacity is not None:
                connection.execute("UPDATE meta SET capacity = %s WHERE capacity <> %s", [capacity, capacity])
            connection.execute("INSERT INTO usage (shard) VALUES (%s) ON CONFLICT DO NOTHING", [settings.shard])
            of_meta = connection.execute(_STATE)
            last = connection.execute("SELECT uuid FROM request ORDER BY uuid DESC LIMIT 1", binary=True)
        row, newest = of_meta.fetchone(), last.fetchone()
        assert row is not None
        return WriterState(IdMaker(newest[0] if newest else None), *row)
    except psycopg.Error as error:
        what = f"the store in {pool.place} can't be opened"
        todo = "free some disk space" if is_disk_full(error) else "check the log of PostgreSQL"
        raise StoreUnwritable(what, reason_of(error), advice(reason_of(error), todo)) from error
    finally:
        pool.give(session)


def remove_untouched(pool: ConnectionPool) -> None:
    """Drop the tables if nothing was ever stored in them, and no other process uses them."""
    session = pool.take()
    try:
        schema.remove_untouched(session.connection)
    except psycopg.Error as error:
        log.warning("cannot drop the empty tables in %s: %s", pool.place, reason_of(error))
    finally:
        pool.drop(session)


# -- read transaction ------------------------------------------------------------------------------------------


class PostgresReadTransaction(SnapshotReader):
    """The store as it was at the first thing that was asked of it. What is deleted meanwhile keeps its room: keep it
    short."""

    request = queries.request
    reply = queries.reply
    describe = queries.describe
    owner = queries.owner
    holders = queries.holders
    next_ready = queries.next_ready
    ahead_of = queries.ahead_of
    next_due = queries.next_due
    queues = queries.queues
    select = queries.select
    request_ids = queries.request_ids
    unended = queries.unended
    list_running = queries.list_running
    running = nodes_module.running
    claim_of = nodes_module.claim_of
    recalled = nodes_module.recalled
    cluster_view = nodes_module.cluster_view
    load = queries.load
    counts = queries.counts
    space = queries.space
    room_left = queries.room_left
    identity = queries.identity
    closed_bulk = closed_module.closed_bulk
    cut_closed = closed_module.cut_closed
    archive = closed_module.archive
    service_settings = nodes_module.settings
    service_limits = nodes_module.service_limits
    nodes = nodes_module.nodes
    nodes_and_claims = nodes_module.nodes_and_claims
    delivery_key = nodes_module.delivery_key
    facts = queries.facts
    facts_bytes = queries.facts_bytes


# -- write transaction -----------------------------------------------------------------------------------------


class PostgresWriteTransaction(PostgresWriting, PostgresReadTransaction):
    """All of the changes made in it, committed when the `with` block ends, or none. A process has one at a time."""

    accept = accept_module.accept
    fresh = accept_module.fresh
    forget = accept_module.forget
    finish = lifecycle.finish
    postpone = lifecycle.postpone
    promote = lifecycle.promote
    expire = lifecycle.expire
    retry = lifecycle.retry
    change = lifecycle.change
    close = lifecycle_module.close
    trim = lifecycle_module.trim
    clamp_timers = lifecycle_module.clamp_timers
    claim = claims.claim
    release = claims.release
    count_no_more = claims.count_no_more
    keep = claims.keep
    take_over = claims.take_over
    under = claims.under
    settle = nodes.settle
    archive = closed.current_archive
    drain_nodes = nodes.drain_nodes
    update_archive = closed.update_archive
    set_service = nodes.set_service
    agree_limits = nodes.agree_limits
    change_limits = nodes.change_limits
    put_facts = accept_module.put_facts


# -- store -----------------------------------------------------------------------------------------------------


FORGET_EVERY = 3600.0
"""Seconds between searches for rows of nodes that ended long ago."""

READERS_EVERY = 10.0
"""Seconds between searches for slow readers."""


class PostgresStore:
    """A store in PostgreSQL (titanic/store/interface.py, titanic/store/cluster.py)."""

    remote = True
    batch = 1000
    facts_room = FACTS_ROOM

    def __init__(
        self, pool: ConnectionPool, settings: PostgresSettings, writer: WriterState, membership: Membership, made: bool
    ) -> None:
        """`made`: whether this opening has made the tables."""
        self.place = pool.place
        self.now_us = pool.clock.now_us
        self.capacity = settings.capacity
        self.durability = settings.durability
        self.pool = pool
        self.settings = settings
        self.writer = writer
        self.membership = membership
        self._forget_at = time.monotonic() + FORGET_EVERY
        self._readers: list[StoreReader] = []
        self._readers_at = 0.0
        self.notifications: NotificationChannel | None = PostgresNotifications(pool)
        self._made = made
        self._partitions = Partitions(pool)
        self._maintenance = threading.Lock()
        self.caretaker: Caretaker | None = None

    @classmethod
    def open(
        cls,
        url: str,
        *,
        capacity: int | None = None,
        **given: Unpack[StoreOptions],
    ) -> PostgresStore:
        """Open the store in a database, as `titanic.store.open_store` does. It makes its tables if there are none."""
        own = StoreSettings(**given)
        expect_durable(own.durability)
        if capacity is not None:
            expect_large_enough(capacity)
        outage = Outage()
        pool = ConnectionPool(url, own.durability, outage=outage)
        try:
            made = prepare(pool)
            settings = PostgresSettings(0, *own)
            writer = set_up(pool, settings, capacity)
            settings = settings._replace(capacity=writer.quota.capacity)
            store = cls(pool, settings, writer, Membership(url, own.durability, outage, pool.suspect), made)
        except BaseException:
            pool.close()
            raise
        store.caretaker = Caretaker([pool.look_at_clock, store.look_after])
        return store

    def read(self) -> PostgresReadTransaction:
        return PostgresReadTransaction(self.pool, self.settings)

    def write(self) -> PostgresWriteTransaction:
        return PostgresWriteTransaction(self.pool, self.settings, self.writer)

    @property
    def usable(self) -> bool:
        return not self.pool.closed

    def sync(self) -> None:
        """Nothing: what commits wait for is PostgreSQL's business, and what `relaxed` leaves out it writes soon."""

    def join(
        self, incarnation: int, before: int | None, held: Sequence[Place], facts: NodeFacts, config: LeaseConfig
    ) -> Joined:
        answer = self.membership.join(incarnation, before, held, facts, config)
        self.settings = self.settings._replace(shard=self.membership.shard, incarnation=incarnation)
        return answer

    def renew(
        self,
        incarnation: int,
        silent: Sequence[Silent],
        facts: NodeFacts,
        config: LeaseConfig,
        abandoned: Sequence[int] = (),
    ) -> Renewed:
        return self.membership.renew(incarnation, silent, facts, config, abandoned)

    def leave(self, incarnations: Sequence[int]) -> None:
        self.membership.leave(incarnations)

    def look_after(self) -> None:
        """Do the periodic maintenance that is due: make and drop partitions, forget nodes that ended long ago, search
        for slow readers. Raises StoreFailed and the like."""
        with self._maintenance:
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

    @property
    def backed_up_at(self) -> float | None:
        return None

    def readers(self) -> list[StoreReader]:
        return self._readers

    def close(self) -> None:
        self._end_threads()
        self.pool.close()

    def discard(self) -> None:
        self._end_threads()
        if self._made and self.usable:
            remove_untouched(self.pool)
        self.close()

    def _end_threads(self) -> None:
        if self.notifications is not None:
            self.notifications.stop()
        if self.caretaker is not None:
            self.caretaker.stop()
        self.membership.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- read only -------------------------------------------------------------------------------------------------


class ReadOnlyPostgresStore(PostgresStore):
    """`PostgresStore`, for reading."""

    @classmethod
    def open_read_only(cls, url: str) -> Self:
        """Open the store in a database for reading. Raises NotAStore, StoreUnwritable, StoreTooNew or StoreTooOld."""
        pool = ConnectionPool(url, None, target="any")
        try:
            capacity = _read_capacity(pool)
            writer, membership = WriterState(IdMaker(None), capacity, 0), Membership(url, None, Outage(), pool.suspect)
            return cls(pool, PostgresSettings(capacity), writer, membership, False)
        except BaseException:
            pool.close()
            raise

    def write(self) -> NoReturn:
        what = f"the store in {self.place} can't be changed"
        raise StoreReadOnly(what, "it was opened for reading", "open it for writing")

    def sync(self) -> None:
        """Nothing."""


def _read_capacity(pool: ConnectionPool) -> int:
    """The store's capacity."""
    session = reach(pool)
    connection = session.connection
    try:
        there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [META]).fetchone()
        found = formats(connection, pool.place) if there == (True,) else None
        row = connection.execute(f"SELECT capacity FROM {META}").fetchone() if found is not None else None
    except psycopg.Error as error:
        pool.drop(session)
        raise translate(error, pool.place) from error
    except BaseException:
        pool.drop(session)
        raise
    pool.give(session)
    if row is None or found is None:
        raise NotAStore(f"there is no store in {pool.place}", f"it has no table {META}", "name another database")
    format_, oldest = found
    what, fact = f"the store in {pool.place} can't be read", f"it has format {format_}, this version reads {FORMAT}"
    if oldest > FORMAT:
        raise StoreTooNew(what, fact, "use the version of Titanic that wrote it")
    if format_ < FORMAT:
        raise StoreTooOld(what, fact, "open it for writing once")
    return int(row[0])
