"""A store as if it were on another machine: transactions in memory over a network that a test can hold,
claims, and a record of what was prefetched. For tests of the layers above a remote store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, RLock, get_ident
from typing import Any

from support.store_facts import state_of
from support.store_memory import DamageableRead, DamageableStore, DamageableWrite

from titanic.errors import OutcomeUnknown, RecordCorrupt, StoreError, StoreFailed
from titanic.store import (
    Bound,
    Claimed,
    Joined,
    LeaseConfig,
    NodeFacts,
    NodeRow,
    Page,
    Place,
    ReadyRow,
    Renewed,
    Silent,
    State,
    Status,
)

OVER = -1
"""The `lease_until` of an incarnation that is over."""


class Shared:
    """What nodes share beside requests. It is copied for each transaction, and kept or dropped with it."""

    def __init__(self) -> None:
        self.claimed: dict[bytes, int] = {}
        """By whom requests are claimed."""
        self.nodes: dict[int, int] = {}
        """Until when incarnations have their leases, in renewals."""
        self.bounded: dict[tuple[bytes, int], bytes] = {}
        """The services of requests that count for bounds, by request and incarnation."""

    def copy(self) -> Shared:
        other = Shared()
        other.__dict__ |= {name: dict(one) for name, one in vars(self).items()}
        return other

    def lives(self, incarnation: int) -> bool:
        return self.nodes.get(incarnation, OVER) != OVER


class RemoteStore(DamageableStore):
    """Nodes may share it."""

    remote = True
    notifications = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.shared = Shared()
        self.network = RLock()
        self.waits = Event()
        """Somebody has begun or ends a transaction, and perhaps waits for the network."""
        self.loops: set[int] = set()
        """Threads in which no transaction may begin."""
        self.prefetched: list[tuple[list[bytes], bool]] = []
        self.claims: list[list[tuple[bytes, int]]] = []
        """What was asked for in each claim."""
        self.facts: dict[int, NodeFacts] = {}
        """What nodes told of themselves last."""
        self.drained: set[int] = set()
        """Incarnations that an operator wants to be drained."""
        self.too_new: StoreError | None = None
        """Why nodes are refused."""
        self.away = False
        """Whether it cannot be reached."""
        self.silent = 0
        """Of so many of the next commits nobody is told whether they were done: they are."""
        self.lost = 0
        """The same, and they are not."""

    def read(self) -> RemoteRead:
        return RemoteRead(self)

    def write(self) -> RemoteWrite:
        return RemoteWrite(self)

    @property
    def claimed(self) -> set[bytes]:
        return {uuid for uuid, incarnation in self.shared.claimed.items() if self.lives(incarnation)}

    def lives(self, incarnation: int) -> bool:
        return self.shared.lives(incarnation)

    def living(self) -> list[int]:
        return [incarnation for incarnation in self.shared.nodes if self.lives(incarnation)]

    # -- leases, which have a connection of their own ---------------------------------------------------------

    def join(
        self, incarnation: int, before: int | None, held: Sequence[Place], facts: NodeFacts, config: LeaseConfig
    ) -> Joined:
        with self.lease(incarnation, facts) as tables:
            known = incarnation in tables.nodes
            if known and tables.nodes[incarnation] == OVER:
                return Joined(False, (), ())
            tables.nodes[incarnation] = tables.nodes.get(incarnation, 0) + 1
            if not known and before is not None:
                tables.nodes[before] = OVER
                for place in held:
                    if tables.claimed.get(place.uuid) == before:
                        tables.claimed[place.uuid] = incarnation
                    if (service := tables.bounded.pop((place.uuid, before), None)) is not None:
                        tables.bounded[place.uuid, incarnation] = service
            mine = [place.uuid for place in held if tables.claimed.get(place.uuid) == incarnation]
            return Joined(True, mine, others(tables, incarnation))

    def renew(
        self,
        incarnation: int,
        silent: Sequence[Silent],
        facts: NodeFacts,
        config: LeaseConfig,
        abandoned: Sequence[int] = (),
    ) -> Renewed:
        with self.lease(incarnation, facts) as tables:
            if tables.nodes.get(incarnation, OVER) == OVER:
                return Renewed(False, False, ())
            tables.nodes[incarnation] += 1
            for other, seen in silent:
                if tables.nodes.get(other) == seen:
                    tables.nodes[other] = OVER
            return Renewed(True, incarnation in self.drained, others(tables, incarnation))

    def leave(self, incarnations: Sequence[int]) -> None:
        with self.lease() as tables:
            tables.nodes.update(dict.fromkeys(incarnations, OVER))

    @contextmanager
    def lease(self, incarnation: int = 0, facts: NodeFacts | None = None) -> Iterator[Any]:
        assert get_ident() not in self.loops, "a loop waits for the network"
        if self.away:
            raise StoreFailed("the store could not be reached", "it is away", "wait")
        if self.too_new is not None:
            raise self.too_new
        if facts is not None:
            self.facts[incarnation] = facts
        with _Lease(self) as transaction:
            yield transaction.shared

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """The network carries nothing meanwhile."""
        with self.network:
            self.waits.clear()
            yield

    def travel(self) -> None:
        """To the store and back."""
        assert get_ident() not in self.loops, "a loop waits for the network"
        self.waits.set()
        with self.network:
            if self.away:
                raise StoreFailed("the store could not be reached", "it is away", "wait")


def others(tables: Any, incarnation: int) -> list[Silent]:
    return [Silent(*one) for one in tables.nodes.items() if one[0] != incarnation and one[1] != OVER]


class RemoteRead(DamageableRead):
    def __enter__(self) -> RemoteRead:
        self.store.travel()
        return super().__enter__()

    def optimistic(self, alone: bool = False) -> None:
        """Nothing: to read costs nothing."""

    def prefetch(self, uuids: Sequence[bytes], replies: bool = False) -> None:
        self.store.prefetched.append((list(uuids), replies))

    def delivery_key(self) -> bytes:
        return b""

    def nodes(self) -> list[NodeRow]:
        store: RemoteStore = self.store
        return [
            NodeRow(one, facts.name, facts.version, facts.endpoints, 0, 1.0, {}, one in store.drained, 0, None)
            for one, facts in store.facts.items()
            if store.lives(one)
        ]

    def running(self, uuids: Collection[bytes]) -> set[bytes]:
        return set(uuids) & self.store.claimed

    def list_running(self, *, limit: int, **options: Any) -> Page:
        rows = [
            row for row in self.select(states=(State.WAITING,), limit=1 << 20, **options) if self.running([row.uuid])
        ]
        page = Page(rows[:limit])
        page.next = page[-1].uuid if len(rows) > limit else None
        return page


class _Lease(DamageableWrite):
    def __enter__(self) -> Any:
        super().__enter__()
        self.shared: Shared = self.store.shared.copy()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self.store.shared = self.shared
        super().__exit__(*error)


class RemoteWrite(RemoteRead, _Lease):
    def __init__(self, store: RemoteStore) -> None:
        super().__init__(store)
        self.not_own: set[bytes] = set()

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None:
                self.store.travel()
        except StoreFailed:
            super().__exit__(StoreFailed, None, None)
            raise
        unknown = OutcomeUnknown("it is not known whether the commit was done", "the connection broke", "look")
        if error[0] is None and self.store.lost:
            self.store.lost -= 1
            super().__exit__(OutcomeUnknown, None, None)
            raise unknown
        super().__exit__(*error)
        if error[0] is None and self.store.silent:
            self.store.silent -= 1
            raise unknown

    def claim(
        self,
        incarnation: int,
        wants: Mapping[bytes, int],
        max_bytes: int,
        bounds: Mapping[bytes, Bound],
        keeps: Mapping[bytes, int],
    ) -> Claimed | None:
        self.store.claims.append(list(wants.items()))
        if not self.lives(incarnation):
            return None
        found: dict[bytes, list[ReadyRow]] = {}
        more: list[bytes] = []
        taken = {uuid for uuid, owner in self.shared.claimed.items() if self.lives(owner)}
        for service, limit in wants.items():
            if service in bounds:
                counted = [one for (_, owner), one in self.shared.bounded.items() if self.lives(owner)]
                running = counted.count(service)
                limit = min(limit, max(0, bounds[service].running - running))
            if max_bytes <= 0:
                more.append(service)
                continue
            for row in self.next_ready(service, None, limit, 1 << 40, skip=taken):
                if max_bytes > 0:
                    max_bytes -= sum(map(len, row.body))
                    self.shared.claimed[row.uuid] = incarnation
                    found.setdefault(service, []).append(row)
                    if service in bounds:
                        self.shared.bounded[row.uuid, incarnation] = service
                else:
                    more.append(service)
        damaged = [row.uuid for rows in found.values() for row in rows if row.uuid in self.store.damaged]
        return Claimed(found, more, {}, {uuid: RecordCorrupt(uuid, "request", "its sum is wrong") for uuid in damaged})

    def lives(self, incarnation: int) -> bool:
        return self.shared.lives(incarnation)

    def count_no_more(self, incarnation: int, places: Sequence[Place]) -> None:
        for place in places:
            self.shared.bounded.pop((place.uuid, incarnation), None)

    def under(self, incarnation: int, failed: Sequence[bytes]) -> None:
        own = self.lives(incarnation)
        self.not_own = {uuid for uuid in failed if not own or self.shared.claimed.get(uuid) != incarnation}

    def finish(self, uuid: bytes, status: Status, *args: Any, **options: Any) -> bool:
        return uuid not in self.not_own and super().finish(uuid, status, *args, **options)

    def postpone(self, uuid: bytes, **options: Any) -> bool:
        return uuid not in self.not_own and super().postpone(uuid, **options)

    def _put_request(self, uuid: bytes, row: Any) -> None:
        super()._put_request(uuid, row)
        if state_of(self, uuid) is not State.WAITING:
            self.unclaim(uuid)  # the claim goes with its place in the queue

    def unclaim(self, uuid: bytes) -> None:
        self.shared.claimed.pop(uuid, None)

    def release(self, incarnation: int, places: Sequence[Place]) -> None:
        for place in places:
            if self.shared.claimed.get(place.uuid) == incarnation:
                self.unclaim(place.uuid)
