"""Nodes on a shared store, simulated: every event comes from one heap and one seeded generator, so a seed repeats all.

world = World(seed=3)
world.run(20_000)          events; faults among them
world.finish()             heal everything; what was accepted ends

The store executes each statement at one moment, as `titanic/store/cluster.py` says; a claim may be committed later,
even after the end of its node. Statements and their answers are late or lost, and some are executed long after their
sender has given up. Nodes stand still, die, lose the store, are drained and are forgotten. Their clocks run at rates of
their own, some at the edge of what the margin allows, and the store's leaps. How often each fault happens differs from
seed to seed. A `Wrong` says which promise was broken.

What may run twice (P2): while an attempt goes on, another worker gets the request only if the node that dispatched it
was killed, or lost its lease: the others did not see it renewed for as long as it lasts. After that no worker of the
node begins what waited at its broker.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from support.claims_node import BOUNDS, SERVICES, Attempt, Node
from support.claims_store import LEASE, Begun, ModelStore, Outcome, Wrong

from titanic.cluster.claims_core import Claim, ClaimsCore
from titanic.cluster.lease import Join, Leave, Renew

GIVE_UP = 1.6
"""Seconds until a statement without an answer is given up, at most; one about the lease after those between two."""
BOUND = 3 * LEASE.lease
"""Seconds in which a node can look after the others, after which nothing may be claimed any more by one who is dead, or
does not know of it."""
MOST_UNENDED = 40
FAULTS = {
    "store away": 0.1,
    "leapt": 0.15,
    "stood still": 0.3,
    "lossy": 0.12,
    "cut off": 0.3,
    "killed": 0.12,
    "drained": 0.12,
}
"""How often each is chosen, before a seed makes it rarer or more frequent."""


class World:
    """Everything there is. `core_kind`, `store_kind` and `node_kind` may be broken on purpose."""

    def __init__(
        self,
        seed: int,
        *,
        core_kind: type[ClaimsCore] = ClaimsCore,
        store_kind: type[ModelStore] = ModelStore,
        node_kind: type[Node] = Node,
        nodes: int = 3,
    ) -> None:
        self.dice = dice = random.Random(seed)
        self.faults = {name: often * dice.choice((0, 0.3, 1, 3)) for name, often in FAULTS.items()}
        self.faults["stood still"] += 0.01  # one of them happens
        self.loss = dice.choice((0.1, 0.5, 1, 2))
        """How often statements and answers are lost: times."""
        self.pauses = dice.choice((0, 0.01, 0.05))
        """How many claims are committed late."""
        self.settled: set[bytes] = set()
        """Closed requests that no worker can be given any more."""
        self.core_kind = core_kind
        self.node_kind = node_kind
        self.now = 0.0
        self.calm = 0.0
        """Seconds in which a node could look after the others."""
        self.steps = 0
        self.counts: Counter[str] = Counter()
        self.healthy = False
        self.store = store_kind(self)
        self.down_until = 0.0
        self.live: dict[bytes, list[Attempt]] = {}
        self.accepted: set[bytes] = set()
        """Acknowledged, and not closed."""
        self.owners: dict[int, Node] = {}
        """Whose each incarnation is."""
        self.died_at: dict[tuple[int, int], float] = {}
        """Since when a dead incarnation has been seen as it is."""
        self.strange: dict[bytes, float] = {}
        """Requests that are claimed without somebody knowing, and since when."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._names = 0
        self.nodes: list[Node] = []
        for _ in range(nodes):
            self.start_node()
        for chore in (self.submit, self.client, self.chores, self.fault):
            self.later(0.0, chore)

    # -- time ------------------------------------------------------------------------------------------------

    def later(self, seconds: float, do: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + seconds, self._sequence, do, args))

    def at_node(self, node: Node, do: Callable[..., None], *args: Any) -> None:
        """Something reaches a node: now, or in any order when it goes on after a pause."""
        if not node.alive:
            return
        if node.paused_until > self.now:
            self.later(node.paused_until - self.now + self.dice.uniform(0, 0.01), self.at_node, node, do, *args)
            return
        do(*args)
        node.turn()
        if node.core.may_dispatch(node.now()):
            self.must(
                any(map(self.store.lives, node.incarnations())), f"node {node.name} does not know that it is over"
            )

    def at_broker(self, node: Node, do: Callable[..., None], *args: Any) -> None:
        """Something reaches a node's broker, which acts on it at once; the rest of the node has its turn after that."""
        if node.paused_until > self.now:
            self.later(node.paused_until - self.now, self.at_broker, node, do, *args)
        elif node.alive:
            do(*args)
            self.later(self.dice.uniform(0, 0.01), self.at_node, node, lambda: None)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        self.now, _, do, args = heapq.heappop(self._heap)
        self.steps += 1
        do(*args)

    def finish(self) -> None:
        """Heal everything, and see that all that was accepted ends."""
        self.healthy = True
        self.down_until = 0.0
        for node in self.nodes:
            node.lossy_until = node.cut_until = 0.0
            node.idle = {service: max(1, idle) for service, idle in node.idle.items()}
        end = self.now + 400
        while self.now < end and (self.store.unended() or self.live or self.store.recalls):
            self.step()
        self.must(not self.store.unended(), f"never executed: {self.store.unended()}")
        self.must(not self.store.recalls, "closed requests were never taken back")
        for uuid in self.accepted:
            self.must(uuid in self.store.ended, f"{uuid.hex()} is lost")

    # -- nodes -----------------------------------------------------------------------------------------------

    def start_node(self) -> None:
        self._names += 1
        node = self.node_kind(self, self._names)
        if self.healthy:
            node.idle = {service: max(1, idle) for service, idle in node.idle.items()}
        self.nodes.append(node)
        self.at_node(node, lambda: None)

    def draw(self, node: Node) -> Callable[[], int]:
        def number() -> int:
            incarnation = len(self.owners) + 1
            self.owners[incarnation] = node
            return incarnation

        return number

    def kill(self, node: Node) -> None:
        """Its workers do not notice at once."""
        self.counts["killed"] += 1
        node.alive = False
        self.nodes.remove(node)
        for attempts in self.live.values():
            for attempt in attempts:
                attempt.excused = attempt.excused or attempt.node is node
                attempt.uncounted = attempt.uncounted or attempt.excused
        for queue in node.queued.values():
            for attempt in queue:
                self.end(attempt)
        self.later(self.dice.uniform(0, 4), self.start_node)

    def left(self, node: Node) -> None:
        """A drained node has ended: it must be empty."""
        self.counts["drained"] += 1
        node.alive = False
        self.nodes.remove(node)
        self.must(not node.flights and not node.outcomes, "a drained node was not empty")
        for uuid, incarnation in self.store.claimed():
            self.must(self.owners[incarnation] is not node, f"a drained node has kept {uuid.hex()}")
        self.later(self.dice.uniform(0, 2), self.start_node)

    # -- statements ------------------------------------------------------------------------------------------

    def ask(self, node: Node, op: Any, extra: Any = None) -> None:
        """A statement goes to the store. What becomes of it is diced."""
        dice = self.dice
        fate = 1.0 if self.healthy else dice.random() / self.loss / (4 if self.now < node.lossy_until else 1)
        if self.now < node.cut_until and not self.healthy:
            fate = 0.015
        there, back = (dice.expovariate(100 if dice.random() < 0.8 else 1.2) for _ in range(2))
        limit = LEASE.renew if isinstance(op, Join | Renew | Leave) else GIVE_UP
        if fate > 0.03 and there + back < limit:
            self.later(there, self.execute, node, op, extra, back)
        elif fate > 0.03:
            self.later(there, self.execute, node, op, extra, None)
            self.give_up(node, op, limit)
        elif fate > 0.02:  # the answer is lost
            self.later(there, self.execute, node, op, extra, None)
            self.give_up(node, op, dice.uniform(0.02, limit))
        elif fate > 0.012:  # it never arrives
            self.give_up(node, op, dice.uniform(0.02, limit))
        elif fate > 0.005:  # it stays on its way while its sender gives up
            self.later(dice.uniform(0, 3 * LEASE.lease), self.execute, node, op, extra, None)
            self.give_up(node, op, dice.uniform(0.02, limit))
        else:  # it is known that nothing was done
            self.later(back, self.at_node, node, node.no_answer, op, True)

    def give_up(self, node: Node, op: Any, seconds: float) -> None:
        self.counts["unknown"] += 1
        self.later(seconds, self.at_node, node, node.no_answer, op, False)

    def execute(self, node: Node, op: Any, extra: Any, back: float | None) -> None:
        if self.now < self.down_until:
            if back is not None:
                self.later(back, self.at_node, node, node.no_answer, op, self.dice.random() < 0.7)
            return
        self.counts[type(op).__name__] += 1
        if isinstance(op, Claim):
            self.claim(node, op, back)
            return
        if self.store.is_locked(op):
            if back is not None:
                self.give_up(node, op, GIVE_UP)
            self.later(0.1, self.execute, node, op, extra, None)
            return
        found = self.store.execute(op, extra)
        if back is not None:
            self.later(back, self.at_node, node, node.answer, op, found)

    def claim(self, node: Node, op: Claim, back: float | None) -> None:
        """A claim locks what it claims, and is committed: mostly at once."""
        begun = self.store.begin(op)
        if begun is None:
            if back is not None:
                self.later(back, self.at_node, node, node.answer, op, None)
            return
        if self.healthy or self.dice.random() >= self.pauses:
            self.later(self.dice.expovariate(200), self.commit, node, op, begun, back)
            return
        if back is not None:
            self.give_up(node, op, self.dice.uniform(0.02, GIVE_UP))
        self.later(self.dice.uniform(0, 8 * LEASE.lease), self.commit, node, op, begun, None)

    def commit(self, node: Node, op: Claim, begun: Begun, back: float | None) -> None:
        if self.now < self.down_until:
            self.store.undo(begun)
            found = None
        else:
            found = self.store.commit(begun)
        if back is not None:
            self.later(back, self.at_node, node, node.answer, op, found)

    # -- attempts --------------------------------------------------------------------------------------------

    def begin(self, node: Node, service: bytes, uuid: bytes, attempts: int) -> Attempt:
        """A node dispatches a request: here P2 is kept or broken."""
        self.counts["dispatched"] += 1
        self.must(not node.core.draining, "a draining node dispatches")
        incarnation = node.core.lease.incarnation
        label = self.store.label(uuid)
        if label is not None:
            self.must(self.owners.get(label) is node, f"{uuid.hex()} is dispatched without a claim")
            self.must(self.store.lives(label), f"{uuid.hex()} is dispatched after the lease was lost")
        for other in self.live.get(uuid, ()):
            self.must(other.excused, f"{uuid.hex()} runs at node {other.node.name} and is dispatched at {node.name}")
            self.must(other.node is not node, f"{uuid.hex()} runs at this node and is dispatched again")
            self.counts["run twice"] += 1
        self.store.executions[uuid] += 1
        attempt = Attempt(service, uuid, self.store.executions[uuid], attempts, node, label or incarnation or 0)
        self.live.setdefault(uuid, []).append(attempt)
        if service in BOUNDS:
            running = [one for each in self.live.values() for one in each if one.service == service]
            count = sum(not one.uncounted for one in running)
            self.must(count <= BOUNDS[service].running, f"{count} requests of a service run at once")
        return attempt

    def end(self, attempt: Attempt) -> None:
        attempts = self.live[attempt.uuid]
        attempts.remove(attempt)
        if not attempts:
            del self.live[attempt.uuid]

    def worker_done(self, node: Node, service: bytes, attempt: Attempt) -> None:
        """A worker has done its work or died; its node hears of it when it can."""
        self.end(attempt)
        lost = not self.healthy and self.dice.random() < 0.01
        self.later(self.dice.expovariate(200), self.at_broker, node, node.result, service, attempt, lost)

    def outcome(self, attempt: Attempt) -> Outcome:
        works = self.healthy or self.dice.random() < 0.75
        reply = b"%s/%d" % (attempt.uuid, attempt.number) if works else None
        return Outcome(attempt.uuid, reply, attempt.attempts + 1)

    # -- what the store tells of claims ----------------------------------------------------------------------

    def claimed_again(self, uuids: Iterable[bytes], incarnation: int) -> None:
        """A node has (again) the claim of what runs there."""
        node = self.owners[incarnation]
        for uuid in uuids:
            for attempt in self.live.get(uuid, ()):
                if attempt.node is node and node.alive:
                    attempt.incarnation, attempt.excused = incarnation, False

    def moved(self, uuid: bytes, incarnation: int) -> None:
        """What runs there counts for a bound under the node's next incarnation, also when it was closed."""
        for attempt in self.live.get(uuid, ()):
            if attempt.node is self.owners[incarnation]:
                attempt.incarnation = incarnation

    def freed(self, uuid: bytes) -> None:
        """Others may claim this now, or when its time has come: nobody must be executing it who has its claim."""
        for attempt in self.live.get(uuid, ()):
            self.must(attempt.excused, f"{uuid.hex()} is given away while it runs at node {attempt.node.name}")

    def ended_by_others(self, incarnation: int) -> None:
        """An incarnation was not renewed for a lease, others say."""
        self.counts["ended by others"] += 1
        node = self.owners[incarnation]
        lease = node.core.lease
        if node.alive and lease.incarnation == incarnation:
            self.must(not lease.lasts(node.now()), f"incarnation {incarnation} was ended while its lease lasted")
        for attempts in self.live.values():
            for attempt in attempts:
                attempt.excused = attempt.excused or attempt.incarnation == incarnation
                attempt.uncounted = attempt.uncounted or attempt.excused

    # -- clients, chores, faults -----------------------------------------------------------------------------

    def submit(self) -> None:
        if not self.healthy:
            self.later(self.dice.expovariate(8), self.submit)
        if self.healthy or self.now < self.down_until or len(self.store.waiting) >= MOST_UNENDED:
            return
        service = self.dice.choice(SERVICES)
        uuid = self.store.accept(service)
        if self.dice.random() < 0.97:
            self.accepted.add(uuid)
        if self.nodes and self.dice.random() < 0.9:
            node = self.dice.choice(self.nodes)
            self.later(self.dice.expovariate(100), self.at_node, node, node.core.arrived, [service])

    def client(self) -> None:
        """Somebody closes, retries or reads."""
        if self.healthy:
            return
        self.later(self.dice.expovariate(6), self.client)
        if self.now < self.down_until:
            return
        store, what = self.store, self.dice.random()
        if what < 0.08 and store.waiting:
            uuid = self.dice.choice(list(store.waiting))
        elif len(store.ended) > 20:
            uuid = next(iter(store.ended))
            store.check_reply(uuid)
            if what < 0.7 and store.ended[uuid] is None:
                store.retry(uuid)
                return
        else:
            return
        if uuid in store.waiting and store.waiting[uuid].locked:
            return
        self.counts["closed"] += 1
        store.close(uuid)
        self.accepted.discard(uuid)

    def chores(self) -> None:
        """What is due, and what is looked at now and then."""
        self.later(0.5, self.chores)
        if self.now < self.down_until:
            return
        self.store.promote()
        self.store.forget()
        self.store.check_claims()
        if any(self.is_steady(node) for node in self.nodes):
            self.calm += 0.5
        self.look_for_ghosts()
        for uuid in self.accepted:
            self.must(uuid in self.store.waiting or uuid in self.store.ended, f"{uuid.hex()} is lost")

    def is_steady(self, node: Node) -> bool:
        """Whether it could look at the others for long enough."""
        disturbed = max(node.born, node.paused_until, node.lossy_until, node.cut_until, self.down_until)
        return node.core.writes and self.now - disturbed > 1.5 * LEASE.lease

    def is_awake(self, node: Node) -> bool:
        return node.alive and node.paused_until <= self.now

    def look_for_ghosts(self) -> None:
        """Nothing stays with who is dead, or does not know of it."""
        strange = {}
        for uuid, incarnation in self.store.claimed():
            node = self.owners[incarnation]
            if self.is_awake(node) and (node.core.lease.incarnation != incarnation or uuid not in node.core.holds):
                strange[uuid] = since = self.strange.get(uuid, self.calm)
                self.must(self.calm - since < BOUND, f"{uuid.hex()} stays claimed by a node that does not know")
        self.strange = strange
        for incarnation, until in self.store.living():
            node = self.owners[incarnation]
            if not self.is_awake(node):  # what it has sent may still come, and renew it
                since = self.died_at.setdefault((incarnation, until), self.calm)
                self.must(self.calm - since < BOUND, f"incarnation {incarnation} of node {node.name} lives")

    def fault(self) -> None:
        """One of the faults, at one of the nodes."""
        if self.healthy:
            return
        dice = self.dice
        stormy = int(self.now / 25) % 3  # faults come in storms; a calm shows what they have left behind
        self.later(dice.expovariate((0.1, 0.6, 2.0)[stormy]), self.fault)
        (what,) = dice.choices([*self.faults], [*self.faults.values()])
        node = dice.choice(self.nodes) if self.nodes else None
        if what == "store away":
            self.down_until = self.now + dice.choice((0.5, 2.0, 6.0, 15.0))
            self.counts["store away"] += 1
        elif what == "leapt":
            self.store.leap(dice.choice((-3600, -4, 4, 3600)))
        elif node is None:
            return
        elif what == "stood still":
            node.paused_until = self.now + dice.uniform(0, 3 * LEASE.lease)
            self.counts["stood still"] += 1
        elif what == "lossy":
            node.lossy_until = self.now + dice.uniform(0, 8)
        elif what == "cut off":
            node.cut_until = self.now + dice.uniform(LEASE.lease / 2, 2 * LEASE.lease)
            self.counts["cut off"] += 1
        elif what == "killed":
            self.kill(node)
        elif not node.core.draining:
            self.at_node(node, node.core.drain)

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            raise Wrong(f"step {self.steps}: {what}")
