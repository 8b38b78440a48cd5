"""What was put off by a clock that was wrong.

A request is due a delay after the time at which it was put off, both by the wall clock. When that clock was years ahead
and is right again, the request would wait for years. It can be told: it was put off at a time that has yet to come.
"""

from __future__ import annotations

from typing import NamedTuple

from titanic.errors import RecordCorrupt
from titanic.store import request, retry
from titanic.store.change import Change
from titanic.store.retry import Retry
from titanic.store.schema import due_of, later_key, uuid_of


class _Wrong(NamedTuple):
    key: bytes
    prefix: bytes
    past: Retry
    due: int


class Recapping(Change):
    """The part of a write transaction that makes up for a clock that was set back."""

    def recap(self, now_us: int, after: bytes = b"", limit: int = 1000) -> tuple[int, bytes | None]:
        """Let what was put off in the future be due after its own delay, counted from now.

        Looks at `limit` delayed requests behind the key `after`. Returns how many were changed, and the key to go on
        from; None at the end.
        """
        wrong: list[_Wrong] = []
        looked_at, last = 0, after
        cursor = self._txn.cursor(self._db.later)
        more = cursor.set_range(after or later_key(now_us, b""))
        for view, prefix in cursor.iternext() if more else ():
            key = bytes(view)
            if key == after:
                continue
            if looked_at >= limit:
                break
            looked_at, last = looked_at + 1, key
            if found := self._put_off_in_future(key, bytes(prefix), now_us):
                wrong.append(found)
        else:
            last = b""
        for one in wrong:
            uuid = uuid_of(one.key)
            self._delete(self._db.later, one.key)
            self._put(self._db.later, later_key(one.due, uuid), one.prefix)
            self._put(self._db.retries, uuid, retry.encode(uuid, one.past._replace(due=one.due)))
        return len(wrong), last or None

    def _put_off_in_future(self, key: bytes, prefix: bytes, now_us: int) -> _Wrong | None:
        uuid, due = uuid_of(key), due_of(key)
        record = self._txn.get(uuid, db=self._db.requests)
        try:
            past = self._retry(uuid)
            if record is None or past is None or past.due != due:
                return None  # a check finds it
            since = past.dispatched_at if past.attempts else request.decode_header(uuid, record).submitted_at
        except RecordCorrupt:
            return None
        # A due time before the one at which it was put off is what this made of it.
        return _Wrong(key, prefix, past, now_us + due - since) if now_us < since < due else None
