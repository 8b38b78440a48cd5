"""The store looks at itself: every record, and everything that two databases say about the same thing.

What is wrong is found here together with its remedy (findings.py); only repair.py applies those.
"""

from __future__ import annotations

from functools import partial

import lmdb

from titanic.errors import RecordCorrupt
from titanic.store.lmdb import outcome_record, request_record, retry_record
from titanic.store.lmdb.lifecycle import retention_kind
from titanic.store.lmdb.outcome_record import Outcome
from titanic.store.lmdb.read import ReadTransaction
from titanic.store.lmdb.record import verify
from titanic.store.lmdb.request_record import Header
from titanic.store.lmdb.retry_record import Retry, expiry
from titanic.store.lmdb.schema import (
    EXPIRY,
    due_of,
    later_key,
    ready_prefix,
    service_of,
    timer_key,
    uuid_of,
)
from titanic.store.lmdb.store import Store
from titanic.store.lmdb.tools.check_counts import CountFindings
from titanic.store.lmdb.tools.check_ring import RingFindings
from titanic.store.lmdb.tools.check_timers import TimerFindings
from titanic.store.lmdb.tools.findings import Problem, Progress, Remedy, Verb
from titanic.util.ids import SIZE

COUNTED = ("requests", "replies", "retries", "ready", "later", "keys", "timers", "closed", "blobs")
"""Databases whose rows make up the work of a check."""


def check(store: Store, tell: Progress | None = None) -> list[Problem]:
    """Find all that is wrong in the store; an empty list means that it is sound. `tell` hears where it is: the name of
    the database.

    Reads every record in one read transaction: on a store that is in use, freed pages can't be used meanwhile.
    """
    with store.read() as txn:
        walk = Walk(txn)
        walk.run(tell)
        return walk.problems


def _told(tell: Progress, name: str, total: int, seen: int) -> None:
    tell(name, seen, total)


