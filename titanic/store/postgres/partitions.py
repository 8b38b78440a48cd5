"""The partitions of `closed`: made before they are needed, dropped when nothing in them counts any more.

To delete closed requests one by one would leave dead rows, which cost a vacuum. A dropped partition is a deleted file.
Neither making nor dropping delays closing: a new partition is made beside the table and then attached, which takes no
lock that closing needs; dropping does, so it gives up when another transaction is in the way, and is tried again.

Only large ones are deleted before their partition goes: they may be more than the store's whole capacity.
"""

from __future__ import annotations

import logging
import time

import psycopg
from psycopg import Connection, errors

from titanic.store.postgres.connection_pool import ConnectionPool
from titanic.store.postgres.database_session import is_away, reason_of

log = logging.getLogger(__name__)

PARTITION = 100_000
"""Closed requests in a partition. Partition n has the numbers from n times so many on."""

AHEAD = 2
"""Partitions that exist beyond that of the last number: far more than can be filled until the next check."""

EVERY = 5.0
"""Seconds between checks."""

PATIENCE = "50ms"
"""How long dropping waits for other transactions, which then wait for it."""

LARGE = 4096
"""What a closed request must count to be deleted by itself."""

_AT_ONCE = 2000
"""So many of them in a transaction."""

_LOCK = 0x7469_7461_6E69_6301
"""The advisory lock for making partitions."""

_MISSING_AND_OVER = """
    SELECT closed_first, closed_last, ARRAY(
        SELECT substr(c.relname, 8)::bigint FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'titanic.closed'::regclass ORDER BY 1)
    FROM titanic.meta"""

_LARGE = f"""
    DELETE FROM titanic.closed WHERE seq = ANY(ARRAY(
        SELECT seq FROM titanic.closed WHERE seq >= (SELECT closed_first / {PARTITION} * {PARTITION} FROM titanic.meta)
            AND seq < (SELECT closed_first FROM titanic.meta) AND cost >= {LARGE}
        ORDER BY seq LIMIT {_AT_ONCE} FOR UPDATE SKIP LOCKED))"""

_OPTIONS = (
    "autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_cost_delay = 0,"
    " toast.autovacuum_vacuum_cost_delay = 0"
)


class Partitions:
    """Maintains the partitions at intervals. One thread at a time may call."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._next = time.monotonic() + EVERY  # they were made when the store was opened
        self._reason = ""  # why it failed the last time

    def look_after(self) -> None:
        """Make and drop partitions, if a check is due. Raises StoreFailed and the like."""
        if time.monotonic() < self._next:
            return
        with self._pool.borrow() as connection:
            try:
                keep_partitions(connection)
            except psycopg.Error as error:
                self._log(error)
                raise
        self._next, self._reason = time.monotonic() + EVERY, ""

    def _log(self, error: psycopg.Error) -> None:
        """Log an error once. An outage of the server is logged elsewhere."""
        reason = reason_of(error)
        if reason != self._reason and not is_away(error):
            log.warning("cannot create a partition for closed requests in %s: %s", self._pool.place, reason)
            self._reason = reason


def keep_partitions(connection: Connection) -> bool:
    """Make the partitions that are missing, and drop those that are over. False: another transaction was in the way of
    dropping, so it must be called again. The connection is in no transaction."""
    missing, over = _missing_and_over(connection)
    if missing:
        with connection.transaction():
            make_partitions(connection)
    dropped = _drop(connection, over)
    while connection.execute(_LARGE).rowcount == _AT_ONCE:
        pass
    return dropped


def make_partitions(connection: Connection) -> None:
    """Make the missing partitions for the numbers to come, in the current transaction."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    for n in _missing_and_over(connection)[0]:
        make_partition(connection, n)


def make_partition(connection: Connection, n: int) -> None:
    """Make partition number `n`."""
    name = f"titanic.closed_{n}"
    connection.execute(f"CREATE TABLE {name} (LIKE titanic.closed INCLUDING ALL) WITH ({_OPTIONS})")
    connection.execute(
        f"ALTER TABLE titanic.closed ATTACH PARTITION {name}"
        f" FOR VALUES FROM ({n * PARTITION}) TO ({(n + 1) * PARTITION})"
    )


def _drop(connection: Connection, over: list[int]) -> bool:
    for n in over:
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")
                connection.execute(f"DROP TABLE IF EXISTS titanic.closed_{n}")
        except errors.LockNotAvailable:
            return False
    return True


def _missing_and_over(connection: Connection) -> tuple[list[int], list[int]]:
    """The partitions that are to be made, and those that are to be dropped."""
    row = connection.execute(_MISSING_AND_OVER).fetchone()
    assert row is not None
    first, last, there = row
    wanted = range((last + 1) // PARTITION, (last + 1) // PARTITION + 1 + AHEAD)
    return [n for n in wanted if n not in there], [n for n in there if (n + 1) * PARTITION <= first]
