"""A transaction: statements that see the database as it was at one moment.

It begins with the first statement, in the same message, and takes its connection only then. Statements that are given
together go together, and their answers come together: one round trip (psycopg's pipeline).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg
from psycopg import Cursor

from titanic.errors import StoreError
from titanic.store.postgres.connection import Session, is_away, is_deadlock
from titanic.store.postgres.pool import Pool
from titanic.store.records import Durability

Row = tuple[Any, ...]


class Settings(NamedTuple):
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


class Reading:
    """The store at one moment: that of its first statement."""

    BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self.pool = pool
        self.settings = settings
        self.session: Session | None = None
        """None until it is needed."""
        self.begins = True
        """Whether it is to begin: a single statement is a transaction by itself."""
        self.begun = False
        self.failure: StoreError | None = None
        """Why it cannot go on."""

    def __enter__(self) -> Self:
        if self.pool.closed:
            self.pool.take()  # raises
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def fetch(self, text: str, *parameters: object) -> list[Row]:
        """The rows that a statement returns. Raises StoreFailed and the like."""
        return self.fetch_all(Statement(text, parameters))[0]

    def fetch_all(self, *statements: Statement) -> list[list[Row]]:
        """The rows that each of the statements returns, which go together."""
        return [cursor.fetchall() if cursor.description else [] for cursor in self.run(statements)]

    def run(self, statements: Sequence[Statement]) -> list[Cursor[Row]]:
        """Execute statements. The first time, a connection that turns out to be broken is replaced by another."""
        begun = self.begun
        try:
            return self.exchange(statements)
        except psycopg.Error as error:
            transient = is_away(error) or is_deadlock(error)
            if begun or not transient:
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
            if len(statements) == 1 and (self.begun or not self.begins):
                text, given = statements[0]
                return [connection.execute(text, given, binary=True)]
            with connection.pipeline():
                if not self.begun:
                    connection.execute(self.BEGIN)
                    self.begun = True
                return [connection.execute(text, given, binary=True) for text, given in statements]
        finally:
            guard.end(connection)

    def take(self) -> Session:
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
        begun, self.begun = self.begun, False
        if session is None:
            return
        try:
            if not broken:
                if begun:
                    session.connection.execute("ROLLBACK")
                self.pool.give(session)
                return
        except psycopg.Error:
            pass  # it is broken after all; what was asked of it was answered before
        except BaseException:
            self.pool.drop(session)
            raise
        self.pool.drop(session)
