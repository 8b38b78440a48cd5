"""Claims broken on purpose, each in another way: small simulated clusters notice, of which some have what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.claims_node import DRIFT, Node
from support.claims_store import Begun, ModelStore, Outcome, Request, Wrong
from support.claims_world import World

from titanic.cluster.claims_core import ClaimsCore, Release
from titanic.cluster.lease import Join, Lease, LeaseCall, Renew
from titanic.store import Joined, Place, ReadyRow, Renewed, Silent

STEPS = 4_000
WORLDS = range(3, 103)


class CountsFromTheAnswer(Lease):
    def renewed(self, op: Renew, answer: Renewed, now: float) -> None:
        super().renewed(op._replace(sent=now), answer, now)


class GoesOnAfterItsLease(Lease):
    def lasts(self, now: float) -> bool:
        return super().lasts(self.until - 1)


class GoesOnAfterItsEnd(Lease):
    def renewed(self, op: Renew, answer: Renewed, now: float) -> None:
        super().renewed(op, answer._replace(alive=True), now)


class HasNoPatience(Lease):
    def _is_silent(self, since: float, now: float) -> bool:
        return now - since >= self.config.lease / 2


class HasNoMargin(Lease):
    def _extend(self, op: Join | Renew) -> None:
        super()._extend(op._replace(sent=op.sent + self.config.margin))


class NeverLooks(Lease):
    def _see_others(self, others: Sequence[Silent], now: float) -> None: ...


class TakesFailuresForNothing(ClaimsCore):
    def failed(self, op: Any, now: float, *, unchanged: bool) -> None:
        super().failed(op, now, unchanged=True)


class TakesFailedReleasesForNothing(ClaimsCore):
    def failed(self, op: Any, now: float, *, unchanged: bool) -> None:
        super().failed(op, now, unchanged=unchanged or isinstance(op, Release))


class JoinsWithNothing(ClaimsCore):
    def take_lease(self, now: float) -> LeaseCall | None:
        op = super().take_lease(now)
        return op._replace(held=[]) if isinstance(op, Join) else op


class KeepsWhatItLost(ClaimsCore):
    def joined(self, op: Join, answer: Joined, now: float) -> None:
        super().joined(op, answer._replace(held=list(self.holds)), now)


class DispatchesWhileDraining(ClaimsCore):
    def may_dispatch(self, now: float) -> bool:
        return self.lease.lasts(now)

    def drain(self) -> None:
        self.draining = True


class SendsWhatIsHere(ClaimsCore):
    def _grant(self, service: bytes, row: ReadyRow, number: int) -> bool:
        super()._grant(service, row, number)
        return True


class ForgetsWhatReturns(ClaimsCore):
    def given_back(self, uuids: Any) -> None:
        for uuid in list(uuids):
            self.forgotten(uuid)


class CountsAnyFailure(ModelStore):
    def counts_failure(self, uuid: bytes, incarnation: int) -> bool:
        return uuid in self.waiting


class KeepsTheLastReply(ModelStore):
    def write(self, incarnation: int, outcomes: Sequence[Outcome]) -> list[bytes]:
        for uuid, reply, _ in outcomes:
            if uuid in self.ended:
                self.end(uuid, reply)
        return super().write(incarnation, outcomes)


class GoesByItsClock(ModelStore):
    """A claim is free when its lease is over by the store's clock."""

    def is_free(self, request: Request) -> bool:
        return request.incarnation is None or self.nodes[request.incarnation] < self.clock()


class EndsWhoeverIsNamed(ModelStore):
    def is_silent(self, other: Silent) -> bool:
        return True


class ReleasesAnything(ModelStore):
    def release(self, incarnation: int, places: Sequence[Place]) -> None:
        for _, _, uuid in places:
            if uuid in self.waiting:
                self.waiting[uuid].incarnation = None
                self.world.freed(uuid)


class ForgetsWhoIsClaiming(ModelStore):
    def is_claiming(self, incarnation: int) -> bool:
        return False


class CountsWithoutALock(ModelStore):
    """Two nodes count what runs, and both claim what is left."""

    def begin(self, op: Any) -> Begun | None:
        others, self.begun = self.begun, []
        claim = super().begin(op)
        self.begun += others
        return claim


class SettlesAtOnce(Node):
    """It says that no worker can get what was closed, whatever waits at its broker."""

    def take_back(self, uuid: bytes) -> None: ...


class GivesItsWorkersWhateverWaits(Node):
    def lasts(self) -> bool:
        return True


BROKEN = {
    ForgetsWhoIsClaiming: 6,
    CountsWithoutALock: 17,
    SettlesAtOnce: 4,
    GivesItsWorkersWhateverWaits: 12,
    CountsFromTheAnswer: 3,
    GoesOnAfterItsLease: 4,
    GoesOnAfterItsEnd: 6,
    HasNoPatience: 4,
    NeverLooks: 4,
    TakesFailuresForNothing: 3,
    TakesFailedReleasesForNothing: 4,
    JoinsWithNothing: 3,
    KeepsWhatItLost: 50,
    DispatchesWhileDraining: 3,
    SendsWhatIsHere: 4,
    ForgetsWhatReturns: 5,
    CountsAnyFailure: 4,
    KeepsTheLastReply: 3,
    GoesByItsClock: 11,
    EndsWhoeverIsNamed: 4,
    ReleasesAnything: 3,
}
"""Each, and a world in which it is noticed: the first that is tried."""


def broken_world(fault: type, seed: int) -> World:
    if issubclass(fault, Node):
        return World(seed, node_kind=fault)
    if issubclass(fault, ModelStore):
        return World(seed, store_kind=fault)
    if issubclass(fault, Lease):
        fault = type(fault.__name__, (ClaimsCore,), {"lease_kind": fault})
    return World(seed, core_kind=fault)


def finds(world: World) -> bool:
    try:
        world.run(STEPS)
        world.finish()
    except Wrong:
        return True
    return False


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_is_found(fault: type) -> None:
    assert any(finds(broken_world(fault, seed)) for seed in (BROKEN[fault], *WORLDS))


class AtTheEdge(Node):
    """The clock of the first node is slow, that of the second is fast."""

    def __init__(self, world: Any, name: int) -> None:
        super().__init__(world, name)
        self.rate = (1 - DRIFT, 1 + DRIFT, 1.0)[(name - 1) % 3]


def is_ended_while_its_lease_lasts(lease: type[Lease], seed: int) -> bool:
    """The slow node loses the store while the others look at it. Nothing else fails."""
    core = type("Core", (ClaimsCore,), {"lease_kind": lease})
    world = World(seed, core_kind=core, node_kind=AtTheEdge)
    world.faults, world.loss, world.pauses = {"leapt": 1.0}, 1e-9, 0
    try:
        while world.now < 10 + seed / 20:
            world.step()
        world.nodes[0].cut_until = world.now + 8
        while world.now < 25:
            world.step()
    except Wrong:
        return True
    assert world.counts["ended by others"]
    return False


def test_the_margin_is_as_large_as_it_must_be() -> None:
    assert not any(is_ended_while_its_lease_lasts(Lease, seed) for seed in range(30))
    assert any(is_ended_while_its_lease_lasts(HasNoMargin, seed) for seed in range(30))
