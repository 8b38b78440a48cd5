"""Correcting times that a clock gave which was ahead.

A delay, a time to live and the lifetime of a key end at a time of the wall clock, a certain length after they were
given. If that clock was years ahead and is right again, they would last for years. That can be detected: more time is
left than the whole length (clock.capped). Then they last for their whole length from now on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from titanic.store.postgres.connection import Raw, ids, numbers, texts
from titanic.store.postgres.writing import Writing
from titanic.util.clock import capped
from titanic.util.ids import SIZE

_DELAYS = """
SELECT l.uuid, l.due, l.dispatched_at, r.not_before, r.submitted_at
FROM later AS l JOIN request AS r ON r.uuid = l.uuid
WHERE (l.due, l.uuid) > (%s, %s::uuid) ORDER BY l.due, l.uuid LIMIT %s FOR UPDATE OF r"""

_CAP_DELAYS = """
UPDATE later AS l SET due = given.due, dispatched_at = least(l.dispatched_at, %s)
FROM unnest(%s::uuid[], %s::bigint[]) AS given (uuid, due) WHERE l.uuid = given.uuid"""

_EXPIRIES = """
SELECT e.uuid, e.expires_at, r.expires_at, r.submitted_at
FROM expiring AS e JOIN request AS r ON r.uuid = e.uuid
WHERE (e.expires_at, e.uuid) > (%s, %s::uuid) ORDER BY e.expires_at, e.uuid LIMIT %s FOR UPDATE OF r"""

_CAP_EXPIRIES = """
WITH given AS (
    SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[]) AS given (uuid, old, new)
), moved AS (
    UPDATE expiring AS e SET expires_at = g.new FROM given AS g WHERE e.expires_at = g.old AND e.uuid = g.uuid
), delayed AS (
    UPDATE later AS l SET expires_at = g.new FROM given AS g WHERE l.uuid = g.uuid
)
UPDATE ready AS y SET expires_at = g.new FROM given AS g JOIN request AS r ON r.uuid = g.uuid
WHERE y.service = r.service AND y.rank = 9 - r.priority AND y.uuid = g.uuid"""

_KEYS = """
SELECT owner, key, until, given FROM key
WHERE until >= %s AND (until, owner, key) > (%s, %s, %s) ORDER BY until, owner, key LIMIT %s FOR UPDATE"""

_CAP_KEYS = """
UPDATE key AS k SET until = given.until, given = %s
FROM unnest(%s::bytea[], %s::bytea[], %s::bigint[]) AS given (owner, key, until)
WHERE k.owner = given.owner AND k.key = given.key"""

_TIME = struct.Struct(">q")
_NO_ID = bytes(SIZE)


def recap(tx: Writing, now_us: int, after: bytes = b"", limit: int = 1000) -> tuple[int, bytes | None]:
    """Let what was given a time in the future last for its own length, counted from now. A place is a letter for what
    is looked at, and behind which row to go on."""
    changed, place = 0, after or b"D"
    while place and limit > 0:
        kind, begin = place[:1], place[1:]
        if not begin:
            begin = _TIME.pack(now_us - 1)
        looked_at, capped_now, last = _CAPS[kind](tx, begin, now_us, limit)
        changed += capped_now
        place = _THEN[kind] if looked_at < limit else kind + last
        limit -= looked_at
    if changed:
        tx.seen.clear()
    return changed, place or None


def _cap_delays(tx: Writing, begin: bytes, now_us: int, limit: int) -> tuple[int, int, bytes]:
    rows = tx.fetch(_DELAYS, _TIME.unpack_from(begin)[0], _id_in(begin), limit)
    capped_now: list[tuple[bytes, int]] = []
    last = b""
    for uuid, due, dispatched_at, not_before, submitted_at in rows:
        last = _TIME.pack(due) + uuid
        span = (due, dispatched_at) if dispatched_at else (not_before, submitted_at)
        if (end := min(due, capped(*span, now_us))) != due:
            capped_now.append((uuid, end))
    if capped_now:
        uuids, ends = zip(*capped_now, strict=True)
        # It was not sent in the future; and the next time the length of the delay must be the same.
        tx.fetch(_CAP_DELAYS, now_us, ids(uuids), numbers(ends))
    return len(rows), len(capped_now), last


def _cap_expiries(tx: Writing, begin: bytes, now_us: int, limit: int) -> tuple[int, int, bytes]:
    rows = tx.fetch(_EXPIRIES, _TIME.unpack_from(begin)[0], _id_in(begin), limit)
    capped_now: list[tuple[bytes, int, int]] = []
    last = b""
    for uuid, time, asked, submitted_at in rows:
        last = _TIME.pack(time) + uuid
        if (end := min(time, capped(asked, submitted_at, now_us))) != time:
            capped_now.append((uuid, time, end))
    if capped_now:
        uuids, times, ends = zip(*capped_now, strict=True)
        tx.fetch(_CAP_EXPIRIES, ids(uuids), numbers(times), numbers(ends))
    return len(rows), len(capped_now), last


def _cap_keys(tx: Writing, begin: bytes, now_us: int, limit: int) -> tuple[int, int, bytes]:
    until = _TIME.unpack_from(begin)[0]
    owner, _, key = begin[_TIME.size :].partition(b"\xff")  # which is in no UTF-8
    rows = tx.fetch(_KEYS, until, until, owner, key, limit)
    capped_now: list[tuple[bytes, bytes, int]] = []
    last = b""
    for owner, key, until, given in rows:
        last = _TIME.pack(until) + owner + b"\xff" + key
        if (end := capped(until, given, now_us)) != until:
            capped_now.append((owner, key, end))
    if capped_now:
        owners, keys, ends = zip(*sorted(capped_now), strict=True)
        tx.fetch(_CAP_KEYS, now_us, texts(owners), texts(keys), numbers(ends))
    return len(rows), len(capped_now), last


def _id_in(begin: bytes) -> Raw:
    """The id in a place; none is below the one of a place that has only a time."""
    return Raw(begin[_TIME.size :] or _NO_ID)


_CAPS: dict[bytes, Callable[[Writing, bytes, int, int], tuple[int, int, bytes]]] = {
    b"D": _cap_delays,
    b"E": _cap_expiries,
    b"K": _cap_keys,
}
_THEN = {b"D": b"E", b"E": b"K", b"K": b""}
"""What is looked at, and what after it."""
