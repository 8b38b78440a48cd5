"""The lifecycle of accepted requests: finish, postpone, promote, expire, retry."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from titanic.errors import StoreFull
from titanic.store.postgres.closed.drops import make_room
from titanic.store.postgres.connection import ids
from titanic.store.postgres.tables import REPLY, LaterRow, ReadyRow, ReplyRow, shortened, sizes
from titanic.store.postgres.transaction import Seen, reply_size
from titanic.store.postgres.writing import Writing
from titanic.store.rules import LATEST, late, times_again
from titanic.store.states import ENDING, Event, State, Status

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

# What a living node has claimed is running there, or is about to.
_EXPIRED = """
SELECT e.uuid FROM expiring AS e JOIN request AS r ON r.uuid = e.uuid
WHERE e.expires_at <= %s AND e.uuid <> ALL (%s::uuid[]) AND NOT EXISTS (
    SELECT FROM ready AS y JOIN node AS n ON n.incarnation = y.incarnation
    WHERE y.service = r.service AND y.rank = 9 - r.priority AND y.uuid = r.uuid
        AND n.lease_until > '-infinity')
ORDER BY e.expires_at, e.uuid LIMIT %s FOR UPDATE OF r SKIP LOCKED"""


def finish(
    tx: Writing,
    uuid: bytes,
    status: Status,
    frames: Sequence[bytes],
    *,
    attempts: int,
    dispatched_at: int,
    finished_at: int,
    reason: str = "",
) -> bool:
    """Store how the request ended. False, and nothing is changed, when it is unknown or has ended before."""
    one = tx.to_change(uuid, ENDING[status])
    if one is None or uuid in tx.not_own:
        return False
    size = sizes(frames)
    quota = tx.writer.quota
    if size and not make_room(tx, size + REPLY, quota.reply):
        raise StoreFull(tx.used() + quota.capacity - quota.reply, quota.capacity, size)
    _end(tx, one, status, frames, attempts, dispatched_at, finished_at, shortened(reason))
    return True


def postpone(
    tx: Writing, uuid: bytes, *, due: int, attempts: int, dispatched_at: int, reason: str, deliveries: int = 0
) -> bool:
    """Take a request that failed out of the queue until `due`, in µs since the epoch."""
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


def promote(tx: Writing, now_us: int, limit: int = 1000) -> list[tuple[bytes, int]]:
    """Put back into the queue what is due, the longest due first, at most `limit` requests."""
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
    tx: Writing, now_us: int, limit: int = 1000, skip: Collection[bytes] = (), ahead_us: int = 0
) -> list[tuple[bytes, bytes]]:
    """End requests whose time is over, at most `limit`, but not those in `skip`: they are running."""
    uuids = [uuid for (uuid,) in tx.fetch(_EXPIRED, now_us - ahead_us, ids(list(skip)), limit)]
    tx.foresee(uuids)
    expired: list[tuple[bytes, bytes]] = []
    for uuid in uuids:
        one = tx.to_change(uuid, Event.EXPIRE)
        if one is not None:
            reason = late(one.attempts).encode()
            _end(tx, one, Status.EXPIRED, (), one.attempts, one.dispatched_at, now_us, reason)
            expired.append((uuid, one.service))
    return expired


def retry(tx: Writing, uuid: bytes, now_us: int) -> bool:
    """Let a request that failed or expired wait again, as if it had never been tried. False for other requests."""
    one = tx.to_change(uuid, Event.RETRY)
    if one is None:
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
        changes.ready.append(ReadyRow(uuid, one.service, 9 - one.priority, expires_at=one.ends_at))
    if one.ends_at:
        changes.expiring.append((one.ends_at, uuid))
    changes.count_service(one.service, waiting=1, size=one.size, ready=not delayed)
    changes.count_owner(one.owner, waiting=1, size=-size)
    changes.count(waiting=not delayed, delayed=delayed, replies=-1, used=-size - REPLY)
    return True


def leave_unended(tx: Writing, one: Seen) -> None:
    """A request that has not ended leaves its place, and is nobody's work any more."""
    changes = tx.changes
    changes.leave(one)
    changes.expire_no_more(one)
    waited = one.state is State.WAITING
    changes.count_service(one.service, waiting=-1, size=-one.size, ready=-waited)
    changes.count_owner(one.owner, waiting=-1)
    changes.count(waiting=-waited, delayed=waited - 1)


def _end(
    tx: Writing,
    one: Seen,
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
    tx.changes.replies.append(ReplyRow(one.uuid, *ends, one.service, one.owner))
    size = _reply_size(one)
    tx.changes.count_owner(one.owner, size=size)
    tx.changes.count(replies=1, used=size + REPLY)


def _reply_size(one: Seen) -> int:
    return reply_size(one.reason, one.reply_frames, one.reply_bytes)


def _later(one: Seen) -> LaterRow:
    tries = one.attempts, one.dispatched_at, one.ends_at
    return LaterRow(one.uuid, one.due, *tries, one.priority, one.service, one.reason, one.deliveries)
