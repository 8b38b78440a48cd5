"""A store that is opened to look at it, also while nodes use it, and on a standby too: nothing is made or changed."""

from __future__ import annotations

from typing import NoReturn, Self

import psycopg

from titanic.errors import NotAStore, StoreReadOnly, StoreTooNew, StoreTooOld
from titanic.store.postgres import opening
from titanic.store.postgres.connection import translate
from titanic.store.postgres.nodes import Membership
from titanic.store.postgres.pool import Outage, Pool
from titanic.store.postgres.schema import FORMAT, META, formats
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.transaction import Settings
from titanic.store.postgres.writing import WriterState
from titanic.util.ids import IdMaker


class ReadOnlyPostgresStore(PostgresStore):
    """`PostgresStore`, for reading."""

    @classmethod
    def open_read_only(cls, url: str) -> Self:
        """Open the store in a database for reading. Raises NotAStore, StoreUnwritable, StoreTooNew or StoreTooOld."""
        pool = Pool(url, None, target="any")
        try:
            capacity = _look(pool)
            writer, membership = WriterState(IdMaker(None), capacity, 0), Membership(url, None, Outage(), pool.suspect)
            return cls(pool, Settings(capacity), writer, membership, False)
        except BaseException:
            pool.close()
            raise

    def write(self) -> NoReturn:
        """Raise StoreReadOnly."""
        raise StoreReadOnly(f"the store in {self.place} can't be changed", "it was opened for reading", "open it")

    def sync(self) -> None:
        """Nothing."""


def _look(pool: Pool) -> int:
    """The store's capacity."""
    session = opening.reach(pool)
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
        raise NotAStore(f"there is no store in {pool.place}", f"it has no table {META}", "look for another database")
    format_, oldest = found
    what, fact = f"the store in {pool.place} can't be read", f"it has format {format_}, this version knows {FORMAT}"
    if oldest > FORMAT:
        raise StoreTooNew(what, fact, "use the version of Titanic that has written it")
    if format_ < FORMAT:
        raise StoreTooOld(what, fact, "open it for writing once")
    return int(row[0])
