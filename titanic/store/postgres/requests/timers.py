"""What happens by itself, at its time: closing what no client closes, forgetting, dropping. Each call does a part."""

from __future__ import annotations

from titanic.store.postgres.closed.drops import drop_older
from titanic.store.postgres.requests.close import close_request
from titanic.store.postgres.writing import Writing
from titanic.store.records import Retention, Trimmed

_FORGET_KEYS = """
WITH over AS (
    SELECT owner, key FROM key WHERE until <= %s
    ORDER BY until, owner <> '', owner || '\\xff'::bytea, key LIMIT %s FOR UPDATE SKIP LOCKED
)
DELETE FROM key AS k USING over AS o WHERE k.owner = o.owner AND k.key = o.key
RETURNING k.owner, length(k.key), cardinality(k.uuids)"""

_UNCLAIMED = """
SELECT p.uuid FROM reply AS p JOIN request AS r ON r.uuid = p.uuid
WHERE p.status IN ({}) AND p.finished_at <= %s
ORDER BY p.finished_at, p.uuid LIMIT %s FOR UPDATE OF r SKIP LOCKED"""
_REPLIED, _DEAD = map(_UNCLAIMED.format, ("4, 7", "5, 6"))


def trim(tx: Writing, now_us: int, policy: Retention | None = None, limit: int = 1000, ahead_us: int = 0) -> Trimmed:
    """Close replies and dead requests that nobody closed in time, drop old closed ones, forget old keys."""
    policy = policy or Retention()
    left = limit
    sure_us = now_us - ahead_us
    rows = tx.fetch(_FORGET_KEYS, sure_us, left)
    tx.changes.count_keys_gone(rows)
    left -= len(rows)
    replies = _close_unclaimed(tx, _REPLIED, policy.reply_retention, now_us, sure_us, left)
    left -= replies
    dead = _close_unclaimed(tx, _DEAD, policy.dead_retention, now_us, sure_us, left)
    left -= dead
    dropped = 0
    if policy.closed_retention and left > 0:
        dropped = drop_older(tx, sure_us - policy.closed_retention + 1, left)
        left -= dropped
    return Trimmed(replies, dead, dropped, len(rows), left <= 0)


def _close_unclaimed(tx: Writing, text: str, retention: int, now_us: int, sure_us: int, limit: int) -> int:
    if not retention or limit <= 0:
        return 0
    uuids = [uuid for (uuid,) in tx.fetch(text, sure_us - retention, limit)]
    tx.foresee(uuids)
    for uuid in uuids:
        close_request(tx, uuid, now_us, unclaimed=True)
    return len(uuids)
