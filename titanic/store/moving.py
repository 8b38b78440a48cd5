"""Moving a whole store from one engine to another: what is read out, what is put in, and that both are the same.

An engine reads out by an `Export`, in a fixed order, and takes in by an `Import`. Nobody works with either store
meanwhile. A store that was begun and not finished is none: no server takes it, and moving again begins anew.

Everything moves: requests with their ids, times, states, failures and replies, idempotency keys, closed requests with
their numbers, the agreement with the archive, the store's identity. A time beyond LATEST may become LATEST. What
`titanic check --repair` set aside for people does not move.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from msgspec import Struct
from msgspec.structs import astuple

from titanic.errors import StoreCorrupt
from titanic.store.records import ArchiveState, Archivist, Outcome
from titanic.store.request import ClosedRequest, StoredRequest
from titanic.store.rules import LATEST
from titanic.store.service_settings import ServiceSettings
from titanic.store.states import State

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and how much there is."""

PORTION = 1000
PORTION_BYTES = 8 << 20
"""How many records, or bytes of bodies, are moved at once, about."""


class StoredLife(NamedTuple):
    """A request with what became of it. Times are µs since the epoch, 0 = none.

    Of one that has not ended, `expires_at` is until when it counts now (0: for ever), which may be another time than
    what was asked for, and the rest is said of its last attempt; `due` is when its delay is over. Of one that has ended
    all of them are 0, and `outcome` says how.
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
        """Where it is. None runs: nobody works with the store."""
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
    """What a store has once. `identity` and `archivist`: see ReadTransaction."""

    identity: bytes | None
    capacity: int
    archive: ArchiveState
    archivist: Archivist | None
    settings: ServiceSettings


class Totals(NamedTuple):
    """How much there is to be moved."""

    requests: int
    keys: int
    closed: int


class Export(Protocol):
    """A store that is read out as a whole. It stays as it is, and nobody can change it meanwhile.

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

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Import(Protocol):
    """A store in the making. What is put in comes in the order of an Export, requests first, then keys, then closed
    requests, and is kept when `finish` returns. Left before that, it stays unusable until it is begun again.

    Any method may raise StoreFailed, StoreUnwritable or DiskFull.
    """

    place: str

    def put_head(self, head: StoreHead) -> None:
        """What the store has once. It comes first."""

    def put_requests(self, lives: Sequence[StoredLife]) -> None:
        """Store these requests, whose ids are above all before."""

    def put_keys(self, keys: Sequence[StoredKey]) -> None:
        """Store these idempotency keys."""

    def put_closed(self, closings: Sequence[StoredClosing]) -> None:
        """Store these closed requests, the numbers of which follow those before."""

    def problems(self, tell: Progress) -> list[str]:
        """Have all counters and indexes that follow from the rest, and check the whole: what is wrong with it."""

    def read(self) -> Export:
        """What is in it now."""

    def finish(self) -> None:
        """It is a store from now on."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Summary(NamedTuple):
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


def move(source: Export, target: Import, tell: Progress) -> Summary:
    """Put all of one store into the other, read it there, and compare. Raises StoreCorrupt if it is not the same."""
    head = source.head
    target.put_head(head)
    moved = _go_through(source, tell, "copying", target)
    missing = head.archive.last + 1 - head.archive.first - moved.closed
    if missing:
        raise StoreCorrupt(f"the store {source.place} is damaged", f"{missing} closed requests are missing", "check it")
    found = target.problems(tell)
    fact = f"{len(found)} problems, the first: {found[0]}" if found else ""
    if not found:
        with target.read() as copy:
            there = _go_through(copy, tell, "comparing")
            alike = there == moved and copy.head._replace(capacity=head.capacity) == head
        fact = "" if alike else f"{_counted(there)}, instead of {_counted(moved)}"
    if fact:
        raise StoreCorrupt(f"what came into {target.place} is not what {source.place} has", fact, "report this")
    target.finish()
    return moved


def _counted(summary: Summary) -> str:
    numbers = f"{summary.requests} requests, {summary.keys} keys, {summary.closed} closed requests"
    return f"{numbers} with checksum {summary.checksum[:16]}"


def _go_through(store: Export, tell: Progress, doing: str, target: Import | None = None) -> Summary:
    """Read all of a store, and put it into another one, if there is one."""
    states: Counter[State] = Counter()
    requests = _Tally(tell, f"{doing} requests", store.totals.requests)
    for lives in store.requests():
        if target is not None:
            target.put_requests(lives)
        states.update(life.state for life in lives)
        requests.add(lives)
    keys = _Tally(tell, f"{doing} keys", store.totals.keys)
    for portion in store.idempotency_keys():
        if target is not None:
            target.put_keys(portion)
        keys.add(portion)
    closed = _Tally(tell, f"{doing} closed requests", store.totals.closed)
    for closings in store.closed():
        if target is not None:
            target.put_closed(closings)
        closed.add(closings)
    whole = hashlib.sha256(b"".join(one.checksum for one in (requests, keys, closed)))
    return Summary(dict(states), keys.count, closed.count, whole.hexdigest())


class _Tally:
    """How many records went by, and a checksum over them, whatever their order."""

    def __init__(self, tell: Progress, doing: str, total: int) -> None:
        self.count = 0
        self._sum = 0
        self._tell, self._doing, self._total = tell, doing, total

    def add(self, records: Sequence[tuple[Any, ...]]) -> None:
        for record in records:
            one = hashlib.sha256()
            _add(one.update, record)
            self._sum += int.from_bytes(one.digest())
        self.count += len(records)
        self._tell(self._doing, self.count, self._total)

    @property
    def checksum(self) -> bytes:
        return (self._sum % (1 << 256)).to_bytes(32)


def _add(update: Callable[[bytes], object], value: Any) -> None:
    """Add a value to a checksum, so that no two different ones look alike."""
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
