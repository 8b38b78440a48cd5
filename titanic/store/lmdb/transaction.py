"""A transaction: LMDB's own, with what all functions of the engine need of it: rows, blobs, counters.

`Reading` sees the store as it was at one moment. `Writing` changes it: all of its changes are synced when it is
committed, or none is made. The other modules are functions that take one of the two, and store.py binds them to the
objects that callers get. Room is free_space.py's business.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import lmdb

from titanic.errors import DiskFull, StoreCorrupt, StoreError, StoreFailed
from titanic.store.lmdb import outcome_record, request_record, schema
from titanic.store.lmdb.capacity import CHARGE, StoreRoom, divide_disk
from titanic.store.lmdb.disk import largest_file, room_on_disk, translate
from titanic.store.lmdb.outcome_record import RetryRecord
from titanic.store.lmdb.readers import Readers
from titanic.store.lmdb.record import Ref, blob_id_of, blob_key, blob_rows, grave_key, read_blob
from titanic.store.lmdb.request_record import KeyRecord
from titanic.store.lmdb.schema import PAGE, U32, U64, Databases, timer_of, unpack
from titanic.store.lmdb.service_spans import ServiceSpans
from titanic.store.records import StoreSettings
from titanic.util.ids import IdMaker


class Pace:
    """What the next write transaction needs to know of the one before. Changed only under LMDB's write lock.

    `freed` are the pages that it freed, which cannot be used yet. `wanted` are the bytes that were refused although
    room for them can be made. `disk_refused` is what the disk had left, in bytes, when it had no room for the last
    transaction; None when that was committed. `unsynced`: there may be a commit that the disk does not have yet.
    `failed`: the disk failed, and has not been synced since. (Any thread may read the last three.)
    """

    def __init__(self) -> None:
        self.freed = 0
        self.wanted = 0
        self.disk_refused: int | None = None
        self.unsynced = True
        self.failed = False


class Environment(NamedTuple):
    """An open LMDB environment with all that its transactions share."""

    env: lmdb.Environment
    file: Path
    databases: Databases
    room: StoreRoom
    settings: StoreSettings
    ids: IdMaker
    pace: Pace
    readers: Readers
    spans: ServiceSpans


class Reading:
    """The store at one moment.

    `raw` is LMDB's transaction, `db` has the databases by name.
    """

    # LMDB returns views of its pages (buffers=True), so that reading a header does not copy a large body.
    # They are invalid after the transaction and, in a write transaction, after the next change: copy before either.
    raw: lmdb.Transaction[memoryview]

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.db = environment.databases
        self._room: StoreRoom | None = None

    def __enter__(self) -> Self:
        env = self.environment.env
        try:
            try:
                self.raw = self._begin()
            except lmdb.ReadersFullError:
                env.reader_check()  # some may have been killed
                self.raw = self._begin()
        except lmdb.Error as error:
            raise self.translated(error) from error
        return self

    def _begin(self) -> lmdb.Transaction[memoryview]:
        return self.environment.env.begin(buffers=True)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.raw.abort()
        if isinstance(error, lmdb.Error):
            raise self.translated(error) from error

    def translated(self, error: lmdb.Error | OSError) -> StoreError:
        """The exception to raise in place of LMDB's."""
        return translate(error, self.environment.env, self.environment.room.capacity)

    @property
    def room(self) -> StoreRoom:
        """The capacity and its limits, or what its disk has room for."""
        if self._room is None:
            self._room = divide_disk(self.environment.room, largest_file(self.environment.file))
        return self._room

    def used(self) -> int:
        """Bytes of the pages that are in use, but for the facts in their room."""
        *rest, facts = map(self.pages, self.db)
        return PAGE * sum(rest) + max(0, PAGE * facts - self.room.facts)

    def pages(self, database: lmdb._Database) -> int:
        """How many pages a database has."""
        found = self.raw.stat(database)
        return int(found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"])

    def charges(self) -> int:
        """Bytes that are kept for the ends of the requests that have not ended (capacity.py)."""
        stat = self.raw.stat
        return int(CHARGE * (stat(self.db.requests)["entries"] - stat(self.db.replies)["entries"]))

    def fetch(self, ref: Ref) -> bytes:
        """The body that is in a blob. ValueError when it is damaged."""
        return read_blob(self.raw, self.db.blobs, ref)

    def past(self, uuid: bytes) -> RetryRecord | None:
        """The request's delay and failures; None when it has none. Raises RecordCorrupt."""
        record = self.raw.get(uuid, db=self.db.retries)
        return None if record is None else outcome_record.decode_retry(uuid, record)

    def key_holder(self, key: bytes) -> KeyRecord | None:
        """The holder of an idempotency key; None when the key is unknown, or its row is damaged."""
        row = self.raw.get(key, db=self.db.keys)
        return None if row is None else request_record.decode_key_record(row)

    def timers(self, kind: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Key, time and subject of the timers of a kind, the earliest first."""
        cursor = self.raw.cursor(self.db.timers)
        if cursor.set_range(kind):
            for view in cursor.iternext(values=False):
                found, time, subject = timer_of(view)
                if found != kind:
                    break
                yield bytes(view), time, subject

    # -- counters --------------------------------------------------------------------------------------------

    def meta_row(self, key: bytes, layout: struct.Struct) -> tuple[int, ...] | None:
        """The numbers of a row of `meta`; None when there is none. Raises StoreCorrupt when its length is wrong."""
        value = self.raw.get(key, db=self.db.meta)
        return None if value is None else unpack(layout, value, "meta", key)

    def put_counters(self) -> None:
        """Write the counters that a write transaction has changed. Call it before reading counters."""

    def archived(self) -> tuple[bool, int]:
        """Whether an archive is registered, and up to which number it has the closed requests."""
        registered, upto = self.meta_row(schema.ARCHIVE_KEY, schema.ARCHIVE) or (0, 0)
        return bool(registered), upto

    def last_sequence(self) -> int:
        """The last number that was given out in `closed`."""
        (last,) = self.meta_row(schema.SEQUENCE_KEY, U64) or (0,)
        return last

    def lost_count(self) -> int:
        """Closed requests of which no record was kept."""
        (lost,) = self.meta_row(schema.LOST_KEY, U64) or (0,)
        return lost


class Writing(Reading):
    """A transaction that changes the store.

    `freed` are the pages that it has freed, about. `taken` are the bytes in use when they were last counted (None: not
    yet), `pinned` those of them that readers keep from being used again, `added` those since then, about. `sequence` is
    the last number that it gave out in `closed` (None: none), `lost` how many closed requests it could not remember.
    """

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.begin()

    def begin(self) -> None:
        """Forget what an earlier LMDB transaction of this one has counted."""
        # Counters are put once, at the end, however many requests the transaction touches.
        self._loads: dict[bytes, list[int]] = {}
        self._owned: dict[bytes, list[int]] = {}
        self._next_blob: int | None = None
        self.sequence: int | None = None
        self.lost = 0
        self.freed = 0
        self._room = None
        self.taken: int | None = None
        self.pinned = self.added = 0

    def commit(self) -> None:
        """Write down the counters and commit. That syncs, as far as `durability` has it."""
        self.put_counters()
        self.raw.commit()
        pace = self.environment.pace
        pace.freed = self.freed
        pace.disk_refused = None
        pace.unsynced = True

    def translated(self, error: lmdb.Error | OSError) -> StoreError:
        found = super().translated(error)
        if isinstance(found, StoreFailed):
            self.environment.pace.failed = True
        if isinstance(found, DiskFull):
            self.environment.pace.disk_refused = room_on_disk(self.environment.file)
        return found

    # -- rows and blobs --------------------------------------------------------------------------------------

    def put(self, database: lmdb._Database, key: bytes, value: bytes) -> None:
        """Put a row, in place of the one that is there."""
        self.raw.put(key, value, db=database)
        self.freed += 1  # the older copy of the page

    def delete(self, database: lmdb._Database, key: bytes) -> bool:
        """Delete a row. False when there was none."""
        self.freed += 1
        return bool(self.raw.delete(key, db=database))

    def put_key(self, key: bytes, row: bytes) -> None:
        """Put the row of an idempotency key, in place of the one that is there."""
        self._count_key(key, len(key) + len(row))
        self.put(self.db.keys, key, row)

    def delete_key(self, key: bytes) -> None:
        """Delete the row of an idempotency key, if there is one."""
        self._count_key(key, 0)
        self.delete(self.db.keys, key)

    def forget_key(self, key: bytes, uuid: bytes | None = None) -> None:
        """Forget a key, if there is one; `uuid`: if it is that of this request, and all that have it are closed."""
        holder = self.key_holder(key)
        if holder is None or (uuid is not None and uuid not in holder.uuids):
            return
        if uuid is None or all(self.raw.get(one, db=self.db.requests) is None for one in holder.uuids):
            self.delete(self.db.timers, schema.timer_key(schema.KEY, holder.until, key))
            self.delete_key(key)

    def _count_key(self, key: bytes, size: int) -> None:
        """The row of a key gets this size."""
        if owner := request_record.owner_of_key(key):
            old = self.raw.get(key, db=self.db.keys)
            self.count_owned(owner, size=size if old is None else size - len(key) - len(old))

    def new_blob(self) -> int:
        """An id above all in use."""
        if self._next_blob is None:
            cursor = self.raw.cursor(self.db.blobs)
            self._next_blob = blob_id_of(cursor.key()) + 1 if cursor.last() else 1
        self._next_blob += 1
        return self._next_blob - 1

    def put_blob(self, ref: Ref, body: bytes) -> None:
        """Put the pieces of a body."""
        self.raw.cursor(self.db.blobs).putmulti(blob_rows(ref.id, body), append=True)
        self.added += ref.pages * PAGE

    def drop_blob(self, ref: Ref | None) -> None:
        """Delete a blob, now or bit by bit."""
        if ref is None:
            return
        if self.freed + ref.pages > self.room.pages_freed:
            self.put(self.db.graves, grave_key(ref.id), U32.pack(ref.pieces))
            return
        for index in range(ref.pieces):
            self.raw.delete(blob_key(ref.id, index), db=self.db.blobs)
        self.freed += ref.pages

    # -- counters --------------------------------------------------------------------------------------------

    def count_load(self, service: bytes, *, ready: int = 0, pending: int = 0, size: int = 0) -> None:
        """A service has so many more rows of `ready`, so many more requests that have not ended, and their bytes."""
        change = self._loads.setdefault(service, [0, 0, 0])
        change[0] += ready
        change[1] += pending
        change[2] += size

    def count_owned(self, owner: bytes, *, pending: int = 0, size: int = 0) -> None:
        """Add requests that have not ended, and bytes, to the load of an owner."""
        if not owner:
            return
        change = self._owned.setdefault(owner, [0, 0])
        change[0] += pending
        change[1] += size

    def put_counters(self) -> None:
        """Write down what was counted. Raises StoreCorrupt when a counter would be negative."""
        meta = self.db.meta
        if self.sequence is not None:
            self.raw.put(schema.SEQUENCE_KEY, U64.pack(self.sequence), db=meta)
        if self.lost:
            self.raw.put(schema.LOST_KEY, U64.pack(self.lost + self.lost_count()), db=meta)
            self.lost = 0
        for service, change in self._loads.items():
            key = schema.LOAD_PREFIX + service
            row = self.meta_row(key, schema.LOAD)
            ready, pending, size = change if row is None else map(sum, zip(change, row, strict=True))
            if ready < 0 or pending < 0:
                raise StoreCorrupt(
                    "the store is damaged", f"{min(ready, pending)} requests wait for {service!r}", schema.REPAIR
                )
            if pending:
                self.raw.put(key, schema.LOAD.pack(ready, pending, max(size, 0)), db=meta)
            elif row is not None:
                self.raw.delete(key, db=meta)
        self._loads.clear()
        for owner, change in self._owned.items():
            key = schema.OWNER_PREFIX + owner
            pending, size = map(sum, zip(change, self.meta_row(key, schema.OWNER_LOAD) or (0, 0), strict=True))
            # Below 0 when an owner was damaged: no row shows whether it is right, and the request must end.
            if pending > 0 or size > 0:
                self.raw.put(key, schema.OWNER_LOAD.pack(max(pending, 0), max(size, 0)), db=self.db.meta)
            else:
                self.raw.delete(key, db=self.db.meta)
        self._owned.clear()

    def last_sequence(self) -> int:
        return super().last_sequence() if self.sequence is None else self.sequence
