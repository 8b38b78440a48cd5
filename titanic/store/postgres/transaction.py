"""A transaction: statements that see the database as it was at one moment.

It begins with the first statement, in the same message, and takes its connection only then. Statements that are given
together go together, and their answers come together: one round trip (psycopg's pipeline).

What a transaction has read of requests: all of a batch at once, rather than each by itself over the network.

A transaction that remembers what it has read of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import psycopg
from psycopg import Cursor

from titanic.errors import StoreError
from titanic.store.postgres.connection_pool import ConnectionPool
from titanic.store.postgres.database_session import DatabaseSession, ids, is_away, is_deadlock
from titanic.store.records import Durability, Outcome, Pending
from titanic.store.request import (
    COLUMNS,
    FRAME_SIZE,
    HEAD_SIZE,
    TEXTS,
    Description,
    RequestFields,
    fields_size,
    values_of,
)
from titanic.store.states import State, Status
from titanic.util.ids import SIZE

Row = tuple[Any, ...]


class PostgresSettings(NamedTuple):
    """How the store was asked to behave (titanic.store.open_store says what each means). `shard` is the number under
    which this node counts, `incarnation` the one under which it claims; 0: it does not."""

    capacity: int
    keep_closed: bool = True
    closed_body_limit: int = 64 << 10
    drop_unarchived: bool = False
    durability: Durability = "synced"
    shard: int = 0
    incarnation: int = 0


class Statement(NamedTuple):
    """SQL, and its parameters in order."""

    text: str
    parameters: Sequence[object] = ()


class PostgresReading:
    """The store at one moment: that of its first statement."""

    BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

    def __init__(self, pool: ConnectionPool, settings: PostgresSettings) -> None:
        self.pool = pool
        self.settings = settings
        self.session: DatabaseSession | None = None
        """None until it is needed."""
        self.begins = True
        """Whether it is to begin: a single statement is a transaction by itself."""
        self.started = False
        self.failure: StoreError | None = None
        """Why it cannot go on."""

    def __enter__(self) -> Self:
        if self.pool.closed:
            self.pool.take()  # raises
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.leave()

    def fetch(self, text: str, *parameters: object) -> list[Row]:
        """The rows that a statement returns. Raises StoreFailed and the like."""
        return self.fetch_all(Statement(text, parameters))[0]

    def fetch_all(self, *statements: Statement) -> list[list[Row]]:
        """The rows that each of the statements returns, which go together."""
        return [cursor.fetchall() if cursor.description else [] for cursor in self.run(statements)]

    def run(self, statements: Sequence[Statement]) -> list[Cursor[Row]]:
        """Execute statements. The first time, a connection that turns out to be broken is replaced by another."""
        started = self.started
        try:
            return self.exchange(statements)
        except psycopg.Error as error:
            transient = is_away(error) or is_deadlock(error)
            if started or not transient:
                raise self.failed(error) from error
            self.leave(broken=is_away(error))
        try:
            return self.exchange(statements)
        except psycopg.Error as error:
            raise self.failed(error) from error

    def exchange(self, statements: Sequence[Statement]) -> list[Cursor[Row]]:
        """Execute statements in one round trip. Raises psycopg.Error."""
        if self.failure is not None:
            raise self.failure
        connection = self.take().connection
        guard = self.pool.guard
        guard.begin(connection)
        try:
            if len(statements) == 1 and (self.started or not self.begins):
                text, given = statements[0]
                return [connection.execute(text, given, binary=True)]
            with connection.pipeline():
                if not self.started:
                    connection.execute(self.BEGIN)
                    self.started = True
                return [connection.execute(text, given, binary=True) for text, given in statements]
        finally:
            guard.end(connection)

    def take(self) -> DatabaseSession:
        """The connection of the transaction."""
        if self.session is None:
            self.session = self.pool.take()
        return self.session

    def failed(self, error: psycopg.Error) -> StoreError:
        """The exception to raise in place of psycopg's. The transaction cannot go on."""
        self.failure = self.pool.translate(error)
        self.leave(broken=is_away(error))
        return self.failure

    def leave(self, *, broken: bool = False) -> None:
        """Drop what was changed, and give the connection back."""
        session, self.session = self.session, None
        started, self.started = self.started, False
        if session is None:
            return
        try:
            if not broken:
                if started:
                    self.pool.guard.begin(session.connection)
                    try:
                        session.connection.execute("ROLLBACK")
                    finally:
                        self.pool.guard.end(session.connection)
                self.pool.give(session)
                return
        except psycopg.Error:
            pass  # it is broken after all; what was asked of it was answered before
        except BaseException:
            self.pool.drop(session)
            raise
        self.pool.drop(session)


# -- prefetched --------------------------------------------------------------------------------------------------


MOST_REPLIES = 16 << 20
"""Bytes of replies that are read ahead for a batch. The others are read when they are asked for."""


