"""What happens by itself, at its time: closing what no client closes, forgetting, and correcting times.

One call does a bounded part, so a backlog of a million replies does not delay other writers. Everything is found by
its time, in `timers` or at the beginning of `closed`, without a search.

A delay, a time to live and the lifetime of a key end at a time of the wall clock, a certain length after they were
given. If that clock was years ahead and is right again, they would last for years. That can be detected: more time is
left than the whole length (clock.capped). Then they last for their whole length from now on (`clamp_timers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import islice, takewhile

from titanic.errors import RecordCorrupt, StoreFull
from titanic.store.lmdb import outcome_record, request_record
from titanic.store.lmdb.close import close_request
from titanic.store.lmdb.closed_ring import charges_to_end, end_charges
from titanic.store.lmdb.free_space import drop_oldest
from titanic.store.lmdb.lifecycle import drop_body
from titanic.store.lmdb.outcome_record import RetryRecord, expiry
from titanic.store.lmdb.record import verify
from titanic.store.lmdb.request_record import RequestHeader
from titanic.store.lmdb.schema import (
    BODIES,
    DEAD,
    EXPIRY,
    KEPT,
    KEY,
    REPLIED,
    due_of,
    later_key,
    timer_key,
    timer_of,
    uuid_of,
)
from titanic.store.lmdb.transaction import Writing
from titanic.store.records import Retention, Trimmed
from titanic.util.clock import capped
from titanic.util.ids import SIZE, may_be_after

_DELAY = b"L"
_THEN = {_DELAY: EXPIRY, EXPIRY: KEY, KEY: b""}
"""The kinds of timers that are examined, and the kind that follows each."""


def trim(tx: Writing, now_us: int, policy: Retention | None = None, limit: int = 1000, ahead_us: int = 0) -> Trimmed:
    """Bodies go first: the archive gets none that is due."""
    policy = policy or Retention()
    left = limit
    sure_us = now_us - ahead_us
    keys = _forget_keys(tx, sure_us, left)
    left -= keys
    bodies = _drop_bodies(tx, sure_us, left)
    left -= bodies
    closed = Counter[bytes]()
    own = _close_unclaimed(tx, KEPT, sure_us, now_us, left, closed)
    left -= own
    replies = dead = 0
    if policy.reply_retention:
        replies = _close_unclaimed(tx, REPLIED, sure_us - policy.reply_retention, now_us, left, closed)
        left -= replies
    if policy.dead_retention:
        dead = _close_unclaimed(tx, DEAD, sure_us - policy.dead_retention, now_us, left, closed)
        left -= dead
    dropped = 0
    if policy.closed_retention and left > 0:
        # bounded by pages as well as by entries
        dropped = drop_oldest(tx, left, closed_before=sure_us - policy.closed_retention + 1)
        left -= dropped
    end_charges(tx, limit)
    more = left <= 0 or bool(tx.raw.stat(tx.db.graves)["entries"]) or charges_to_end(tx)
    return Trimmed(own + replies, dead, dropped, keys, more, closed, bodies)


def _close_unclaimed(tx: Writing, kind: bytes, until: int, now_us: int, limit: int, closed: Counter[bytes]) -> int:
    done = 0
    for timer, uuid in _timers_until(tx, kind, until, limit):
        try:
            result = close_request(tx, uuid, now_us, unclaimed=True)
        except StoreFull:
            break
        if result is not None:
            closed[result.service] += 1
        tx.raw.delete(timer, db=tx.db.timers)  # also when it led nowhere
        done += 1
    return done


def _drop_bodies(tx: Writing, until: int, limit: int) -> int:
    timers = _timers_until(tx, BODIES, until, limit)
    for timer, uuid in timers:
        record = tx.raw.get(uuid, db=tx.db.requests)
        with suppress(RecordCorrupt):  # a check finds it
            if record is not None and tx.raw.get(uuid, db=tx.db.replies) is not None:
                verify(uuid, record, request_record.DATABASE)  # damage would get a new, valid checksum
                drop_body(tx, uuid, request_record.decode_header(uuid, record))
        tx.delete(tx.db.timers, timer)
    return len(timers)


def _forget_keys(tx: Writing, now_us: int, limit: int) -> int:
    timers = _timers_until(tx, KEY, now_us, limit)
    for timer, key in timers:
        holder = tx.key_holder(key)
        if holder is None or holder.until <= now_us:
            tx.delete_key(key)
        tx.delete(tx.db.timers, timer)
    return len(timers)


def _timers_until(tx: Writing, kind: bytes, until: int, limit: int) -> list[tuple[bytes, bytes]]:
    """Rows and subjects of the timers of a kind that are due, at most `limit`."""
    due = takewhile(lambda timer: timer[1] <= until, tx.timers(kind))
    return [(key, subject) for key, _, subject in islice(due, limit)]


def clamp_timers(tx: Writing, now_us: int, after: bytes = b"", limit: int = 1000) -> tuple[int, bytes | None]:
    changed, place = 0, after or _DELAY
    while place and limit > 0:
        kind = place[:1]
        keys, place = _from(tx, kind, place[1:], now_us, limit)
        changed += sum(_CAPS[kind](tx, key, now_us) for key in keys)
        limit -= len(keys)
    return changed, place or None


def _from(tx: Writing, kind: bytes, begin: bytes, now_us: int, limit: int) -> tuple[list[bytes], bytes]:
    """Keys of rows with a time in the future, and the place behind them."""
    database, prefix = (tx.db.later, b"") if kind == _DELAY else (tx.db.timers, kind)
    cursor = tx.raw.cursor(database)
    found: list[bytes] = []
    if cursor.set_range(prefix + (begin or later_key(now_us, b""))):
        for view in cursor.iternext(values=False):
            key = bytes(view)
            if not key.startswith(prefix):
                break
            if len(found) == limit:
                return found, kind + key[len(prefix) :]
            found.append(key)
    return found, _THEN[kind]


def _cap_delay(tx: Writing, key: bytes, now_us: int) -> bool:
    uuid, due = uuid_of(key), due_of(key)
    past = _past(tx, uuid)
    if past is None or past.due != due:
        return False  # a check finds it
    end = due
    if past.dispatched_at:
        end = capped(due, past.dispatched_at, now_us)
    elif (header := _header(tx, uuid, now_us)) is not None:
        end = min(due, capped(header.not_before, header.submitted_at, now_us))
    if end == due:
        return False
    prefix = bytes(tx.raw.get(key, b"", db=tx.db.later))
    tx.delete(tx.db.later, key)
    tx.put(tx.db.later, later_key(end, uuid), prefix)
    # It was not sent in the future; and the next time the length of the delay must be the same.
    past = past._replace(due=end, dispatched_at=min(past.dispatched_at, now_us))
    tx.put(tx.db.retries, uuid, outcome_record.encode_retry(uuid, past))
    return True


def _cap_expiry(tx: Writing, key: bytes, now_us: int) -> bool:
    _, time, uuid = timer_of(key)
    header = _header(tx, uuid, now_us)
    past = _past(tx, uuid) if header else None
    if header is None or past is None or expiry(header.expires_at, past) != time:
        return False
    end = min(time, capped(header.expires_at, header.submitted_at, now_us))
    if end == time:
        return False
    tx.delete(tx.db.timers, key)
    tx.put(tx.db.timers, timer_key(EXPIRY, end, uuid), b"")
    tx.put(tx.db.retries, uuid, outcome_record.encode_retry(uuid, past._replace(expires_at=end)))
    return True


def _cap_key(tx: Writing, key: bytes, now_us: int) -> bool:
    _, time, name = timer_of(key)
    holder = tx.key_holder(name)
    if holder is None or holder.until != time:
        return False
    end = capped(time, holder.given, now_us)
    if end == time:
        return False
    tx.delete(tx.db.timers, key)
    tx.put(tx.db.timers, timer_key(KEY, end, name), b"")
    tx.put(tx.db.keys, name, request_record.encode_key_record(holder._replace(until=end, given=now_us)))
    return True


def _header(tx: Writing, uuid: bytes, now_us: int) -> RequestHeader | None:
    """The header of a request; None when it can't be read, or its id shows that it came before now."""
    if len(uuid) != SIZE or not may_be_after(uuid, now_us):
        return None
    record = tx.raw.get(uuid, db=tx.db.requests)
    try:
        return None if record is None else request_record.decode_header(uuid, record)
    except RecordCorrupt:
        return None


def _past(tx: Writing, uuid: bytes) -> RetryRecord | None:
    """What is remembered of it, which may be nothing; None when it can't be read."""
    try:
        return tx.past(uuid) or RetryRecord(0, 0)
    except RecordCorrupt:
        return None


_CAPS: dict[bytes, Callable[[Writing, bytes, int], bool]] = {
    _DELAY: _cap_delay,
    EXPIRY: _cap_expiry,
    KEY: _cap_key,
}
