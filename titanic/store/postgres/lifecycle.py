"""The lifecycle of accepted requests: finish, postpone, promote, expire, retry.

Closing requests: out of the queue, and into the ring of those that are remembered.

Their frames do not come here: PostgreSQL copies them from table to table. A closed request counts less than it did
before, so there always is room for it.

What happens by itself, at its time: closing what no client closes, forgetting, dropping. Each call does a part.

Correcting times that a clock gave which was ahead.

A delay, a time to live and the lifetime of a key end at a time of the wall clock, a certain length after they were
given. If that clock was years ahead and is right again, they would last for years. That can be detected: more time is
left than the whole length (clock.capped). Then they last for their whole length from now on.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from titanic.errors import StoreFull
from titanic.store.attempt_history import history_key
from titanic.store.postgres.closed import drop_older, make_room
from titanic.store.postgres.database_session import Raw, ids, numbers, texts
from titanic.store.postgres.nodes import FREE, OVER
from titanic.store.postgres.rows import (
    CLOSED,
    REPLY,
    REQUEST,
    UNCLAIMED,
    WITH_REPLY,
    WITH_REQUEST,
    ClosedRow,
    LaterRow,
    ReadyColumns,
    ReplyRow,
    sizes,
)
from titanic.store.postgres.transaction import RequestSnapshot
from titanic.store.postgres.writing import PostgresWriting
from titanic.store.records import CloseResult, Retention, Trimmed
from titanic.store.request import FRAME_SIZE, fields_size, lasting_texts, outcome_size
from titanic.store.rules import LATEST, body_until, drops_body, kept_until, late, shortened, times_again
from titanic.store.states import ENDING, Event, State, Status
from titanic.store.uniqueness import name_to_retry, outlives, unique_name
from titanic.util.clock import capped
from titanic.util.ids import SIZE

_PROMOTE = """
WITH due AS (
    SELECT l.uuid FROM later AS l JOIN request AS r ON r.uuid = l.uuid
    WHERE l.due <= %s ORDER BY l.due, l.uuid LIMIT %s FOR UPDATE OF r SKIP LOCKED
), gone AS (
    DELETE FROM later AS l USING due WHERE l.uuid = due.uuid RETURNING l.*
), added AS (
    INSERT INTO ready (service, rank, uuid, attempts, dispatched_at, expires_at, reason, deliveries)
    SELECT service, 9 - priority, uuid, attempts, dispatched_at, expires_at, reason, deliveries FROM gone
)
SELECT uuid, service FROM gone ORDER BY due, uuid"""

# What is claimed is running, or is about to.
_EXPIRED = f"""
SELECT e.uuid FROM expiring AS e JOIN request AS r ON r.uuid = e.uuid
WHERE e.expires_at <= %s AND e.uuid <> ALL (%s::uuid[]) AND NOT EXISTS (
    SELECT FROM ready AS y JOIN node AS n ON n.incarnation = y.incarnation
    WHERE y.service = r.service AND y.rank = 9 - r.priority AND y.uuid = r.uuid
        AND NOT ({OVER.format("y")}))
