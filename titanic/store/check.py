"""The store looks at itself: every record, and everything that two databases say about the same thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import lmdb

from titanic.errors import RecordCorrupt
from titanic.ids import SIZE
from titanic.store import outcome, request, retry
from titanic.store.read import ReadTransaction
from titanic.store.schema import U64, USED_KEY, cost, due_of, later_key, ready_prefix, service_of, uuid_of
from titanic.store.store import Store


class Problem(NamedTuple):
    """Something that must not be. `where` names the database and the row, `what` the fact."""

    where: str
    what: str


def check(store: Store) -> list[Problem]:
    """Find all that is wrong in the store; an empty list means that it is sound.

    Reads every record in one read transaction: on a store that is in use, the file grows meanwhile.
    """
    with store.read() as txn:
        return _Check(txn).run()


class _Check(ReadTransaction):
    """The walk. A ReadTransaction, so that it reads through the same view as everybody."""

    def __init__(self, txn: ReadTransaction) -> None:
        super().__init__(txn._environment)
        self._txn = txn._txn
        self._problems: list[Problem] = []
        self._sum = 0
        self._ready: Counter[bytes] = Counter()

    def run(self) -> list[Problem]:
        for name, walk in (
            ("requests", self._requests),
            ("replies", self._replies),
            ("retries", self._retries),
            ("ready", self._ready_rows),
            ("later", self._later_rows),
            ("meta", self._meta),
        ):
            try:
                walk()
            except lmdb.Error as error:
                self._report(name, None, str(error))
        return self._problems

    def _requests(self) -> None:
        for uuid, record in self._rows(self._db.requests, "requests"):
            try:
                header = request.decode_header(uuid, record)
                request.decode(uuid, record)
            except RecordCorrupt as error:
                self._report("requests", uuid, str(error))
                continue
            places = []
            if self._txn.get(uuid, db=self._db.replies) is not None:
                places.append("replies")
            if self._txn.get(ready_prefix(header.service, header.priority) + uuid, db=self._db.ready) is not None:
                places.append("ready")
            due = self._due(uuid)
            if due and self._txn.get(later_key(due, uuid), db=self._db.later) is not None:
                places.append("later")
            if len(places) != 1:
                self._report("requests", uuid, f"it is in {' and '.join(places) or 'no queue and has no reply'}")

    def _replies(self) -> None:
        for uuid, record in self._rows(self._db.replies, "replies"):
            try:
                outcome.decode(uuid, record)
            except RecordCorrupt as error:
                self._report("replies", uuid, str(error))
            self._expect_request("replies", uuid)

    def _retries(self) -> None:
        for uuid, record in self._rows(self._db.retries, "retries"):
            self._expect_request("retries", uuid)
            if self._txn.get(uuid, db=self._db.replies) is not None:
                self._report("retries", uuid, "the request has ended")
            try:
                past = retry.decode(uuid, record)
            except RecordCorrupt as error:
                self._report("retries", uuid, str(error))
                continue
            if past.due and self._txn.get(later_key(past.due, uuid), db=self._db.later) is None:
                self._report("retries", uuid, f"it is due at {past.due}, but not in 'later'")
            if not past.due and not past.attempts:
                self._report("retries", uuid, "it neither is delayed nor has failed")

    def _ready_rows(self) -> None:
        for key, value in self._rows(self._db.ready, "ready", has_uuid_key=False):
            uuid, prefix = uuid_of(key), key[:-SIZE]
            self._ready[service_of(prefix)] += 1
            if len(value):
                self._report("ready", uuid, "the row has a value")
            self._expect_prefix("ready", uuid, prefix)

    def _later_rows(self) -> None:
        for key, value in self._rows(self._db.later, "later", has_uuid_key=False):
            uuid = uuid_of(key)
            if self._due(uuid) not in (due_of(key), None):
                self._report("later", uuid, f"it is due at {due_of(key)}, 'retries' says {self._due(uuid)}")
            self._expect_prefix("later", uuid, bytes(value))

    def _meta(self) -> None:
        stored = self._txn.get(USED_KEY, db=self._db.meta)
        used = 0 if stored is None else U64.unpack(stored)[0]
        if used != self._sum:
            self._report("meta", None, f"'used' is {used}, the rows come to {self._sum}")
        waiting = self.waiting()
        for service in waiting.keys() | self._ready.keys():
            counted, actual = waiting.get(service), self._ready.get(service)
            if counted != actual:
                self._report("meta", None, f"{counted} for {service!r}, 'ready' has {actual}")

    def _rows(
        self, database: lmdb._Database, name: str, *, has_uuid_key: bool = True
    ) -> Iterator[tuple[bytes, memoryview]]:
        for view, value in self._txn.cursor(database).iternext():
            key = bytes(view)
            self._sum += cost(len(key), len(value))
            if len(key) < SIZE or (has_uuid_key and len(key) > SIZE):
                self._report(name, key, "the key has a wrong length")
            else:
                yield key, value

    def _due(self, uuid: bytes) -> int | None:
        """What `retries` says, 0 when nothing, None when that is damaged."""
        try:
            past = self._retry(uuid)
        except RecordCorrupt:
            return None
        return past.due if past else 0

    def _expect_request(self, where: str, uuid: bytes) -> None:
        if self._txn.get(uuid, db=self._db.requests) is None:
            self._report(where, uuid, "there is no such request")

    def _expect_prefix(self, where: str, uuid: bytes, prefix: bytes) -> None:
        """The row's request is there, hasn't ended, and has the row's service and priority."""
        record = self._txn.get(uuid, db=self._db.requests)
        if record is None:
            self._report(where, uuid, "there is no such request")
            return
        if self._txn.get(uuid, db=self._db.replies) is not None:
            self._report(where, uuid, "the request has ended")
        try:
            header = request.decode_header(uuid, record)
        except RecordCorrupt:
            return  # reported with the requests
        if prefix != ready_prefix(header.service, header.priority):
            self._report(where, uuid, f"it is filed under {prefix!r}")

    def _report(self, name: str, key: bytes | None, what: str) -> None:
        self._problems.append(Problem(name if key is None else f"{name} {key.hex()}", what))
