"""Closing requests: out of the queue, and into the ring of those that are remembered.

Their frames do not come here: PostgreSQL copies them from table to table. A closed request counts less than it did
before, so there always is room for it.
"""

from __future__ import annotations

from titanic.store.postgres.requests.lifecycle import leave_unended
from titanic.store.postgres.tables import CLOSED, REPLY, REQUEST, UNCLAIMED, WITH_REPLY, WITH_REQUEST, ClosedRow
from titanic.store.postgres.transaction import Seen, reply_size
from titanic.store.postgres.writing import Writing
from titanic.store.records import Closed
from titanic.store.states import State, Status


def close(tx: Writing, uuid: bytes, now_us: int | None = None) -> Closed | None:
    """Delete the request and all that belongs to it, whatever its state."""
    return close_request(tx, uuid, tx.pool.clock.now_us() if now_us is None else now_us)


def close_request(tx: Writing, uuid: bytes, now_us: int, unclaimed: bool = False) -> Closed | None:
    """`close`; `unclaimed`: nobody did it in time."""
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
        replied = reply_size(one.reason, one.reply_frames, one.reply_bytes)
        used += replied + REPLY
        size += replied
        changes.leave(one)
        changes.count(replies=-1)
    changes.remove(uuid)
    changes.count_owner(one.owner, size=-size)
    changes.count(requests=-1, used=-used)
    if tx.settings.keep_closed:
        _remember(tx, one, now_us, unclaimed)
    tx.seen[uuid] = None
    return Closed(one.service, one.state)


def _remember(tx: Writing, one: Seen, now_us: int, unclaimed: bool) -> None:
    most = tx.settings.closed_body_limit
    status = one.state if one.has_ended else Status.CANCELLED
    cost = CLOSED + len(one.service) + len(one.key) + len(one.owner) + len(one.reason)
    flags = UNCLAIMED if unclaimed else 0
    if one.body_bytes <= most:
        flags |= WITH_REQUEST
        cost += one.body_bytes
    if one.reply_bytes <= most:
        flags |= WITH_REPLY
        cost += one.reply_bytes
    times = one.dispatched_at, one.finished_at, now_us
    tx.changes.closed.append(ClosedRow(one.uuid, status, one.attempts, *times, cost, flags, one.reason))
    tx.changes.count(used=cost)
