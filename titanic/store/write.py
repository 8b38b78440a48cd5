"""Changing the store. One transaction at a time: LMDB lets the next writer in when this one is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import lmdb

from titanic.errors import RecordCorrupt, StoreCorrupt, StoreFailed, StoreFull
from titanic.ids import SIZE
from titanic.store import outcome, request, retry
from titanic.store.environment import Environment
from titanic.store.failures import translate
from titanic.store.outcome import Outcome
from titanic.store.read import ReadTransaction
from titanic.store.request import NewRequest
from titanic.store.retry import Retry
from titanic.store.schema import (
    DUE_SIZE,
    PAGE,
    U64,
    USED_KEY,
    WAITING_PREFIX,
    cost,
    due_of,
    later_key,
    ready_prefix,
    service_of,
    uuid_of,
)
from titanic.store.state import ENDING, TRANSITIONS, Event, State, Status
from titanic.store.views import Closed

_Row = tuple[State, bytes, bytes]  # WAITING or DELAYED, the key there, and its prefix in `ready`


class WriteTransaction(ReadTransaction):
    """All of the changes made in it, synced to the disk when the `with` block ends, or none of them."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        # Counters are put once, at the end, however many requests the transaction touches.
        self._used_change = 0
        self._waiting_change: dict[bytes, int] = {}

    def __enter__(self) -> Self:
        env = self._environment.env
        try:
            self._txn = env.begin(write=True, buffers=True)
        except lmdb.Error as error:
            raise translate(error, env, self._environment.capacity) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            super().__exit__(kind, error, trace)
            return
        try:
            self._put_counters()
            self._txn.commit()
        except lmdb.Error as failure:
            self._txn.abort()
            raise translate(failure, self._environment.env, self._environment.capacity) from failure
        except BaseException:
            self._txn.abort()
            raise

    def accept_many(self, requests: Sequence[NewRequest], now_us: int) -> list[bytes]:
        """Store the requests and return their ids, in order. `now_us` is the wall clock in µs since the epoch.

        All are stored, or none: raises StoreFull when there is no room for all (its `fitting` says for how
        many), InvalidRequest when one can't be stored. The transaction remains good in both cases.
        """
        txn, db = self._txn, self._db
        uuids = self._environment.ids.make(len(requests), now_us)
        records: list[tuple[bytes, bytes]] = []
        ready: list[tuple[bytes, bytes]] = []
        later: list[tuple[bytes, bytes]] = []
        retries: list[tuple[bytes, bytes]] = []
        sizes: list[int] = []
        encode = request.encode
        for uuid, new in zip(uuids, requests, strict=True):
            record = encode(uuid, new, now_us)
            records.append((uuid, record))
            prefix = ready_prefix(new.service, new.priority)
            size = cost(SIZE, len(record))
            if new.not_before > now_us:
                delay = retry.encode(uuid, Retry(0, new.not_before))
                later.append((later_key(new.not_before, uuid), prefix))
                retries.append((uuid, delay))
                size += cost(DUE_SIZE + SIZE, len(prefix)) + cost(SIZE, len(delay))
            else:
                ready.append((prefix + uuid, b""))
                size += cost(len(prefix) + SIZE, 0)
            sizes.append(size)
        self._make_room(sizes)

        # Appending skips the search for the place and fills pages to the brim. A key out of order isn't an error to
        # LMDB, it is left out: that would be an acknowledged request that doesn't exist.
        _, added = txn.cursor(db.requests).putmulti(records, append=True)
        if added != len(records):
            raise StoreFailed("the request ids don't ascend", f"{added} of {len(records)} were new", "restart")
        ready.sort()  # neighbours in the tree one after the other
        txn.cursor(db.ready).putmulti(ready)
        if later:
            txn.cursor(db.later).putmulti(later)
            txn.cursor(db.retries).putmulti(retries)
        self._used_change += sum(sizes)
        for prefix, count in Counter([key[:-SIZE] for key, _ in ready]).items():
            self._count_waiting(service_of(prefix), count)
        return uuids

    def finish(
        self,
        uuid: bytes,
        status: Status,
        frames: Sequence[bytes],
        *,
        attempts: int,
        dispatched_at: int,
        finished_at: int,
        reason: str = "",
    ) -> bool:
        """Store how the request ended. False, and nothing is changed, when it is unknown or has ended before."""
        if not self._may(uuid, ENDING[status]):
            return False
        self._take_out(self._find_row(uuid))
        self._delete(self._db.retries, uuid)
        end = Outcome(status, list(frames), reason, attempts, dispatched_at, finished_at)
        self._put(self._db.replies, uuid, outcome.encode(uuid, end))
        return True

    def postpone(self, uuid: bytes, *, due: int, attempts: int, dispatched_at: int, reason: str) -> bool:
        """Take a request that failed out of the queue until `due`, in µs since the epoch.

        False, and nothing is changed, when it is unknown, has ended or is delayed already.
        """
        if not self._may(uuid, Event.POSTPONE):
            return False
        row = self._find_row(uuid)
        if row is None:
            raise StoreCorrupt("the store is damaged", f"{uuid.hex()} is in no queue", "run a check")
        self._take_out(row)
        due = max(due, 1)  # 0 would say that it is ready
        self._put(self._db.later, later_key(due, uuid), row[2])
        self._put(self._db.retries, uuid, retry.encode(uuid, Retry(attempts, due, dispatched_at, reason)))
        return True

    def promote(self, now_us: int, limit: int = 1000) -> list[tuple[bytes, int]]:
        """Put back into the queue what is due, the longest due first, at most `limit` requests.

        Returns the services concerned and how many requests of each.
        """
        due: list[tuple[bytes, bytes]] = []
        for view, value in self._txn.cursor(self._db.later).iternext():
            if len(due) >= limit or due_of(view) > now_us:
                break
            due.append((bytes(view), bytes(value)))
        promoted: dict[bytes, int] = {}
        for key, prefix in due:
            uuid = uuid_of(key)
            self._take_out((State.DELAYED, key, prefix))
            self._put(self._db.ready, prefix + uuid, b"")
            self._count_waiting(service_of(prefix), 1)
            self._forget_delay(uuid)
            promoted[service_of(prefix)] = promoted.get(service_of(prefix), 0) + 1
        return list(promoted.items())

    def close(self, uuid: bytes) -> Closed | None:
        """Delete the request and all that belongs to it, whatever its state and even if it is damaged.

        None when it is unknown.
        """
        record = self._txn.get(uuid, db=self._db.requests)
        if record is None:
            return None
        try:
            service = request.decode_header(uuid, record).service
        except RecordCorrupt:
            service = b""
        reply = self._txn.get(uuid, db=self._db.replies)
        if reply is None:
            row = self._find_row(uuid)
            state = row[0] if row else State.WAITING
            self._take_out(row)
        else:
            try:
                state = State(outcome.decode_header(uuid, reply).status)
            except RecordCorrupt:
                state = State.FAILED
        for database in (self._db.requests, self._db.replies, self._db.retries):
            self._delete(database, uuid)
        return Closed(service, state)

    def waiting(self) -> dict[bytes, int]:
        self._put_counters()
        return super().waiting()

    def _used(self) -> int:
        return super()._used() + self._used_change

    def _make_room(self, sizes: list[int]) -> None:
        """Raise StoreFull unless rows of these sizes may be added."""
        environment = self._environment
        needed = sum(sizes)
        used = self._used()
        room = environment.capacity - used
        if (environment.env.info()["last_pgno"] + 1) * PAGE + needed > environment.brim:
            # The file is near the end of the map. What counts then is the pages in use, not the accounts.
            pages = 0
            for database in self._db:
                stat = self._txn.stat(database)
                pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
            room = min(room, environment.brim - pages * PAGE)
            used = environment.capacity - room
        if needed > room:
            fitting = 0
            for size in sizes:
                room -= size
                if room < 0:
                    break
                fitting += 1
            raise StoreFull(used, environment.capacity, needed, fitting)

    def _may(self, uuid: bytes, event: Event) -> bool:
        """Whether the request is there and in a state in which `event` can happen."""
        try:
            state = self.state(uuid)
        except RecordCorrupt:  # what is known of it is damaged, so it can only be ended
            state = State.WAITING if self._txn.get(uuid, db=self._db.replies) is None else None
        return state is not None and (state, event) in TRANSITIONS

    def _find_row(self, uuid: bytes) -> _Row | None:
        """The row in `ready` or `later` of a request that hasn't ended."""
        txn, db = self._txn, self._db
        try:
            past = self._retry(uuid)
            if past and past.due:
                key = later_key(past.due, uuid)
                value = txn.get(key, db=db.later)
                if value is not None:
                    return State.DELAYED, key, bytes(value)
            record = txn.get(uuid, db=db.requests)
            if record is not None:
                header = request.decode_header(uuid, record)
                prefix = ready_prefix(header.service, header.priority)
                if txn.get(prefix + uuid, db=db.ready) is not None:
                    return State.WAITING, prefix + uuid, prefix
        except RecordCorrupt:
            pass
        return self._search_row(uuid)

    def _search_row(self, uuid: bytes) -> _Row | None:
        """The same the long way, for a request whose records are too damaged to tell."""
        for view in self._txn.cursor(self._db.ready).iternext(keys=True, values=False):
            if view[-SIZE:] == uuid:
                return State.WAITING, bytes(view), bytes(view[:-SIZE])
        for view, prefix in self._txn.cursor(self._db.later).iternext():
            if view[-SIZE:] == uuid:
                return State.DELAYED, bytes(view), bytes(prefix)
        return None

    def _take_out(self, row: _Row | None) -> None:
        if row is None:
            return
        state, key, prefix = row
        if state is State.WAITING:
            self._delete(self._db.ready, key)
            self._count_waiting(service_of(prefix), -1)
        else:
            self._delete(self._db.later, key)

    def _forget_delay(self, uuid: bytes) -> None:
        """Note that the request is ready again. If it never failed, there is nothing more to remember."""
        try:
            past = self._retry(uuid)
        except RecordCorrupt:
            past = None  # better one attempt too many than a request that never runs
        if past is not None and past.attempts:
            self._put(self._db.retries, uuid, retry.encode(uuid, past._replace(due=0)))
        else:
            self._delete(self._db.retries, uuid)

    def _count_waiting(self, service: bytes, change: int) -> None:
        self._waiting_change[service] = self._waiting_change.get(service, 0) + change

    def _put(self, database: lmdb._Database, key: bytes, value: bytes) -> None:
        """Put a row, over an older one if there is one, and account for it."""
        old = self._txn.get(key, db=database)
        if old is not None:
            self._used_change -= cost(len(key), len(old))
        self._txn.put(key, value, db=database)
        self._used_change += cost(len(key), len(value))

    def _delete(self, database: lmdb._Database, key: bytes) -> None:
        """Delete a row if it is there, and account for it."""
        old = self._txn.get(key, db=database)
        if old is not None:
            self._used_change -= cost(len(key), len(old))
            self._txn.delete(key, db=database)

    def _put_counters(self) -> None:
        meta = self._db.meta
        if self._used_change:
            self._txn.put(USED_KEY, U64.pack(self._used()), db=meta)
            self._used_change = 0
        for service, change in self._waiting_change.items():
            key = WAITING_PREFIX + service
            value = self._txn.get(key, db=meta)
            count = change + (0 if value is None else U64.unpack(value)[0])
            if count < 0:
                raise StoreCorrupt("the store is damaged", f"{count} requests wait for {service!r}", "run a check")
            if count:
                self._txn.put(key, U64.pack(count), db=meta)
            elif value is not None:
                self._txn.delete(key, db=meta)
        self._waiting_change.clear()
