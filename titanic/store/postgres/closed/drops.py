"""Dropping the oldest closed requests: for their age, or for the room that new requests need.

What is dropped only counts no more (`meta.closed_first`); its rows go with their partition
(tables/closed_partitions.py).
"""

from __future__ import annotations

from titanic.store.postgres.writing import Writing

_AT_ONCE = 256
"""A part of the capacity: so much is made free at least when room is needed, so that it is rarely needed."""
_MOST = 50_000
"""Closed requests that are looked through for room."""

_MAY_GO = """
SELECT seq, cost, closed_at FROM closed
WHERE seq >= greatest(%s, (SELECT closed_first FROM meta))
    AND seq <= (SELECT CASE WHEN registered AND %s = 0 THEN archived_upto ELSE closed_last END FROM meta)
ORDER BY seq LIMIT %s"""

_UP_TO = f"""
SELECT seq, total::bigint FROM (
    SELECT seq, sum(cost) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total FROM ({_MAY_GO}) AS one
) AS summed
WHERE total >= %s ORDER BY seq LIMIT 1"""


def make_room(tx: Writing, needed: int, limit: int) -> bool:
    """Whether so many more bytes can be used, up to a limit. Closed requests make way if that suffices."""
    if tx.used() + needed <= limit:
        return True
    tx.count_used()
    missing = tx.used() + needed - limit
    if missing <= 0:
        return True
    for wanted in (missing + tx.writer.quota.capacity // _AT_ONCE, missing):
        may_go = tx.changes.drop_before, tx.settings.drop_unarchived, _MOST
        if found := tx.fetch_apart(_UP_TO, *map(int, may_go), wanted):
            last, size = found[0]
            tx.changes.drop_closed(last + 1, size)
            return True
    return False


def drop_older(tx: Writing, closed_before: int, limit: int) -> int:
    """Drop closed requests, the oldest first, up to one that was closed at that time or later, and return how many. The
    archive, if there is one, must have them."""
    count = size = last = 0
    for seq, cost, closed_at in tx.fetch(_MAY_GO, tx.changes.drop_before, 0, limit):
        if closed_at >= closed_before:
            break
        count, size, last = count + 1, size + cost, seq
    if count:
        tx.changes.drop_closed(last + 1, size)
    return count
