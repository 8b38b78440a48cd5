"""A broker's services and workers: waiting requests, idle workers, heartbeats and silence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from broker.access.users import User
from broker.config import BrokerConfig
from broker.core.mdp import PROCESS, Command, Frames, Peer, WorkerDialect, service_fault
from broker.core.requests import FairQueue, Request, Unwanted
from broker.core.timers import Heartbeat, Timers


class Inflow(Protocol):
    """Reports whether an incomplete message is coming in."""

    def goes_on(self, now: float, patience: float) -> bool:
        """Return whether bytes have come since the last call, `patience` seconds ago."""


MOST_PROGRESS = 1024
"""Bytes of a worker's progress message."""

PROGRESS_EVERY = 0.05
"""Seconds between two of these that are forwarded. Workers of this project leave 0.2 s."""


class WorkerState(Enum):
    """The state of a peer as a worker."""

    NONE = "none"
    IDLE = "idle"
    BUSY = "busy"

    __hash__ = object.__hash__  # as for Command: looked up for every message


class WorkerProcess:
    """The registered workers of one process. They die together, and the request of one may have killed the others.

    A request that must run alone (`Request.alone`) goes to a process that has no other, and that gets no other
    meanwhile.
    """

    __slots__ = ("alone", "in_hand", "is_started", "workers")

    def __init__(self) -> None:
        self.workers: dict[WorkerPeer, None] = {}
        self.in_hand = 0
        """The number of workers with a request."""
        self.alone: WorkerPeer | None = None
        """The worker whose request runs alone, or will when the others have finished."""
        self.is_started = False
        """Whether that request was sent."""

    def waits_for_others(self, worker: WorkerPeer) -> bool:
        """Return whether the request of a worker was not sent yet."""
        return self.alone is worker and not self.is_started


@dataclass(slots=True, eq=False, repr=False)
class WorkerPeer:
    """A registered worker."""

    peer: Peer
    dialect: WorkerDialect
    service: BrokerService
    heartbeat: Heartbeat = field(init=False)
    """The rhythm of its heartbeats, from READY on."""
    inflow: Inflow | None = None
    """What the transport knows about its connection."""
    extended: bool = False
    """Whether it knows EXTENSION: CANCEL and PROGRESS."""
    several: bool = False
    """Whether it can go to other brokers: it announced ELSEWHERE."""
    progress_at: float = -math.inf
    """When its last progress message was forwarded."""
    request: Request | None = None
    """Its present request; None while it is idle."""
    process: WorkerProcess = field(default_factory=WorkerProcess)
    """Its own, unless READY names one that it shares."""
    process_key: tuple[str, bytes] = ("", b"")
    """Its user, and the process that READY named."""
    passes_on: bool = False
    """Whether its requests are executed elsewhere, so that its death does not concern them."""
    user: User | None = None
    """Its user; None without access control."""
    beat_due: float = -math.inf
    """With access control: when its next heartbeat is due and does not count as a message."""

    def is_given(self, frames: Frames, client: Peer) -> bool:
        """Return whether this message to it is its present request, from this client."""
        request, said = self.request, self.dialect.parse(frames)
        if request is None or request.peer != client or said is None:
            return False
        return said[0] is Command.REQUEST and said[1][0] == request.token

    def may_report(self, said: Frames, now: float) -> bool:
        """Return whether its progress goes on to the client: one small frame, and not too often."""
        if len(said) != 1 or len(said[0]) > MOST_PROGRESS or now < self.progress_at + PROGRESS_EVERY:
            return False
        self.progress_at = now
        return True


@dataclass(slots=True, eq=False, repr=False)
class BrokerService:
    """A service. Either requests wait or workers are idle, never both."""

    name: bytes
    most: int
    """Bytes of a request's body; larger ones are refused."""
    batch: list[Request] | None = None
    """An integrated service's requests until its handler takes them; None for a service of workers."""
    waiting: FairQueue = field(default_factory=FairQueue)
    idle: dict[WorkerPeer, None] = field(default_factory=dict)
    """Idle workers, the least recently used first: a dict keeps insertion order."""
    workers: int = 0
    """Registered workers, idle and busy."""

    @property
    def unused(self) -> bool:
        """Whether the broker can forget it."""
        return not self.workers and not self.waiting and self.batch is None

    def take_batch(self) -> list[Request]:
        """Take the requests of an integrated service."""
        batch, self.batch = self.batch or [], []
        return batch

    def take(self, unwanted: Unwanted) -> list[Request]:
        """Take out the unwanted requests of an integrated service; this checks all."""
        taken: list[Request] = []
        if self.batch:
            kept: list[Request] = []
            for request in self.batch:
                (taken if unwanted(request) else kept).append(request)
            self.batch = kept
        return taken

    def take_idle(self, request: Request) -> WorkerPeer:
        """Take an idle worker, of which there must be one: the one idle longest, or, for a request that must run alone,
        one whose process has the fewest requests."""
        worker = min(self.idle, key=lambda one: one.process.in_hand) if request.alone else next(iter(self.idle))
        del self.idle[worker]
        return worker


NO_SERVICE = BrokerService(b"", 0)
"""The service of a worker that has not registered yet."""


