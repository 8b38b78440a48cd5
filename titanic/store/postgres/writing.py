"""A transaction that changes the store.

A batch of changes costs two round trips, however many requests it changes: the first begins the transaction, locks the
requests and reads what is to be known of them; the second has all changes
and COMMIT. In between it decides in Python. Counted, the same for 1, 100 and 1,000 requests:

                        round trips   statements
    accept, with keys or without  1            1    (which is a transaction by itself)
    accept with taken keys        2            4    BEGIN, keys; changes, COMMIT; and before it one that was in vain
    finish, close, retry          2            5    BEGIN, lock, read; changes, COMMIT
    the same, optimistic          1            1    changes, which lock as well
    claim, alone                  1            1

Whatever is read otherwise costs one round trip more, and puts what was changed before into the database first, so that
a transaction reads what it has written.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import psycopg
from psycopg import Cursor

from titanic.errors import StoreError
from titanic.store.postgres.changes import FORGET, Changes
from titanic.store.postgres.connection_pool import ConnectionPool
from titanic.store.postgres.database_session import (
    CATCH_UP,
    ids,
    is_deadlock,
    is_outrun,
    is_unsure,
    texts,
    unknown_outcome,
    unsure_outcome,
    write_conflict,
)
from titanic.store.postgres.rows import KeyRow, divide
from titanic.store.postgres.transaction import PostgresSettings, RequestSnapshot, Row, SnapshotReader, Statement
from titanic.store.states import TRANSITIONS, Event
from titanic.util.ids import IdMaker

_COMMIT = Statement("COMMIT")
_CATCH_UP = Statement(CATCH_UP)

_CAUTIOUS_TRANSACTIONS = 20
"""Transactions that read first after one that was wrong: a client that repeats a request mostly repeats more."""

_MOST_KNOWN = 10_000
"""Requests of which is remembered what was known of them: some MB."""


@dataclass(slots=True)
class ScanStart:
    """Where claims for a service begin: an id for each rank, until `full_at` by the monotonic clock."""

    full_at: float
    ids: list[bytes]


class WriterState:
    """What a write transaction leaves to the next. Changed only under `lock`.

    `used` are the bytes that all nodes used when this one committed last, `careful` how many of the next transactions
    are not optimistic. `known` has the snapshots of requests when their transaction was committed, the latest last.
    """

    def __init__(self, ids: IdMaker, capacity: int, used: int) -> None:
        self.lock = threading.Lock()
        self.ids = ids
        self.quota = divide(capacity)
        self.used = used
        self.careful = 0
        self.known: dict[bytes, RequestSnapshot] = {}
        self.scan_starts: dict[bytes, ScanStart] = {}
        """For services with claims that are slow because of dead rows."""

    def remember(self, seen: Mapping[bytes, RequestSnapshot | None]) -> None:
        """Keep what is known of requests, except their frames."""
        known = self.known
        for uuid, one in seen.items():
            if one is not None:
                one.frames = None
                known[uuid] = one
        while len(known) > _MOST_KNOWN:
            del known[next(iter(known))]


class PostgresWriting(SnapshotReader):
    """Changes of the store, gathered in `changes` until they are read or committed."""

    BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
    LOCKS: ClassVar[bool] = True

    def __init__(self, pool: ConnectionPool, settings: PostgresSettings, writer: WriterState) -> None:
        super().__init__(pool, settings)
        self.writer = writer
        self.changes = Changes()
        self.not_own: Collection[bytes] = ()
        """Requests that the node has not claimed any more: that an attempt has failed does not count."""
        self.is_optimistic = False
        """Whether keys count as free that this transaction has not taken itself."""
        self.assumed_keys: dict[tuple[bytes, bytes], KeyRow] = {}
        """Keys that it has taken without asking."""
        self.relied: set[bytes] = set()
        """Requests that are taken to be as this process saw them last."""
        self.claimed: dict[bytes, RequestSnapshot] = {}
        """What is known of requests that this transaction has claimed."""
        self._again = self._alone = False
        self.found_done = False
        """Whether a caller gets the answer that its change was made already. That may be on this server alone."""
        self._used: int | None = None
        self._apart = False

    def __enter__(self) -> Self:
        self.writer.lock.acquire()
        try:
            return super().__enter__()
        except BaseException:
            self.writer.lock.release()
            raise

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self._commit()
        finally:
            try:
                self.leave()
            finally:
                self.writer.lock.release()

    def optimistic(self, alone: bool = False) -> None:
        self._again, self._alone = True, alone
        if self.writer.careful:
            self.writer.careful -= 1
        else:
            self.is_optimistic = True

    def ask_first(self) -> None:
        """From here on ask before."""
        self.is_optimistic = False
        self.assumed_keys.clear()
        self.flush()

    # -- reading ---------------------------------------------------------------------------------------------

    def fetch_all(self, *statements: Statement) -> list[list[Row]]:
        if not self._apart:
            self.flush()
        return super().fetch_all(*statements)

    def prefetch(self, uuids: Sequence[bytes], replies: bool = False) -> None:
        """Lock these requests and read what is known of them, in one round trip, or rely on what was known of them."""
        if self.is_optimistic and not replies:
            known, seen = self.writer.known, self.seen
            for uuid in uuids:
                if uuid in known and uuid not in seen:
                    seen[uuid] = known.pop(uuid)
                    self.relied.add(uuid)
        missing = uuids if replies else [uuid for uuid in uuids if uuid not in self.seen]
        if missing:
            self._apart = self.changes.touched.isdisjoint(missing)
            try:
                super().prefetch(missing, replies)
            finally:
                self._apart = False

    def snapshot(self, uuid: bytes, reply: bool = False) -> RequestSnapshot | None:
        """Return a verified snapshot of a request."""
        if uuid in self.relied:
            self.relied.remove(uuid)
            del self.seen[uuid]
        return super().snapshot(uuid, reply)

    def to_change(self, uuid: bytes, event: Event | None = None) -> RequestSnapshot | None:
        """What is known of a request that is to be changed now. None when it is unknown, or the event (None: closing)
        cannot happen to it, which is never said of one that was relied on."""
        if uuid in self.changes.touched:
            self.flush()
        if uuid not in self.seen:
            self.prefetch((uuid,))
        one = self.seen[uuid]
        if uuid in self.relied:
            if one is not None and (event is None or (one.state, event) in TRANSITIONS):
                self.changes.relied[uuid] = one.body_frames + one.body_bytes
                return one
            one = self.snapshot(uuid)
        return one if one is None or event is None or (one.state, event) in TRANSITIONS else None

    def fetch_alone(self, text: str, *parameters: object) -> list[Row]:
        """`fetch` of a change that is a transaction by itself if there is nothing else."""
        if not self._alone or self.started or self.changes.any:
            return self.fetch(text, *parameters)
        self.begins = False
        (cursor,) = self._exchange_last([Statement(text, parameters)])
        self.begins = True
        return cursor.fetchall()

    def fetch_apart(self, text: str, *parameters: object) -> list[Row]:
        """`fetch` of what has nothing to do with the changes: they need not be in the database before."""
        return super().fetch_all(Statement(text, parameters))[0]

    def fetch_keys(self, text: str, *parameters: object) -> list[Row]:
        """`fetch` of keys, which have nothing to do with other changes. Those are forgotten first that are to be."""
        locks = self.changes.locks
        forget, self.changes.to_forget = sorted(self.changes.to_forget), set()
        if not forget:
            return self.fetch_apart(text, *parameters)
        owners, keys, uuids = zip(*forget, strict=True)
        first = Statement(FORGET, (texts(owners), texts(keys), ids(uuids), ids(self.changes.gone)))
        *_, gone, rows = super().fetch_all(*locks, first, Statement(text, parameters))
        self.changes.count_keys_gone(gone)
        return rows

    # -- room ------------------------------------------------------------------------------------------------

    def used(self) -> int:
        """Bytes that are used with all changes, about: what others did since the last commit is not known."""
        return (self.writer.used if self._used is None else self._used) + self.changes.used

    def count_used(self) -> None:
        """From now on `used` is exact."""
        if self.changes.to_forget:
            self.fetch_keys("SELECT")  # they make room
        if self._used is None:
            ((self._used,),) = self.fetch_apart("SELECT coalesce(sum(used), 0)::bigint FROM usage")

    # -- writing ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Put what was changed into the database."""
        if self.changes.any:
            self._write(commits=False)

    def _commit(self) -> None:
        if self.failure is not None:
            raise self.failure
        writer = self.writer
        if self.started or self.changes.any:
            self._write(commits=True)
            self.started = False
            if self._used is not None:
                writer.used = self._used
        writer.remember(self.seen)
        writer.remember(self.claimed)

    def _write(self, *, commits: bool) -> None:
        session = self.take()
        changes, self.changes = self.changes, Changes()
        locks = changes.locks
        written = (
            changes.statements(session.lists, self.settings.shard, self.settings.incarnation) if changes.any else []
        )
        if commits and not self.started and len(written) == 1 and not locks:
            statements, self.begins = written, False  # a statement by itself is a transaction
        else:
            statements = [*locks, *written, _COMMIT] if commits else [*locks, *written]
            if commits and not written and self.found_done:
                statements.insert(0, _CATCH_UP)
        if commits:
            cursors = self._exchange_last(statements)
        else:
            try:
                cursors = self.exchange(statements)
            except psycopg.Error as error:
                raise self.failed(error) from error
        if written:
            ((used,),) = cursors[len(locks)].fetchall()
            self._used = used - changes.dropped_bytes
            self.relied -= changes.relied.keys()

    def _exchange_last(self, statements: Sequence[Statement]) -> list[Cursor[Row]]:
        """`exchange` of what ends with a commit."""
        session = self.take()
        try:
            cursors = self.exchange(statements)
        except psycopg.Error as error:
            if session.connection.closed or is_unsure(error):
                self.failure = unknown_outcome(self.pool.place, error)
                self.leave(broken=True)
                raise self.failure from error
            raise self.failed(error) from error
        if session.unsure:
            self.failure = unsure_outcome(self.pool.place, session.unsure[0])
            self.leave(broken=True)  # the next one waits for the standby
            raise self.failure
        return cursors

    def failed(self, error: psycopg.Error) -> StoreError:
        """The exception to raise in place of psycopg's. The transaction cannot go on."""
        if not is_outrun(error) or (is_deadlock(error) and not self._again):
            return super().failed(error)
        if not is_deadlock(error):
            self.writer.careful = _CAUTIOUS_TRANSACTIONS
            self.writer.known.clear()
        self.failure = write_conflict(self.pool.place, error)
        self.leave()
        return self.failure
