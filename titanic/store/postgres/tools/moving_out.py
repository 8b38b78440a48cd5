"""A store in PostgreSQL as it is read out (titanic/store/moving.py): by COPY, a row at a time, from one moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import errors

from titanic.errors import NotAStore, StoreCorrupt, StoreLocked, StoreUnwritable
from titanic.store.moving import (
    PORTION,
    PORTION_BYTES,
    StoredClosing,
    StoredKey,
    StoredLife,
    StoreHead,
    Totals,
    life_of,
)
from titanic.store.postgres.closed import decoded
from titanic.store.postgres.connection import Unsafe, advice, connect, parse, place_of, reason_of, translate
from titanic.store.postgres.queries import expect_frames
from titanic.store.postgres.schema import META, prepare
from titanic.store.postgres.transaction import Row
from titanic.store.records import ArchiveState, Archivist, Outcome, StoredRequest
from titanic.store.service_settings import ServiceSetting
from titanic.store.states import Status

Connection = psycopg.Connection[Any]

_NAME = "titanic migrate"
_SETTINGS = {
    "statement_timeout": "0",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "0",
    "plan_cache_mode": "auto",  # here all of a table is read, and the sizes of tables are known
    "enable_seqscan": "on",
    "enable_hashjoin": "on",
    "enable_mergejoin": "on",
}
_PATIENCE = 3.0
"""Seconds that the last connections of a server that was stopped may take to go."""

_IN_USE = """
    SELECT coalesce(min(pid), 0) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'titanic' AND pid <> pg_backend_pid()"""
_ALIVE = "SELECT coalesce(min(name), '') FROM titanic.node WHERE lease_until > clock_timestamp()"
_HEAD = """
    SELECT store_id, capacity, registered, archived_upto, closed_first, closed_last, lost, archivist_id, archivist_name
    FROM {meta}"""
_SERVICES = "SELECT name, paused, on_end FROM titanic.service"
_TOTALS = """
    SELECT coalesce(sum(requests), 0)::bigint, (SELECT count(*) FROM titanic.key),
        (SELECT closed_last - closed_first + 1 FROM {meta})
    FROM titanic.usage"""
_REQUESTS = (
    """
    SELECT r.uuid, r.service, r.body, r.priority, r.submitted_at, r.not_before, r.expires_at, r.max_attempts,
        r.options, r.key, r.owner, r.body_frames, r.body_bytes, w.uuid IS NOT NULL, coalesce(l.due, 0),
        coalesce(w.expires_at, l.expires_at, 0), coalesce(w.attempts, l.attempts, p.attempts, 0),
        coalesce(w.dispatched_at, l.dispatched_at, p.dispatched_at, 0), coalesce(w.reason, l.reason, p.reason, ''),
        p.status::integer, p.finished_at, coalesce(w.deliveries, l.deliveries, 0), p.frames, p.frames_count,
        p.frames_bytes
    FROM titanic.request r
    LEFT JOIN titanic.ready w ON w.service = r.service AND w.rank = 9 - r.priority AND w.uuid = r.uuid
    LEFT JOIN titanic.later l ON l.uuid = r.uuid LEFT JOIN titanic.reply p ON p.uuid = r.uuid
    ORDER BY r.uuid""",
    "uuid bytea bytea[] int2 int8 int8 int8 int4 bytea bytea bytea int4 int8 bool int8 int8 int4 int8 bytea int4 int8"
    " int4 bytea[] int4 int8",
)
_KEYS = ("SELECT owner, key, until, given, uuids FROM titanic.key", "bytea bytea int8 int8 uuid[]")
_CLOSED = (
    """
    SELECT seq, uuid, service, key, status, attempts, submitted_at, dispatched_at, replied_at, closed_at, request,
        reply, error, priority, unclaimed, request_bytes, reply_bytes, owner, request_frames, reply_frames
    FROM titanic.closed WHERE seq >= (SELECT closed_first FROM {meta}) ORDER BY seq""",
    "int8 uuid bytea bytea int2 int4 int8 int8 int8 int8 bytea[] bytea[] bytea int2 bool int8 int8 bytea int4 int4",
)
_STATUS = {int(status): status for status in Status}


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Errors of PostgreSQL as those of a store."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, place) from error


def connected(url: str) -> Connection:
    """A connection for moving. Raises StoreUnwritable."""
    place = place_of(url)
    try:
        connection = connect(parse(url) | {"application_name": _NAME}, "synced").connection
        connection.execute("SELECT " + ", ".join(f"set_config('{k}', '{v}', false)" for k, v in _SETTINGS.items()))
    except psycopg.Error as error:
        what = f"the database {place} can't be reached"
        todo = advice(reason_of(error), "start PostgreSQL, or correct the URL")
        raise StoreUnwritable(what, reason_of(error), todo) from error
    except Unsafe as error:
        raise StoreUnwritable(f"the database {place} is not safe to use", error.fact, error.advice) from error
    return connection


class PostgresExport:
    """All of a store. Its tables can be read meanwhile, but not changed."""

    def __init__(self, connection: Connection, place: str, meta: str = META) -> None:
        """`meta` is what the table is called."""
        self._connection = connection
        self._meta = meta
        self.place = place

    @classmethod
    def open(cls, url: str) -> PostgresExport:
        """Raises NotAStore, StoreLocked when it is in use, StoreTooNew or StoreUnwritable."""
        place, connection = place_of(url), connected(url)
        try:
            with translated(place):
                _expect_unused(connection, place)
                prepare(connection, place)
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                _lock(connection, place)
        except BaseException:
            connection.close()
            raise
        return cls(connection, place)

    def __enter__(self) -> Self:
        with translated(self.place):
            row, totals = self._row(_HEAD), self._row(_TOTALS)
            settings = self._connection.execute(_SERVICES, binary=True).fetchall()
        found = {name: ServiceSetting(paused, on_end) for name, paused, on_end in settings}
        identity, capacity, registered, upto, first, last, lost, archivist, name = row
        known = None if archivist is None else Archivist(archivist, name)
        self.head = StoreHead(identity, capacity, ArchiveState(registered, upto, first, last, lost), known, found)
        self.totals = Totals(*totals)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def requests(self) -> Iterator[list[StoredLife]]:
        """All requests in the order of their ids."""
        return ([self._life(row) for row in rows] for rows in self._portions(*_REQUESTS))

    def idempotency_keys(self) -> Iterator[list[StoredKey]]:
        """All idempotency keys."""
        return ([StoredKey(*row) for row in rows] for rows in self._portions(*_KEYS))

    def closed(self) -> Iterator[list[StoredClosing]]:
        """All closed requests in the order of their numbers."""
        return ([StoredClosing(decoded(row), *row[-2:]) for row in rows] for rows in self._portions(*_CLOSED))

    def _row(self, query: str) -> Row:
        row: Row | None = self._connection.execute(query.format(meta=self._meta), binary=True).fetchone()
        if row is None:
            raise StoreCorrupt(f"the store {self.place} is damaged", f"{self._meta} is empty", "restore a backup")
        return row

    def _portions(self, query: str, types: str) -> Iterator[list[Row]]:
        portion: list[Row] = []
        size = 0
        with translated(self.place), self._connection.cursor() as cursor:
            whole = f"COPY ({query.format(meta=self._meta)}) TO STDOUT (FORMAT BINARY)"
            with cursor.copy(whole) as copy:
                copy.set_types(types.split())
                for row in copy.rows():
                    portion.append(row)
                    size += sum(len(frame) for column in row if isinstance(column, list) for frame in column)
                    if len(portion) >= PORTION or size >= PORTION_BYTES:
                        yield portion
                        portion, size = [], 0
        if portion:
            yield portion

    def _life(self, row: Row) -> StoredLife:
        *given, frames, size = row[:13]
        waits, due, expires_at, attempts, dispatched_at, reason, status, finished_at, deliveries, reply, *reply_size = (
            row[13:]
        )
        request = StoredRequest._make(given)
        uuid = request.uuid
        places = waits + bool(due) + (status is not None)
        if places != 1:
            fact = f"{uuid.hex()} is in {places} of ready, later and reply"
            raise StoreCorrupt(f"the store {self.place} is damaged", fact, "restore a backup, or close the request")
        expect_frames(uuid, "request", request.body, frames, size)
        why = bytes(reason).decode(errors="replace")
        if status is None:
            tried = {"attempts": attempts, "due": due, "dispatched_at": dispatched_at, "reason": why}
            return life_of(request, expires_at=expires_at, deliveries=deliveries, **tried)
        expect_frames(uuid, "reply", reply, *reply_size)
        outcome = Outcome(_STATUS[status], reply, why, attempts, dispatched_at, finished_at)
        return StoredLife(request, 0, 0, 0, 0, "", outcome)


def _expect_unused(connection: Connection, place: str) -> None:
    """Raise NotAStore when there is no store, StoreLocked when a server has it open."""
    row = connection.execute("SELECT to_regclass(%s) IS NULL", [META]).fetchone()
    if row is None or row[0]:
        raise NotAStore(f"the database {place} has no store", "it has no tables of Titanic", "look for another one")
    deadline = time.monotonic() + _PATIENCE
    while user := _user(connection):
        if time.monotonic() > deadline:
            advice = "stop the servers first; one that was killed counts until its lease is over, some seconds"
            raise StoreLocked(f"the store {place} is in use", user, advice, pid=None)
        connection.execute("SELECT pg_sleep(0.05)")


def _user(connection: Connection) -> str:
    """Who uses the store; empty when nobody does."""
    for query, who in ((_ALIVE, "its node {!r} is alive"), (_IN_USE, "a Titanic is connected as process {}")):
        row = connection.execute(query).fetchone()
        if row is not None and row[0]:
            return who.format(row[0])
    return ""


def _lock(connection: Connection, place: str) -> None:
    """Nobody can change the store until the transaction ends."""
    try:
        connection.execute("LOCK TABLE titanic.meta, titanic.request, titanic.key IN SHARE MODE")
    except errors.LockNotAvailable as error:
        raise StoreLocked(
            f"the store {place} is in use", reason_of(error), "stop the servers first", pid=None
        ) from error
