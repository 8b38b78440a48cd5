"""The tables of a store in memory (memory.py): rows by id, sorted lists for reading in order, and counters.

Rows are immutable. A `put_…` method replaces one, updates lists and counters, and returns the previous row; putting
that back undoes the change.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from titanic.store.agreement import Agreement
from titanic.store.records import Load, Outcome
from titanic.store.request import (
    ClosedRequest,
    Description,
    NewRequest,
    given_values,
    key_size,
    lasting_texts,
    outcome_size,
)
from titanic.store.rules import body_until, kept_until
from titanic.store.service_settings import ServiceSettings
from titanic.store.states import DEAD, State
from titanic.store.uniqueness import NAMES

END = 240
"""Bytes added to the size of each request: room for its outcome, and for its record once it is closed."""
_CLOSED = 76
"""Bytes added to the size of each closed request. With them it is no larger than it was while open."""


def size_of(frames: Iterable[bytes]) -> int:
    """Return the bytes of all frames."""
    return sum(map(len, frames))


def _add(places: list[Any], place: Any) -> None:
    if not places or places[-1] < place:
        places.append(place)  # mostly
    else:
        insort(places, place)


def _drop(places: list[Any], place: Any) -> None:
    del places[bisect_left(places, place)]


class Row(NamedTuple):
    """A request as submitted, and its progress. Times are µs since the epoch; `due` is 0 unless it is delayed."""

    uuid: bytes
    new: NewRequest
    submitted_at: int
    size: int
    expires_at: int
    due: int = 0
    attempts: int = 0
    dispatched_at: int = 0
    reason: str = ""
    deliveries: int = 0
    outcome: Outcome | None = None

    @property
    def state(self) -> State:
        if self.outcome is not None:
            return State(self.outcome.status)
        return State.DELAYED if self.due else State.WAITING

    @property
    def key(self) -> bytes:
        """Its place in the queue of its service."""
        return b"%b\0%c%b" % (self.new.service, 9 - self.new.priority, self.uuid)

    @property
    def end_size(self) -> int:
        """Bytes of its reply, or of the reason why it was postponed."""
        frames = self.outcome.frames if self.outcome else ()
        return outcome_size((self.outcome or self).reason.encode(), len(frames), size_of(frames))

    @property
    def fields(self) -> tuple[Any, ...]:
        """The values of RequestFields."""
        return (self.uuid, self.submitted_at, *given_values(self.new._replace(expires_at=self.expires_at)))

    def described(self) -> Description:
        """Return everything but the frames."""
        body, end = self.new.body, self.outcome
        last, reply = end or self, end.frames if end else []
        return Description(
            *self.fields,
            state=self.state,
            body_frames=len(body),
            body_bytes=size_of(body),
            attempts=last.attempts,
            due=self.due,
            dispatched_at=last.dispatched_at,
            finished_at=end.finished_at if end else 0,
            reason=last.reason,
            reply_frames=len(reply),
            reply_bytes=size_of(reply),
            deliveries=self.deliveries,
        )


class KeyHolder(NamedTuple):
    """The requests with an idempotency key, when the key expires, and when it was set."""

    until: int
    uuids: list[bytes]
    given: int


Key = tuple[bytes, bytes]
"""An owner (empty: none) and an idempotency key."""


def _key_end(key: Key, holder: KeyHolder) -> tuple[int, bool, bytes, bytes]:
    """Order keys by expiry. Among equal ones, those of an owner or of a unique request come last, and an owner after
    all owners that its name is a prefix of."""
    return holder.until, bool(key[0]) or key[1][:1] == NAMES, key[0] + b"\xff", key[1]


class Ring(NamedTuple):
    """Closed requests: the first and the last number, those lost, and the agreement with the archive."""

    first: int = 1
    last: int = 0
    lost: int = 0
    agreement: Agreement = Agreement()


def closed_size(one: ClosedRequest) -> int:
    texts = sum(map(len, lasting_texts(one))) + len(one.error.encode())
    return _CLOSED + texts + sum(len(frame) + 4 for frames in (one.request, one.reply) for frame in frames)


class Tables:
    """All data of a store. `readers`: the number of transactions that need it unchanged."""

    def __init__(self) -> None:
        self.readers = 0
        self.requests: dict[bytes, Row] = {}
        self.order: list[bytes] = []
        self.keys: dict[Key, KeyHolder] = {}
        self.key_ends: list[tuple[int, bool, bytes, bytes]] = []
        self.closed: dict[int, ClosedRequest] = {}
        self.ring = Ring()
        self.settings: ServiceSettings = {}
        self.ready: dict[bytes, list[bytes]] = {}
        """The queue of each service: `Row.key`."""
        self.due: list[tuple[int, bytes]] = []
        self.expiring: list[tuple[int, bytes]] = []
        self.replied: list[tuple[int, bytes]] = []
        self.dead: list[tuple[int, bytes]] = []
        self.kept: list[tuple[int, bytes]] = []
        self.bodies: list[tuple[int, bytes]] = []
        """The times when delayed requests are due, when requests expire, when requests ended, and until when those and
        those bodies are kept that have a time of their own."""
        self.facts: dict[bytes, bytes] = {}
        self.services: dict[bytes, Load] = {}
        self.owners: dict[bytes, Load] = {}
        self.waiting = 0
        self.used = 0
        self.closed_used = 0
        self.awaited = 0
        """Bytes of closed requests, and of those that the archive does not have yet."""

    def copy(self) -> Tables:
        other = Tables()
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, dict | list) else value)
        other.ready = {service: queue.copy() for service, queue in self.ready.items()}
        other.readers = 0
        return other

    def undo(self, changes: Iterable[Change]) -> None:
        """Put back what was there before these changes."""
        for put, key, before in reversed([*changes]):
            put(self, key, before)

    def put_request(self, uuid: bytes, row: Row | None) -> Row | None:
        before = self.requests.get(uuid)
        if before is not None:
            self._list(before, _drop, -1)
        if row is not None:
            self.requests[uuid] = row
            self._list(row, _add, 1)
            if before is None:
                _add(self.order, uuid)
        elif before is not None:
            del self.requests[uuid]
            _drop(self.order, uuid)
        return before

    def _list(self, row: Row, put: Callable[[list[Any], Any], None], sign: int) -> None:
        new, end, end_size = row.new, row.outcome, row.end_size
        if end is not None:
            if new.body and (until := body_until(new.options, end.status, end.finished_at)):
                put(self.bodies, (until, row.uuid))
            if until := kept_until(new.options, end.status, end.finished_at):
                put(self.kept, (until, row.uuid))
            else:
                put(self.dead if end.status in DEAD else self.replied, (end.finished_at, row.uuid))
        else:
            if row.due:
                put(self.due, (row.due, row.uuid))
            else:
                put(self.ready.setdefault(new.service, []), row.key)
                self.waiting += sign
                if not self.ready[new.service]:
                    del self.ready[new.service]
            if row.expires_at:
                put(self.expiring, (row.expires_at, row.uuid))
            _count(self.services, new.service, sign, sign * row.size)
        self.used += sign * (row.size + max(END, end_size))
        if new.owner:
            _count(self.owners, new.owner, sign * (end is None), sign * (row.size + end_size * (end is not None)))

    def put_key(self, key: Key, holder: KeyHolder | None) -> KeyHolder | None:
        before = self.keys.pop(key, None)
        for one, put, sign in ((before, _drop, -1), (holder, _add, 1)):
            if one is not None:
                put(self.key_ends, _key_end(key, one))
                size = key_size(key[0], len(key[1]), len(one.uuids))
                self.used += sign * size
                if key[0]:
                    _count(self.owners, key[0], 0, sign * size)
        if holder is not None:
            self.keys[key] = holder
        return before

    def put_closed(self, number: int, one: ClosedRequest | None) -> ClosedRequest | None:
        before = self.closed.pop(number, None)
        for each, sign in ((before, -1), (one, 1)):
            if each is not None:
                size = closed_size(each)
                self.used += sign * size
                self.closed_used += sign * size
                if self.ring.agreement.awaits(number):
                    self._await(each, sign)
        if one is not None:
            self.closed[number] = one
        return before

    def put_ring(self, _: None, ring: Ring) -> Ring:
        before, self.ring = self.ring, ring
        was, now = before.agreement, ring.agreement
        if (was.registered, was.upto) != (now.registered, now.upto):
            begin = min(one.upto if one.registered else before.last for one in (was, now))
            for number in range(max(begin + 1, before.first), before.last + 1):
                if was.awaits(number) != now.awaits(number):
                    self._await(self.closed[number], 1 if now.awaits(number) else -1)
        return before

    def _await(self, one: ClosedRequest, sign: int) -> None:
        size = sign * closed_size(one)
        self.awaited += size
        if one.owner:
            _count(self.owners, one.owner, 0, size)

    def put_fact(self, key: bytes, value: bytes | None) -> bytes | None:
        before = self.facts.pop(key, None)
        if value is not None:
            self.facts[key] = value
        return before

    def put_settings(self, _: None, settings: ServiceSettings) -> ServiceSettings:
        before, self.settings = self.settings, settings
        return before


Change = tuple[Callable[[Tables, Any, Any], Any], Any, Any]
"""A `put_…` of Tables, its key, and what was there before."""


def _count(loads: dict[bytes, Load], name: bytes, requests: int, size: int) -> None:
    waiting, bytes_ = loads.get(name, (0, 0))
    loads[name] = Load(waiting + requests, bytes_ + size)
    if loads[name] == (0, 0):
        del loads[name]
