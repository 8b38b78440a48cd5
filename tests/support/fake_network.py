"""A fake network for any cores: messages get lost, late, doubled, reordered; nodes are stopped, killed, started again.

Time is a number that jumps to whatever comes next, so hours pass in milliseconds, and a seed makes each run the same
again. ZeroMQ loses no message out of the middle of a connection, so neither does this: with a message that is dropped
its connection goes dead, both ways and without a word. What was under way to a killed node is lost. What came for a
stopped node waits, and is taken in when it goes on: in order from each sender, in any order from several.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from support.broker_invariants import check

from broker.core.broker import BrokerCore
from broker.core.client import ClientSession, ReplyEvent
from broker.core.mdp import Core, Frames
from broker.core.worker import WorkerSession


class Way(NamedTuple):
    """Where a message goes: the node, who the sender is to that node, and the connection, for both directions."""

    node: str
    sender: Hashable
    connection: Hashable


Route = Callable[[str, Any], "Way | None"]
"""From a node and the peer that it names; None: there is nobody."""


class Net:
    """Nodes, and what is under way between them.

    `drop` and `duplicate` are chances, `delay` the longest one. Unless it `reorders`, messages stay in order.
    """

    def __init__(
        self,
        route: Route,
        seed: int = 0,
        *,
        drop: float = 0.0,
        duplicate: float = 0.0,
        delay: float = 0.0,
        reorders: bool = False,
    ) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self.drop, self.duplicate, self.delay, self.reorders = drop, duplicate, delay, reorders
        self.nodes: dict[str, Any] = {}
        self.stopped: dict[str, list[tuple[Hashable, Frames]]] = {}
        self.dead: set[Hashable] = set()
        self.sent = 0
        self._route = route
        self._after: dict[str, Callable[[Any], None]] = {}
        self._life: dict[str, int] = {}
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._latest: dict[Hashable, float] = {}

    def start(self, name: str, core: Core, after: Callable[[Any], None] = lambda core: None) -> None:
        """A node begins its (next) life. `after` is called with the core whenever something has happened to it."""
        self.nodes[name] = core
        self._after[name] = after
        self._life[name] = self._life.get(name, 0) + 1

    def kill(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.stopped.pop(name, None)
        self._life[name] = self._life.get(name, 0) + 1

    def stop(self, name: str) -> None:
        self.stopped.setdefault(name, [])

    def go_on(self, name: str) -> None:
        """First it takes in what has come, then it does what is due."""
        held = self.stopped.pop(name, [])
        senders = list(dict.fromkeys(sender for sender, _ in held))
        self.chance.shuffle(senders)
        for one in senders:
            for sender, frames in held:
                if sender == one:
                    self.nodes[name].receive(sender, frames, self.now)
                    self._collect(name)

    def at(self, when: float, action: Callable[[], None]) -> None:
        heappush(self._coming, (when, next(self._order), action))

    def soon(self, action: Callable[[], None]) -> None:
        """After a random delay."""
        self.at(self.now + self.chance.random() * self.delay, action)

    def run(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until `done`."""
        end = self.now + seconds
        self.collect()
        while not done():
            awake = {name: core for name, core in self.nodes.items() if name not in self.stopped}
            times = [when for core in awake.values() if (when := core.next_deadline()) is not None]
            times += [when for when, _, _ in self._coming[:1]]
            if not times or min(times) > end:
                self.now = end
                return
            self.now = max(self.now, min(times))
            while self._coming and self._coming[0][0] <= self.now:
                heappop(self._coming)[2]()
            for name, core in list(self.nodes.items()):
                if name not in self.stopped:
                    core.tick(self.now)
            self.collect()

    def collect(self) -> None:
        for name in list(self.nodes):
            if name not in self.stopped:
                self._collect(name)

    def _collect(self, name: str) -> None:
        core = self.nodes[name]
        self._after[name](core)
        for peer, frames in core.take_output():
            if frames is not None and (way := self._route(name, peer)) is not None:
                self._carry(way, frames)

    def _carry(self, way: Way, frames: Frames) -> None:
        self.sent += 1
        if way.connection in self.dead or self.chance.random() < self.drop:
            self.dead.add(way.connection)
            return
        life = self._life.get(way.node)
        for _ in range(1 + (self.chance.random() < self.duplicate)):
            when = self.now + self.chance.random() * self.delay
            if not self.reorders:
                when = self._latest[way] = max(when, self._latest.get(way, 0.0))
            self.at(when, lambda: self._arrive(way, life, list(frames)))

    def _arrive(self, way: Way, life: int | None, frames: Frames) -> None:
        if life != self._life.get(way.node) or way.node not in self.nodes:
            return
        if way.node in self.stopped:
            self.stopped[way.node].append((way.sender, frames))
            return
        self.nodes[way.node].receive(way.sender, frames, self.now)
        self._collect(way.node)


class MdpNet(Net):
    """A broker and any number of workers and clients. The broker's invariants are checked all the time."""

    def __init__(self, broker: BrokerCore, seed: int = 0, **weather: Any) -> None:
        super().__init__(_between_broker_and_session, seed, **weather)
        self.workers: dict[str, WorkerSession] = {}
        self.clients: dict[str, ClientSession] = {}
        self.events: dict[str, list[ReplyEvent]] = {}
        self.work = 0.0
        """Seconds that a worker has a request before the first part of its reply."""
        self.start("broker", broker, check)

    @property
    def broker(self) -> BrokerCore:
        core: BrokerCore = self.nodes["broker"]
        return core

    def add_worker(self, name: str, session: WorkerSession, handler: Callable[[Frames], list[Frames]]) -> None:
        """`handler` makes of a request the parts of its reply, the last of them the FINAL."""
        self.workers[name] = session
        self.start(name, session, lambda worker: self._work(worker, handler))

    def add_client(self, name: str, session: ClientSession) -> None:
        self.clients[name] = session
        told = self.events[name] = []
        self.start(name, session, lambda client: told.extend(client.take_events()))

    def _work(self, worker: WorkerSession, handler: Callable[[Frames], list[Frames]]) -> None:
        for job in worker.take_jobs():
            *parts, last = handler(job.body)
            when = self.now + self.work
            for send, body in [(worker.partial, part) for part in parts] + [(worker.final, last)]:
                when += self.chance.random() * self.delay
                self.at(when, lambda job=job, send=send, body=body: send(job.number, body, self.now))  # type: ignore[misc]


def _between_broker_and_session(node: str, peer: Any) -> Way:
    """A session names its connections by numbers, the broker by these and the session's name."""
    if node == "broker":
        name, number = peer
        return Way(name, number, peer)
    return Way("broker", (node, peer), (node, peer))
