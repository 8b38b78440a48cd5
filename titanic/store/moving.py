"""Moving a whole store from one engine to another: what is read out, what is put in, and that both are the same.

An engine reads out by an `Export`, in a fixed order, and takes in by an `Import`. Both stores are out of use meanwhile.
An unfinished copy is not a store: no server opens it, and the next move starts again from nothing.

Everything moves: requests with their ids, times, states, failures and replies, idempotency keys, closed requests with
their numbers, the registration of the archive, the store's identity, facts. A time beyond LATEST may become LATEST.
What `titanic check --repair` set aside for people does not move.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self

from msgspec import Struct
from msgspec.structs import astuple

from titanic.errors import StoreCorrupt
from titanic.store.records import ArchiveState, Outcome
from titanic.store.request import ClosedRequest, StoredRequest
from titanic.store.rules import LATEST
from titanic.store.service_settings import ServiceSettings
from titanic.store.states import State
from titanic.util.text import counted

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, the amount done, and the total."""

PORTION = 1000
PORTION_BYTES = 8 << 20
"""About how many records, or bytes of bodies, are moved at once."""


class StoredLife(NamedTuple):
    """A request with its history. Times are µs since the epoch, 0 = none.

    For a request that has not ended, `expires_at` is when it expires now (0: never), which may differ from the TTL of
    its submission; `due` is the end of its delay, and the other fields describe its last attempt. For one that has
    ended, all of them are 0, and `outcome` says how it ended.
    """

    request: StoredRequest
    expires_at: int
    attempts: int
    due: int
    dispatched_at: int
    reason: str
    outcome: Outcome | None
    deliveries: int = 0

    @property
    def state(self) -> State:
        """Its state, never RUNNING: the store is out of use."""
        if self.outcome is not None:
            return State(self.outcome.status)
        return State.DELAYED if self.due else State.WAITING


def life_of(
    request: StoredRequest,
    *,
    expires_at: int,
    attempts: int,
    due: int,
    dispatched_at: int,
    reason: str,
    deliveries: int = 0,
) -> StoredLife:
    """That of a request that has not ended. An attempt that does not count any more (it was retried) is not said."""
    if not attempts and not due and not deliveries:
        dispatched_at, reason = 0, ""
    return StoredLife(request, expires_at, attempts, due, dispatched_at, reason, None, deliveries)


class StoredKey(NamedTuple):
    """An idempotency key of an owner, until when it counts, when it came, and the requests that it was given to."""

    owner: bytes
    key: bytes
    until: int
    given: int
    uuids: list[bytes]


class StoredClosing(NamedTuple):
    """A closed request, and how many frames it and its reply had, also if they were left out."""

    closed: ClosedRequest
    request_frames: int
    reply_frames: int


class StoreHead(NamedTuple):
    """What a store has once. `identity`: see ReadTransaction."""

    identity: bytes | None
    capacity: int
    archive: ArchiveState
    settings: ServiceSettings


class Totals(NamedTuple):
    """How much there is to be moved."""

    requests: int
    keys: int
    closed: int


