"""A node of a simulated cluster: the core of claims with a broker, workers and a dispatcher, as simple as can be."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support.claims_store import LEASE, Look, Outcome, Settle, Writes

from titanic.cluster.claims_core import Claim, ClaimState, OutcomeWriting, Release, Room
from titanic.cluster.lease import Join, LeaseState, Leave, Renew
from titanic.store import Bound, ReadyRow

SERVICES = (b"a", b"b")
BOUNDS = {b"b": Bound(running=3)}
DRIFT = 0.052
"""By how much the clock of a node is too fast or too slow, at most: as much as the margin allows for two of them."""
LOOK = 1.5
"""Seconds from one look for what is to be taken back to the next."""


@dataclass(eq=False, slots=True)
class Attempt:
    """A request that a node has sent to a worker, until that is done with it or never gets it."""

    service: bytes
    uuid: bytes
    number: int
    attempts: int
    node: Node
    incarnation: int
    """Under whose claim it runs."""
    excused: bool = False
    """Whether others may execute the request meanwhile."""
    begun: bool = False
    uncounted: bool = False
    """Whether it was excused once: then it did not count for a bound."""


class Node:
    """A process."""

    def __init__(self, world: Any, name: int) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.born = world.now
        self.paused_until = 0.0
        self.lossy_until = self.cut_until = 0.0
        self.rate = 1 + DRIFT * world.dice.choice((-1, 1, world.dice.uniform(-1, 1)))
        self.offset = world.dice.uniform(-1e6, 1e6)
        self.core = world.core_kind(world.draw(self), LEASE)
        self.core.bounds = dict(BOUNDS)
        self.idle = {service: world.dice.choice((0, 1, 2, 4)) for service in SERVICES}
        self.busy: Counter[bytes] = Counter()
        self.queued: dict[bytes, deque[Attempt]] = {service: deque() for service in SERVICES}
        self.flights: dict[bytes, Attempt] = {}
        self.outcomes: dict[bytes, Outcome] = {}
        self.writing: set[bytes] = set()
        self.tick_at = float("inf")
        self.dispatched = 0
        self.own: set[int] = set()
        self.look_at = 0.0
        self.looking = False
        self.recalls: list[tuple[bytes, int]] = []
        """What is to be taken back, when no claim is on its way."""

    def now(self) -> float:
        return self.offset + self.world.now * self.rate

    def real(self, when: float) -> float:
        return (when - self.offset) / self.rate

    def incarnations(self) -> list[int | None]:
        """The one it has, and the one that may have begun without its knowing."""
        return [self.core.lease.incarnation, self.core.lease.drawn]

    # -- one round -------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do what is due."""
        core = self.core
        for uuid in core.take_recalls(self.now()):
            self.recall(uuid)
        for take in (core.take_lease, lambda now: core.take_claim(now, self.rooms()), lambda now: core.take_release()):
            op = take(self.now())
            if op is not None:
                uncounted = core.bounded([place.uuid for place in op.places]) if isinstance(op, Release) else []
                self.world.ask(self, op, Writes([], uncounted))
        self.own.update(number for number in self.incarnations() if number is not None)
        if not self.looking and self.world.now >= self.look_at:
            self.looking = True
            self.world.ask(self, Look(list(self.own)))
        if self.recalls and not core.claiming:
            recalls, self.recalls = self.recalls, []
            for uuid, _ in recalls:
                self.take_back(uuid)
            self.world.ask(self, Settle(recalls))
        if core.writes and self.outcomes.keys() - self.writing:
            uuids = [uuid for uuid in self.outcomes if uuid not in self.writing]
            self.writing.update(uuids)
            writes = Writes([self.outcomes[uuid] for uuid in uuids], core.bounded(uuids))
            self.world.ask(self, core.writing(uuids), writes)
        if core.lease.state is LeaseState.LEFT:
            self.world.left(self)
        elif (due := core.next_deadline()) is not None:
            at = max(self.real(due), self.world.now + 0.01)
            if at < self.tick_at:
                self.tick_at = at
                self.world.later(at - self.world.now, self.tick)

    def tick(self) -> None:
        self.tick_at = float("inf")
        self.world.at_node(self, lambda: None)

    def rooms(self) -> dict[bytes, Room]:
        return {
            service: Room(max(0, idle - len(self.queued[service])), max(0, 2 - len(self.queued[service])))
            for service, idle in self.idle.items()
            if idle + self.busy[service]
        }

    # -- dispatching -----------------------------------------------------------------------------------------

    def dispatch(self, rows: Mapping[bytes, list[ReadyRow]], wait: float = 0.3) -> None:
        """Send what was claimed, if it may be sent; some of it a while later."""
        for service, found in rows.items():
            for row in found:
                hold, room, dice = self.core.holds.get(row.uuid), self.rooms().get(service), self.world.dice.random()
                if hold is None or (hold.state is not ClaimState.CLAIMED and not wait):
                    continue
                may = self.core.may_dispatch(self.now())
                if dice < (wait if may else 0.8):
                    later = self.world.dice.expovariate(1)
                    self.world.later(later, self.world.at_node, self, self.dispatch, {service: [row]}, 0.0)
                elif may and room and room.idle + room.ahead > 0 and dice < 0.9:
                    self.core.sent(row.uuid)
                    self.send(service, row.uuid, row.attempts)
                else:
                    self.core.given_back([row.uuid])

    def send(self, service: bytes, uuid: bytes, attempts: int) -> None:
        attempt = self.world.begin(self, service, uuid, attempts)
        self.dispatched += 1
        self.flights[uuid] = attempt
        self.queued[service].append(attempt)
        self.world.later(self.world.dice.expovariate(200), self.world.at_broker, self, self.hand_out, service)

    def hand_out(self, service: bytes) -> None:
        """The broker gives workers what waits there while the lease lasts, whatever the dispatcher thinks; after that
        nothing."""
        queue, world = self.queued[service], self.world
        if not self.lasts():
            for attempt in list(queue):
                self.recall(attempt.uuid)
        while queue and self.idle[service]:
            attempt = queue.popleft()
            self.idle[service] -= 1
            self.busy[service] += 1
            attempt.begun = True
            world.must(attempt.uuid not in world.settled, f"{attempt.uuid.hex()} is begun after it was taken back")
            world.must(
                not attempt.excused, f"{attempt.uuid.hex()} is begun at node {self.name} after its lease was lost"
            )
            takes = world.dice.choice((0.01, 0.1, 0.5, 2.0)) if world.dice.random() < 0.92 else 12.0
            world.later(world.dice.uniform(0, 2 * takes), world.worker_done, self, service, attempt)

    def lasts(self) -> bool:
        return self.core.lease.lasts(self.now())

    def recall(self, uuid: bytes) -> None:
        if self.unqueue(uuid):
            self.world.counts["recalled"] += 1
            self.core.given_back([uuid])

    def take_back(self, uuid: bytes) -> None:
        """It was closed: no worker is to get it that has not got it."""
        if uuid in self.outcomes:
            return
        if uuid not in self.flights or self.unqueue(uuid):
            self.world.counts["taken back"] += uuid in self.core.holds
            self.core.forgotten(uuid)

    def unqueue(self, uuid: bytes) -> bool:
        attempt = self.flights[uuid]
        for queue in self.queued.values():
            if attempt in queue:
                queue.remove(attempt)
                self.over(attempt)
                return True
        return False

    def over(self, attempt: Attempt) -> None:
        self.world.end(attempt)
        del self.flights[attempt.uuid]

    def result(self, service: bytes, attempt: Attempt, lost: bool) -> None:
        """A worker is done, or died."""
        self.busy[service] -= 1
        self.idle[service] += 1
        del self.flights[attempt.uuid]
        if lost:
            self.core.given_back([attempt.uuid])
        else:
            self.outcomes[attempt.uuid] = self.world.outcome(attempt)
            self.core.ended(attempt.uuid)
        self.hand_out(service)

    # -- answers of the store --------------------------------------------------------------------------------

    def answer(self, op: Any, found: Any) -> None:
        core = self.core
        if isinstance(op, Join):
            core.joined(op, found, self.now())
        elif isinstance(op, Renew):
            core.renewed(op, found, self.now())
        elif isinstance(op, Leave):
            core.left(op)
        elif isinstance(op, Claim):
            rows, again = found if found is not None else (None, {})
            self.dispatch(core.claimed(op, rows, (), self.now(), again))
        elif isinstance(op, Look):
            self.looked()
            self.recalls += [one for one in found if one not in self.recalls]
        elif isinstance(op, Settle):
            pass
        elif isinstance(op, Release):
            core.released(op)
        else:
            again = core.written(op, found)
            self.writing.difference_update(op.uuids)
            for uuid in op.uuids:
                if uuid not in again:
                    del self.outcomes[uuid]

    def looked(self) -> None:
        self.looking, self.look_at = False, self.world.now + LOOK
        self.world.later(LOOK, self.world.at_node, self, lambda: None)

    def no_answer(self, op: Any, unchanged: bool) -> None:
        if isinstance(op, Look | Settle):
            if isinstance(op, Look):
                self.looked()
            return
        self.core.failed(op, self.now(), unchanged=unchanged)
        if isinstance(op, OutcomeWriting):
            self.world.later(0.5, self.world.at_node, self, self.writing.difference_update, op.uuids)
