"""The store looks at itself: every record, and everything that two databases say about the same thing.

What is wrong is found here together with its remedy; only repair.py applies those. What a remedy does:

    put, delete     a row of an index or a counter, which follows from the records
    set aside       the row goes to `aside`, where people can look at it
    fail            the request can't be read or is missing: what is left is set aside, and a stand-in takes its place
                    that has failed (or has the reply that is there), so that whoever asks for it learns what happened
    lose reply      the reply can't be read: it is set aside, and the request has failed instead
    lose life       an entry of `closed` can't be read or is missing: one takes its place that says so
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import lmdb

from titanic.errors import RecordCorrupt
from titanic.ids import SIZE
from titanic.store import blob, closed, idempotency, outcome, request, retry
from titanic.store.blob import Ref
from titanic.store.ending import retention_kind
from titanic.store.outcome import Outcome
from titanic.store.read import ReadTransaction
from titanic.store.request import Header
from titanic.store.retry import Retry
from titanic.store.schema import (
    ARCHIVE,
    ARCHIVE_KEY,
    DEAD,
    EXPIRY,
    KEY,
    LOAD,
    LOAD_PREFIX,
    REPLIED,
    SEQUENCE_KEY,
    TIME_SIZE,
    U32,
    U64,
    closed_key,
    due_of,
    later_key,
    ready_prefix,
    sequence_of,
    service_of,
    timer_key,
    timer_of,
    uuid_of,
)
from titanic.store.store import Store


class Problem(NamedTuple):
    """Something that must not be. `where` names the database and the row, `what` the fact, `repair` the remedy."""

    where: str
    what: str
    repair: str = ""


class Verb(Enum):
    """What a remedy does; the values are for people."""

    PUT = "write what follows from the records"
    DELETE = "delete the row"
    SET_ASIDE = "set it aside"
    FAIL = "set it aside; the request has failed, if it has no reply"
    LOSE_REPLY = "set it aside; the request has failed"
    LOSE_LIFE = "set it aside; an empty entry takes its place"
    BURY = "delete the blob"


class Remedy(NamedTuple):
    """What is to be done: with a row, or (FAIL, LOSE_…) with what `key` stands for. `value`: what PUT puts, or why."""

    verb: Verb
    database: str
    key: bytes
    value: bytes = b""


MOST_LOST_LIVES = 10_000
"""Entries of `closed` that are put in for missing ones, at most."""


def check(store: Store) -> list[Problem]:
    """Find all that is wrong in the store; an empty list means that it is sound.

    Reads every record in one read transaction: on a store that is in use, freed pages can't be used meanwhile.
    """
    with store.read() as txn:
        walk = Walk(txn)
        walk.run()
        return walk.problems


class Walk(ReadTransaction):
    """The walk through all databases. A ReadTransaction, so that it reads through the same view as everybody."""

    def __init__(self, txn: ReadTransaction) -> None:
        super().__init__(txn._environment)
        self._txn = txn._txn
        self.problems: list[Problem] = []
        self.remedies: list[Remedy] = []
        self._loads: dict[bytes, list[int]] = {}
        self._refs: dict[int, Ref] = {}

    def run(self) -> None:
        """Look at everything."""
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
            try:
                walk()
            except lmdb.Error as error:
                self._report(name, None, str(error))

    # -- requests --------------------------------------------------------------------------------------------

    def _requests(self) -> None:
        for uuid, record in self._rows(self._db.requests, "requests"):
            ended = self._has(self._db.replies, uuid)
            try:
                header = request.decode_header(uuid, record)
                self._refer("requests", uuid, header.ref)
                if not ended:
                    load = self._loads.setdefault(header.service, [0, 0, 0])
                    load[1] += 1
                    load[2] += header.size
                request.decode(uuid, record, self._fetch)
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
        if ended or not header.expires_at or (past and past.endless):
            return
        timer = timer_key(EXPIRY, header.expires_at, uuid)
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
                header = outcome.decode_header(uuid, record)
                self._refer("replies", uuid, header.ref)
                end = outcome.decode(uuid, record, self._fetch)
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
                past = retry.decode(uuid, record)
            except RecordCorrupt as error:
                self._report("retries", uuid, str(error), Remedy(aside, "retries", uuid))
                continue
            if past.due and not self._has(self._db.later, later_key(past.due, uuid)):
                self._report("retries", uuid, f"it is due at {past.due}, but not in 'later'")  # remedy: see _places
            if not past.due and not past.attempts and not past.endless:
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
            header = request.decode_header(uuid, record)
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

    # -- keys and timers -------------------------------------------------------------------------------------

    def _keys(self) -> None:
        for view, row in self._txn.cursor(self._db.keys).iternext():
            key = bytes(view)
            holder = idempotency.decode(row)
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
                found = request.decode_header(holder.uuid, record).key
            except RecordCorrupt:
                continue
            if found not in (key, b""):
                what = f"its request {holder.uuid.hex()} has the key {found!r}"
                self._report("keys", key, what, Remedy(Verb.SET_ASIDE, "keys", key))

    def _timers(self) -> None:
        for view, value in self._txn.cursor(self._db.timers).iternext():
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
            holder = None if row is None else idempotency.decode(row)
            return "" if holder and holder.until == time else "there is no such key"
        if kind == EXPIRY:
            record = self._txn.get(subject, db=self._db.requests)
            if record is None:
                return "there is no such request"
            if self._has(self._db.replies, subject):
                return "the request has ended"
            try:
                past, expires_at = self._past(subject), request.decode_header(subject, record).expires_at
            except RecordCorrupt:
                return ""
            return "" if expires_at == time and not (past and past.endless) else f"the request says {expires_at}"
        if kind in (REPLIED, DEAD):
            record = self._txn.get(subject, db=self._db.replies)
            if record is None:
                return "there is no such reply"
            try:
                end = outcome.decode_header(subject, record)
            except RecordCorrupt:
                return ""
            right = end.finished_at == time and retention_kind(end.status) == kind
            return "" if right else f"the reply says {end.status.name} at {end.finished_at}"
        return f"there is no such kind as {kind!r}"

    # -- the ring --------------------------------------------------------------------------------------------

    def _closed(self) -> None:
        expected = 0
        for view, record in self._txn.cursor(self._db.closed).iternext():
            if len(view) != TIME_SIZE:
                key = bytes(view)
                self._report("closed", key, "the key has a wrong length", Remedy(Verb.SET_ASIDE, "closed", key))
                continue
            sequence = sequence_of(view)
            self._gap(expected or sequence, sequence)
            expected = sequence + 1
            try:
                for ref in closed.decode_header(sequence, record).refs:
                    self._refer("closed", closed_key(sequence), ref)
                closed.decode(sequence, record, self._fetch)
            except RecordCorrupt as error:
                key = closed_key(sequence)
                self._report("closed", key, str(error), Remedy(Verb.LOSE_LIFE, "closed", key))
        last = self._last_sequence()
        if expected and expected - 1 > last:
            what = f"'sequence' is {last}, 'closed' goes up to {expected - 1}"
            self._report("meta", None, what, Remedy(Verb.PUT, "meta", SEQUENCE_KEY, U64.pack(expected - 1)))
            last = expected - 1
        elif expected:
            self._gap(expected, last + 1)
        registered, upto = self._archived()
        if upto > last:
            remedy = Remedy(Verb.PUT, "meta", ARCHIVE_KEY, ARCHIVE.pack(registered, last))
            self._report("meta", None, f"the archive has {upto}, the last is {last}", remedy)

    def _gap(self, expected: int, found: int) -> None:
        """Numbers from `expected` up to `found` are missing."""
        if found == expected:
            return
        what = f"{expected} … {found - 1} are missing"
        if found - expected > MOST_LOST_LIVES:
            self._report("closed", None, what)
            return
        keys = [closed_key(number) for number in range(expected, found)]
        self._report("closed", None, what, *[Remedy(Verb.LOSE_LIFE, "closed", key) for key in keys])

    # -- blobs and counters ----------------------------------------------------------------------------------

    def _refer(self, where: str, key: bytes, ref: Ref | None) -> None:
        if ref is None:
            return
        if ref.id in self._refs:
            self._report(where, key, f"blob {ref.id} belongs to another record, too")
        self._refs[ref.id] = ref

    def _blobs(self) -> None:
        found: dict[int, int] = {}
        for view in self._txn.cursor(self._db.blobs).iternext(values=False):
            blob_id = blob.id_of(view)
            found[blob_id] = found.get(blob_id, 0) + 1
            ref = self._refs.get(blob_id)
            key = bytes(view)
            if ref is not None and key >= blob.key(blob_id, ref.pieces):
                what = f"it has only {ref.pieces} pieces"
                self._report("blobs", key, what, Remedy(Verb.DELETE, "blobs", key))
        for view, value in self._txn.cursor(self._db.graves).iternext():
            blob_id, pieces = blob.id_of(view), U32.unpack(value)[0]
            if blob_id in self._refs:
                what = "a record refers to it"
                self._report("graves", bytes(view), what, Remedy(Verb.DELETE, "graves", bytes(view)))
            elif found.pop(blob_id, 0) != pieces:
                what = f"it doesn't have {pieces} pieces"
                self._report("graves", bytes(view), what, Remedy(Verb.BURY, "blobs", bytes(view)))
        for blob_id in found.keys() - self._refs.keys():
            key = blob.grave_key(blob_id)
            self._report("blobs", key, "no record refers to it", Remedy(Verb.BURY, "blobs", key))

    def _meta(self) -> None:
        counted = self._loads_by_service()
        for service in counted.keys() | self._loads.keys():
            ready, pending, size = self._loads.get(service, (0, 0, 0))
            if counted.get(service) == ((ready, pending, size) if ready or pending else None):
                continue
            key = LOAD_PREFIX + service
            if pending:
                remedy = Remedy(Verb.PUT, "meta", key, LOAD.pack(ready, pending, size))
            else:
                remedy = Remedy(Verb.DELETE, "meta", key)
            what = f"{counted.get(service)} for {service!r}, there are {ready} ready of {pending}, {size} bytes"
            self._report("meta", None, what, remedy)

    # -- help ------------------------------------------------------------------------------------------------

    def _rows(
        self, database: lmdb._Database, name: str, *, has_uuid_key: bool = True
    ) -> Iterator[tuple[bytes, memoryview]]:
        for view, value in self._txn.cursor(database).iternext():
            key = bytes(view)
            if len(key) < SIZE or (has_uuid_key and len(key) > SIZE):
                self._report(name, key, "the key has a wrong length", Remedy(Verb.SET_ASIDE, name, key))
            else:
                yield key, value

    def _has(self, database: lmdb._Database, key: bytes) -> bool:
        return self._txn.get(key, db=database) is not None

    def _past(self, uuid: bytes) -> Retry | None:
        """What `retries` says; None also when that is damaged, which is reported with the retries."""
        try:
            return self._retry(uuid)
        except RecordCorrupt:
            return None

    def _report(self, name: str, key: bytes | None, what: str, *remedies: Remedy | None) -> None:
        wanted = [remedy for remedy in remedies if remedy is not None]
        where = name if key is None else f"{name} {key.hex()}"
        self.problems.append(Problem(where, what, "; ".join(dict.fromkeys(remedy.verb.value for remedy in wanted))))
        self.remedies += wanted
