"""A fake wire: a broker's core, workers' and clients' sessions, and messages that get lost, late, doubled, reordered.

Time is a number that jumps to whatever comes next, so hours pass in milliseconds, and a seed makes each run the
same again. ZeroMQ loses no message out of the middle of a connection, so neither does this: with a message that is
dropped its connection goes dead, both ways and without a word, and only a new one helps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from support.check import check

from broker.core.broker import BrokerCore
from broker.core.client import ClientSession, Event
from broker.core.mdp import Frames
from broker.core.worker import Job, WorkerSession

Handler = Callable[[Frames], list[Frames]]
"""What a worker does with a request: the parts of its reply, the last of them the FINAL."""


class Wire:
    """Joins one broker with any number of sessions. `drop` and `duplicate` are chances, `delay` the longest one."""

    def __init__(
        self, broker: BrokerCore, seed: int = 0, *, drop: float = 0.0, duplicate: float = 0.0, delay: float = 0.0
    ) -> None:
        self.now = 0.0
        self.broker = broker
        self.drop, self.duplicate, self.delay = drop, duplicate, delay
        self.workers: dict[str, WorkerSession] = {}
        self.clients: dict[str, ClientSession] = {}
        self.events: dict[str, list[Event]] = {}
        self.sent = 0
        self._handlers: dict[str, Handler] = {}
        self._chance = random.Random(seed)
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._latest: dict[object, float] = {}
        self._dead: set[object] = set()
        self.reorders = False
        self.work = 0.0
        """Seconds that a worker has a request before the first part of its reply."""

    def add_worker(self, name: str, session: WorkerSession, handler: Handler) -> None:
        self.workers[name] = session
        self._handlers[name] = handler

    def add_client(self, name: str, session: ClientSession) -> None:
        self.clients[name] = session
        self.events[name] = []

    def at(self, when: float, action: Callable[[], None]) -> None:
        heappush(self._coming, (when, next(self._order), action))

    def run(self, done: Callable[[], bool] = lambda: False, *, limit: float) -> None:
        """Let time pass until `done`, or for `limit` seconds."""
        end = self.now + limit
        self._collect()
        while not done():
            sessions = [self.broker, *self.workers.values(), *self.clients.values()]
            times = [when for core in sessions if (when := core.next_deadline()) is not None]
            times += [when for when, _, _ in self._coming[:1]]
            if not times or min(times) > end:
                self.now = end
                return
            self.now = max(self.now, min(times))
            while self._coming and self._coming[0][0] <= self.now:
                heappop(self._coming)[2]()
            for core in sessions:
                core.tick(self.now)
            self._collect()

    def _collect(self) -> None:
        check(self.broker)
        for name, session in {**self.workers, **self.clients}.items():
            for number, frames in session.take_output():
                if frames is not None:
                    self._carry((name, number), "out", self.broker.receive, (name, number), frames)
        for peer, frames in self.broker.take_output():
            name, number = peer  # type: ignore[misc]
            session = self.workers.get(name) or self.clients[name]
            assert frames is not None
            self._carry(peer, "in", session.receive, number, frames)
        for name, worker in self.workers.items():
            for job in worker.take_jobs():
                self._work(worker, self._handlers[name], job)
        for name, client in self.clients.items():
            self.events[name] += client.take_events()

    def _carry(self, connection: object, way: str, receive: Callable[..., None], peer: object, frames: Frames) -> None:
        self.sent += 1
        if connection in self._dead or self._chance.random() < self.drop:
            self._dead.add(connection)
            return
        for _ in range(1 + (self._chance.random() < self.duplicate)):
            when = self.now + self._chance.random() * self.delay
            if not self.reorders:
                when = self._latest[connection, way] = max(when, self._latest.get((connection, way), 0.0))
            self.at(when, lambda: receive(peer, list(frames), self.now))

    @property
    def broken(self) -> int:
        """Connections that have gone dead."""
        return len(self._dead)

    def _work(self, worker: WorkerSession, handler: Handler, job: Job) -> None:
        *parts, last = handler(job.body)
        when = self.now + self.work
        for part in parts:
            when += self._chance.random() * self.delay
            self.at(when, lambda part=part: worker.partial(job.number, part, self.now))  # type: ignore[misc]
        when += self._chance.random() * self.delay
        self.at(when, lambda: worker.final(job.number, last, self.now))