class RequestSnapshot(RequestFields):
    """A request without its body, and where it is. `frames` is None when the reply was not read, or there is none.

    `ends_at` is when it expires: 0 when it does not, or has ended. `size` is what it counts for its service.
    """

    body_frames: int = 0
    body_bytes: int = 0
    state: State = State.WAITING
    ends_at: int = 0
    due: int = 0
    attempts: int = 0
    dispatched_at: int = 0
    reason: bytes = b""
    finished_at: int = 0
    reply_frames: int = 0
    reply_bytes: int = 0
    deliveries: int = 0
    frames: list[bytes] | None = None

    @property
    def has_ended(self) -> bool:
        return self.state >= State.DONE

    @property
    def size(self) -> int:
        return fields_size(self, self.body_frames, self.body_bytes)

    @property
    def description(self) -> Description:
        found = Description(
            *values_of(self),
            state=self.state,
            body_frames=self.body_frames,
            body_bytes=self.body_bytes,
            attempts=self.attempts,
            due=self.due,
            dispatched_at=self.dispatched_at,
            finished_at=self.finished_at,
            reason=self.reason.decode(errors="replace"),
            reply_frames=self.reply_frames,
            reply_bytes=self.reply_bytes,
            deliveries=self.deliveries,
        )
        if not self.has_ended:
            found.expires_at = self.ends_at
        return found

    @property
    def answer(self) -> Outcome | Pending:
        """What `reply` returns. The frames must have been read."""
        if not self.has_ended:
            return Pending(self.state)
        assert self.frames is not None
        status, reason = Status(self.state), self.reason.decode(errors="replace")
        return Outcome(status, self.frames, reason, self.attempts, self.dispatched_at, self.finished_at)


REASON = "coalesce(p.reason, l.reason, q.reason, '')"
STATE = "(CASE WHEN p.uuid IS NOT NULL THEN p.status WHEN l.uuid IS NOT NULL THEN 2 ELSE 1 END)"
_FIELDS = f"""
    {", ".join(f"r.{name}" for name in COLUMNS)}, r.body_frames, r.body_bytes,
    {STATE},
    coalesce(l.expires_at, q.expires_at, 0), coalesce(l.due, 0), coalesce(p.attempts, l.attempts, q.attempts, 0),
    coalesce(p.dispatched_at, l.dispatched_at, q.dispatched_at, 0), {REASON},
    coalesce(p.finished_at, 0), coalesce(p.frames_count, 0), coalesce(p.frames_bytes, 0),
    coalesce(l.deliveries, q.deliveries, 0)"""


def by_key(table: str, alias: str, key: str, join: str = "LEFT") -> str:
    """A join that finds each row by its key. Of a table that is thought to be empty, such as one of which most rows are
    dead and cannot be removed yet, PostgreSQL would read all, once for each row of the others."""
    return f"{join} JOIN LATERAL (SELECT * FROM titanic.{table} AS t WHERE {key} OFFSET 0) AS {alias} ON true"


PLACES = " ".join(
    (
        by_key("reply", "p", "t.uuid = r.uuid"),
        by_key("later", "l", "t.uuid = r.uuid"),
        by_key("ready", "q", "t.service = r.service AND t.rank = 9 - r.priority AND t.uuid = r.uuid"),
    )
)
"""The places where a request `r` can be."""

SEEN = f"{_FIELDS}, NULL"
"""The columns of a RequestSnapshot, of a request `r` and PLACES, without the reply's frames."""

_BY_ID = f"FROM unnest(%s::uuid[]) AS w (uuid) {by_key('request', 'r', 't.uuid = w.uuid', 'INNER')}"
READ_SNAPSHOTS = f"SELECT {SEEN} {_BY_ID} {PLACES}"
READ_REPLIES = f"""SELECT {_FIELDS},
    CASE WHEN sum(p.frames_bytes) OVER (ROWS UNBOUNDED PRECEDING) <= {MOST_REPLIES} THEN p.frames END
    {_BY_ID} {PLACES}"""
READ_ANSWERS = f"""
SELECT w.uuid, coalesce(p.owner, r.owner), p.status, p.attempts, p.dispatched_at, p.finished_at, p.reason,
    p.frames_count, p.frames_bytes,
    CASE WHEN sum(p.frames_bytes) OVER (ROWS UNBOUNDED PRECEDING) <= {MOST_REPLIES} THEN p.frames END,
    l.uuid IS NOT NULL
FROM unnest(%s::uuid[]) AS w (uuid)
    {by_key("reply", "p", "t.uuid = w.uuid")}
    {by_key("request", "r", "t.uuid = CASE WHEN p.uuid IS NULL THEN w.uuid END")}
    {by_key("later", "l", "t.uuid = r.uuid")}
WHERE p.uuid IS NOT NULL OR r.uuid IS NOT NULL"""
"""The fields of an `Answer`. Clients ask for many replies that are not there yet, so it reads no more than it must."""