class WorkerRegistry:
    """Registered workers. After each message to one, the broker moves its entry in `heartbeats`."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.workers: dict[Peer, WorkerPeer] = {}
        self.heartbeats: Timers[WorkerPeer] = Timers()
        """When each worker must be sent one."""
        self.silences: Timers[WorkerPeer] = Timers()
        """When each worker counts as gone, unless a message comes."""
        self.of_users: dict[str, int] = {}
        """The number of each user's workers, with access control."""
        self.delivered: dict[tuple[Peer, bytes], WorkerPeer] = {}
        """Busy workers, by the marks of their requests."""
        self.processes: dict[tuple[str, bytes], WorkerProcess] = {}
        """Processes that workers have named, by user and name."""

    def admits(self, name: bytes, service: BrokerService | None) -> bool:
        """Return whether a worker may register for a service, or for a name that is no service yet."""
        if service is None and (service_fault(name) is not None or name.startswith(b"mmi.")):
            return False
        return (service is None or service.batch is None) and len(self.workers) < self._config.max_workers

    def add(self, worker: WorkerPeer, service: BrokerService, process: bytes, now: float) -> None:
        """Add a worker. `process`: the name of its process; empty: none was given."""
        worker.service = service
        worker.passes_on = process == PROCESS
        process = b"" if worker.passes_on else process
        worker.process_key = (worker.user.name if worker.user is not None else "", process)
        worker.process = self.processes.setdefault(worker.process_key, WorkerProcess()) if process else WorkerProcess()
        worker.process.workers[worker] = None
        service.workers += 1
        self.workers[worker.peer] = worker
        if worker.user is not None:
            self.of_users[worker.user.name] = self.of_users.get(worker.user.name, 0) + 1
        worker.heartbeat = Heartbeat(self._config.heartbeat_interval, self._config.liveness, now)

    def remove(self, worker: WorkerPeer) -> None:
        """Remove a worker."""
        del self.workers[worker.peer]
        if worker.user is not None:
            count = self.of_users.pop(worker.user.name)
            if count > 1:
                self.of_users[worker.user.name] = count - 1
        self.heartbeats.cancel(worker)
        self.silences.cancel(worker)
        worker.service.idle.pop(worker, None)
        worker.service.workers -= 1
        del worker.process.workers[worker]
        if not worker.process.workers:
            self.processes.pop(worker.process_key, None)

    def count_users(self) -> None:
        """Count the workers of each user again: connections may have changed users."""
        self.of_users.clear()
        for worker in self.workers.values():
            if worker.user is not None:
                self.of_users[worker.user.name] = self.of_users.get(worker.user.name, 0) + 1

    def take_request(self, worker: WorkerPeer) -> Request | None:
        """Take a worker's request from it."""
        request, worker.request = worker.request, None
        if request is not None:
            worker.process.in_hand -= 1
        if request is not None and request.mark is not None and self.delivered.get(request.mark) is worker:
            del self.delivered[request.mark]
        return request

    def unwant(self, peer: Peer, name: bytes, mark: bytes) -> WorkerPeer | None:
        """Mark a request as unwanted by its client, so that no other worker gets it. Return the worker that has it;
        None: there is none."""
        worker = self.delivered.get((peer, mark))
        if worker is None or worker.request is None or worker.request.service != name:
            return None
        worker.request.wanted = False
        return worker

    def heard(self, worker: WorkerPeer, now: float) -> None:
        """Note a message from a worker."""
        worker.heartbeat.messages += 1
        self._await(worker, now)

    def beat(self, worker: WorkerPeer, now: float) -> None:
        """Note a heartbeat or READY: it shows the rhythm of the worker."""
        heartbeat = worker.heartbeat
        before = heartbeat.interval
        heartbeat.beat(now)
        if heartbeat.interval < before and (due := self.heartbeats.get(worker)) is not None:
            self.heartbeats.set(worker, due - before + heartbeat.interval)
        self._await(worker, now)

    def due(self, now: float) -> Iterator[WorkerPeer]:
        """Yield the workers that must be sent a heartbeat now."""
        for worker in self.heartbeats.due(now):
            worker.heartbeat.sent()
            self.heartbeats.set(worker, now + worker.heartbeat.interval)
            yield worker

    def silent(self, now: float) -> list[WorkerPeer]:
        """Return the workers that count as gone. One in the middle of a message gets more time."""
        silent = [worker for worker in self.silences.due(now) if not self._sends(worker, now)]
        for worker in silent:  # all of them, so that none gets another's request
            worker.service.idle.pop(worker, None)
        return silent

    def _await(self, worker: WorkerPeer, now: float) -> None:
        """Wait for the next message."""
        silence = worker.heartbeat.patience
        if worker.request is not None and worker.dialect.silent_when_busy:
            silence = self._config.silent_worker_timeout
        self.silences.set(worker, now + silence)

    def _sends(self, worker: WorkerPeer, now: float) -> bool:
        patience = worker.heartbeat.patience
        going_on = worker.inflow is not None and worker.inflow.goes_on(now, patience)
        if going_on:
            self.silences.set(worker, now + patience)
        return going_on
