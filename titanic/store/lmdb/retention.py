"""Retention: closing what no client closes, and forgetting old closed requests and keys.

One call does a bounded part, so a backlog of a million replies does not delay other writers. Everything is found by
its time, in `timers` or at the beginning of `closed`, without a search.
"""

from __future__ import annotations

from itertools import islice, takewhile

from titanic.errors import StoreFull
from titanic.store.lmdb.close import close_request
from titanic.store.lmdb.free_space import drop_oldest
from titanic.store.lmdb.schema import DEAD, KEY, REPLIED
from titanic.store.lmdb.transaction import Writing
from titanic.store.records import Retention, Trimmed


def trim(tx: Writing, now_us: int, policy: Retention | None = None, limit: int = 1000, ahead_us: int = 0) -> Trimmed:
    """Close replies and dead requests that nobody closed in time, drop old closed ones, forget old keys."""
    policy = policy or Retention()
    left = limit
    sure_us = now_us - ahead_us
    keys = _forget_keys(tx, sure_us, left)
    left -= keys
    replies = _close_unclaimed(tx, REPLIED, policy.reply_retention, now_us, sure_us, left)
    left -= replies
    dead = _close_unclaimed(tx, DEAD, policy.dead_retention, now_us, sure_us, left)
    left -= dead
    dropped = 0
    if policy.closed_retention and left > 0:
        # bounded by pages as well as by entries
        dropped = drop_oldest(tx, left, closed_before=sure_us - policy.closed_retention + 1)
        left -= dropped
    more = left <= 0 or bool(tx.raw.stat(tx.db.graves)["entries"])
    return Trimmed(replies, dead, dropped, keys, more)


def _close_unclaimed(tx: Writing, kind: bytes, retention: int, now_us: int, sure_us: int, limit: int) -> int:
    done = 0
    for timer, uuid in _timers_until(tx, kind, sure_us - retention, limit) if retention else ():
        try:
            close_request(tx, uuid, now_us, unclaimed=True)
        except StoreFull:
            break
        tx.raw.delete(timer, db=tx.db.timers)  # also when it led nowhere
        done += 1
    return done


def _forget_keys(tx: Writing, now_us: int, limit: int) -> int:
    timers = _timers_until(tx, KEY, now_us, limit)
    for timer, key in timers:
        holder = tx.key_holder(key)
        if holder is None or holder.until <= now_us:
            tx.delete(tx.db.keys, key)
        tx.delete(tx.db.timers, timer)
    return len(timers)


def _timers_until(tx: Writing, kind: bytes, until: int, limit: int) -> list[tuple[bytes, bytes]]:
    """Rows and subjects of the timers of a kind whose time has come, at most `limit`."""
    due = takewhile(lambda timer: timer[1] <= until, tx.timers(kind))
    return [(key, subject) for key, _, subject in islice(due, limit)]