ORDER BY e.expires_at, e.uuid LIMIT %s FOR UPDATE OF r SKIP LOCKED"""


def finish(
    tx: PostgresWriting,
    uuid: bytes,
    status: Status,
    frames: Sequence[bytes],
    *,
    attempts: int,
    dispatched_at: int,
    finished_at: int,
    reason: str = "",
) -> bool:
    one = tx.to_change(uuid, ENDING[status])
    if one is None or uuid in tx.not_own:
        return False
    size = sizes(frames)
    quota = tx.writer.quota
    if size and not make_room(tx, size + REPLY, quota.reply):
        raise StoreFull(tx.used(), quota.capacity, size, kept=quota.capacity - quota.reply)
    _end(tx, one, status, frames, attempts, dispatched_at, finished_at, shortened(reason))
    return True


def postpone(
    tx: PostgresWriting, uuid: bytes, *, due: int, attempts: int, dispatched_at: int, reason: str, deliveries: int = 0
) -> bool:
    one = tx.to_change(uuid, Event.POSTPONE)
    if one is None or uuid in tx.not_own:
        return False
    changes = tx.changes
    changes.leave(one)
    one.state, one.due = State.DELAYED, min(max(due, 1), LATEST)  # 0 would say that it is ready
    one.attempts, one.dispatched_at, one.reason = attempts, dispatched_at, shortened(reason)
    one.deliveries = deliveries if deliveries > attempts else 0
    changes.later.append(_later(one))
    changes.count_service(one.service, ready=-1)
    changes.count(waiting=-1, delayed=1)
    return True


def promote(tx: PostgresWriting, now_us: int, limit: int = 1000) -> list[tuple[bytes, int]]:
    promoted: dict[bytes, int] = {}
    for uuid, service in tx.fetch(_PROMOTE, now_us, limit):
        tx.seen.pop(uuid, None)
        tx.writer.known.pop(uuid, None)
        promoted[service] = promoted.get(service, 0) + 1
    for service, n in promoted.items():
        tx.changes.count_service(service, ready=n)
        tx.changes.count(waiting=n, delayed=-n)
    return list(promoted.items())


def expire(
    tx: PostgresWriting, now_us: int, limit: int = 1000, skip: Collection[bytes] = (), ahead_us: int = 0
) -> list[tuple[bytes, bytes]]:
    uuids = [uuid for (uuid,) in tx.fetch(_EXPIRED, now_us - ahead_us, ids(list(skip)), limit)]
    tx.prefetch(uuids)
    expired: list[tuple[bytes, bytes]] = []
    for uuid in uuids:
        one = tx.to_change(uuid, Event.EXPIRE)
        if one is not None:
            reason = late(one.attempts).encode()
            _end(tx, one, Status.EXPIRED, (), one.attempts, one.dispatched_at, now_us, reason)
            expired.append((uuid, one.service))
    return expired


_LOCK_KEY = "SELECT uuids FROM key WHERE owner = %s::bytea AND key = %s::bytea FOR UPDATE"


def retry(tx: PostgresWriting, uuid: bytes, now_us: int) -> bool:
    one = tx.to_change(uuid, Event.RETRY)
    if one is None:
        return False
    if name := name_to_retry(one, one.submitted_at, now_us):  # locked: no other is accepted meanwhile
        rows = tx.fetch_keys(_LOCK_KEY, Raw(one.owner), Raw(name))
        if not rows or rows[0][0][0] != uuid:
            return False
    due, expires_at = times_again(one.submitted_at, one.not_before, one.expires_at, one.attempts, now_us)
    changes = tx.changes
    changes.leave(one)
    size = _reply_size(one)
    one.due, one.ends_at = due, expires_at
    one.attempts = one.dispatched_at = one.finished_at = one.reply_frames = one.reply_bytes = one.deliveries = 0
    one.reason, one.frames = b"", None
    if delayed := one.due > 0:
        one.state = State.DELAYED
        changes.later.append(_later(one))
    else:
        one.state = State.WAITING
        changes.ready.append(ReadyColumns(uuid, one.service, 9 - one.priority, expires_at=one.ends_at))
    if one.ends_at:
        changes.expiring.append((one.ends_at, uuid))
    changes.count_service(one.service, waiting=1, size=one.size, ready=not delayed)
    changes.count_owner(one.owner, waiting=1, size=-size)
    changes.count(waiting=not delayed, delayed=delayed, replies=-1, used=-size - REPLY)
    return True


_CHANGE = f"""
WITH waits AS (
    DELETE FROM ready WHERE service = %s::bytea AND rank = %s::smallint AND uuid = %s::uuid AND {FREE}
    RETURNING service, attempts, dispatched_at, expires_at, reason, deliveries
), delayed AS (
    DELETE FROM later WHERE uuid = %s::uuid RETURNING service, attempts, dispatched_at, expires_at, reason, deliveries
), gone AS (
    SELECT * FROM waits UNION ALL SELECT * FROM delayed
), changed AS (
    UPDATE request SET priority = %s::smallint, not_before = %s::bigint, body = coalesce(%s::bytea[], body),
        body_frames = %s::integer, body_bytes = %s::bigint
    WHERE uuid = %s::uuid AND EXISTS (SELECT FROM gone)
), to_ready AS (
    INSERT INTO ready (service, rank, uuid, attempts, dispatched_at, expires_at, reason, deliveries)
    SELECT service, 9 - %s::smallint, %s::uuid, attempts, dispatched_at, expires_at, reason, deliveries
    FROM gone WHERE %s::bigint = 0
), to_later AS (
    INSERT INTO later (service, priority, uuid, due, attempts, dispatched_at, expires_at, reason, deliveries)
    SELECT service, %s::smallint, %s::uuid, %s::bigint, attempts, dispatched_at, expires_at, reason, deliveries
    FROM gone WHERE %s::bigint > 0
)
SELECT 1 FROM gone"""


def change(
    tx: PostgresWriting,
    uuid: bytes,
    now_us: int,
    *,
    priority: int | None = None,
    due: int | None = None,
    body: Sequence[bytes] | None = None,
) -> tuple[bytes, State] | None:
    one = tx.snapshot(uuid)
    if one is None or one.has_ended:
        return None
    tx.flush()
    priority = one.priority if priority is None else priority
    not_before, at = one.not_before, one.due
    if due is not None:
        not_before = at = min(due, LATEST) if due > now_us else 0
    frames, size = one.body_frames, one.body_bytes
    if body is not None:
        frames, size = len(body), sum(map(len, body))
    more = fields_size(one, frames, size) - one.size
    quota = tx.writer.quota
    if more > 0 and not make_room(tx, more, quota.accept):
        raise StoreFull(tx.used(), quota.capacity, more, kept=quota.capacity - quota.accept)
    own = Raw(uuid)
    place = Raw(one.service), 9 - one.priority, own, own
    content = None if body is None else [*body], frames, size
    rows = tx.fetch(_CHANGE, *place, priority, not_before, *content, own, priority, own, at, priority, own, at, at)
    tx.seen.pop(uuid, None)
    tx.writer.known.pop(uuid, None)
    if not rows:
        return None
    delayed = (at > 0) - (one.state is State.DELAYED)
    tx.changes.count_service(one.service, size=more, ready=-delayed)
    tx.changes.count_owner(one.owner, size=more)
    tx.changes.count(waiting=-delayed, delayed=delayed, used=more)
    return one.service, State.DELAYED if at else State.WAITING


def leave_unended(tx: PostgresWriting, one: RequestSnapshot) -> None:
    """Remove a request that has not ended from its place, and from the counts of work."""
    changes = tx.changes
    changes.leave(one)
    changes.expire_no_more(one)
    waited = one.state is State.WAITING
    changes.count_service(one.service, waiting=-1, size=-one.size, ready=-waited)
    changes.count_owner(one.owner, waiting=-1)
    changes.count(waiting=-waited, delayed=waited - 1)


def _end(
    tx: PostgresWriting,
    one: RequestSnapshot,
    status: Status,
    frames: Sequence[bytes],
    attempts: int,
    dispatched_at: int,
    finished_at: int,
    reason: bytes,
) -> None:
    leave_unended(tx, one)
    one.state, one.ends_at, one.due, one.deliveries = State(status), 0, 0, 0
    one.attempts, one.dispatched_at, one.finished_at, one.reason = attempts, dispatched_at, finished_at, reason
    one.reply_frames, one.reply_bytes, one.frames = len(frames), sizes(frames), list(frames)
    ends = status, attempts, dispatched_at, finished_at, one.reply_bytes, one.reply_frames, frames, reason
    ended = one.options, status, finished_at
    until = kept_until(*ended), body_until(*ended) if one.body_frames else 0
    tx.changes.replies.append(ReplyRow(one.uuid, *ends, one.service, one.owner, *until))
    size = _reply_size(one)
    if drops_body(one.options, status):
        before = one.size
        one.body_frames = one.body_bytes = 0
        size += one.size - before
        tx.changes.without_body.append(one.uuid)
    tx.changes.count_owner(one.owner, size=size)
    tx.changes.count(replies=1, used=size + REPLY)


def _reply_size(one: RequestSnapshot) -> int:
    return outcome_size(one.reason, one.reply_frames, one.reply_bytes)


def _later(one: RequestSnapshot) -> LaterRow:
    tries = one.attempts, one.dispatched_at, one.ends_at
    return LaterRow(one.uuid, one.due, *tries, one.priority, one.service, one.reason, one.deliveries)


# -- close -----------------------------------------------------------------------------------------------------


def close(tx: PostgresWriting, uuid: bytes, now_us: int | None = None) -> CloseResult | None:
    return close_request(tx, uuid, tx.pool.clock.now_us() if now_us is None else now_us)


def close_request(tx: PostgresWriting, uuid: bytes, now_us: int, unclaimed: bool = False) -> CloseResult | None:
    """`close`; `unclaimed`: no client did it in time."""
    if history_key(uuid) in tx.changes.facts:
        tx.flush()  # what moves it does not see what the same statement puts
    one = tx.to_change(uuid)
    if one is None:
        tx.found_done = True
        return None
    changes = tx.changes
    waited = one.state in (State.WAITING, State.DELAYED)
    size = one.size
    used = size + REQUEST
    if waited:
        leave_unended(tx, one)
    else:
        replied = outcome_size(one.reason, one.reply_frames, one.reply_bytes)
        used += replied + REPLY
        size += replied
        changes.leave(one)
        changes.count(replies=-1)
    changes.remove(uuid)
    changes.count_owner(one.owner, size=-size)
    changes.count(requests=-1, used=-used)
    status = Status(one.state) if one.has_ended else Status.CANCELLED
    if (name := unique_name(one)) and not outlives(name, unclaimed, status):
        changes.to_forget.add((one.owner, name, uuid))
    if tx.settings.keep_closed:
        _remember(tx, one, now_us, unclaimed)
    tx.seen[uuid] = None
    run_us = one.finished_at - one.dispatched_at if one.has_ended and one.dispatched_at else None
    return CloseResult(one.service, one.state, one.key, one.owner, run_us)


def _remember(tx: PostgresWriting, one: RequestSnapshot, now_us: int, unclaimed: bool) -> None:
    most = tx.settings.closed_body_limit
    status = one.state if one.has_ended else Status.CANCELLED
    cost = CLOSED + sum(map(len, lasting_texts(one))) + len(one.reason)
    flags = UNCLAIMED if unclaimed else 0
    if one.body_bytes <= most:
        flags |= WITH_REQUEST
        cost += one.body_bytes
    if one.reply_bytes <= most:
        flags |= WITH_REPLY
        cost += one.reply_bytes
    times = one.dispatched_at, one.finished_at, now_us
    row = ClosedRow(one.uuid, status, one.attempts, *times, cost, flags, one.reason)
    tx.changes.keep_closed(row, one.owner)


# -- timers ----------------------------------------------------------------------------------------------------


_FORGET_KEYS = """
WITH over AS (
    SELECT owner, key FROM key WHERE until <= %s
    ORDER BY until, owner <> '' OR key >= '\\xff'::bytea, owner || '\\xff'::bytea, key LIMIT %s FOR UPDATE SKIP LOCKED
)
DELETE FROM key AS k USING over AS o WHERE k.owner = o.owner AND k.key = o.key
RETURNING k.owner, length(k.key), cardinality(k.uuids)"""

_DROP_BODIES = """
WITH due AS (
    SELECT p.uuid, r.owner, r.body_frames, r.body_bytes FROM reply AS p JOIN request AS r ON r.uuid = p.uuid
    WHERE p.uuid = ANY (%s::uuid[]) AND p.body_until > 0
), done AS (
    UPDATE reply AS p SET body_until = 0 FROM due WHERE p.uuid = due.uuid
), emptied AS (
    UPDATE request AS r SET body = '{}', body_frames = 0, body_bytes = 0 FROM due WHERE r.uuid = due.uuid
)
SELECT * FROM due"""
"""A statement behind the one that locks them (`_BODIES`): it must see whether one has been retried meanwhile."""

_UNCLAIMED = """
SELECT p.uuid FROM reply AS p JOIN request AS r ON r.uuid = p.uuid
WHERE {} <= %s
ORDER BY {}, p.uuid LIMIT %s FOR UPDATE OF r SKIP LOCKED"""
_KEPT = _UNCLAIMED.format("p.until > 0 AND p.until", "p.until")
_BODIES = _UNCLAIMED.format("p.body_until > 0 AND p.body_until", "p.body_until")
_REPLIED, _DEAD = (
    _UNCLAIMED.format(f"p.status IN ({states}) AND p.until = 0 AND p.finished_at", "p.finished_at")
    for states in ("4, 7", "5, 6")
)


def trim(
    tx: PostgresWriting, now_us: int, policy: Retention | None = None, limit: int = 1000, ahead_us: int = 0
) -> Trimmed:
    """Bodies go first: the archive gets none that is due."""
    policy = policy or Retention()
    left = limit
    sure_us = now_us - ahead_us
    rows = tx.fetch(_FORGET_KEYS, sure_us, left)
    tx.changes.count_keys_gone(rows)
    left -= len(rows)
    bodies = _drop_bodies(tx, sure_us, left)
    left -= bodies
    closed = Counter[bytes]()
    own = _close_unclaimed(tx, _KEPT, sure_us, now_us, left, closed)
    left -= own
    replies = dead = 0
    if policy.reply_retention:
        replies = _close_unclaimed(tx, _REPLIED, sure_us - policy.reply_retention, now_us, left, closed)
        left -= replies
    if policy.dead_retention:
        dead = _close_unclaimed(tx, _DEAD, sure_us - policy.dead_retention, now_us, left, closed)
        left -= dead
    dropped = 0
    if policy.closed_retention and left > 0:
        dropped = drop_older(tx, sure_us - policy.closed_retention + 1, left)
        left -= dropped
    return Trimmed(own + replies, dead, dropped, len(rows), left <= 0, closed, bodies)


def _drop_bodies(tx: PostgresWriting, until: int, limit: int) -> int:
    found = [uuid for (uuid,) in tx.fetch(_BODIES, until, max(limit, 0))]
    rows = tx.fetch(_DROP_BODIES, ids(found)) if found else []
    for uuid, owner, frames, size in rows:
        tx.seen.pop(uuid, None)
        tx.writer.known.pop(uuid, None)
        tx.changes.count_owner(owner, size=-FRAME_SIZE * frames - size)
        tx.changes.count(used=-FRAME_SIZE * frames - size)
    return len(rows)  # another node may have deleted the others since the search had begun


def _close_unclaimed(
    tx: PostgresWriting, text: str, until: int, now_us: int, limit: int, closed: Counter[bytes]
) -> int:
    if limit <= 0:
        return 0
    uuids = [uuid for (uuid,) in tx.fetch(text, until, limit)]
    known, before = tx.writer.known, closed.total()
    for uuid in uuids:
        if uuid in known and not known[uuid].has_ended:  # it has, at another node
            del known[uuid]
    tx.prefetch(uuids)
    for uuid in uuids:
        one = tx.to_change(uuid)
        if one is None or not one.has_ended:  # retried by another node after the search had begun
            continue
        if (result := close_request(tx, uuid, now_us, unclaimed=True)) is not None:
            closed[result.service] += 1
    return closed.total() - before


# -- clamp_timers -----------------------------------------------------------------------------------------------------


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


def clamp_timers(tx: PostgresWriting, now_us: int, after: bytes = b"", limit: int = 1000) -> tuple[int, bytes | None]:
    """A place is a letter for the kind of rows, and the row to go on behind."""
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


def _cap_delays(tx: PostgresWriting, begin: bytes, now_us: int, limit: int) -> tuple[int, int, bytes]:
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


def _cap_expiries(tx: PostgresWriting, begin: bytes, now_us: int, limit: int) -> tuple[int, int, bytes]:
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


def _cap_keys(tx: PostgresWriting, begin: bytes, now_us: int, limit: int) -> tuple[int, int, bytes]:
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


_CAPS: dict[bytes, Callable[[PostgresWriting, bytes, int, int], tuple[int, int, bytes]]] = {
    b"D": _cap_delays,
    b"E": _cap_expiries,
    b"K": _cap_keys,
}
_THEN = {b"D": b"E", b"E": b"K", b"K": b""}
"""The kinds of rows, and the kind that follows each."""