class Export(Protocol):
    """A store that is read out as a whole. It stays as it is, and cannot be changed meanwhile.

    Any method may raise RecordCorrupt, StoreCorrupt or StoreFailed.
    """

    place: str
    head: StoreHead
    totals: Totals

    def requests(self) -> Iterator[list[StoredLife]]:
        """All requests in the order of their ids, in portions."""

    def idempotency_keys(self) -> Iterator[list[StoredKey]]:
        """All idempotency keys in any order, in portions."""

    def closed(self) -> Iterator[list[StoredClosing]]:
        """All closed requests in the order of their numbers, in portions."""

    def facts(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """All facts, in portions."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None: ...


class Import(Protocol):
    """A store in the making. What is put in comes in the order of an Export, facts and requests first, then keys,
    then closed requests, and is kept when `finish` returns. Left before that, it stays unusable until the next move.

    Any method may raise StoreFailed, StoreUnwritable or DiskFull.
    """

    place: str

    def put_head(self, head: StoreHead) -> None:
        """What the store has once. It comes first."""

    def put_requests(self, lives: Sequence[StoredLife]) -> None:
        """Store these requests; their ids are above all before."""

    def put_keys(self, keys: Sequence[StoredKey]) -> None:
        """Store these idempotency keys."""

    def put_closed(self, closings: Sequence[StoredClosing]) -> None:
        """Store these closed requests, the numbers of which follow those before."""

    def put_facts(self, facts: Sequence[tuple[bytes, bytes]]) -> None:
        """Store these facts."""

    def problems(self, progress: Progress) -> list[str]:
        """Make all counters and indexes that follow from the rest, check the whole, and return its problems."""

    def read(self) -> Export:
        """What is in it now."""

    def finish(self) -> None:
        """It is a store from now on."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None: ...


class StoreSummary(NamedTuple):
    """What is in a store: how many requests in each state, keys, and closed requests; and a checksum over all of it."""

    states: dict[State, int]
    keys: int
    closed: int
    checksum: str

    @property
    def requests(self) -> int:
        return sum(self.states.values())

    def count(self, *states: State) -> int:
        """How many requests are in one of these states."""
        return sum(self.states.get(state, 0) for state in states)


def move(source: Export, target: Import, progress: Progress) -> StoreSummary:
    """Copy one store into the other, read the copy, and compare. Raises StoreCorrupt if it is not the same."""
    head = source.head
    target.put_head(head)
    moved = _go_through(source, progress, "copying", target)
    missing = head.archive.last + 1 - head.archive.first - moved.closed
    if missing:
        raise StoreCorrupt(f"the store {source.place} is damaged", f"{missing} closed requests are missing", "check it")
    found = target.problems(progress)
    fact = f"{counted(len(found), 'problem')}, the first: {found[0]}" if found else ""
    if not found:
        with target.read() as copy:
            there = _go_through(copy, progress, "comparing")
            alike = there == moved and copy.head._replace(capacity=head.capacity) == head
        fact = "" if alike else f"{_counted(there)}, instead of {_counted(moved)}"
    if fact:
        raise StoreCorrupt(f"the copy in {target.place} differs from {source.place}", fact, "report this")
    target.finish()
    return moved


def _counted(summary: StoreSummary) -> str:
    numbers = f"{summary.requests} requests, {summary.keys} keys, {summary.closed} closed requests"
    return f"{numbers} with checksum {summary.checksum[:16]}"


def _go_through(store: Export, progress: Progress, doing: str, target: Import | None = None) -> StoreSummary:
    """Read all of a store, and put it into another one, if there is one."""
    facts = _Tally(progress, f"{doing} facts", 0)
    for rows in store.facts():
        if target is not None:
            target.put_facts(rows)
        facts.add(rows)
    states: Counter[State] = Counter()
    requests = _Tally(progress, f"{doing} requests", store.totals.requests)
    for lives in store.requests():
        if target is not None:
            target.put_requests(lives)
        states.update(life.state for life in lives)
        requests.add(lives)
    keys = _Tally(progress, f"{doing} keys", store.totals.keys)
    for portion in store.idempotency_keys():
        if target is not None:
            target.put_keys(portion)
        keys.add(portion)
    closed = _Tally(progress, f"{doing} closed requests", store.totals.closed)
    for closings in store.closed():
        if target is not None:
            target.put_closed(closings)
        closed.add(closings)
    whole = hashlib.sha256(b"".join(one.checksum for one in (requests, keys, closed, facts)))
    return StoreSummary(dict(states), keys.count, closed.count, whole.hexdigest())


class _Tally:
    """Counts records, and makes a checksum over them that does not depend on their order."""

    def __init__(self, progress: Progress, doing: str, total: int) -> None:
        self.count = 0
        self._sum = 0
        self._progress, self._doing, self._total = progress, doing, total

    def add(self, records: Sequence[tuple[Any, ...]]) -> None:
        for record in records:
            one = hashlib.sha256()
            _add(one.update, record)
            self._sum += int.from_bytes(one.digest())
        self.count += len(records)
        self._progress(self._doing, self.count, self._total)

    @property
    def checksum(self) -> bytes:
        return (self._sum % (1 << 256)).to_bytes(32)


def _add(update: Callable[[bytes], object], value: Any) -> None:
    """Add a value to a checksum, in an unambiguous encoding."""
    if isinstance(value, bytes):
        update(b"%d:%b" % (len(value), value))
    elif isinstance(value, int):
        update(b"%d;" % min(value, LATEST))
    elif isinstance(value, str):
        _add(update, value.encode(errors="surrogatepass"))
    elif value is None:
        update(b"-")
    elif isinstance(value, Struct):
        _add(update, astuple(value))
    else:
        update(b"%d(" % len(value))
        for one in value:
            _add(update, one)
