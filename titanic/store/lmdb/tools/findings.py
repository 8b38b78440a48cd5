"""What is found in a damaged store: the problem, and its remedy. Only repair.py applies those.

What a remedy does:

    put, delete     a row of an index or a counter, which follows from the records
    set aside       the row goes to `aside`, where people can inspect it
    fail            the request can't be read or is missing: what is left is set aside, and a stand-in takes its place
                    that has failed (or has the reply that is there), so that its client learns what happened
    lose reply      the reply can't be read: it is set aside, and the request has failed instead
    lose entry      an entry of `closed` can't be read or is missing: an entry that says so takes its place
    bury            a blob that no record refers to is deleted
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice, repeat, takewhile
from operator import itemgetter
from typing import Any, NamedTuple

import lmdb

from titanic.errors import RecordCorrupt
from titanic.store.lmdb import outcome_record, request_record
from titanic.store.lmdb.outcome_record import OutcomeHeader, RetryRecord
from titanic.store.lmdb.record import Ref
from titanic.store.lmdb.store import LmdbReadTransaction, LmdbStore
from titanic.store.lmdb.transaction import Reading
from titanic.store.moving import Progress
from titanic.util.ids import SIZE

Row = tuple[bytes, bytes]

SLICE = 250
"""Rows that are checked together, and of a store that is in use in one transaction: less than a millisecond."""

_EVERY = 1000
"""Rows between two calls of `progress`, about."""


class Finding(NamedTuple):
    """Something that must not be. `where` names the database and the row, `what` the fact, `repair` the remedy."""

    where: str
    what: str
    repair: str = ""


class Verb(Enum):
    """What a remedy does; the values are for people."""

    PUT = "recompute it from the records"
    DELETE = "delete the row"
    SET_ASIDE = "set it aside"
    FAIL = "set it aside, and fail the request if it has no reply"
    LOSE_REPLY = "set it aside, and fail the request"
    LOSE_ENTRY = "set it aside, and put an empty entry in its place"
    BURY = "delete the blob"


class Remedy(NamedTuple):
    """What is to be done: with a row, or (FAIL, LOSE_…) with what `key` stands for. `value`: what PUT puts, or why."""

    verb: Verb
    database: str
    key: bytes
    value: bytes = b""


class CopyingReading(LmdbReadTransaction):
    """A read transaction that returns rows as copies, not views. When much of each row is read, that is faster."""

    def _begin(self) -> lmdb.Transaction[Any]:
        return self.environment.env.begin(buffers=False)


class Walk:
    """A walk through the store in a transaction, and what it has found so far.

    With a `store`, a new transaction begins every SLICE rows, so that nothing is pinned for long. Problems between
    records of several slices (`across`) may then be false, because the store has changed meanwhile. A `light` walk
    checks only those.

    `indexed` are the rows of `ready` and `timers` that records were found to have, `ready` those of `ready` by service.
    When these are all rows, the rows need not be checked.

    `refs` are the blobs that records refer to, by id; `loads` are those of the services, by name, and `owned` those of
    the owners, as `meta` counts them; `seen` are the rows that were checked, of `total` in all databases.
    """

    def __init__(
        self,
        tx: Reading,
        store: LmdbStore | None = None,
        *,
        light: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """`progress`: as for check()."""
        self.tx = tx
        self.light = light
        self._copies = isinstance(tx, CopyingReading)
        self._store = store
        self._began = 0 if store is None else tx.raw.id()
        self.across: list[Finding] = []
        self._has_retries = bool(tx.raw.stat(tx.db.retries)["entries"])
        self.problems: list[Finding] = []
        self.remedies: list[Remedy] = []
        self.refs: dict[int, Ref] = {}
        self.loads: dict[bytes, list[int]] = {}
        self.owned: dict[bytes, list[int]] = {}
        self.indexed: Counter[str] = Counter()
        self.ready: Counter[bytes] = Counter()
        self.seen = self.total = 0
        self.database = ""
        """The one that is being checked."""
        self._progress = progress

    def show(self) -> None:
        """Report how far the check is."""
        if self._progress is not None:
            self._progress(self.database, min(self.seen, self.total), self.total)

    def rows(self, name: str, size: int = SIZE, *, or_more: bool = False, values: bool = True) -> Iterator[Row]:
        """Iterate over the rows of a database as `batches` does; without `values` all values are empty."""
        for rows in self.batches(name, size, or_more=or_more, values=values):
            yield from rows

    def batches(
        self, name: str, size: int = SIZE, *, or_more: bool = False, values: bool = True
    ) -> Iterator[list[Row]]:
        """Iterate over the rows of a database, SLICE at a time, and count them. Report rows with keys of another size
        than `size`."""
        last = b""
        cursor = None
        while True:
            if cursor is None:
                cursor = self.tx.raw.cursor(getattr(self.tx.db, name))
                if not (cursor.set_range(last) and (cursor.key() != last or cursor.next()) if last else cursor.first()):
                    return
                pairs = self._pairs(cursor, values)
            rows = list(islice(pairs, SLICE))
            if not rows:
                return
            last, before = rows[-1][0], self.seen
            self.seen += len(rows)
            if self.seen // _EVERY != before // _EVERY:
                self.show()
            sizes = set(map(len, map(itemgetter(0), rows)))
            if min(sizes) < size or (max(sizes) > size and not or_more):
                rows = list(self._of_right_size(name, rows, size, or_more))
            if rows:
                yield rows
            if self._store is not None:
                self.tx.__exit__(None, None, None)
                self.tx = CopyingReading(self._store.environment).__enter__()
                self._has_retries = bool(self.tx.raw.stat(self.tx.db.retries)["entries"])
                cursor = None

    def _of_right_size(self, name: str, rows: list[Row], size: int, or_more: bool) -> Iterator[Row]:
        for row in rows:
            if len(row[0]) == size or (or_more and len(row[0]) > size):
                yield row
            elif not self.light:
                self.report(name, row[0], "the key has the wrong length", Remedy(Verb.SET_ASIDE, name, row[0]))

    def _pairs(self, cursor: lmdb.Cursor[Any], values: bool = True) -> Iterator[Row]:
        """The rows from a cursor's place on, copied."""
        if not values:
            return zip(map(bytes, cursor.iternext(values=False)), repeat(b""))
        if self._copies:
            found: Iterator[Row] = cursor.iternext()
            return found
        return ((bytes(key), bytes(value)) for key, value in cursor.iternext())

    def between(self, name: str, first: bytes, last: bytes) -> Iterator[Row]:
        """The rows of a database with keys from `first` to `last`."""
        cursor = self.tx.raw.cursor(getattr(self.tx.db, name))
        if not cursor.set_range(first):
            return iter(())
        return takewhile((last + b"\0",).__gt__, self._pairs(cursor))

    def values(self, name: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The rows with these keys, as far as they are there."""
        found: Iterable[tuple[Any, Any]] = self.tx.raw.cursor(getattr(self.tx.db, name)).getmulti(keys)
        return dict(found) if self._copies else {bytes(key): bytes(value) for key, value in found}

    def missing(self, name: str, keys: Sequence[bytes]) -> list[bytes]:
        """Those of these keys of records that `ready` or `timers` doesn't have; counts the others."""
        found = self.values(name, keys)
        self.indexed[name] += list(found.values()).count(b"")
        return [key for key in keys if key not in found] if len(found) < len(keys) else []

    def retention_timers(self, uuid: bytes, end: OutcomeHeader) -> list[bytes]:
        """The timers of a request that ended so. One that is missing or damaged has no options."""
        record = self.tx.raw.get(uuid, db=self.tx.db.requests)
        try:
            header = None if record is None else request_record.decode_header(uuid, record)
        except RecordCorrupt:
            header = None
        options, frames = (b"", 0) if header is None else (header.options, header.frame_count)
        return outcome_record.retention_timers(uuid, end, options, frames)

    def has(self, name: str, key: bytes) -> bool:
        """Whether a database has a row."""
        return self.tx.raw.get(key, db=getattr(self.tx.db, name)) is not None

    def is_indexed(self, name: str, key: bytes) -> bool:
        """Whether `ready` or `timers` has the row that belongs to a record; counts it."""
        value = self.tx.raw.get(key, db=getattr(self.tx.db, name))
        if value is None:
            return False
        self.indexed[name] += not len(value)
        return True

    def knows_all(self, name: str) -> bool:
        """Whether `indexed` are all rows of a database, and the store is still as it was."""
        if self.light or self.indexed[name] != self.tx.raw.stat(getattr(self.tx.db, name))["entries"]:
            return False
        return self._store is None or self.tx.raw.id() == self._began

    def past(self, uuid: bytes) -> RetryRecord | None:
        """What `retries` says; None also when that is damaged, which is reported with the retries."""
        if not self._has_retries:
            return None
        try:
            return self.tx.past(uuid)
        except RecordCorrupt:
            return None

    def meta_number(self, key: bytes, layout: struct.Struct) -> tuple[tuple[int, ...] | None, str]:
        """The numbers of a row of `meta`, or None and why there are none."""
        value = self.tx.raw.get(key, db=self.tx.db.meta)
        if value is None:
            return None, "is missing"
        return (layout.unpack(value), "") if len(value) == layout.size else (None, f"has {len(value)} bytes")

    def load(self, service: bytes, count: int, size: int) -> None:
        """A service has so many requests more that have not ended, and so many bytes of them."""
        load = self.loads.setdefault(service, [0, 0, 0])
        load[1] += count
        load[2] += size

    def own(self, owner: bytes, size: int, *, pending: bool = False) -> None:
        """So many bytes are an owner's, with `pending` those of a request that has not ended."""
        if owner:
            owned = self.owned.setdefault(owner, [0, 0])
            owned[0] += pending
            owned[1] += size

    def refer(self, where: str, key: bytes, ref: Ref | None) -> None:
        if ref is None:
            return
        if ref.id in self.refs:
            self.report(where, key, f"blob {ref.id} belongs to another record, too", across=True)
        self.refs[ref.id] = ref

    def report(self, name: str, key: bytes | None, what: str, *remedies: Remedy | None, across: bool = False) -> None:
        """`across`: several records that may be of several slices say so together."""
        wanted = [remedy for remedy in remedies if remedy is not None]
        where = name if key is None else f"{name} {key.hex()}"
        problem = Finding(where, what, "; ".join(dict.fromkeys(remedy.verb.value for remedy in wanted)))
        self.problems.append(problem)
        if across:
            self.across.append(problem)
        self.remedies += wanted
