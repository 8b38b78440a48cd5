"""Putting a damaged store right, without losing a request that was acknowledged.

Indexes and counters follow from the records, so they are rewritten where they are wrong. A record that can't be read is
kept in `aside`, and its request fails with a reason, so that its client learns of it; it can be retried if the record
of the request is still good. All happens in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import lmdb

from titanic.errors import InvalidRequest, RecordCorrupt, StoreCorrupt
from titanic.protocol.submit_options import DEFAULT_PRIORITY, MAX_PRIORITY
from titanic.store.lmdb import closed_record, outcome_record, request_record
from titanic.store.lmdb.closed_record import ClosedRecord, Part, Where
from titanic.store.lmdb.lifecycle import search
from titanic.store.lmdb.pages import SALVAGE
from titanic.store.lmdb.schema import sequence_of, service_of
from titanic.store.lmdb.store import LmdbStore, LmdbWriteTransaction
from titanic.store.lmdb.tools.check import check_all
from titanic.store.lmdb.tools.findings import Problem, Progress, Remedy, Verb, Walk
from titanic.store.lmdb.transaction import Writing
from titanic.store.records import Outcome, priority_in
from titanic.store.request import NewRequest
from titanic.store.rules import check_owner, check_service
from titanic.store.states import Status
from titanic.util.clock import wall_us
from titanic.util.ids import SIZE

UNKNOWN_SERVICE = b"unknown"
"""The service of a request when no record of it is left."""

_PASSES = 6
_VERSION_AND_VARIANT = (0x70, 0x80)


def repair(store: LmdbStore, now_us: int | None = None, progress: Progress | None = None) -> list[Problem]:
    """Repair what can be repaired, and return the problems that were found. A check shows what is left.

    `now_us` (wall clock, µs since the epoch; None: read the clock) is the time at which damaged requests fail.
    `progress` is as for check(). Raises StoreCorrupt, and changes nothing, when LMDB can't read all of it: then
    salvage() comes first.
    """
    found: list[Problem] = []
    with LmdbWriteTransaction(store.environment, prepared=True) as tx:
        mender = _Mender(tx, wall_us() if now_us is None else now_us)
        for _ in range(_PASSES):  # one remedy can bring the next problem to light
            walk = Walk(tx)
            if fault := check_all(walk, progress):
                raise StoreCorrupt(f"the store in {store.path} is damaged", fault, SALVAGE)
            found += [problem for problem in walk.problems if problem not in found]
            if not walk.remedies:
                break
            for remedy in walk.remedies:
                mender.apply(remedy)
    return found


class _Mender:
    """Applies remedies in a write transaction."""

    def __init__(self, tx: Writing, now_us: int) -> None:
        self._tx = tx
        self._raw = tx.raw
        self._db = tx.db
        self._now_us = now_us
        self._verbs: dict[Verb, Callable[[Remedy, lmdb._Database], None]] = {
            Verb.PUT: self._put,
            Verb.DELETE: self._delete,
            Verb.SET_ASIDE: self._set_aside,
            Verb.FAIL: self._fail,
            Verb.LOSE_REPLY: self._lose_reply,
            Verb.LOSE_ENTRY: self._lose_entry,
            Verb.BURY: self._bury,
        }

    def apply(self, remedy: Remedy) -> None:
        """Do what the remedy says."""
        self._verbs[remedy.verb](remedy, getattr(self._db, remedy.database))

    def _put(self, remedy: Remedy, database: lmdb._Database) -> None:
        self._raw.put(remedy.key, remedy.value, db=database)

    def _delete(self, remedy: Remedy, database: lmdb._Database) -> None:
        self._raw.delete(remedy.key, db=database)

    def _set_aside(self, remedy: Remedy, database: lmdb._Database) -> None:
        record = self._raw.get(remedy.key, db=database)
        if record is not None:
            label = f"{remedy.database} {self._now_us} ".encode() + remedy.key
            self._raw.put(label[:511], bytes(record), db=self._db.aside)
            self._raw.delete(remedy.key, db=database)

    def _fail(self, remedy: Remedy, database: lmdb._Database) -> None:
        """A request that can't be read, or isn't there, becomes a stand-in that has failed."""
        raw, uuid = self._raw, remedy.key
        service, priority, submitted_at, owner = self._what_is_known(uuid)
        self._set_aside(remedy, database)
        if not _is_id(uuid):
            return
        stand_in = request_record.encode(uuid, NewRequest(service, [], priority, owner=owner), submitted_at)
        raw.put(uuid, stand_in, db=self._db.requests)
        if raw.get(uuid, db=self._db.replies) is None:
            self._end(uuid, remedy.value.decode())

    def _what_is_known(self, uuid: bytes) -> tuple[bytes, int, int, bytes]:
        """Service, priority, time and owner of a request that is damaged, from its header or its row in a queue."""
        record = self._raw.get(uuid, db=self._db.requests)
        if record is not None:
            try:
                header = request_record.decode_header(uuid, record)
                check_service(header.service)
                check_owner(header.owner)
                return header.service, header.priority, header.submitted_at, header.owner
            except Exception:  # it is damaged: anything can be wrong with it
                pass
        prefix = search(self._tx, uuid).prefix
        if prefix:
            service, priority = service_of(prefix), priority_in(prefix + uuid)
            with suppress(InvalidRequest):
                check_service(service)
                return service, priority if 0 <= priority <= MAX_PRIORITY else DEFAULT_PRIORITY, 0, b""
        return UNKNOWN_SERVICE, DEFAULT_PRIORITY, 0, b""

    def _lose_reply(self, remedy: Remedy, database: lmdb._Database) -> None:
        self._set_aside(remedy, database)
        if _is_id(remedy.key):
            self._end(remedy.key, "the reply was damaged")

    def _end(self, uuid: bytes, reason: str) -> None:
        end = Outcome(Status.FAILED, [], reason, 0, 0, self._now_us)
        self._raw.put(uuid, outcome_record.encode(uuid, end), db=self._db.replies)

    def _lose_entry(self, remedy: Remedy, database: lmdb._Database) -> None:
        sequence = sequence_of(remedy.key)
        uuid, closed_at = bytes(SIZE), 0
        record = self._raw.get(remedy.key, db=database)
        if record is not None:
            try:
                header = closed_record.decode_header(sequence, record)
                uuid, closed_at = header.uuid, header.closed_at
            except RecordCorrupt:
                pass
        self._set_aside(remedy, database)
        closed = ClosedRecord(
            uuid,
            status=Status.FAILED,
            closed_at=closed_at,
            error="its record was damaged" if record is not None else "its record was missing",
            request=Part(Where.DAMAGED),
        )
        self._raw.put(remedy.key, closed_record.encode(sequence, closed), db=database)

    def _bury(self, remedy: Remedy, database: lmdb._Database) -> None:
        """Delete a blob, whatever pieces it has."""
        pieces = []
        cursor = self._raw.cursor(database)
        if cursor.set_range(remedy.key):
            for view in cursor.iternext(values=False):
                if view[: len(remedy.key)] != remedy.key:
                    break
                pieces.append(bytes(view))
        for key in pieces:
            self._raw.delete(key, db=database)
        self._raw.delete(remedy.key, db=self._db.graves)


def _is_id(uuid: bytes) -> bool:
    """Whether this can be the id of a request: new ids must be above all that are in the store."""
    version, variant = _VERSION_AND_VARIANT
    return len(uuid) == SIZE and uuid[6] & 0xF0 == version and uuid[8] & 0xC0 == variant and uuid[0] < 0x80
