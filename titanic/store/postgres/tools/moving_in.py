"""A store in PostgreSQL that is made of another one (titanic/store/moving.py): by COPY, in portions.

Its table `meta` is called `unfinished_migration` until all is there and compared: without `meta` there is no store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from psycopg.errors import InsufficientPrivilege

from titanic.errors import NotAStore, StoreLocked, StoreUnwritable
from titanic.store.moving import Progress, StoredClosing, StoredKey, StoredLife, StoreHead
from titanic.store.postgres.connection import place_of, reason_of
from titanic.store.postgres.partitions import AHEAD, PARTITION, make_partition
from titanic.store.postgres.schema import META, TABLES, UNFINISHED
from titanic.store.postgres.tables import CLOSED, divide
from titanic.store.postgres.tools.check import look_through
from titanic.store.postgres.tools.counted import LOADS, USAGE
from titanic.store.postgres.tools.moving_out import PostgresExport, connected, translated
from titanic.store.postgres.transaction import REQUEST_SIZE, Row
from titanic.store.rules import LATEST

_LOCK = 0x7469_7461_6E69_6302
"""The advisory lock of who makes a store."""

_TYPES = {
    "request": "uuid bytea bytea[] int4 int8 int2 int8 int8 int8 int4 bytea bytea bytea",
    "ready": "bytea int2 uuid int4 int8 int8 bytea int4",
    "later": "uuid int8 int4 int8 int8 int2 bytea bytea int4",
    "expiring": "int8 uuid",
    "reply": "uuid int2 int4 int8 int8 int4 int8 bytea[] bytea bytea bytea",
    "key": "bytea bytea int8 int8 uuid[]",
    "closed": "int8 uuid int8 int8 int8 int8 int8 int8 int8 int4 int4 int4 int2 int2 bool bytea bytea bytea bytea"
    " bytea[] bytea[]",
}
_COLUMNS = {
    "request": "uuid, service, body, body_frames, body_bytes, priority, submitted_at, not_before, expires_at,"
    " max_attempts, options, key, owner",
    "ready": "service, rank, uuid, attempts, dispatched_at, expires_at, reason, deliveries",
    "later": "uuid, due, attempts, dispatched_at, expires_at, priority, service, reason, deliveries",
    "expiring": "expires_at, uuid",
    "reply": "uuid, status, attempts, dispatched_at, finished_at, frames_count, frames_bytes, frames, reason, service,"
    " owner",
    "key": "owner, key, until, given, uuids",
    "closed": "seq, uuid, submitted_at, dispatched_at, replied_at, closed_at, request_bytes, reply_bytes, cost,"
    " attempts, request_frames, reply_frames, status, priority, unclaimed, service, key, owner, error, request, reply",
}
_COUNT_LOADS = f"""
    INSERT INTO titanic.load (kind, name, shard, waiting, bytes, ready)
    SELECT kind, name, 0, waiting, bytes, ready FROM ({LOADS.format(size=REQUEST_SIZE)}) one"""
_COUNT_USAGE = f"""
    INSERT INTO titanic.usage (shard, requests, waiting, delayed, replies, used)
    SELECT 0, one['requests']::bigint, one['waiting']::bigint, one['delayed']::bigint, one['replies']::bigint,
        one['used']::bigint
    FROM (SELECT jsonb_object_agg(what, found) AS one FROM ({USAGE.format(size=REQUEST_SIZE)}) all_of_them) found
    RETURNING used"""


class PostgresImport:
    """A store in the making, in a database that has none."""

    def __init__(self, url: str) -> None:
        """Raises NotAStore when there is a store, StoreLocked when somebody else makes one, StoreUnwritable."""
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
            fact, advice = "another migration makes a store there", "let it end"
            raise StoreLocked(f"the database {self.place} is in use", fact, advice, pid=None)
        there, finished, begun = self._row(
            "SELECT to_regnamespace('titanic') IS NOT NULL, to_regclass(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL",
            META,
            UNFINISHED,
        )
        if finished:
            advice = "choose another database, or drop the schema 'titanic'"
            raise NotAStore(f"{self.place} is in the way", "there is a store already", advice)
        if there and not begun:
            what = f"the database {self.place} has a schema 'titanic' that is not Titanic's"
            raise NotAStore(what, "it has no table 'meta'", "choose another database")
        try:
            with connection.transaction():
                if begun:
                    connection.execute("DROP SCHEMA titanic CASCADE")
                connection.execute(TABLES, prepare=False)
                self._rename(META, UNFINISHED)
        except InsufficientPrivilege as error:
            what, advice = f"the store in {self.place} can't be written", "let its user create a schema in the database"
            raise StoreUnwritable(what, reason_of(error), advice) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def _row(self, text: str, *parameters: object) -> Row:
        row: Row | None = self._connection.execute(text, parameters).fetchone()
        assert row is not None
        return row

    # -- putting in --------------------------------------------------------------------------------------------

    def put_head(self, head: StoreHead) -> None:
        """What the store has once."""
        archive, archivist = head.archive, head.archivist
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
                self._connection.execute("INSERT INTO titanic.service VALUES (%s, %s, %s)", (name, *one))
            for number in range(archive.first // PARTITION, last + 1):
                make_partition(self._connection, number)

    def put_requests(self, lives: Sequence[StoredLife]) -> None:
        """Store these requests."""
        rows: dict[str, list[Row]] = {"request": [], "ready": [], "later": [], "expiring": [], "reply": []}
        for life in lives:
            self._place(life, rows)
        self._copy(rows)

    def put_keys(self, keys: Sequence[StoredKey]) -> None:
        """Store these idempotency keys."""
        self._copy({"key": [(*one[:2], *_times(one[2:4]), [UUID(bytes=uuid) for uuid in one.uuids]) for one in keys]})

    def put_closed(self, closings: Sequence[StoredClosing]) -> None:
        """Store these closed requests."""
        rows: list[Row] = []
        for one, request_frames, reply_frames in closings:
            error = one.error.encode()
            cost = CLOSED + sum(map(len, (one.service, one.key, one.owner, error)))
            cost += sum(map(len, (*one.request, *one.reply)))
            times = _times((one.submitted_at, one.dispatched_at, one.replied_at, one.closed_at))
            sizes = one.request_bytes, one.reply_bytes, cost
            how = one.attempts, request_frames, reply_frames, int(one.status), one.priority, one.unclaimed
            texts = one.service, one.key, one.owner, error
            request = None if one.request_left_out else one.request
            reply = None if one.reply_left_out else one.reply
            rows.append((one.sequence, UUID(bytes=one.uuid), *times, *sizes, *how, *texts, request, reply))
        self._copy({"closed": rows})

    def _place(self, life: StoredLife, rows: dict[str, list[Row]]) -> None:
        """The rows of a request."""
        one, outcome = life.request, life.outcome
        uuid = UUID(bytes=one.uuid)
        what = one.service, one.body, len(one.body), sum(map(len, one.body)), one.priority
        when = _times((one.submitted_at, one.not_before, one.expires_at))
        rows["request"].append((uuid, *what, *when, one.max_attempts, one.options, one.key, one.owner))
        if outcome is not None:
            how = int(outcome.status), outcome.attempts, *_times((outcome.dispatched_at, outcome.finished_at))
            frames = len(outcome.frames), sum(map(len, outcome.frames)), outcome.frames
            rows["reply"].append((uuid, *how, *frames, outcome.reason.encode(), one.service, one.owner))
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
                    _copy_rows(cursor, table, rows)

    # -- the end -----------------------------------------------------------------------------------------------

    def problems(self, tell: Progress) -> list[str]:
        """Count what is there, and check it."""
        with translated(self.place), self._connection.transaction():
            # What counts and checks knows the table by its right name. Nobody else sees that it has it.
            self._rename(UNFINISHED, META)
            self._connection.execute(_COUNT_LOADS)
            self._connection.execute("DELETE FROM titanic.usage")
            (used,) = self._row(_COUNT_USAGE)
            if divide(self._capacity).accept < used:  # the other engine counts other bytes
                self._connection.execute(f"UPDATE {META} SET capacity = %s", (used + used // 4,))
            found = look_through(self._fetch, lambda table, done, total: tell(f"checking {table}", done, total))
            self._rename(META, UNFINISHED)
        return [f"{one.where}: {one.what}" for one in found]

    def _fetch(self, query: str) -> list[Row]:
        return self._connection.execute(query).fetchall()

    def _rename(self, table: str, name: str) -> None:
        self._connection.execute(f"ALTER TABLE {table} RENAME TO {name.partition('.')[2]}")

    def read(self) -> PostgresExport:
        """What is in it now."""
        return PostgresExport(connected(self._url), self.place, UNFINISHED)

    def finish(self) -> None:
        """It is a store from now on."""
        with translated(self.place):
            self._connection.execute("ANALYZE")
            self._connection.execute("RESET synchronous_commit")
            self._rename(UNFINISHED, META)


def _times(values: Sequence[int]) -> list[int]:
    """What a column has room for."""
    return [min(value, LATEST) for value in values]


def _copy_rows(cursor: Any, table: str, rows: Iterable[Row]) -> None:
    with cursor.copy(f"COPY titanic.{table} ({_COLUMNS[table]}) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(_TYPES[table].split())
        for row in rows:
            copy.write_row(row)
