"""The check of `keys` and `timers`: each row has what it is about, and that has its row."""

from __future__ import annotations

from titanic.errors import RecordCorrupt
from titanic.store.lmdb import idempotency_key, outcome_record, request_record
from titanic.store.lmdb.lifecycle import retention_kind
from titanic.store.lmdb.retry_record import expiry
from titanic.store.lmdb.schema import DEAD, EXPIRY, KEY, REPLIED, TIME_SIZE, timer_key, timer_of
from titanic.store.lmdb.tools.findings import Findings, Remedy, Verb


class TimerFindings(Findings):
    """The walk through both."""

    def _keys(self) -> None:
        for view, row in self._each(self._txn.cursor(self._db.keys).iternext()):
            key = bytes(view)
            holder = idempotency_key.decode(row)
            if holder is None:
                self._report("keys", key, f"the row has {len(row)} bytes", Remedy(Verb.SET_ASIDE, "keys", key))
                continue
            timer = timer_key(KEY, holder.until, key)
            if not self._has(self._db.timers, timer):
                self._report("keys", key, "it would never be forgotten", Remedy(Verb.PUT, "timers", timer))
            record = self._txn.get(holder.uuid, db=self._db.requests)
            if record is None:
                continue  # it was closed
            try:
                found = request_record.decode_header(holder.uuid, record).key
            except RecordCorrupt:
                continue
            if found not in (key, b""):
                what = f"its request {holder.uuid.hex()} has the key {found!r}"
                self._report("keys", key, what, Remedy(Verb.SET_ASIDE, "keys", key))

    def _timers(self) -> None:
        for view, value in self._each(self._txn.cursor(self._db.timers).iternext()):
            key = bytes(view)
            if len(key) <= 1 + TIME_SIZE:
                what = "the key has a wrong length"
            elif len(value):
                self._report("timers", key, "the row has a value", Remedy(Verb.PUT, "timers", key))
                continue
            else:
                what = self._timer_fault(*timer_of(key))
            if what:
                self._report("timers", key, what, Remedy(Verb.DELETE, "timers", key))

    def _timer_fault(self, kind: bytes, time: int, subject: bytes) -> str:
        """What is wrong with a timer; nothing, as a rule."""
        if kind == KEY:
            row = self._txn.get(subject, db=self._db.keys)
            holder = None if row is None else idempotency_key.decode(row)
            return "" if holder and holder.until == time else "there is no such key"
        if kind == EXPIRY:
            record = self._txn.get(subject, db=self._db.requests)
            if record is None:
                return "there is no such request"
            if self._has(self._db.replies, subject):
                return "the request has ended"
            try:
                own = request_record.decode_header(subject, record).expires_at
            except RecordCorrupt:
                return ""
            expires_at = expiry(own, self._past(subject))
            return "" if expires_at == time else f"the request says {expires_at}"
        if kind in (REPLIED, DEAD):
            record = self._txn.get(subject, db=self._db.replies)
            if record is None:
                return "there is no such reply"
            try:
                end = outcome_record.decode_header(subject, record)
            except RecordCorrupt:
                return ""
            right = end.finished_at == time and retention_kind(end.status) == kind
            return "" if right else f"the reply says {end.status.name} at {end.finished_at}"
        return f"there is no such kind as {kind!r}"
