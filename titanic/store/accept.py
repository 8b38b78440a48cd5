"""Accepting requests."""

from __future__ import annotations

from collections.abc import Sequence

from titanic.errors import StoreFailed, StoreFull
from titanic.ids import SIZE
from titanic.store import idempotency, request, retry
from titanic.store.blob import Ref, refer
from titanic.store.change import Change
from titanic.store.idempotency import Holder
from titanic.store.request import NewRequest
from titanic.store.retry import Retry
from titanic.store.room import CHARGE
from titanic.store.schema import EXPIRY, KEY, PAGE, cost, later_key, ready_prefix, service_of, timer_key
from titanic.store.views import Accepted

_TIMER_COST = 45
_MOST_DROPPED = 1000


class Accepting(Change):
    """The part of a write transaction that takes requests in."""

    def accept_many(self, requests: Sequence[NewRequest], now_us: int) -> list[bytes]:
        """Store the requests and return their ids, in order. `now_us` is the wall clock in µs since the epoch.

        All are stored, or none: raises StoreFull when there is no room for all (its `fitting` says for how
        many), InvalidRequest when one can't be stored. The transaction remains good in both cases.

        A request whose key is taken isn't stored again, it gets the id of the first.
        """
        return self._accept(requests, now_us)[0]

    def accept(self, requests: Sequence[NewRequest], now_us: int) -> list[Accepted]:
        """The same; the answer tells which of them are new."""
        uuids, repeated = self._accept(requests, now_us)
        return [Accepted(uuid, n not in repeated) for n, uuid in enumerate(uuids)]

    def _accept(self, requests: Sequence[NewRequest], now_us: int) -> tuple[list[bytes], set[int]]:
        txn, db = self._txn, self._db
        uuids = self._environment.ids.make(len(requests), now_us)
        repeated: set[int] = set()
        records: list[tuple[bytes, bytes]] = []
        ready: list[tuple[bytes, bytes]] = []
        later: list[tuple[bytes, bytes]] = []
        retries: list[tuple[bytes, bytes]] = []
        timers: list[tuple[bytes, bytes]] = []
        holders: dict[bytes, Holder] = {}
        blobs: list[tuple[Ref, bytes]] = []
        sizes: list[int] = []
        loads: dict[bytes, list[int]] = {}  # by prefix: ready, pending, bytes
        encode = request.encode

        def place(body: bytes) -> Ref:
            ref = refer(self._new_blob(), body)
            blobs.append((ref, body))
            return ref

        for n, new in enumerate(requests):
            uuid = uuids[n]
            size = 0
            if new.key:
                request.check_key(new.key, new.key_until)
                holder = holders.get(new.key) or self._holder(new.key, now_us)
                if holder is not None:
                    request.encode(uuid, new, now_us)  # it must be valid all the same
                    uuids[n] = holder.uuid
                    repeated.add(n)
                    sizes.append(0)
                    continue
                holders[new.key] = Holder(new.key_until, uuid)
                size += 2 * len(new.key) + 3 * _TIMER_COST
            placed = len(blobs)
            record = encode(uuid, new, now_us, place)
            records.append((uuid, record))
            prefix = ready_prefix(new.service, new.priority)
            load = loads.get(prefix)
            if load is None:
                load = loads[prefix] = [0, 0, 0]
            load[1] += 1
            load[2] += len(record)
            if len(blobs) > placed:
                ref = blobs[-1][0]
                load[2] += ref.size - len(ref.pack())
                size += ref.pages * PAGE
            size += cost(SIZE, len(record)) + CHARGE
            if new.not_before > now_us:
                delay = retry.encode(uuid, Retry(0, new.not_before))
                later.append((later_key(new.not_before, uuid), prefix))
                retries.append((uuid, delay))
                size += len(prefix) + len(delay) + 3 * _TIMER_COST
            else:
                ready.append((prefix + uuid, b""))
                load[0] += 1
                size += len(prefix) + _TIMER_COST
            if new.expires_at:
                timers.append((timer_key(EXPIRY, new.expires_at, uuid), b""))
                size += _TIMER_COST
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
        if timers:
            txn.cursor(db.timers).putmulti(timers)
        for ref, body in blobs:
            self._put_blob(ref, body)
        for key, holder in holders.items():
            self._hold(key, holder)
        self._freed += len(loads) + len(later) + len(timers) + 8
        for prefix, load in loads.items():
            self._count(service_of(prefix), ready=load[0], pending=load[1], size=load[2])
        return uuids, repeated

    def _holder(self, key: bytes, now_us: int) -> Holder | None:
        """Who has the key now."""
        row = self._txn.get(key, db=self._db.keys)
        holder = None if row is None else idempotency.decode(row)
        return holder if holder and holder.until > now_us else None

    def _hold(self, key: bytes, holder: Holder) -> None:
        row = self._txn.get(key, db=self._db.keys)
        old = None if row is None else idempotency.decode(row)
        if old is not None:  # its time is over
            self._delete(self._db.timers, timer_key(KEY, old.until, key))
        self._put(self._db.keys, key, idempotency.encode(holder))
        self._put(self._db.timers, timer_key(KEY, holder.until, key), b"")

    def _make_room(self, sizes: list[int]) -> None:
        """Raise StoreFull unless rows of these sizes may be added."""
        room, pace = self._environment.room, self._environment.pace
        needed = sum(sizes)
        dropped = 0
        while not self._fits(needed, room.accept):
            # What is dropped can be used from the transaction after next on: not more than can be lent till then.
            if dropped < _MOST_DROPPED and self._freed < 2 * room.pages_freed and (n := self._drop_oldest(50)):
                dropped += n
                continue
            pace.wanted = min(needed, room.accept)
            free = room.accept - self._recount()
            used = room.capacity - free
            fitting = 0
            for size in sizes:
                free -= size
                if free < 0:
                    break
                fitting += 1
            raise StoreFull(used, room.capacity, needed, fitting)
        self._added += needed
