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
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from titanic.errors import RecordCorrupt
from titanic.store.lmdb.blob import Ref
from titanic.store.lmdb.retry_record import Retry
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.transaction import Reading
from titanic.util.ids import SIZE

Progress = Callable[[str, int, int], None]
"""Called now and then with the step, how much is done, and the total: rows of a check, bytes of a copy."""

SLICE = 100
"""Rows that are read in one transaction of a store that is in use."""

_EVERY = 1000
"""Rows between two calls of `progress`."""


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
    LOSE_ENTRY = "set it aside; an empty entry takes its place"
    BURY = "delete the blob"


class Remedy(NamedTuple):
    """What is to be done: with a row, or (FAIL, LOSE_…) with what `key` stands for. `value`: what PUT puts, or why."""

    verb: Verb
    database: str
    key: bytes
    value: bytes = b""


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

    def __init__(self, tx: Reading, store: LmdbStore | None = None, *, light: bool = False) -> None:
        self.tx = tx
        self.light = light
        self._store = store
        self._began = 0 if store is None else tx.raw.id()
        self.across: list[Problem] = []
        self._has_retries = bool(tx.raw.stat(tx.db.retries)["entries"])
        self.problems: list[Problem] = []
        self.remedies: list[Remedy] = []
        self.refs: dict[int, Ref] = {}
        self.loads: dict[bytes, list[int]] = {}
        self.owned: dict[bytes, list[int]] = {}
        self.indexed: Counter[str] = Counter()
        self.ready: Counter[bytes] = Counter()
        self.seen = self.total = 0
        self.progress: Callable[[int, int], None] = lambda seen, total: None

    def rows(self, name: str, size: int = SIZE, *, or_more: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rows of a database, and count them. Report rows with keys of another size than `size`."""
        last = key = b""
        more = True
        while more:
            cursor = self.tx.raw.cursor(getattr(self.tx.db, name))
            if not (cursor.set_range(last) and (cursor.key() != last or cursor.next()) if last else cursor.first()):
                return
            more = False
            for n, (view, value) in enumerate(cursor.iternext()):
                if n == SLICE and self._store is not None:
                    last, more = key, True
                    break
                self.seen += 1
                if self.seen % _EVERY == 0:
                    self.progress(min(self.seen, self.total), self.total)
                key = bytes(view)
                if len(key) == size or (or_more and len(key) > size):
                    yield key, bytes(value)  # pieces of a view would cost more
                elif not self.light:
                    self.report(name, key, "the key has a wrong length", Remedy(Verb.SET_ASIDE, name, key))
            if self._store is not None and more:
                self.tx.__exit__(None, None, None)
                self.tx = self._store.read().__enter__()
                self._has_retries = bool(self.tx.raw.stat(self.tx.db.retries)["entries"])

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

    def past(self, uuid: bytes) -> Retry | None:
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
        problem = Problem(where, what, "; ".join(dict.fromkeys(remedy.verb.value for remedy in wanted)))
        self.problems.append(problem)
        if across:
            self.across.append(problem)
        self.remedies += wanted
