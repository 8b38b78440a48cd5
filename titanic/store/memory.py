"""A store in memory, for tests and for the queue of `Tasks.testing`. It implements interface.py, and is lost with the
process.

A write transaction changes the tables (memory_tables.py) in place and logs the previous rows; a rollback restores them
in reverse order.

Readers share the tables. A writer that finds readers works on a copy; a reader that begins during a write gets a copy
without the uncommitted changes. So no transaction waits for another, and a single thread never copies.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Self, Unpack

from titanic.errors import InvalidRequest, StoreFull
from titanic.store import rules, service_settings
from titanic.store.attempt_history import closed_history_key, history_key
from titanic.store.memory_tables import END, Change, Key, KeyHolder, Row, Tables, size_of
from titanic.store.records import (
    DEFAULT_CAPACITY,
    AcceptResult,
    ArchiveState,
    Archivist,
    CloseResult,
    Counts,
    Load,
    Outcome,
    Page,
    Pending,
    QueueFigures,
    ReadyRow,
    ReadyRows,
    Retention,
    Space,
    StoreOptions,
    StoreReader,
    StoreSettings,
    Trimmed,
)
from titanic.store.request import (
    LASTING,
    ClosedBulk,
    ClosedRequest,
    Description,
    NewRequest,
    StoredRequest,
    key_size,
    outcome_size,
)
from titanic.store.service_settings import ServiceSetting, ServiceSettings
from titanic.store.states import ENDING, TRANSITIONS, Event, State, Status
from titanic.store.uniqueness import counting, name_to_retry, outlives, unique_name
from titanic.util.clock import capped, wall_us
from titanic.util.ids import SIZE, IdMaker, time_of

SHORT_REASON = 80
"""Bytes of a reason that always fit, because room for them is reserved."""
LOOKED_AT = 100_000
"""Maximum number of requests that a listing examines."""


class MemoryStore:
    """A store that lives as long as this object. `path` is only its name."""

    remote = False
    usable = True
    batch = 1000
    facts_room = rules.FACTS_ROOM
    now_us = staticmethod(wall_us)

    def __init__(
        self,
        path: str | os.PathLike[str] = "memory",
        *,
        capacity: int | None = None,
        **settings: Unpack[StoreOptions],
    ) -> None:
        """See `open_store`."""
        self.path, self.place = Path(path), str(path)
        self.capacity = capacity or DEFAULT_CAPACITY
        self.durability = settings.get("durability", "memory")
        self.settings = StoreSettings(**settings)
        self.ids = IdMaker(None)
        self.id = os.urandom(SIZE)
        self.tables = Tables()
        self.writer = Lock()
        self.lock = Lock()
        """Held briefly: while a row is put, and while a transaction begins or ends."""
        self.changes: list[Change] = []
        """The undo log of the current write transaction."""

    def read(self) -> MemoryReadTransaction:
        return MemoryReadTransaction(self)

    def write(self) -> MemoryWriteTransaction:
        return MemoryWriteTransaction(self)

    def snapshot(self) -> Tables:
        """Return the committed tables. The caller must `release` them."""
        with self.lock:
            tables = self.tables
            if self.changes:
                tables = tables.copy()
                tables.undo(self.changes)
            tables.readers += 1
            return tables

    def release(self, tables: Tables) -> None:
        with self.lock:
            tables.readers -= 1

    def sync(self) -> None: ...

    def reader_check(self) -> int:
        return 0

    @property
    def backed_up_at(self) -> float | None:
        return None

    def readers(self) -> list[StoreReader]:
        return []

    def close(self) -> None: ...

    def discard(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class MemoryReadTransaction:
    """The store at one moment."""

    store: MemoryStore
    tables: Tables

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def __enter__(self) -> Self:
        self.tables = self.store.snapshot()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.store.release(self.tables)

    def prefetch(self, uuids: Sequence[bytes], replies: bool = False) -> None: ...

    # -- one request -----------------------------------------------------------------------------------------

    def request(self, uuid: bytes) -> StoredRequest | None:
        row = self.tables.requests.get(uuid)
        return row and StoredRequest(*row._replace(expires_at=row.new.expires_at).fields, body=[*row.new.body])

    def reply(self, uuid: bytes) -> Outcome | Pending | None:
        row = self.tables.requests.get(uuid)
        return row and (row.outcome or Pending(row.state))

    def describe(self, uuid: bytes) -> Description | None:
        row = self.tables.requests.get(uuid)
        return row and row.described()

    def owner(self, uuid: bytes) -> bytes | None:
        row = self.tables.requests.get(uuid)
        return row and row.new.owner

    def holders(self, keys: Sequence[bytes], owner: bytes = b"") -> dict[bytes, bytes]:
        found = {key: self.tables.keys.get((owner, key)) for key in keys}
        return {key: holder.uuids[0] for key, holder in found.items() if holder is not None}

    # -- queues ----------------------------------------------------------------------------------------------

    def next_ready(
        self, service: bytes, after: bytes | None, limit: int, max_bytes: int, skip: Container[bytes] = ()
    ) -> ReadyRows:
        found = ReadyRows()
        queue, size = self.tables.ready.get(service, []), 0
        for at in range(0 if after is None else bisect_right(queue, after), len(queue)):
            key = queue[at]
            if key[-SIZE:] in skip:
                continue
            row = self.tables.requests[key[-SIZE:]]
            size += row.size
            if len(found) >= limit or (found and size > max_bytes):
                return found
            new, tried = row.new, (row.attempts, [*row.new.body], row.new.max_attempts, row.expires_at)
            found.append(ReadyRow(key, row.uuid, *tried, new.options, new.key, row.deliveries, new.not_before))
        found.more = False
        return found

    def ahead_of(
        self, service: bytes, priority: int, uuid: bytes, most: int = 10_000, skip: Collection[bytes] = ()
    ) -> int:
        queue = self.tables.ready.get(service, [])
        keys = islice(queue, bisect_left(queue, b"%b\0%c" % (service, 9 - priority) + uuid))
        return sum(1 for _ in islice((key for key in keys if key[-SIZE:] not in skip), most))

    def next_due(self, policy: Retention | None = None, skip: Collection[bytes] = (), ahead_us: int = 0) -> int | None:
        tables = self.tables
        times = [*islice((time for time, uuid in tables.expiring if uuid not in skip), 1)]
        if policy is not None:
            for ends, kept in ((tables.replied, policy.reply_retention), (tables.dead, policy.dead_retention)):
                times += [time + kept for time, _ in ends[:1] if kept]
            ring = tables.ring
            if policy.closed_retention and ring.first <= ring.last and not ring.agreement.awaits(ring.first):
                times.append(tables.closed[ring.first].closed_at + policy.closed_retention)
            times += [time for time, _ in [*tables.kept[:1], *tables.bodies[:1]]]
            times += [end[0] for end in tables.key_ends[:1]]
        return min([time + ahead_us for time in times] + [time for time, _ in tables.due[:1]], default=None)

    def queues(
        self,
        services: Collection[bytes] | None = None,
        skip: Container[bytes] | None = None,
        after: bytes = b"",
        limit: int | None = None,
    ) -> dict[bytes, QueueFigures]:
        loads, found = self.tables.services, dict[bytes, QueueFigures]()
        for service in sorted(name for name in loads if name > after)[:limit] if services is None else services:
            if service in loads:
                queue = self.tables.ready.get(service, [])
                oldest = None if skip is None else _oldest(queue, skip)
                found[service] = QueueFigures(len(queue), *loads[service], oldest)
        return found

    # -- listing and counts ----------------------------------------------------------------------------------

    def select(
        self,
        states: Collection[State] | None = None,
        *,
        service: bytes | None = None,
        older_than: int | None = None,
        owner: bytes | None = None,
        after: bytes | None = None,
        limit: int = 100,
        newest: bool = False,
        text: str | None = None,
        seconds: float = 0.0,
    ) -> Page:
        page, last = Page(), after
        until = monotonic() + seconds if seconds else 0.0
        for looked_at, uuid in enumerate(self._from(after, newest)):
            row = self.tables.requests[uuid]
            if looked_at >= LOOKED_AT and (not until or monotonic() >= until):
                page.next = last
                break
            if (states is not None and row.state not in states) or (service not in (None, row.new.service)):
                last = uuid
                continue
            if owner in (None, row.new.owner):
                if len(page) >= limit:
                    page.next = last
                    break
                found = row.described()
                if (text is None or found.mentions(text)) and (
                    older_than is None or (found.finished_at or found.submitted_at) < older_than
                ):
                    page.append(found)
            last = uuid
        return page

    def _from(self, after: bytes | None, newest: bool) -> Iterator[bytes]:
        order = self.tables.order
        if newest:
            return (order[n] for n in range((len(order) if after is None else bisect_left(order, after)) - 1, -1, -1))
        return (order[n] for n in range(0 if after is None else bisect_right(order, after), len(order)))

    def load(self, owner: bytes) -> Load:
        return self.tables.owners.get(owner, Load(0, 0))

    def counts(self) -> Counts:
        tables = self.tables
        ended = len(tables.replied) + len(tables.dead) + len(tables.kept)
        numbers = len(tables.requests), tables.waiting, len(tables.due), ended
        return Counts(*numbers, tables.used, self.store.capacity, len(tables.closed), tables.ring.lost)

    def space(self) -> Space:
        return Space(self.room_left() <= 0, False)

    def room_left(self) -> int:
        return max(0, self.store.capacity - self.tables.used + self._droppable())

    def _droppable(self) -> int:
        """Bytes of the closed requests that may be dropped."""
        return self.tables.closed_used - (0 if self.store.settings.drop_unarchived else self.tables.awaited)

    def identity(self) -> bytes | None:
        return self.store.id

    # -- closed requests -------------------------------------------------------------------------------------

    def archive(self) -> ArchiveState:
        first, last, lost, (registered, upto, archivist) = self.tables.ring
        return ArchiveState(registered, upto, first, last, lost, archivist)

    def service_settings(self) -> ServiceSettings:
        return self.tables.settings

    # -- facts -----------------------------------------------------------------------------------------------

    def facts(
        self, prefix: bytes, after: bytes = b"", limit: int = 1000, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        found = [one for one in sorted(self.tables.facts.items(), reverse=newest) if one[0].startswith(prefix)]
        if after:
            found = [one for one in found if (one[0] < after if newest else one[0] > after)]
        return found[:limit]

    def facts_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self.tables.facts.items())

    # -- reading in bulk -------------------------------------------------------------------------------------

    def closed_bulk(self, first: int, last: int, max_bytes: int = 16 << 20) -> ClosedBulk:
        numbers = range(first, min(last, self.tables.ring.last) + 1) if first >= self.tables.ring.first else ()
        some = map(self.tables.closed.__getitem__, numbers)
        rows = ((one, len(one.request) or one.request_left_out, len(one.reply) or one.reply_left_out) for one in some)
        return ClosedBulk.of(first, rows, max_bytes)

    def cut_closed(self, first: int, last: int, max_bytes: int) -> int:
        size, number = 0, first - 1
        while number < min(last, self.tables.ring.last):
            one = self.tables.closed.get(number + 1)
            size += one.request_bytes + one.reply_bytes if one is not None else 0
            if number >= first and size > max_bytes:
                break
            number += 1
        return number

    def request_ids(self, every: int) -> list[bytes]:
        return self.tables.order[::every]

    def unended(
        self, begin: bytes, end: bytes | None, limit: int, max_bytes: int = 16 << 20
    ) -> tuple[list[tuple[Description, list[bytes]]], bytes | None]:
        order, found, size = self.tables.order, list[tuple[Description, list[bytes]]](), 0
        at = bisect_left(order, begin)
        until = len(order) if end is None else bisect_left(order, end)
        for uuid in order[at : min(until, at + limit)]:
            row = self.tables.requests[uuid]
            if row.outcome is None:
                size += size_of(row.new.body)
                if found and size > max_bytes:
                    break
                found.append((row.described(), [*row.new.body]))
            at += 1
        return found, order[at] if at < until else None


class MemoryWriteTransaction(MemoryReadTransaction):
    """A transaction that changes the store. Its changes are applied together or not at all."""

    def __enter__(self) -> Self:
        self.store.writer.acquire()
        self.tables = self.store.tables
        self._changes: list[Change] = []
        self.store.changes = self._changes
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        store = self.store
        with store.lock:
            if kind is None:
                store.tables = self.tables
            elif self.tables is store.tables:
                self.tables.undo(self._changes)
            store.changes = []
        store.writer.release()

    def _put(self, put: Callable[[Tables, Any, Any], Any], key: Any, value: Any) -> None:
        store = self.store
        with store.lock:
            if self.tables.readers:  # it is the first change: later readers do not rely on these tables
                self.tables, store.changes = self.tables.copy(), []
            self._changes.append((put, key, put(self.tables, key, value)))

    def _put_request(self, uuid: bytes, row: Row | None) -> None:
        self._put(Tables.put_request, uuid, row)

    def _put_ring(self, **fields: Any) -> None:
        self._put(Tables.put_ring, None, self.tables.ring._replace(**fields))

    # -- accept ----------------------------------------------------------------------------------------------

    def accept(
        self, requests: Sequence[NewRequest], now_us: int, ahead_us: int = 0, running: Container[bytes] = ()
    ) -> list[AcceptResult]:
        uuids = self.store.ids.make(len(requests), now_us)
        holders, known = self._look_up(requests, uuids, now_us, now_us - ahead_us, running)
        rows = [_row(uuid, new, now_us) for uuid, new in zip(uuids, requests, strict=True)]
        needs = [0 if n in known else row.size + END for n, row in enumerate(rows)]
        keys = sum(key_size(owner, len(key), len(holder.uuids)) for (owner, key), holder in holders.items())
        if any(needs) and not self._make_room(sum(needs) + keys):
            free, fitting = self.room_left() - keys, 0
            for need in needs:
                free -= need
                if free < 0:
                    break
                fitting += 1
            raise StoreFull(self.tables.used, self.store.capacity, sum(needs), fitting)
        for n, row in enumerate(rows):
            if n not in known:
                self._put_request(row.uuid, row)
        for name, holder in holders.items():
            self._put(Tables.put_key, name, holder)
        return [AcceptResult(known.get(n, uuid), n not in known) for n, uuid in enumerate(uuids)]

    def _look_up(
        self,
        requests: Sequence[NewRequest],
        uuids: Sequence[bytes],
        now_us: int,
        sure_us: int,
        running: Container[bytes],
    ) -> tuple[dict[Key, KeyHolder], dict[int, bytes]]:
        """Return the new keys, and the ids of the requests whose key is taken, by position."""
        given: dict[Key, KeyHolder] = {}
        known: dict[int, bytes] = {}
        for n, new in enumerate(requests):
            if not new.key:
                continue
            rules.check_key(new.key, new.key_until)
            count = rules.check_together(new.together, len(requests) - n)
            name = new.owner, new.key
            holder = given.get(name) or self.tables.keys.get(name)
            if holder is None or (holder.until <= sure_us and name not in given):
                given[name] = KeyHolder(new.key_until, [*uuids[n : n + count]], now_us)
            elif len(holder.uuids) != count:
                fact = f"it covers {len(holder.uuids)} requests of one message"
                raise InvalidRequest("the key is in use for other requests", fact, "use another key")
            else:
                known |= dict(enumerate(holder.uuids, n))
        for n, new in enumerate(requests):
            if new.unique and n not in known:
                name = new.owner, new.unique
                held = given.get(name)
                first, older = (held.uuids[0], []) if held else self._first(name, sure_us, running)
                if first is None:
                    given[name] = KeyHolder(new.unique_until, [uuids[n], *older], now_us)
                else:
                    known[n] = first
                    if new.key:  # no request has it, and others in this batch have found none by it
                        del given[new.owner, new.key]
                        known |= {m: known[n] for m, uuid in known.items() if uuid == uuids[n]}
        return given, known

    def _first(self, name: Key, sure_us: int, running: Container[bytes]) -> tuple[bytes | None, list[bytes]]:
        """Return the request that counts of those with the name of a unique one, as `counting`."""

        def state(uuid: bytes) -> State | None:
            row = self.tables.requests.get(uuid)
            found = None if row is None else row.state
            return State.RUNNING if found is State.WAITING and uuid in running else found

        holder = self.tables.keys.get(name)
        if holder is None:
            return None, []
        return counting(name[1], {uuid: state(uuid) for uuid in holder.uuids}, holder.until, sure_us)

    def _make_room(self, needed: int) -> bool:
        """Return whether so many more bytes fit, after dropping closed requests if necessary."""
        missing = self.tables.used + needed - self.store.capacity
        if missing > self._droppable():
            return False
        ring, end = self.tables.ring, self.tables.used - missing
        first = ring.first
        while self.tables.used > end:
            self._drop_closed(first)
            first += 1
        if first > ring.first:
            lost = sum(map(ring.agreement.awaits, range(ring.first, first)))
            self._put_ring(first=first, lost=ring.lost + lost)
        return True

    def fresh(
        self, requests: Sequence[NewRequest], now_us: int, ahead_us: int = 0, running: Container[bytes] = ()
    ) -> list[NewRequest]:
        _, known = self._look_up(requests, [b""] * len(requests), now_us, now_us - ahead_us, running)
        return [new for n, new in enumerate(requests) if n not in known]

    def forget(self, keys: Sequence[bytes], owner: bytes = b"") -> None:
        for key in keys:
            if (owner, key) in self.tables.keys:
                self._put(Tables.put_key, (owner, key), None)

    def set_service(self, service: bytes, setting: ServiceSetting) -> ServiceSettings:
        self._put(Tables.put_settings, None, service_settings.changed(self.tables.settings, service, setting))
        return self.tables.settings

    def put_facts(self, changed: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in changed:
            rules.check_fact(key, value)
            self._put(Tables.put_fact, key, value)

    # -- from state to state ---------------------------------------------------------------------------------

    def _may(self, uuid: bytes, event: Event) -> Row | None:
        """Return the request if this transition is allowed in its state."""
        row = self.tables.requests.get(uuid)
        return row if row and (row.state, event) in TRANSITIONS else None

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
        row = self._may(uuid, ENDING[status])
        if row is None:
            return False
        self._end(row, Outcome(status, [*frames], reason, attempts, dispatched_at, finished_at))
        return True

    def _end(self, row: Row, end: Outcome) -> None:
        end = end._replace(reason=self._reason(row, end.reason, end.frames))
        if rules.drops_body(row.new.options, end.status):
            row = _without_body(row)
        self._put_request(row.uuid, row._replace(outcome=end, due=0, deliveries=0, expires_at=row.new.expires_at))

    def _reason(self, row: Row, reason: str, frames: Sequence[bytes] = ()) -> str:
        """Make room for a reason and these frames; return the reason as it is stored."""
        text = rules.shortened(reason)
        needed = outcome_size(text, len(frames), size_of(frames)) - max(END, row.end_size)
        if needed > 0 and not self._make_room(needed):
            if frames:
                raise StoreFull(self.tables.used, self.store.capacity, needed)
            text = text[:SHORT_REASON]
        return text.decode(errors="ignore")

    def postpone(
        self, uuid: bytes, *, due: int, attempts: int, dispatched_at: int, reason: str, deliveries: int = 0
    ) -> bool:
        row = self._may(uuid, Event.POSTPONE)
        if row is None:
            return False
        row = row._replace(due=max(due, 1), dispatched_at=dispatched_at, reason=self._reason(row, reason))
        had = deliveries if deliveries > attempts else 0
        self._put_request(uuid, row._replace(attempts=attempts, deliveries=had))
        return True

    def promote(self, now_us: int, limit: int = 1000) -> list[tuple[bytes, int]]:
        promoted: dict[bytes, int] = {}
        for due, uuid in self.tables.due[:limit]:
            if due > now_us:
                break
            row = self.tables.requests[uuid]
            self._put_request(uuid, row._replace(due=0))
            promoted[row.new.service] = promoted.get(row.new.service, 0) + 1
        return [*promoted.items()]

    def expire(
        self, now_us: int, limit: int = 1000, skip: Collection[bytes] = (), ahead_us: int = 0
    ) -> list[tuple[bytes, bytes]]:
        due: list[Row] = []
        for time, uuid in self.tables.expiring:
            if time > now_us - ahead_us or len(due) >= limit:
                break
            if uuid not in skip:
                due.append(self.tables.requests[uuid])
        for row in due:
            tried = row.attempts, row.dispatched_at, now_us
            self._end(row, Outcome(Status.EXPIRED, [], rules.late(row.attempts), *tried))
        return [(row.uuid, row.new.service) for row in due]

    def retry(self, uuid: bytes, now_us: int) -> bool:
        row = self._may(uuid, Event.RETRY)
        if row is None or row.outcome is None:
            return False
        new, given = row.new, row.submitted_at
        if name := name_to_retry(new, given, now_us):
            holder = self.tables.keys.get((new.owner, name))
            if holder is None or holder.uuids[0] != uuid:
                return False
        due, expires_at = rules.times_again(given, new.not_before, new.expires_at, row.outcome.attempts, now_us)
        self._put_request(uuid, Row(uuid, new, given, row.size, expires_at, due))
        return True

    def change(
        self,
        uuid: bytes,
        now_us: int,
        *,
        priority: int | None = None,
        due: int | None = None,
        body: Sequence[bytes] | None = None,
    ) -> tuple[bytes, State] | None:
        row = self.tables.requests.get(uuid)
        if row is None or row.outcome is not None:
            return None
        new = row.new._replace(priority=row.new.priority if priority is None else priority)
        if due is not None:
            due = due if due > now_us else 0
            new, row = new._replace(not_before=due), row._replace(due=due)
        if body is not None:
            new = new._replace(body=[*body])
            more = new.size - row.size
            if more > 0 and not self._make_room(more):
                raise StoreFull(self.tables.used, self.store.capacity, more)
        row = row._replace(new=new, size=new.size)
        self._put_request(uuid, row)
        return new.service, row.state

    def close(self, uuid: bytes, now_us: int | None = None) -> CloseResult | None:
        return self._close(uuid, self.store.now_us() if now_us is None else now_us, False)

    def _close(self, uuid: bytes, now_us: int, unclaimed: bool) -> CloseResult | None:
        row = self.tables.requests.get(uuid)
        if row is None:
            return None
        self._put_request(uuid, None)
        status = row.outcome.status if row.outcome else Status.CANCELLED
        if (name := unique_name(row.new)) and not outlives(name, unclaimed, status):
            holder = self.tables.keys.get((row.new.owner, name))
            if holder and uuid in holder.uuids and self.tables.requests.keys().isdisjoint(holder.uuids):
                self._put(Tables.put_key, (row.new.owner, name), None)
        if self.store.settings.keep_closed:
            number = self.tables.ring.last + 1
            self._put(Tables.put_closed, number, self._closed(row, number, now_us, unclaimed))
            self._put_ring(last=number)
        if (history := self.tables.facts.get(key := history_key(uuid))) is not None:
            kept = [(closed_history_key(number), history)] if self.store.settings.keep_closed else []
            self.put_facts([(key, None), *kept])
        end = row.outcome
        run_us = end.finished_at - end.dispatched_at if end is not None and end.dispatched_at else None
        return CloseResult(row.new.service, row.state, row.new.key, row.new.owner, run_us)

    def _drop_closed(self, number: int) -> None:
        self._put(Tables.put_closed, number, None)
        self._put(Tables.put_fact, closed_history_key(number), None)

    def _closed(self, row: Row, number: int, now_us: int, unclaimed: bool) -> ClosedRequest:
        end, limit = row.outcome, self.store.settings.closed_body_limit
        last, request, reply = end or row, [*row.new.body], end.frames if end else []
        sizes = size_of(request), size_of(reply)
        return ClosedRequest(
            *row.fields[: len(LASTING)],
            status=end.status if end else Status.CANCELLED,
            unclaimed=unclaimed,
            attempts=last.attempts,
            dispatched_at=last.dispatched_at,
            replied_at=end.finished_at if end else 0,
            closed_at=now_us,
            error=last.reason,
            sequence=number,
            request=[] if sizes[0] > limit else request,
            reply=[] if sizes[1] > limit else reply,
            request_bytes=sizes[0],
            reply_bytes=sizes[1],
            request_left_out=sizes[0] > limit,
            reply_left_out=sizes[1] > limit,
        )

    # -- time ------------------------------------------------------------------------------------------------

    def trim(self, now_us: int, policy: Retention | None = None, limit: int = 1000, ahead_us: int = 0) -> Trimmed:
        policy, tables = policy or Retention(), self.tables
        sure_us, left, done = now_us - ahead_us, limit, list[int]()
        closed = Counter[bytes]()
        keys = [end for end in tables.key_ends[:left] if end[0] <= sure_us]
        for _, _, owner, key in keys:
            self._put(Tables.put_key, (owner[:-1], key), None)
        left -= len(keys)
        bodies = [uuid for until, uuid in tables.bodies[:left] if until <= sure_us]
        for uuid in bodies:
            self._put_request(uuid, _without_body(self.tables.requests[uuid]))
        left -= len(bodies)
        for name, kept in (("kept", 0), ("replied", policy.reply_retention), ("dead", policy.dead_retention)):
            ends = getattr(self.tables, name)[:left] if kept or name == "kept" else ()
            due = [uuid for finished_at, uuid in ends if finished_at <= sure_us - kept]
            for uuid in due:
                if (result := self._close(uuid, now_us, unclaimed=True)) is not None:
                    closed[result.service] += 1
            done.append(len(due))
            left -= len(due)
        own, replies, dead = done
        dropped = self._drop_older(sure_us - policy.closed_retention, left) if policy.closed_retention else 0
        return Trimmed(own + replies, dead, dropped, len(keys), left <= dropped, closed, len(bodies))

    def _drop_older(self, closed_at: int, limit: int) -> int:
        """Drop requests closed until then that no archive waits for. Return their number."""
        ring = self.tables.ring
        number = ring.first
        while number < min(ring.first + limit, ring.last + 1):
            if ring.agreement.awaits(number) or self.tables.closed[number].closed_at > closed_at:
                break
            self._drop_closed(number)
            number += 1
        self._put_ring(first=number)
        return number - ring.first

    def clamp_timers(self, now_us: int, after: bytes = b"", limit: int = 1000) -> tuple[int, bytes | None]:
        """Handle the requests in parts, and all keys with the last part."""
        order, changed = self.tables.order, 0
        at = bisect_right(order, after)
        uuids = order[at : at + limit]
        for uuid in uuids:
            row = self.tables.requests[uuid]
            if row.outcome is None:
                given, since = row.new.not_before, row.submitted_at
                if row.dispatched_at:
                    given, since = row.due, row.dispatched_at
                due = min(row.due, capped(given, since, now_us))
                ends_at = min(row.expires_at, capped(row.new.expires_at, row.submitted_at, now_us))
                if (due, ends_at) != (row.due, row.expires_at):
                    changed += (due != row.due) + (ends_at != row.expires_at)
                    sent_at = row.dispatched_at if due == row.due else min(row.dispatched_at, now_us)
                    self._put_request(uuid, row._replace(due=due, expires_at=ends_at, dispatched_at=sent_at))
        if at + limit < len(order):
            return changed, uuids[-1]
        for key, holder in [*self.tables.keys.items()]:
            until = capped(holder.until, holder.given, now_us)
            if until != holder.until:
                self._put(Tables.put_key, key, holder._replace(until=until, given=now_us))
                changed += 1
        return changed, None

    # -- the archive -----------------------------------------------------------------------------------------

    def update_archive(
        self,
        archivist: Archivist | None = None,
        *,
        register: bool | None = None,
        upto: int | None = None,
        uuid: bytes | None = None,
    ) -> ArchiveState:
        first, last, _, agreement = self.tables.ring
        if register is not None:
            agreement = agreement.with_archive(archivist, first) if register else agreement._replace(registered=False)
        if upto is not None:
            here = self.tables.closed.get(upto)
            agreement = agreement.acknowledged(upto, archivist, last, (uuid, here.uuid if here else None))
        self._put_ring(agreement=agreement)
        return self.archive()


def _oldest(queue: list[bytes], skip: Container[bytes]) -> int | None:
    """Return when the oldest request of a queue was submitted that is not in `skip`; None: there is none."""
    times, at = list[int](), 0
    while at < len(queue):
        key = queue[at]
        at += 1
        if key[-SIZE:] not in skip:
            times.append(time_of(key[-SIZE:]))
            at = bisect_left(queue, b"%b%c" % (key[: -SIZE - 1], key[-SIZE - 1] + 1), at)
    return min(times, default=None)


def _without_body(row: Row) -> Row:
    new = row.new._replace(body=())
    return row._replace(new=new, size=new.size)


def _row(uuid: bytes, new: NewRequest, now_us: int) -> Row:
    """Return the row of a new request; a key that several requests share is not in it. Raises InvalidRequest."""
    size = rules.check_request(new)
    new = new._replace(body=tuple(new.body), key=b"" if new.together else new.key)
    return Row(uuid, new, now_us, size, new.expires_at, new.not_before if new.not_before > now_us else 0)
