"""A store in PostgreSQL that is made of another one (titanic/store/moving.py): by COPY, in portions.

Its table `meta` is called `unfinished_migration` until all is there and compared: without `meta` there is no store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from titanic.errors import NotAStore, StoreLocked
from titanic.store.moving import Progress, StoredClosing, StoredKey, StoredLife, StoreHead
from titanic.store.postgres.capacity import CLOSED, KEY, REPLY, REQUEST, divide
from titanic.store.postgres.closed_partitions import AHEAD, PARTITION, make_partition
from titanic.store.postgres.connection import place_of
from titanic.store.postgres.foreseen import reply_size, request_size
from titanic.store.postgres.moving_out import PostgresExport, connected, translated
from titanic.store.postgres.schema import META, TABLES, UNFINISHED
from titanic.store.postgres.transaction import Row
from titanic.util.ids import SIZE

_LOCK = 0x7469_7461_6E69_6302
"""The advisory lock of who makes a store."""

_TYPES = {
    "request": "uuid bytea bytea[] int4 int8 int2 int8 int8 int8 int4 bytea bytea bytea",
    "ready": "bytea int2 uuid int4 int8 int8 bytea",
    "later": "uuid int8 int4 int8 int8 int2 bytea bytea",
    "expiring": "int8 uuid",
    "reply": "uuid int2 int4 int8 int8 int4 int8 bytea[] bytea bytea bytea",
    "key": "bytea bytea int8 int8 uuid[]",
    "closed": "int8 uuid int8 int8 int8 int8 int8 int8 int8 int4 int4 int4 int2 int2 bool bytea bytea bytea bytea"
    " bytea[] bytea[]",
}
_COLUMNS = {
    "request": "uuid, service, body, body_frames, body_bytes, priority, submitted_at, not_before, expires_at,"
    " max_attempts, options, key, owner",
    "ready": "service, rank, uuid, attempts, dispatched_at, expires_at, reason",
    "later": "uuid, due, attempts, dispatched_at, expires_at, priority, service, reason",
    "expiring": "expires_at, uuid",
    "reply": "uuid, status, attempts, dispatched_at, finished_at, frames_count, frames_bytes, frames, reason, service,"
    " owner",
    "key": "owner, key, until, given, uuids",
    "closed": "seq, uuid, submitted_at, dispatched_at, replied_at, closed_at, request_bytes, reply_bytes, cost,"
    " attempts, request_frames, reply_frames, status, priority, unclaimed, service, key, owner, error, request, reply",
}
_CHECKS = {
    "the requests": ("SELECT count(*) FROM titanic.request", "requests"),
    "what waits": ("SELECT count(*) FROM titanic.ready", "waiting"),
    "what is delayed": ("SELECT count(*) FROM titanic.later", "delayed"),
    "the replies": ("SELECT count(*) FROM titanic.reply", "replies"),
    "what expires": (
        "SELECT count(*) FROM titanic.expiring e"
        " JOIN (SELECT uuid, expires_at FROM titanic.ready UNION ALL SELECT uuid, expires_at FROM titanic.later) p"
        " USING (uuid, expires_at)",
        "expiring",
    ),
}
"""How many rows there must be, by what was counted when they were put in."""


class PostgresImport:
    """A store in the making, in a database that has none."""

    def __init__(self, url: str) -> None:
        """Raises NotAStore when there is a store, StoreLocked when somebody else makes one, StoreUnwritable."""
        self.place = place_of(url)
        self._url = url
        self._counts: Counter[str] = Counter()
        self._loads: dict[tuple[str, bytes], Counter[str]] = {}
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
        with connection.transaction():
            if begun:
                connection.execute("DROP SCHEMA titanic CASCADE")
            connection.execute(TABLES, prepare=False)
            connection.execute(f"ALTER TABLE {META} RENAME TO {UNFINISHED.partition('.')[2]}")

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
        for one in keys:
            self._counts["used"] += KEY + SIZE * len(one.uuids)
            if one.owner:
                size = 2 + len(one.owner) + len(one.key) + 16 + SIZE * len(one.uuids)
                self._load("o", one.owner, bytes=size)
        self._copy({"key": [(*one[:4], [UUID(bytes=uuid) for uuid in one.uuids]) for one in keys]})

    def put_closed(self, closings: Sequence[StoredClosing]) -> None:
        """Store these closed requests."""
        rows: list[Row] = []
        for one, request_frames, reply_frames in closings:
            error = one.error.encode()
            cost = CLOSED + sum(map(len, (one.service, one.key, one.owner, error)))
            cost += sum(map(len, (*one.request, *one.reply)))
            self._counts["used"] += cost
            times = one.submitted_at, one.dispatched_at, one.replied_at, one.closed_at
            sizes = one.request_bytes, one.reply_bytes, cost
            how = one.attempts, request_frames, reply_frames, int(one.status), one.priority, one.unclaimed
            texts = one.service, one.key, one.owner, error
            request = None if one.request_left_out else one.request
            reply = None if one.reply_left_out else one.reply
            rows.append((one.sequence, UUID(bytes=one.uuid), *times, *sizes, *how, *texts, request, reply))
        self._copy({"closed": rows})

    def _place(self, life: StoredLife, rows: dict[str, list[Row]]) -> None:
        """The rows of a request, and what they count."""
        one, outcome = life.request, life.outcome
        uuid, body_bytes = UUID(bytes=one.uuid), sum(map(len, one.body))
        size = request_size(one.service, one.key, one.owner, one.options, len(one.body), body_bytes)
        what = one.service, one.body, len(one.body), body_bytes, one.priority
        when = one.submitted_at, one.not_before, one.expires_at, one.max_attempts
        rows["request"].append((uuid, *what, *when, one.options, one.key, one.owner))
        self._counts.update(requests=1, used=size + REQUEST)
        if outcome is not None:
            frames_bytes, reason = sum(map(len, outcome.frames)), outcome.reason.encode()
            how = int(outcome.status), outcome.attempts, outcome.dispatched_at, outcome.finished_at
            frames = len(outcome.frames), frames_bytes, outcome.frames
            rows["reply"].append((uuid, *how, *frames, reason, one.service, one.owner))
            replied = reply_size(reason, len(outcome.frames), frames_bytes)
            self._counts.update(replies=1, used=replied + REPLY)
            self._load("o", one.owner, bytes=size + replied)
            return
        tried = life.attempts, life.dispatched_at, life.expires_at
        if life.due:
            rows["later"].append((uuid, life.due, *tried, one.priority, one.service, life.reason.encode()))
        else:
            rows["ready"].append((one.service, 9 - one.priority, uuid, *tried, life.reason.encode()))
        if life.expires_at:
            rows["expiring"].append((life.expires_at, uuid))
        self._counts.update(delayed=bool(life.due), waiting=not life.due, expiring=bool(life.expires_at))
        self._load("s", one.service, waiting=1, bytes=size, ready=not life.due)
        self._load("o", one.owner, waiting=1, bytes=size)

    def _load(self, kind: str, name: bytes, **counts: int) -> None:
        if name:
            self._loads.setdefault((kind, name), Counter()).update(counts)

    def _copy(self, tables: dict[str, list[Row]]) -> None:
        """Put rows into tables, all or none."""
        with translated(self.place), self._connection.transaction(), self._connection.cursor() as cursor:
            for table, rows in tables.items():
                if rows:
                    _copy_rows(cursor, table, rows)

    # -- the end -----------------------------------------------------------------------------------------------

    def problems(self, tell: Progress) -> list[str]:
        """Write down what was counted, and look whether the rows are there."""
        counts = self._counts
        if divide(self._capacity).accept < counts["used"]:  # the other engine counts other bytes
            self._capacity = counts["used"] + counts["used"] // 4
        found = []
        with translated(self.place):
            with self._connection.transaction(), self._connection.cursor() as cursor:
                for whose, load in self._loads.items():
                    numbers = load["waiting"], load["bytes"], load["ready"]
                    cursor.execute("INSERT INTO titanic.load VALUES (%s, %s, 0, %s, %s, %s)", (*whose, *numbers))
                names = ("requests", "waiting", "delayed", "replies", "used")
                cursor.execute("DELETE FROM titanic.usage")
                row = [counts[name] for name in names]
                cursor.execute(f"INSERT INTO titanic.usage (shard, {', '.join(names)}) VALUES (0{', %s' * 5})", row)
                cursor.execute(f"UPDATE {UNFINISHED} SET capacity = %s", (self._capacity,))
            for done, (what, (query, name)) in enumerate(_CHECKS.items()):
                tell("checking", done, len(_CHECKS))
                (there,) = self._row(query)
                if there != counts[name]:
                    found.append(f"{what}: {there} rows instead of {counts[name]}")
        return found

    def read(self) -> PostgresExport:
        """What is in it now."""
        return PostgresExport(connected(self._url), self.place, UNFINISHED)

    def finish(self) -> None:
        """It is a store from now on."""
        with translated(self.place):
            self._connection.execute("ANALYZE")
            self._connection.execute("RESET synchronous_commit")
            self._connection.execute(f"ALTER TABLE {UNFINISHED} RENAME TO {META.partition('.')[2]}")


def _copy_rows(cursor: Any, table: str, rows: Iterable[Row]) -> None:
    with cursor.copy(f"COPY titanic.{table} ({_COLUMNS[table]}) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(_TYPES[table].split())
        for row in rows:
            copy.write_row(row)
