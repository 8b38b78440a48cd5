"""Opening a store: reach the database, see that it is safe, and make its tables or bring them to today's format."""

from __future__ import annotations

import logging

import psycopg

from titanic.errors import StoreFailed, StoreUnwritable
from titanic.store.postgres import schema
from titanic.store.postgres.connection import Session, Unsafe, advice, is_disk_full, reason_of, warn
from titanic.store.postgres.pool import Pool
from titanic.store.postgres.transaction import Settings
from titanic.store.postgres.writing import WriterState
from titanic.util.ids import IdMaker

log = logging.getLogger(__name__)

_STATE = "SELECT capacity, (SELECT coalesce(sum(used), 0)::bigint FROM usage) FROM meta"


def reach(pool: Pool) -> Session:
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
        return "make it with createdb, or correct the URL"
    return advice(fact, "start PostgreSQL, or correct the URL")


def prepare(pool: Pool) -> bool:
    """Have the tables as they must be. True when they were made now. Raises StoreUnwritable, StoreTooNew, NotAStore."""
    session = reach(pool)
    try:
        made = schema.prepare(session.connection, pool.place)
    except psycopg.Error as error:
        what = f"the store in {pool.place} can't be written"
        todo = "make room" if is_disk_full(error) else "let its user create a schema in the database"
        raise StoreUnwritable(what, reason_of(error), advice(reason_of(error), todo)) from error
    finally:
        pool.drop(session)  # what it knows of the database may be from before the tables were made
    warn(session, pool.durability, pool.place)
    return made


def set_up(pool: Pool, settings: Settings, capacity: int | None) -> WriterState:
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
        todo = "make room" if is_disk_full(error) else "look at the log of PostgreSQL"
        raise StoreUnwritable(what, reason_of(error), advice(reason_of(error), todo)) from error
    finally:
        pool.give(session)


def remove_untouched(pool: Pool) -> None:
    """Drop the tables if nothing was ever stored in them, and nobody else uses them."""
    session = pool.take()
    try:
        schema.remove_untouched(session.connection)
    except psycopg.Error as error:
        log.warning("the tables in %s stay, although nothing was stored: %s", pool.place, reason_of(error))
    finally:
        pool.drop(session)
