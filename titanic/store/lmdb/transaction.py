"""What every change of the store is made of: rows, blobs, counters, room, and the commit.

Room is looked after in three places (capacity.py says what for). At its beginning, a write transaction looks at what
the one before it left: when the file is near its end and much was freed at once, or is to be freed, an extra commit
makes that available first. In between, whoever needs room asks `_fits`. At its end, it deletes a bounded part of what
lies in `graves` and, near the end of the file, some of the oldest entries of `closed`, so that a request finds room
without having to make it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import lmdb

from titanic.errors import DiskFull, RecordCorrupt, StoreCorrupt, StoreError
from titanic.store.lmdb import blob, closed_record, request_record
from titanic.store.lmdb.blob import Ref
from titanic.store.lmdb.environment import Environment
from titanic.store.lmdb.lmdb_errors import room_on_disk
from titanic.store.lmdb.read import ReadTransaction
from titanic.store.lmdb.request_record import Header
from titanic.store.lmdb.retry_record import Retry
from titanic.store.lmdb.schema import (
    KEY,
    LOAD,
    LOAD_PREFIX,
    LOST_KEY,
    PAGE,
    REPAIR,
    SEQUENCE_KEY,
    SETTLED_KEY,
    U32,
    U64,
    closed_key,
    later_key,
    ready_prefix,
    sequence_of,
    service_of,
    unpack,
)
from titanic.store.state import State
from titanic.util.ids import SIZE

_ROUNDS = 256
_TRIM_ROWS = 64


class Place(NamedTuple):
    """Where a request is that has not ended: its row in `ready` or `later` (empty: none), and what is known of it."""

    state: State
    key: bytes
    prefix: bytes
    header: Header | None
    past: Retry | None

    @property
    def service(self) -> bytes | None:
        """None when nothing tells."""
        if self.header is not None:
            return self.header.service
        return service_of(self.prefix) if self.prefix else None


class Change(ReadTransaction):
    """A transaction that changes the store. Its changes are synced when the `with` block ends, or none is made."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._begin()

    def _begin(self) -> None:
        # Counters are put once, at the end, however many requests the transaction touches.
        self._load_changes: dict[bytes, list[int]] = {}
        self._sequence: int | None = None
        self._lost = 0
        self._next_blob: int | None = None
        self._freed = 0  # pages that this transaction has freed, about
        self._taken: int | None = None  # bytes in use when they were last counted
        self._added = 0  # bytes since then, about

    def __enter__(self) -> Self:
        env = self._environment.env
        try:
            for round_ in range(_ROUNDS):
                self._txn = env.begin(write=True, buffers=True)
                try:
                    if round_ == _ROUNDS - 1 or not self._is_near_the_end() or not self._make_ready():
                        break
                    self._commit()
                except BaseException:
                    self._txn.abort()
                    raise
                self._begin()
        except lmdb.Error as error:
            raise self._translated(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            super().__exit__(kind, error, trace)
            return
        try:
            self._clear_up()
            self._commit()
        except lmdb.Error as failure:
            self._txn.abort()
            raise self._translated(failure) from failure
        except BaseException:
            self._txn.abort()
            raise

    def _commit(self) -> None:
        self._put_counters()
        self._txn.commit()
        self._environment.pace.freed = self._freed
        self._environment.pace.disk_refused = None

    def _translated(self, error: lmdb.Error) -> StoreError:
        found = super()._translated(error)
        if isinstance(found, DiskFull):
            with suppress(OSError):
                self._environment.pace.disk_refused = room_on_disk(Path(self._environment.env.path()))
        return found

    # -- room ------------------------------------------------------------------------------------------------

    def _is_near_the_end(self) -> bool:
        """Whether the part of the file that was never used is so small that it can't be counted on."""
        room = self._environment.room
        end = (self._environment.env.info()["last_pgno"] + 1) * PAGE
        return bool(end > room.accept - room.headroom)

    def _make_ready(self) -> bool:
        """Do what the transaction before this one left to do; False when there was nothing."""
        room, pace = self._environment.room, self._environment.pace
        if pace.freed > 2 * room.pages_freed:
            self._txn.put(SETTLED_KEY, b"", db=self._db.meta)
            self._empty_graves()
            return True
        if self._empty_graves():
            return True
        if pace.wanted and not self._fits(pace.wanted, room.accept) and self._could_fit(pace.wanted, room.accept):
            return bool(self._drop_oldest(_TRIM_ROWS))
        pace.wanted = 0
        return False

    def _clear_up(self) -> None:
        """Do a bounded part of what can wait."""
        if self._txn.stat(self._db.graves)["entries"]:
            self._empty_graves()
        room = self._environment.room
        if self._is_near_the_end() and not self._fits(room.headroom, room.accept):
            self._drop_oldest(_TRIM_ROWS)

    def _fits(self, needed: int, limit: int) -> bool:
        """Whether `needed` bytes more leave the store below a limit."""
        if self._taken is None:
            # The file is at least as large as what is in it. Most of the time that is answer enough.
            end = (self._environment.env.info()["last_pgno"] + 1) * PAGE
            self._taken = end + self._charges()
        if self._taken + self._added + needed <= limit:
            return True
        self._recount()
        return self._taken + needed <= limit

    def _could_fit(self, needed: int, limit: int) -> bool:
        """The same, once closed requests have made way. Those who can't be helped by it must not push them out."""
        missing = self._recount() + needed - limit
        return missing <= 0 or self._can_make_way(missing) >= missing

    def _recount(self) -> int:
        self._taken = self._used() + self._charges()
        self._added = 0
        return self._taken

    # -- rows ------------------------------------------------------------------------------------------------

    def _put(self, database: lmdb._Database, key: bytes, value: bytes) -> None:
        self._txn.put(key, value, db=database)
        self._freed += 1  # the older copy of the page

    def _delete(self, database: lmdb._Database, key: bytes) -> bool:
        self._freed += 1
        return bool(self._txn.delete(key, db=database))

    def _new_blob(self) -> int:
        """An id above all in use."""
        if self._next_blob is None:
            cursor = self._txn.cursor(self._db.blobs)
            self._next_blob = blob.id_of(cursor.key()) + 1 if cursor.last() else 1
        self._next_blob += 1
        return self._next_blob - 1

    def _put_blob(self, ref: Ref, body: bytes) -> None:
        self._txn.cursor(self._db.blobs).putmulti(blob.rows(ref.id, body), append=True)
        self._added += ref.pages * PAGE

    def _drop_blob(self, ref: Ref | None) -> None:
        """Delete a blob, now or bit by bit."""
        if ref is None:
            return
        if self._freed + ref.pages > self._environment.room.pages_freed:
            self._put(self._db.graves, blob.grave_key(ref.id), U32.pack(ref.pieces))
            return
        for index in range(ref.pieces):
            self._txn.delete(blob.key(ref.id, index), db=self._db.blobs)
        self._freed += ref.pages

    def _empty_graves(self) -> bool:
        """Delete pieces of blobs from their ends; False when there were none."""
        txn, graves = self._txn, self._db.graves
        # However much the transaction has freed already, a little is always done: nothing waits for ever.
        allowed = max(self._environment.room.pages_freed - self._freed, 8) * 2
        done = False
        while allowed > 0:
            cursor = txn.cursor(graves)
            if not cursor.first():
                break
            key = bytes(cursor.key())
            blob_id = blob.buried_id(key)
            (pieces,) = unpack(U32, cursor.value(), "graves", key)
            rest = max(0, pieces - allowed)
            for index in range(rest, pieces):
                txn.delete(blob.key(blob_id, index), db=self._db.blobs)
            allowed -= pieces - rest
            self._freed += (pieces - rest) // 2 + 1
            if rest:
                txn.put(key, U32.pack(rest), db=graves)
            else:
                txn.delete(key, db=graves)
            done = True
        return done

    # -- requests --------------------------------------------------------------------------------------------

    def _find(self, uuid: bytes) -> Place | None:
        """Where the request is; None when it is unknown or has ended."""
        txn, db = self._txn, self._db
        record = txn.get(uuid, db=db.requests)
        if record is None or txn.get(uuid, db=db.replies) is not None:
            return None
        header = past = None
        try:
            header = request_record.decode_header(uuid, record)
            past = self._retry(uuid)
            prefix = ready_prefix(header.service, header.priority)
            if past and past.due:
                key = later_key(past.due, uuid)
                if txn.get(key, db=db.later) is not None:
                    return Place(State.DELAYED, key, prefix, header, past)
            elif txn.get(prefix + uuid, db=db.ready) is not None:
                return Place(State.WAITING, prefix + uuid, prefix, header, past)
        except RecordCorrupt:
            pass
        return self._search(uuid, header, past)

    def _search(self, uuid: bytes, header: Header | None, past: Retry | None) -> Place:
        """The same the long way, for a request whose records are too damaged to tell."""
        for view in self._txn.cursor(self._db.ready).iternext(keys=True, values=False):
            if view[-SIZE:] == uuid:
                return Place(State.WAITING, bytes(view), bytes(view[:-SIZE]), header, past)
        for view, prefix in self._txn.cursor(self._db.later).iternext():
            if view[-SIZE:] == uuid:
                return Place(State.DELAYED, bytes(view), bytes(prefix), header, past)
        return Place(State.WAITING, b"", b"", header, past)

    def _drop_timers(self, uuid: bytes) -> None:
        """Delete all timers of a request the long way, when its records are too damaged to tell."""
        timers = self._db.timers
        cursor = self._txn.cursor(timers)
        found = [bytes(view) for view in cursor.iternext(values=False) if view[-SIZE:] == uuid and view[:1] != KEY]
        for key in found:
            self._delete(timers, key)

    def _take_out(self, place: Place) -> None:
        """Delete the row in `ready` or `later`."""
        if not place.key:
            return
        if place.state is State.WAITING:
            self._delete(self._db.ready, place.key)
            self._count(service_of(place.prefix), ready=-1)
        else:
            self._delete(self._db.later, place.key)

    # -- counters --------------------------------------------------------------------------------------------

    def _count(self, service: bytes, *, ready: int = 0, pending: int = 0, size: int = 0) -> None:
        change = self._load_changes.setdefault(service, [0, 0, 0])
        change[0] += ready
        change[1] += pending
        change[2] += size

    def _put_counters(self) -> None:
        meta = self._db.meta
        if self._sequence is not None:
            self._txn.put(SEQUENCE_KEY, U64.pack(self._sequence), db=meta)
        if self._lost:
            self._txn.put(LOST_KEY, U64.pack(self._lost + self._lost_lives()), db=meta)
            self._lost = 0
        for service, change in self._load_changes.items():
            key = LOAD_PREFIX + service
            row = self._meta_row(key, LOAD)
            ready, pending, size = change if row is None else map(sum, zip(change, row, strict=True))
            if ready < 0 or pending < 0:
                raise StoreCorrupt(
                    "the store is damaged", f"{min(ready, pending)} requests wait for {service!r}", REPAIR
                )
            if pending:
                self._txn.put(key, LOAD.pack(ready, pending, max(size, 0)), db=meta)
            elif row is not None:
                self._txn.delete(key, db=meta)
        self._load_changes.clear()

    # -- the ring of closed requests -------------------------------------------------------------------------

    def _last_sequence(self) -> int:
        if self._sequence is not None:
            return self._sequence
        return super()._last_sequence()

    def _drop_oldest(self, limit: int, closed_before: int | None = None) -> int:
        """Drop up to `limit` of the oldest entries of `closed`, and return how many.

        With `closed_before` only those that were closed before that time; without, it is for their room, and those
        that the archive has not got may go too, if that is the setting.
        """
        registered, upto = self._archived()
        lossy = closed_before is None and self._environment.settings.drop_unarchived
        dropped = size = 0
        while dropped < limit and size < self._environment.room.pages_freed * PAGE:
            cursor = self._txn.cursor(self._db.closed)
            if not cursor.first():
                break
            sequence, record = sequence_of(cursor.key()), cursor.value()
            if registered and sequence > upto and not lossy:
                break
            try:
                header = closed_record.decode_header(sequence, record)
                if closed_before is not None and header.closed_at >= closed_before:
                    break
                refs = header.refs
            except RecordCorrupt:
                refs = []
            dropped += 1
            size += len(record)
            self._txn.delete(closed_key(sequence), db=self._db.closed)
            for ref in refs:
                size += ref.size
                self._drop_blob(ref)
            if registered and sequence > upto:
                self._lost += 1
        self._freed += size // PAGE + 1 if dropped else 0
        return dropped
