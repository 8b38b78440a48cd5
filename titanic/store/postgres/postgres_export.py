"""A store in PostgreSQL as it is read out (titanic/store/moving.py): by COPY, a row at a time, from one moment.

A store in PostgreSQL that is made of another one (titanic/store/moving.py): by COPY, in portions.

Its table `meta` is called `unfinished_migration` until all is there and compared: without `meta` there is no store.

A database in which stores are made to be measured, one after the other, and removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self
from uuid import UUID

import psycopg
from psycopg import errors
from psycopg.errors import InsufficientPrivilege

from titanic.errors import NotAStore, StoreCorrupt, StoreLocked, StoreUnwritable
from titanic.store.moving import (
    PORTION,
    PORTION_BYTES,
    Progress,
    StoredClosing,
    StoredKey,
    StoredLife,
    StoreHead,
    Totals,
    life_of,
)
from titanic.store.postgres.changes import LOADS
from titanic.store.postgres.closed import READ_COLUMNS, decoded
from titanic.store.postgres.database_session import Unsafe, advice, connect, parse, place_of, reason_of, translate
from titanic.store.postgres.partitions import AHEAD, PARTITION, make_partition
from titanic.store.postgres.queries import expect_frames
from titanic.store.postgres.rows import CLOSED, CLOSED_COLUMNS, REQUEST_COLUMNS, binary_types, divide, listed
from titanic.store.postgres.schema import META, TABLES, UNFINISHED, prepare
from titanic.store.postgres.tools import USAGE, check_all
from titanic.store.postgres.transaction import REQUEST_SIZE, Row
from titanic.store.records import ArchiveState, Archivist, Outcome
from titanic.store.request import ClosedRequest, StoredRequest, lasting_texts, lasting_values, values_of
from titanic.store.rules import LATEST, body_until, kept_until
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
_GIVEN = len(REQUEST_COLUMNS)
_REQUESTS = (
    f"""
    SELECT {listed(REQUEST_COLUMNS, "r")}, w.uuid IS NOT NULL, coalesce(l.due, 0),
        coalesce(w.expires_at, l.expires_at, 0), coalesce(w.attempts, l.attempts, p.attempts, 0),
        coalesce(w.dispatched_at, l.dispatched_at, p.dispatched_at, 0), coalesce(w.reason, l.reason, p.reason, ''),
        p.status::integer, p.finished_at, coalesce(w.deliveries, l.deliveries, 0), p.frames, p.frames_count,
        p.frames_bytes
    FROM titanic.request r
    LEFT JOIN titanic.ready w ON w.service = r.service AND w.rank = 9 - r.priority AND w.uuid = r.uuid
    LEFT JOIN titanic.later l ON l.uuid = r.uuid LEFT JOIN titanic.reply p ON p.uuid = r.uuid
    ORDER BY r.uuid""",
    binary_types(REQUEST_COLUMNS) + " bool int8 int8 int4 int8 bytea int4 int8 int4 bytea[] int4 int8",
)
_KEYS = ("SELECT owner, key, until, given, uuids FROM titanic.key", "bytea bytea int8 int8 uuid[]")
_CLOSED = (
    f"""
    SELECT {listed(READ_COLUMNS)}, request, reply
    FROM titanic.closed WHERE seq >= (SELECT closed_first FROM {{meta}}) ORDER BY seq""",
    binary_types(READ_COLUMNS) + " bytea[] bytea[]",
)
_FACTS = ("SELECT key, value FROM titanic.facts ORDER BY key", "bytea bytea")
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
        self.head = StoreHead(identity, capacity, ArchiveState(registered, upto, first, last, lost, known), found)
        self.totals = Totals(*totals)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def requests(self) -> Iterator[list[StoredLife]]:
        return ([self._life(row) for row in rows] for rows in self._portions(*_REQUESTS))

    def idempotency_keys(self) -> Iterator[list[StoredKey]]:
        return ([StoredKey(*row) for row in rows] for rows in self._portions(*_KEYS))

    def closed(self) -> Iterator[list[StoredClosing]]:
        return ([StoredClosing(*decoded(row)) for row in rows] for rows in self._portions(*_CLOSED))

    def facts(self) -> Iterator[list[tuple[bytes, bytes]]]:
        return ([(key, value) for key, value in rows] for rows in self._portions(*_FACTS))

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
        *given, body, frames, size = row[:_GIVEN]
        waits, due, expires_at, attempts, dispatched_at, reason, status, finished_at, deliveries, reply, *reply_size = (
            row[_GIVEN:]
        )
        request = StoredRequest(*given, body=body)
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
        raise NotAStore(f"the database {place} has no store", "it has no tables of Titanic", "name another one")
    deadline = time.monotonic() + _PATIENCE
    while user := _user(connection):
        if time.monotonic() > deadline:
            advice = "stop the servers first; a killed one counts until its lease lapses, a few seconds"
            raise StoreLocked(f"the store {place} is in use", user, advice, pid=None)
        connection.execute("SELECT pg_sleep(0.05)")


def _user(connection: Connection) -> str:
    """The user of the store, for people; empty when it is not in use."""
    for query, text in ((_ALIVE, "its node {!r} is alive"), (_IN_USE, "a Titanic server is connected as process {}")):
        row = connection.execute(query).fetchone()
        if row is not None and row[0]:
            return text.format(row[0])
    return ""


def _lock(connection: Connection, place: str) -> None:
    """Lock the store against changes until the transaction ends."""
    try:
        connection.execute("LOCK TABLE titanic.meta, titanic.request, titanic.key IN SHARE MODE")
    except errors.LockNotAvailable as error:
        raise StoreLocked(
            f"the store {place} is in use", reason_of(error), "stop the servers first", pid=None
        ) from error


# -- moving in -------------------------------------------------------------------------------------------------


_LOCK = 0x7469_7461_6E69_6302
"""The advisory lock for creating a store."""

_TYPES = {
    "request": binary_types(REQUEST_COLUMNS),
    "ready": "bytea int2 uuid int4 int8 int8 bytea int4",
    "later": "uuid int8 int4 int8 int8 int2 bytea bytea int4",
    "expiring": "int8 uuid",
    "reply": "uuid int2 int4 int8 int8 int4 int8 bytea[] bytea bytea bytea int8 int8",
    "key": "bytea bytea int8 int8 uuid[]",
    "closed": binary_types(CLOSED_COLUMNS) + " bytea[] bytea[]",
    "facts": "bytea bytea",
}
_COLUMNS = {
    "request": listed(REQUEST_COLUMNS),
    "ready": "service, rank, uuid, attempts, dispatched_at, expires_at, reason, deliveries",
    "later": "uuid, due, attempts, dispatched_at, expires_at, priority, service, reason, deliveries",
    "expiring": "expires_at, uuid",
    "reply": "uuid, status, attempts, dispatched_at, finished_at, frames_count, frames_bytes, frames, reason, service,"
    " owner, until, body_until",
    "key": "owner, key, until, given, uuids",
    "closed": f"{listed(CLOSED_COLUMNS)}, request, reply",
    "facts": "key, value",
}
_INSERT_LOADS = f"""
    INSERT INTO titanic.load (kind, name, shard, waiting, bytes, ready)
    SELECT kind, name, 0, waiting, bytes, ready FROM ({LOADS}) one"""
_INSERT_USAGE = f"""
    INSERT INTO titanic.usage (shard, requests, waiting, delayed, replies, used)
    SELECT 0, one['requests']::bigint, one['waiting']::bigint, one['delayed']::bigint, one['replies']::bigint,
        one['used']::bigint
    FROM (SELECT jsonb_object_agg(what, found) AS one FROM ({USAGE.format(size=REQUEST_SIZE)}) all_of_them) found
    RETURNING used"""


class PostgresImport:
    """A store in the making, in a database that has none."""

    def __init__(self, url: str) -> None:
        """Raises NotAStore when there is a store, StoreLocked when another process creates one, StoreUnwritable."""
        self.place = place_of(url)
        self._url = url
        self._capacity = 0
        self._connection = connected(url)
        try:
            with translated(self.place):
                self._connection.execute("SET synchronous_commit = off")  # the last commit waits for all of them
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        connection = self._connection
        (mine,) = self._row("SELECT pg_try_advisory_lock(%s)", _LOCK)
        if not mine:
            fact, advice = "another migration is creating a store there", "wait until it has ended"
            raise StoreLocked(f"the database {self.place} is in use", fact, advice, pid=None)
        there, finished, unfinished = self._row(
            "SELECT to_regnamespace('titanic') IS NOT NULL, to_regclass(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL",
            META,
            UNFINISHED,
        )
        if finished:
            advice = "choose another database, or drop the schema 'titanic'"
            raise NotAStore(f"cannot write to {self.place}", "it already has a store", advice)
        if there and not unfinished:
            what = f"the database {self.place} has a schema 'titanic' that is not Titanic's"
            raise NotAStore(what, "it has no table 'meta'", "choose another database")
        try:
            with connection.transaction():
                if unfinished:
                    connection.execute("DROP SCHEMA titanic CASCADE")
                connection.execute(TABLES, prepare=False)
                self._rename(META, UNFINISHED)
        except InsufficientPrivilege as error:
            what, advice = f"the store in {self.place} can't be written", "grant its user CREATE on the database"
            raise StoreUnwritable(what, reason_of(error), advice) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _row(self, text: str, *parameters: object) -> Row:
        row: Row | None = self._connection.execute(text, parameters).fetchone()
        assert row is not None
        return row

    # -- putting in --------------------------------------------------------------------------------------------

    def put_head(self, head: StoreHead) -> None:
        archive, archivist = head.archive, head.archive.archivist
        self._capacity = head.capacity
        values = {
            "store_id": UUID(bytes=head.identity) if head.identity else None,
            "capacity": head.capacity,
            "registered": archive.registered,
            "archived_upto": archive.archived_upto,
            "closed_first": archive.first,
            "closed_last": archive.last,
            "lost": archive.lost,
            "archivist_id": UUID(bytes=archivist.id) if archivist else None,
            "archivist_name": archivist.name if archivist else "",
        }
        columns = ", ".join(f"{name} = coalesce(%({name})s, {name})" for name in values)
        last = (archive.last + 1) // PARTITION + AHEAD
        with translated(self.place), self._connection.transaction():
            self._connection.execute(f"UPDATE {UNFINISHED} SET {columns}", values)
            for name, one in head.settings.items():
                self._connection.execute(
                    "INSERT INTO titanic.service VALUES (%s, %s, %s)", (name, one.paused, one.on_end)
                )
            for number in range(archive.first // PARTITION, last + 1):
                make_partition(self._connection, number)

    def put_requests(self, lives: Sequence[StoredLife]) -> None:
        rows: dict[str, list[Row]] = {"request": [], "ready": [], "later": [], "expiring": [], "reply": []}
        for life in lives:
            self._place(life, rows)
        self._copy(rows)

    def put_keys(self, keys: Sequence[StoredKey]) -> None:
        self._copy({"key": [(*one[:2], *_times(one[2:4]), [UUID(bytes=uuid) for uuid in one.uuids]) for one in keys]})

    def put_closed(self, closings: Sequence[StoredClosing]) -> None:
        rows: list[Row] = []
        for one, request_frames, reply_frames in closings:
            error = one.error.encode()
            times = _times((one.dispatched_at, one.replied_at, one.closed_at))
            sizes = one.request_bytes, one.reply_bytes, _cost(one, error)
            how = one.attempts, request_frames, reply_frames, int(one.status), one.unclaimed, error
            request = None if one.request_left_out else one.request
            reply = None if one.reply_left_out else one.reply
            rows.append((one.sequence, *_values(lasting_values(one)), *times, *sizes, *how, request, reply))
        self._copy({"closed": rows})

    def put_facts(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        self._copy({"facts": [*rows]})

    def _place(self, life: StoredLife, rows: dict[str, list[Row]]) -> None:
        """The rows of a request."""
        one, outcome = life.request, life.outcome
        uuid = UUID(bytes=one.uuid)
        body = one.body, len(one.body), sum(map(len, one.body))
        rows["request"].append((*_values(values_of(one)), *body))
        if outcome is not None:
            how = int(outcome.status), outcome.attempts, *_times((outcome.dispatched_at, outcome.finished_at))
            frames = len(outcome.frames), sum(map(len, outcome.frames)), outcome.frames
            ended = one.options, outcome.status, outcome.finished_at
            until = kept_until(*ended), body_until(*ended) if body[1] else 0
            rows["reply"].append((uuid, *how, *frames, outcome.reason.encode(), one.service, one.owner, *until))
            return
        dispatched_at, expires_at, due = _times((life.dispatched_at, life.expires_at, life.due))
        tried = life.attempts, dispatched_at, expires_at
        if due:
            rows["later"].append((uuid, due, *tried, one.priority, one.service, life.reason.encode(), life.deliveries))
        else:
            rows["ready"].append((one.service, 9 - one.priority, uuid, *tried, life.reason.encode(), life.deliveries))
        if expires_at:
            rows["expiring"].append((expires_at, uuid))

    def _copy(self, tables: dict[str, list[Row]]) -> None:
        """Put rows into tables, all or none."""
        with translated(self.place), self._connection.transaction(), self._connection.cursor() as cursor:
            for table, rows in tables.items():
                if rows:
                    statement = f"COPY titanic.{table} ({_COLUMNS[table]}) FROM STDIN (FORMAT BINARY)"
                    with cursor.copy(statement) as copy:
                        copy.set_types(_TYPES[table].split())
                        for row in rows:
                            copy.write_row(row)

    # -- the end -----------------------------------------------------------------------------------------------

    def problems(self, progress: Progress) -> list[str]:
        """Count what is there, and check it."""
        with translated(self.place), self._connection.transaction():
            # Counting and checking need the table's right name. No other transaction sees the change.
            self._rename(UNFINISHED, META)
            self._connection.execute(_INSERT_LOADS)
            self._connection.execute("DELETE FROM titanic.usage")
            (used,) = self._row(_INSERT_USAGE)
            if divide(self._capacity).accept < used:  # the other engine counts other bytes
                self._connection.execute(f"UPDATE {META} SET capacity = %s", (used + used // 4,))
            found = check_all(self._fetch, lambda table, done, total: progress(f"checking {table}", done, total))
            self._rename(META, UNFINISHED)
        return [f"{one.where}: {one.what}" for one in found]

    def _fetch(self, query: str) -> list[Row]:
        return self._connection.execute(query).fetchall()

    def _rename(self, table: str, name: str) -> None:
        self._connection.execute(f"ALTER TABLE {table} RENAME TO {name.partition('.')[2]}")

    def read(self) -> PostgresExport:
        return PostgresExport(connected(self._url), self.place, UNFINISHED)

    def finish(self) -> None:
        with translated(self.place):
            self._connection.execute("ANALYZE")
            self._connection.execute("RESET synchronous_commit")
            self._rename(UNFINISHED, META)


def _times(values: Sequence[int]) -> list[int]:
    """What a column has room for."""
    return [min(value, LATEST) for value in values]


def _values(values: Sequence[Any]) -> list[Any]:
    """The values of a request's fields, of which the id is the first, as COPY takes them."""
    uuid, *others = values
    return [UUID(bytes=uuid), *(min(one, LATEST) if isinstance(one, int) else one for one in others)]


def _cost(one: ClosedRequest, error: bytes) -> int:
    """Bytes that a closed request counts."""
    texts = sum(map(len, lasting_texts(one)))
    return CLOSED + texts + len(error) + sum(map(len, (*one.request, *one.reply)))


# -- scratch ---------------------------------------------------------------------------------------------------


def expect_nothing(url: str) -> None:
    """Raise NotAStore when there is a schema `titanic` in the database, StoreUnwritable when it cannot be used."""
    place = place_of(url)
    with translated(place), connected(url) as connection:
        found = connection.execute("SELECT to_regnamespace('titanic') IS NOT NULL").fetchone()
    if found is None or found[0]:
        raise NotAStore(f"cannot write to {place}", "it has a schema 'titanic'", "choose another database")


def remove(url: str) -> None:
    """Remove the schema with all that is in it."""
    with translated(place_of(url)), connected(url) as connection:
        connection.execute("DROP SCHEMA IF EXISTS titanic CASCADE")
