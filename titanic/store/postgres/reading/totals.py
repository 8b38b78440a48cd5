"""Reading totals, which are counted where they change: what is to be done, how much there is, whether it is full."""

from __future__ import annotations

from titanic.store.postgres.pool import Pool
from titanic.store.postgres.tables import divide
from titanic.store.postgres.transaction import Looking
from titanic.store.records import Counts, Load, StoreReader

SMALL_REQUEST = 4096
"""Bytes for which there must be room, or the store is full."""

_LOAD = "SELECT coalesce(sum(waiting), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM titanic.load"
_SERVICE_LOAD = f"{_LOAD} WHERE kind = 's' AND name = %s"
_OWNER_LOAD = f"{_LOAD} WHERE kind = 'o' AND name = %s"

_COUNTS = """
    SELECT u.requests, u.waiting, u.delayed, u.replies, u.used, m.capacity, m.closed_last - m.closed_first + 1, m.lost
    FROM titanic.meta m, (
        SELECT coalesce(sum(requests), 0)::bigint AS requests, coalesce(sum(waiting), 0)::bigint AS waiting,
            coalesce(sum(delayed), 0)::bigint AS delayed, coalesce(sum(replies), 0)::bigint AS replies,
            coalesce(sum(used), 0)::bigint AS used
        FROM titanic.usage
    ) u"""

_USED = "SELECT coalesce(sum(used), 0)::bigint FROM titanic.usage"

_READERS = """
    SELECT a.pid, coalesce(nullif(a.application_name, ''), a.usename::text, ''),
        extract(epoch FROM clock_timestamp() - a.xact_start)::float8, dead.bytes
    FROM pg_stat_activity AS a, (
        SELECT coalesce(sum(pg_table_size(relid) * n_dead_tup / greatest(1, n_live_tup + n_dead_tup)), 0)::bigint
            AS bytes
        FROM pg_stat_user_tables WHERE schemaname = 'titanic'
    ) AS dead
    WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL
        AND a.xact_start < clock_timestamp() - make_interval(secs => %s::float8)
    ORDER BY a.xact_start LIMIT 20"""

LONG = 300.0
"""Seconds; a transaction that takes longer is one that counts as a reader of the store."""

_MOST_LOOKED_AT = 50_000
"""Closed requests that are looked through for room."""

_CAN_MAKE_WAY = """
    SELECT coalesce(sum(cost), 0)::bigint FROM (
        SELECT cost FROM titanic.closed WHERE seq >= (SELECT closed_first FROM titanic.meta)
            AND seq <= (SELECT CASE WHEN registered AND NOT %s THEN archived_upto ELSE closed_last END
                FROM titanic.meta)
        ORDER BY seq LIMIT %s
    ) one"""


def readers(pool: Pool) -> list[StoreReader]:
    """Transactions in the database that take long: rows that are dead since stay. Only those are seen that this user
    may see: its own, or all with pg_read_all_stats."""
    with pool.borrow() as connection:
        return [StoreReader(*row) for row in connection.execute(_READERS, [LONG])]


_DROPPABLE = """
    SELECT coalesce((SELECT avg(cost) FROM (
        SELECT cost FROM titanic.closed WHERE seq >= m.closed_first ORDER BY seq LIMIT 500) AS one), 0)::float8
        * greatest(0, CASE WHEN registered AND NOT %s THEN archived_upto ELSE closed_last END - closed_first + 1)
    FROM titanic.meta AS m"""
"""The same of all, by what the first ones cost."""


def load(tx: Looking, service: bytes) -> Load:
    """What the service has to do, without counting."""
    return Load(
        *tx.fetch_row(
            _SERVICE_LOAD,
            service,
        )
    )


def owner_load(tx: Looking, owner: bytes) -> Load:
    """What is to be done for an owner, and the bytes of all that is his, without counting."""
    return Load(
        *tx.fetch_row(
            _OWNER_LOAD,
            owner,
        )
    )


def counts(tx: Looking) -> Counts:
    """Totals, without counting."""
    return Counts(*tx.fetch_row(_COUNTS))


def room_left(tx: Looking) -> int:
    """About how many bytes new requests may still take, once all has made way that may."""
    (size,) = tx.fetch_row(_DROPPABLE, tx.settings.drop_unarchived)
    return max(0, divide(tx.settings.capacity).accept - int(tx.fetch_row(_USED)[0]) + int(size))


def disk_full(tx: Looking) -> bool:
    """Never: the server's disk cannot be seen from here. What it has no room for, it refuses."""
    return False


def identity(tx: Looking) -> bytes | None:
    """Which store this is: 16 bytes that copies have, too."""
    (uuid,) = tx.fetch_row("SELECT store_id FROM titanic.meta")
    return bytes(uuid)


def full(tx: Looking) -> bool:
    """Whether there is no room for a small request, also when all makes way that may."""
    missing = tx.fetch_row(_USED)[0] + SMALL_REQUEST - divide(tx.settings.capacity).accept
    if missing <= 0:
        return False
    (size,) = tx.fetch_row(_CAN_MAKE_WAY, tx.settings.drop_unarchived, _MOST_LOOKED_AT)
    return bool(size < missing)