LOCK = "SELECT FROM titanic.request WHERE uuid = ANY(%s::uuid[]) ORDER BY uuid FOR UPDATE"
"""A statement of its own before the read: one that has waited for a lock sees the other tables as they were before."""

_STATES = {int(state): state for state in State}


def seen(row: tuple[Any, ...]) -> RequestSnapshot:
    """What the columns of SEEN say."""
    one = RequestSnapshot(*row)
    one.state = _STATES[one.state]
    return one


class Answer(NamedTuple):
    """The state and the owner of a request, and its reply; `frames` are missing when they were too many."""

    owner: bytes
    frames: list[bytes] | None
    reply_frames: int
    reply_bytes: int
    answer: Outcome | Pending


def answered(row: tuple[Any, ...]) -> Answer:
    """What READ_ANSWERS has found."""
    _, owner, status, attempts, dispatched_at, finished_at, reason, count, size, frames, delayed = row
    if status is None:
        return Answer(owner, [], 0, 0, _DELAYED if delayed else _WAITING)
    why = reason.decode(errors="replace")
    outcome = Outcome(Status(status), frames or [], why, attempts, dispatched_at, finished_at)
    return Answer(owner, frames, count, size, outcome)


_WAITING, _DELAYED = Pending(State.WAITING), Pending(State.DELAYED)


REQUEST_SIZE = (
    f"({HEAD_SIZE} + {' + '.join(f'octet_length(r.{name})' for name in TEXTS)}"
    f" + {FRAME_SIZE} * r.body_frames + r.body_bytes)"
)
"""`fields_size` of a request `r`. Whether HEAD_SIZE may change: store/request.py."""


# -- snapshots -------------------------------------------------------------------------------------------------


class SnapshotReader(PostgresReading):
    """`seen` has the snapshots of requests, None for unknown ones. Reading them again costs nothing."""

    LOCKS: ClassVar[bool] = False
    """Whether requests that were read are locked against other changes until the transaction ends."""

    def __init__(self, pool: ConnectionPool, settings: PostgresSettings) -> None:
        super().__init__(pool, settings)
        self.seen: dict[bytes, RequestSnapshot | None] = {}
        self.answers: dict[bytes, Answer | None] = {}
        """What is known of replies, for read transactions."""

    def prefetch(self, uuids: Sequence[bytes], replies: bool = False) -> None:
        """Read these requests, and with `replies` the frames of their replies, in one round trip.

        Mostly nothing else is read: so this begins no transaction, which would have to be ended.
        """
        self.begins = self.LOCKS
        try:
            if replies and not self.LOCKS:
                self._read_answers(uuids)
            else:
                self._read(uuids, replies)
        finally:
            self.begins = True

    def reread(self, uuid: bytes) -> RequestSnapshot | None:
        """The snapshot of a request at the same moment as all that is read from now on."""
        if not self.LOCKS:
            self._read((uuid,), False)
        return self.snapshot(uuid)

    def answer(self, uuid: bytes) -> Answer | None:
        """The answer for a request; None when it is unknown. For transactions that only read."""
        if uuid not in self.answers:
            self._read_answers((uuid,))
        return self.answers[uuid]

    def fetch_once(self, text: str, *parameters: object) -> list[Row]:
        """`fetch` of the only thing that is read, mostly: reading then begins no transaction."""
        self.begins = self.LOCKS
        try:
            return self.fetch(text, *parameters)
        finally:
            self.begins = True

    def _read_answers(self, uuids: Sequence[bytes]) -> None:
        rows = self.fetch(READ_ANSWERS, ids([uuid for uuid in uuids if len(uuid) == SIZE]))
        self.answers.update(dict.fromkeys(uuids))
        for row in rows:
            self.answers[row[0]] = answered(row)

    def _read(self, uuids: Sequence[bytes], replies: bool) -> None:
        right = [uuid for uuid in uuids if len(uuid) == SIZE]  # others are unknown without a query
        array = ids(right)
        query = Statement(READ_REPLIES if replies else READ_SNAPSHOTS, (array,))
        statements = [Statement(LOCK, (array,)), query] if self.LOCKS else [query]
        rows = self.fetch_all(*statements)[-1]
        self.seen.update(dict.fromkeys(uuids))
        for row in rows:
            self.seen[row[0]] = seen(row)

    def snapshot(self, uuid: bytes, reply: bool = False) -> RequestSnapshot | None:
        """The snapshot of a request, with its reply's frames unless it was prefetched; None when it is unknown."""
        if uuid not in self.seen:
            if self.LOCKS:
                self.prefetch((uuid,), reply)
            else:
                self._read((uuid,), reply)
        return self.seen[uuid]

    def fetch_row(self, text: str, *parameters: object) -> Row:
        """The one row that a statement returns."""
        (row,) = self.fetch(text, *parameters)
        return row
