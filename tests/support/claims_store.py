"""The store of a simulated cluster: what `titanic/store/cluster.py` says its statements do, each at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from titanic.cluster.claims_core import Claim, LeaseConfig, OutcomeWriting, Release
from titanic.cluster.lease import Join, Leave, Renew
from titanic.store import Bound, Joined, Place, ReadyRow, Renewed, Silent

OVER = -1
"""The `lease_until` of an incarnation that is over."""
MAX_ATTEMPTS = 3
LEASE = LeaseConfig(lease=4.0, renew=0.7, margin=0.4)
"""Shorter than usual, so that more happens in a step; a renewal does not come just as the lease is over."""
FORGET = 4 * LEASE.lease
"""Seconds after its end was seen after which a node is forgotten: longer than a statement can be on its way."""
CONTENDED = 0.02
"""Seconds after which a service with a bound can be asked for again, for which another claim was not committed."""


class Wrong(AssertionError):
    """A promise was broken."""


class Outcome(NamedTuple):
    """`reply` is None: the attempt failed."""

    uuid: bytes
    reply: bytes | None
    attempts: int


class Writes(NamedTuple):
    """What goes with an OutcomeWriting or a Release: `uncounted` are those that do not count for bounds any more."""

    outcomes: Sequence[Outcome]
    uncounted: Sequence[Place]


class Look(NamedTuple):
    """What a node asks now and then: what it is to take back."""

    incarnations: Sequence[int]


class Settle(NamedTuple):
    """No worker can be given these any more by these incarnations."""

    recalls: Sequence[tuple[bytes, int]]


@dataclass(eq=False, slots=True)
class Begun:
    """A claim that has locked its requests and is not committed."""

    incarnation: int
    requests: list[Request] = field(default_factory=list)
    bounds: set[bytes] = field(default_factory=set)
    again: dict[bytes, float] = field(default_factory=dict)


@dataclass(slots=True)
class Request:
    """A request that has not ended."""

    uuid: bytes
    service: bytes
    attempts: int = 0
    incarnation: int | None = None
    due: float = 0.0
    """When it is to be tried again; 0: it waits."""
    locked: bool = False
    """By a claim that is not committed."""


class ModelStore:
    """`world` is told who has claimed what."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.nodes: dict[int, int] = {}
        self.waiting: dict[bytes, Request] = {}
        """Unended requests, in the order of their ids."""
        self.ended: dict[bytes, bytes | None] = {}
        """Replies; None for what has failed."""
        self.executions: Counter[bytes] = Counter()
        self.begun: list[Begun] = []
        self.bounded: dict[tuple[bytes, bytes], int] = {}
        """Which incarnation has a request of a service under a bound."""
        self.recalls: dict[bytes, int] = {}
        """Closed requests that an incarnation has still to take back."""
        self.ended_at: dict[int, float] = {}
        """When the end of a node was seen."""
        self._services: dict[bytes, bytes] = {}
        self._leapt = 0
        self._accepted = 0

    # -- clients and chores ----------------------------------------------------------------------------------

    def accept(self, service: bytes) -> bytes:
        self._accepted += 1
        uuid = self._accepted.to_bytes(16, "big")
        self._services[uuid] = service
        self.waiting[uuid] = Request(uuid, service)
        return uuid

    def close(self, uuid: bytes) -> None:
        request = self.waiting.pop(uuid, None)
        number = request.incarnation if request is not None and not request.due else None
        if number is not None and self.nodes.get(number) != OVER:
            self.recalls[uuid] = number
        self.ended.pop(uuid, None)
        self._services.pop(uuid, None)

    def retry(self, uuid: bytes) -> None:
        del self.ended[uuid]
        self.waiting[uuid] = Request(uuid, self._services[uuid])
        self.world.counts["retried"] += 1

    def promote(self) -> None:
        for request in self.waiting.values():
            if 0 < request.due <= self.world.now:
                request.due = 0.0

    def forget(self) -> None:
        """Remove nodes that ended long ago, and what counted for them."""
        self.bounded = {key: node for key, node in self.bounded.items() if self.nodes.get(node) != OVER}
        self.recalls = {uuid: node for uuid, node in self.recalls.items() if self.lives(node)}
        named = {request.incarnation for request in self.waiting.values()} | {*self.bounded.values()}
        for number in [number for number, until in self.nodes.items() if until == OVER]:
            since = self.ended_at.setdefault(number, self.world.now)
            if self.world.now - since >= FORGET and number not in named and not self.is_claiming(number):
                del self.nodes[number]
                self.world.counts["forgotten"] += 1

    def is_claiming(self, incarnation: int) -> bool:
        """Whether its row is locked."""
        return any(claim.incarnation == incarnation for claim in self.begun)

    def check_claims(self) -> None:
        for request in self.waiting.values():
            if request.incarnation is not None and request.incarnation not in self.nodes:
                raise Wrong(f"{request.uuid.hex()} is claimed by a node that does not exist")

    def check_reply(self, uuid: bytes) -> None:
        reply = self.ended[uuid]
        if reply is None:
            return
        whose, number = reply[:16], reply[17:]
        if whose != uuid or not 1 <= int(number) <= self.executions[uuid]:
            raise Wrong(f"{uuid.hex()} has the reply {reply!r}")

    def leap(self, seconds: int) -> None:
        """The clock of the store's machine is another one."""
        self._leapt += seconds * 1_000_000

    # -- what is looked at -----------------------------------------------------------------------------------

    def lives(self, incarnation: int | None) -> bool:
        return incarnation is not None and self.nodes.get(incarnation, OVER) != OVER

    def living(self) -> list[Silent]:
        return [Silent(incarnation, until) for incarnation, until in self.nodes.items() if until != OVER]

    def label(self, uuid: bytes) -> int | None:
        """Who has claimed a request that waits; None when it does not wait, so that whatever comes of it is dropped."""
        request = self.waiting.get(uuid)
        if request is None:
            return None
        return request.incarnation if not request.due and request.incarnation is not None else OVER

    def claimed(self) -> Iterator[tuple[bytes, int]]:
        for request in self.waiting.values():
            if request.incarnation is not None and not request.due and self.lives(request.incarnation):
                yield request.uuid, request.incarnation

    def unended(self) -> list[str]:
        return [uuid.hex() for uuid in self.waiting]

    # -- statements ------------------------------------------------------------------------------------------

    def execute(self, op: Any, extra: Any) -> Any:
        if isinstance(op, Renew):
            return self.renew(op.incarnation, op.silent)
        if isinstance(op, OutcomeWriting):
            self.count_no_more(op.incarnation, extra.uncounted)
            return self.write(op.incarnation, extra.outcomes)
        if isinstance(op, Release):
            self.count_no_more(op.incarnation, extra.uncounted)
            return self.release(op.incarnation, op.places)
        if isinstance(op, Look):
            return [(uuid, node) for uuid, node in self.recalls.items() if node in op.incarnations]
        if isinstance(op, Settle):
            return self.settle(op.recalls)
        if isinstance(op, Join):
            return self.join(op.incarnation, op.before, op.held)
        assert isinstance(op, Leave)
        return self.leave(op.incarnations)

    def is_locked(self, op: Any) -> bool:
        """Whether a statement waits for a claim to be committed."""
        if isinstance(op, OutcomeWriting):
            uuids: Sequence[bytes] = op.uuids
        elif isinstance(op, Join | Release):
            uuids = [place.uuid for place in (op.held if isinstance(op, Join) else op.places)]
        else:
            return False
        return any(uuid in self.waiting and self.waiting[uuid].locked for uuid in uuids)

    def clock(self) -> int:
        return int(self.world.now * 1e6) + 10**15 + self._leapt

    def lease_until(self, incarnation: int) -> int:
        return max(self.nodes.get(incarnation, OVER) + 1, self.clock() + int(LEASE.lease * 1e6))

    def others(self, incarnation: int) -> list[Silent]:
        return [other for other in self.living() if other.incarnation != incarnation]

    def join(self, incarnation: int, before: int | None, held: Sequence[Place]) -> Joined:
        known = incarnation in self.nodes
        if known and not self.lives(incarnation):
            return Joined(False, [], [])
        self.nodes[incarnation] = self.lease_until(incarnation)
        if not known and before is not None:
            self.nodes[before] = OVER
            self.take_over(incarnation, before, held)
        mine = [uuid for _, _, uuid in held if self.is_claimed_by(uuid, incarnation)]
        return Joined(True, mine, self.others(incarnation))

    def take_over(self, incarnation: int, before: int, held: Sequence[Place]) -> None:
        taken = [uuid for _, _, uuid in held if self.is_claimed_by(uuid, before)]
        for uuid in taken:
            self.waiting[uuid].incarnation = incarnation
        self.world.counts["taken over"] += len(taken)
        self.world.claimed_again(taken, incarnation)
        for service, _, uuid in held:
            if self.bounded.get((service, uuid)) == before:
                self.bounded[service, uuid] = incarnation
                self.world.moved(uuid, incarnation)

    def is_claimed_by(self, uuid: bytes, incarnation: int) -> bool:
        request = self.waiting.get(uuid)
        return request is not None and not request.due and request.incarnation == incarnation

    def renew(self, incarnation: int, silent: Sequence[Silent]) -> Renewed:
        if not self.lives(incarnation):
            return Renewed(False, False, [])
        self.nodes[incarnation] = self.lease_until(incarnation)
        for other in silent:
            if self.is_silent(other):
                self.nodes[other.incarnation] = OVER
                self.world.ended_by_others(other.incarnation)
        return Renewed(True, False, self.others(incarnation))

    def is_silent(self, other: Silent) -> bool:
        return self.nodes.get(other.incarnation) == other.lease_until

    def leave(self, incarnations: Sequence[int]) -> None:
        for incarnation in incarnations:
            self.nodes[incarnation] = OVER

    def is_free(self, request: Request) -> bool:
        return request.incarnation is None or self.nodes.get(request.incarnation) == OVER

    def begin(self, op: Claim) -> Begun | None:
        """Lock what is to be claimed. None: the incarnation is over."""
        if not self.lives(op.incarnation):
            return None
        claim = Begun(op.incarnation, bounds={name for name, bound in op.bounds.items() if bound.running})
        for service, most in op.wants.items():
            count = self.within(service, most, op.bounds, claim)
            free = [
                one
                for one in self.waiting.values()
                if one.service == service and not one.due and not one.locked and self.is_free(one)
            ]
            claim.requests += sorted(free, key=lambda one: one.uuid)[:count]
        for request in claim.requests:
            request.locked = True
        self.begun.append(claim)
        return claim

    def within(self, service: bytes, most: int, bounds: Mapping[bytes, Bound], claim: Begun) -> int:
        """How many may be claimed."""
        if service not in bounds:
            return most
        if any(service in other.bounds for other in self.begun):
            claim.again[service] = CONTENDED
            self.world.counts["contended"] += 1
            return 0
        running = sum(name == service and self.lives(node) for (name, _), node in self.bounded.items())
        if most > (left := max(0, bounds[service].running - running)):
            self.world.counts["bounded"] += 1
            return left
        return most

    def commit(self, claim: Begun) -> tuple[dict[bytes, list[ReadyRow]], dict[bytes, float]]:
        self.undo(claim)
        rows: dict[bytes, list[ReadyRow]] = {}
        if claim.requests and not self.lives(claim.incarnation):
            self.world.counts["claims committed after the end"] += 1
        for request in claim.requests:
            if request.incarnation is not None:
                self.world.counts["claims of the dead taken"] += 1
            request.incarnation = claim.incarnation
            row = ReadyRow(request.service + b"\4" + request.uuid, request.uuid, request.attempts, [], 0, 0, b"")
            rows.setdefault(request.service, []).append(row)
            if request.service in claim.bounds:
                self.bounded[request.service, request.uuid] = claim.incarnation
            if self.lives(claim.incarnation):
                self.world.claimed_again([request.uuid], claim.incarnation)
        return rows, claim.again

    def undo(self, claim: Begun) -> None:
        """Free what is locked."""
        self.begun.remove(claim)
        for request in claim.requests:
            request.locked = False

    def count_no_more(self, incarnation: int, places: Sequence[Place]) -> None:
        for service, _, uuid in places:
            if self.bounded.get((service, uuid)) == incarnation:
                del self.bounded[service, uuid]

    def settle(self, recalls: Sequence[tuple[bytes, int]]) -> None:
        for uuid, incarnation in recalls:
            if self.recalls.get(uuid) == incarnation:
                del self.recalls[uuid]
                self.world.settled.add(uuid)
                self.world.counts["settled"] += 1

    def release(self, incarnation: int, places: Sequence[Place]) -> None:
        for _, _, uuid in places:
            if self.is_claimed_by(uuid, incarnation):
                self.waiting[uuid].incarnation = None
                self.world.freed(uuid)

    def counts_failure(self, uuid: bytes, incarnation: int) -> bool:
        return self.is_claimed_by(uuid, incarnation) and self.lives(incarnation)

    def write(self, incarnation: int, outcomes: Sequence[Outcome]) -> list[bytes]:
        """Returns what was unchanged."""
        unchanged = []
        for uuid, reply, attempts in outcomes:
            request = self.waiting.get(uuid)
            if request is None or not (reply is not None or self.counts_failure(uuid, incarnation)):
                unchanged.append(uuid)
                self.world.counts["outcomes that did not count"] += 1
                continue
            if reply is None:
                self.world.freed(uuid)
            elif not self.is_claimed_by(uuid, incarnation):
                self.world.counts["late replies that counted"] += 1
            if reply is not None or attempts >= MAX_ATTEMPTS:
                self.end(uuid, reply)
            else:
                if attempts > self.executions[uuid]:
                    raise Wrong(f"{uuid.hex()} has {attempts} attempts of {self.executions[uuid]} executions")
                request.attempts, request.incarnation = attempts, None
                request.due = self.world.now + 1.0
        return unchanged

    def end(self, uuid: bytes, reply: bytes | None) -> None:
        if uuid in self.ended:
            raise Wrong(f"{uuid.hex()} had ended with {self.ended[uuid]!r}")
        del self.waiting[uuid]
        self.ended[uuid] = reply