class Walk(TimerFindings, RingFindings, CountFindings):
    """The walk through all databases."""

    def __init__(self, txn: ReadTransaction) -> None:
        super().__init__(txn)
        self.unreadable = ""

    def run(self, tell: Progress | None = None) -> None:
        """Look at everything. Ends where LMDB can't go on: `unreadable` says where, and why.

        What would be found behind that is unknown, and so is whether the remedies are right.
        """
        total = sum(self._txn.stat(getattr(self._db, name))["entries"] for name in COUNTED)
        for name, walk in (
            ("requests", self._requests),
            ("replies", self._replies),
            ("retries", self._retries),
            ("ready", self._ready_rows),
            ("later", self._later_rows),
            ("keys", self._keys),
            ("timers", self._timers),
            ("closed", self._closed),
            ("blobs", self._blobs),
            ("meta", self._meta),
        ):
            if tell is not None:
                tell(name, self._seen, total)
                self._tell = partial(_told, tell, name, total)
            try:
                walk()
            except lmdb.Error as error:
                self.unreadable = f"{name}: {error}"
                self._report(name, None, f"{error}; what comes after was not looked at")
                return

    # -- requests --------------------------------------------------------------------------------------------

    def _requests(self) -> None:
        for uuid, record in self._rows(self._db.requests, "requests"):
            ended = self._has(self._db.replies, uuid)
            try:
                header = request_record.decode_header(uuid, record)
                self._refer("requests", uuid, header.ref)
                if not ended:
                    load = self._loads.setdefault(header.service, [0, 0, 0])
                    load[1] += 1
                    load[2] += header.size
                verify(uuid, record, request_record.DATABASE)
                request_record.decode_rest(uuid, record, header, self._fetch)
            except RecordCorrupt as error:
                remedy = Remedy(Verb.FAIL, "requests", uuid, b"the request was damaged")
                self._report("requests", uuid, str(error), remedy)
                continue
            self._places(uuid, header, ended)

    def _places(self, uuid: bytes, header: Header, ended: bool) -> None:
        """The request is in exactly one of replies, ready and later, and has its timer."""
        past = self._past(uuid)
        prefix = ready_prefix(header.service, header.priority)
        ready = prefix + uuid
        places = ["replies"] if ended else []
        if self._has(self._db.ready, ready):
            places.append("ready")
        if past and past.due and self._has(self._db.later, later_key(past.due, uuid)):
            places.append("later")
        if len(places) != 1:
            where = " and ".join(places) or "no queue and has no reply"
            self._report("requests", uuid, f"it is in {where}", self._right_place(uuid, ended, past, prefix))
        expires_at = expiry(header.expires_at, past)
        if ended or not expires_at:
            return
        timer = timer_key(EXPIRY, expires_at, uuid)
        if not self._has(self._db.timers, timer):
            self._report("requests", uuid, "it would never expire", Remedy(Verb.PUT, "timers", timer))

    def _right_place(self, uuid: bytes, ended: bool, past: Retry | None, prefix: bytes) -> Remedy | None:
        if ended:
            return None  # the rows too many are found with their databases
        if past and past.due:
            return Remedy(Verb.PUT, "later", later_key(past.due, uuid), prefix)
        return Remedy(Verb.PUT, "ready", prefix + uuid)

    def _replies(self) -> None:
        for uuid, record in self._rows(self._db.replies, "replies"):
            try:
                header = outcome_record.decode_header(uuid, record)
                self._refer("replies", uuid, header.ref)
                end = outcome_record.decode(uuid, record, self._fetch)
            except RecordCorrupt as error:
                self._report("replies", uuid, str(error), Remedy(Verb.LOSE_REPLY, "replies", uuid))
                continue
            if not self._has(self._db.requests, uuid):
                reason = b"the request was missing"
                self._report("replies", uuid, "there is no such request", Remedy(Verb.FAIL, "requests", uuid, reason))
            self._retention_timer(uuid, end)

    def _retention_timer(self, uuid: bytes, end: Outcome) -> None:
        timer = timer_key(retention_kind(end.status), end.finished_at, uuid)
        if not self._has(self._db.timers, timer):
            self._report("replies", uuid, "its retention would never end", Remedy(Verb.PUT, "timers", timer))

    def _retries(self) -> None:
        aside = Verb.SET_ASIDE
        for uuid, record in self._rows(self._db.retries, "retries"):
            if not self._has(self._db.requests, uuid):
                self._report("retries", uuid, "there is no such request", Remedy(aside, "retries", uuid))
                continue
            if self._has(self._db.replies, uuid):
                self._report("retries", uuid, "the request has ended", Remedy(aside, "retries", uuid))
            try:
                past = retry_record.decode(uuid, record)
            except RecordCorrupt as error:
                self._report("retries", uuid, str(error), Remedy(aside, "retries", uuid))
                continue
            if past.due and not self._has(self._db.later, later_key(past.due, uuid)):
                self._report("retries", uuid, f"it is due at {past.due}, but not in 'later'")  # remedy: see _places
            if not past.due and not past.matters:
                what = "it neither is delayed nor has failed"
                self._report("retries", uuid, what, Remedy(Verb.DELETE, "retries", uuid))

    # -- queues ----------------------------------------------------------------------------------------------

    def _ready_rows(self) -> None:
        for key, value in self._rows(self._db.ready, "ready", has_uuid_key=False):
            uuid, prefix = uuid_of(key), key[:-SIZE]
            self._loads.setdefault(service_of(prefix), [0, 0, 0])[0] += 1
            delete = Remedy(Verb.DELETE, "ready", key)
            if len(value):
                self._report("ready", uuid, "the row has a value", Remedy(Verb.PUT, "ready", key))
            if self._expect_prefix("ready", uuid, prefix, delete):
                past = self._past(uuid)
                if past and past.due:
                    self._report("ready", uuid, f"it is delayed until {past.due}", delete)

    def _later_rows(self) -> None:
        for key, value in self._rows(self._db.later, "later", has_uuid_key=False):
            uuid = uuid_of(key)
            delete = Remedy(Verb.DELETE, "later", key)
            if not self._expect_prefix("later", uuid, bytes(value), delete):
                continue
            try:
                past = self._retry(uuid)
            except RecordCorrupt:
                continue  # reported with the retries
            due = past.due if past else 0
            if due != due_of(key):
                self._report("later", uuid, f"it is due at {due_of(key)}, 'retries' says {due}", delete)

    def _expect_prefix(self, where: str, uuid: bytes, prefix: bytes, delete: Remedy) -> bool:
        """The row's request is there, hasn't ended, and has the row's service and priority."""
        record = self._txn.get(uuid, db=self._db.requests)
        if record is None:
            self._report(where, uuid, "there is no such request", self._missing(uuid, prefix), delete)
            return False
        if self._has(self._db.replies, uuid):
            self._report(where, uuid, "the request has ended", delete)
            return False
        try:
            header = request_record.decode_header(uuid, record)
        except RecordCorrupt:
            return False  # reported with the requests
        right = ready_prefix(header.service, header.priority)
        if prefix == right:
            return True
        remedy = delete if where == "ready" else Remedy(Verb.PUT, where, delete.key, right)
        self._report(where, uuid, f"it is filed under {prefix!r}", remedy)
        return False

    def _missing(self, uuid: bytes, prefix: bytes) -> Remedy:
        return Remedy(Verb.FAIL, "requests", uuid, b"the request was missing")
