"""A broker's services and workers: waiting requests, free slots, heartbeats and silence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from broker.access.users import User
from broker.config import BrokerConfig
from broker.core.mdp import PROCESS, Command, Frames, Peer, WorkerDialect, service_fault
from broker.core.requests import FairQueue, Request, Unwanted
from broker.core.timers import Heartbeat, Timers


class Inflow(Protocol):
    """Reports whether an incomplete message is coming in."""

    def goes_on(self, now: float, patience: float) -> bool:
        """Return whether bytes have come since the last call, `patience` seconds ago."""


class WorkerState(Enum):
    """The state of a peer as a worker."""

    NONE = "none"
    IDLE = "idle"
    BUSY = "busy"

    __hash__ = object.__hash__  # as for Command: a lookup for every message


def process_name(word: bytes) -> str:
    """Return the process that a word of READY names, without what follows a slash: HOST:PID; empty: none."""
    return word.removeprefix(PROCESS).partition(b"/")[0].decode("ascii", "replace")


class WorkerProcess:
    """The registered workers of one process. They die together, and any request that one of them has may have killed
    the process.

    A request that must run alone (`Request.alone`) goes to a process that has no other, and that gets no other
    meanwhile.
    """

    __slots__ = ("alone", "in_hand", "is_gone", "is_started", "token", "workers")

    def __init__(self) -> None:
        self.workers: dict[WorkerPeer, None] = {}
        self.in_hand = 0
        """The number of requests that they have."""
        self.alone: WorkerPeer | None = None
        """The worker that has a request to run alone."""
        self.token = b""
        """The token of that request."""
        self.is_started = False
        """Whether it was sent; until then it waits for the others to finish."""
        self.is_gone = False
        """Whether it has ended: none of its workers returns."""

    def holds_back(self, request: Request) -> bool:
        """Return whether a request that one of its workers has was not sent yet."""
        return self.alone is not None and not self.is_started and request.token == self.token


@dataclass(slots=True, eq=False, repr=False)
class WorkerPeer:
    """A registered worker."""

    peer: Peer
    dialect: WorkerDialect
    group: WorkerGroup
    slots: int = 1
    """How many requests it takes at a time, of all its services."""
    names_services: bool = False
    """Whether it announced SLOTS: its REQUESTs name the service."""
    heartbeat: Heartbeat = field(init=False)
    """The rhythm of its heartbeats, from READY on."""
    inflow: Inflow | None = None
    """What the transport knows about its connection."""
    extended: bool = False
    """Whether it knows EXTENSION: CANCEL and PROGRESS."""
    may_go_elsewhere: bool = False
    """Whether it can go to other brokers: it announced ELSEWHERE."""
    requests: dict[bytes, Request] = field(default_factory=dict)
    """Its present requests, by token."""
    taken: dict[bytes, int] = field(default_factory=dict)
    """How many of these are of each service with a limit."""
    process: WorkerProcess = field(default_factory=WorkerProcess)
    """Its own, unless READY names one that it shares."""
    process_key: tuple[str, bytes] = ("", b"")
    """Its user, and the process that READY named."""
    retires: bool = False
    """Whether it gets nothing more, and is dismissed when it has no request."""
    has_children: bool = False
    """Whether processes of its own execute its requests: its death is not their fault."""
    kills: bool = False
    """Whether it announced KILLS: it ends the process of a request when it is asked to."""
    version: str = ""
    """That of its program, as READY said it."""
    keeper: bytes = b""
    """By which it is known again when it returns with its requests (`keeper_of`); empty: it keeps none."""
    has_replied: bool = False
    """Whether it has replied to a request that it keeps; the queue may have been lost before it had the reply."""
    passes_on: bool = False
    """Whether its requests are executed elsewhere, so that its death does not concern them."""
    user: User | None = None
    """Its user; None without access control."""
    beat_due: float = -math.inf
    """With access control: when its next heartbeat is due and does not count as a message."""
    registered_at: float = 0.0
    heard_at: float = 0.0
    """When its last message came."""

    @property
    def identity(self) -> WorkerIdentity:
        """What is known of it beyond its connection."""
        return WorkerIdentity(self.process_name, "" if self.user is None else self.user.name, self.version)

    @property
    def process_name(self) -> str:
        """The process that READY named, without what follows a slash: HOST:PID; empty: it named none."""
        return process_name(self.process_key[1])

    def takes(self, service: bytes) -> bool:
        """Return whether the limit of a service allows one more of its requests."""
        limit = self.group.limits.get(service)
        return limit is None or self.taken.get(service, 0) < limit

    def free_for(self, service: bytes) -> int:
        """Return how many more requests of a service with a limit it takes."""
        return min(self.slots - len(self.requests), self.group.limits[service] - self.taken.get(service, 0))

    def capacity(self, service: bytes) -> int:
        """Return how many requests of a service it takes at a time."""
        return min(self.slots, self.group.limits.get(service, self.slots))

    def named(self, rest: Frames) -> Request | None:
        """Return the request that a message is about, by its first frames; None: it has no such request."""
        return self.requests.get(rest[0]) if len(rest) > 1 and rest[1] == b"" else None

    def given(self, frames: Frames) -> Request | None:
        """Return the request that it gets with this message; None: the message is no REQUEST."""
        said = self.dialect.parse(frames)
        if said is None or said[0] not in (Command.REQUEST, Command.SERVICE_REQUEST):
            return None
        return self.named(said[1])


@dataclass(slots=True, eq=False, repr=False)
class BrokerService:
    """A service. When requests wait, no worker can take one of them."""

    name: bytes
    most: int
    """Bytes of a request's body; larger ones are refused."""
    batch: list[Request] | None = None
    """An integrated service's requests until its handler takes them; None for a service of workers."""
    waiting: FairQueue = field(default_factory=FairQueue)
    groups: dict[WorkerGroup, None] = field(default_factory=dict)
    """Its workers, in the order of their turns."""
    joint_groups: int = 0
    """How many of these groups have other services, too."""
    urgency: int = -1
    """If there are such groups: the priority of the next request; -1: none waits."""

    @property
    def unused(self) -> bool:
        """Whether the broker can forget it."""
        return not self.groups and not self.waiting and self.batch is None

    @property
    def workers(self) -> int:
        """How many of its requests its workers take at a time. Any thread may read it."""
        return sum(group.capacity(self.name) for group in self.groups.copy())

    def take(self, unwanted: Unwanted) -> list[Request]:
        """Take out the unwanted requests of an integrated service; this checks all."""
        taken: list[Request] = []
        if self.batch:
            kept: list[Request] = []
            for request in self.batch:
                (taken if unwanted(request) else kept).append(request)
            self.batch = kept
        return taken

    def find_worker(self, request: Request) -> WorkerPeer | None:
        """Return a worker that can take a request: the one that was given none for longest, or, for a request that must
        run alone, one whose process has the fewest requests. None: there is none."""
        for group in self.groups:
            for worker in group.idle:
                if not group.limits or worker.takes(self.name):
                    if request.alone:
                        able = [one for other in self.groups for one in other.idle if one.takes(self.name)]
                        return min(able, key=_in_hand)
                    if len(self.groups) > 1:
                        self.groups[group] = self.groups.pop(group)  # the others have their turns
                    return worker
        return None


def _in_hand(worker: WorkerPeer) -> int:
    return worker.process.in_hand


MAX_PRIORITY = 9


class WorkerGroup:
    """The workers of the same services with the same limits: those with a free slot, and the services that wait for
    one.

    When a worker has a free slot, the service with the most urgent next request comes first, and services with equally
    urgent ones take turns.
    """

    __slots__ = ("idle", "is_joint", "keepers", "key", "limits", "only", "services", "slots", "waiting", "workers")

    def __init__(self, key: frozenset[tuple[bytes, int]], services: dict[bytes, BrokerService]) -> None:
        self.key = key
        self.services = services
        self.limits = {name: limit for name, limit in key if limit}
        self.workers: dict[WorkerPeer, None] = {}
        self.keepers = 0
        """How many of its workers keep their requests."""
        self.slots = 0
        """Of all its workers. Nothing is kept for each service: to change a worker's slots must be cheap."""
        self.idle: dict[WorkerPeer, None] = {}
        """Those with a free slot, the least recently used first: a dict keeps insertion order."""
        self.only = next(iter(services.values())) if len(services) == 1 else None
        """Its service, if it is the only one."""
        self.is_joint = len(services) > 1
        self.waiting: list[dict[BrokerService, None]] = [{} for _ in range(MAX_PRIORITY + 1)] if self.is_joint else []
        """Its services with waiting requests, by the priority of the next one, in the order of their turns."""

    @property
    def name(self) -> bytes:
        """One of its services, for messages."""
        return next(iter(self.services), b"")

    def capacity(self, service: bytes) -> int:
        """Return how many requests of a service its workers take at a time."""
        if service not in self.limits:
            return self.slots
        return sum(worker.capacity(service) for worker in self.workers.copy())

    def next_for(self, worker: WorkerPeer) -> BrokerService | None:
        """Return the service whose next request a worker with a free slot gets; None: none waits that it takes."""
        only = self.only
        if only is not None:
            return only if only.waiting and (not self.limits or worker.takes(only.name)) else None
        for services in reversed(self.waiting):
            for service in services:
                if worker.takes(service.name):
                    del services[service]
                    services[service] = None
                    return service
        return None

    def move(self, service: BrokerService, before: int, after: int) -> None:
        """Note another priority of a service's next request; -1: none waits."""
        if self.is_joint:
            if before >= 0:
                self.waiting[before].pop(service, None)
            if after >= 0:
                self.waiting[after][service] = None


class WorkerHold(NamedTuple):
    """The worker that has a request."""

    worker: str
    """As `WorkerPeer.process_name`."""
    returns_by: float | None = None
    """When it is awaited no longer, in monotonic seconds; None: it is connected."""


MAX_DEPARTED = 1000
"""Services without workers of which is remembered when they had some."""


class WorkerIdentity(NamedTuple):
    """Which worker it is, as far as known; what is unknown is empty."""

    name: str = ""
    """As `WorkerPeer.process_name`."""
    user: str = ""
    version: str = ""


class WorkerReport(NamedTuple):
    """The workers of a process, or one worker that named no process, at a moment. Times are monotonic seconds."""

    name: str
    """As `WorkerPeer.process_name`."""
    user: str | None
    version: str
    services: list[bytes]
    slots: int
    registered_at: float
    """When the first of them registered."""
    heard_at: float
    requests: list[tuple[bytes, bytes, float]]
    """What they have in hand: the context, the service, and when it was sent."""


NO_GROUP = WorkerGroup(frozenset(), {})
"""The group of a worker that has not registered yet."""


MAX_OFFERS = 50_000
"""Services of all groups of workers together."""


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
        self.delivered: dict[tuple[Peer, bytes], Request] = {}
        """The requests that workers have, and those that wait for their workers' return, by their marks."""
        self.keepers: dict[bytes, WorkerPeer] = {}
        """The workers that keep their requests, by `WorkerPeer.keeper`."""
        self.processes: dict[tuple[str, bytes], WorkerProcess] = {}
        """Processes that workers have named, by user and name."""
        self.exclusive: dict[WorkerProcess, None] = {}
        """Those that have a request to run alone, until it is over."""
        self.groups: dict[frozenset[tuple[bytes, int]], WorkerGroup] = {}
        self.offers = 0
        """Their services, once for each group that has them."""
        self.departed: dict[bytes, tuple[str, float]] = {}
        """The process of the last worker of services that have none, and when it left."""

    def admits(self, name: bytes, service: BrokerService | None) -> bool:
        """Return whether a worker may register for a service, or for a name that is no service yet."""
        if service is None and (service_fault(name) is not None or name.startswith(b"mmi.")):
            return False
        return (service is None or service.batch is None) and len(self.workers) < self._config.max_workers

    def offers_of(self, user: str) -> int:
        """Return how many services the groups have of which a user has workers."""
        groups = {one.group for one in self.workers.values() if one.user is not None and one.user.name == user}
        return sum(len(group.services) for group in groups)

    def add(
        self, worker: WorkerPeer, services: dict[bytes, BrokerService], limits: dict[bytes, int], now: float
    ) -> None:
        """Add a worker of these services. Call `name_process` before."""
        key = frozenset(limits.items())
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = WorkerGroup(key, services)
            self.offers += len(services)
            for service in services.values():
                service.groups[group] = None
                service.joint_groups += group.is_joint
                group.move(service, -1, service.urgency)
                self.reorder(service)
        group.workers[worker] = None
        group.slots += worker.slots
        worker.group = group
        worker.process.workers[worker] = None
        worker.registered_at = worker.heard_at = now
        self.workers[worker.peer] = worker
        if worker.keeper:
            self.keepers[worker.keeper] = worker
            group.keepers += 1
        if worker.user is not None:
            self.of_users[worker.user.name] = self.of_users.get(worker.user.name, 0) + 1
        worker.heartbeat = Heartbeat(self._config.heartbeat_interval, self._config.liveness, now)

    def name_process(self, worker: WorkerPeer, process: bytes) -> None:
        """Assign a worker to its process by the word in READY that names it; empty: there was none."""
        worker.passes_on = process == PROCESS
        process = b"" if worker.passes_on else process
        worker.process_key = (worker.user.name if worker.user is not None else "", process)
        worker.process = self.processes.setdefault(worker.process_key, WorkerProcess()) if process else WorkerProcess()

    def remove(self, worker: WorkerPeer, now: float) -> None:
        """Remove a worker."""
        del self.workers[worker.peer]
        if worker.keeper:
            del self.keepers[worker.keeper]
        if worker.user is not None:
            count = self.of_users.pop(worker.user.name)
            if count > 1:
                self.of_users[worker.user.name] = count - 1
        self.heartbeats.cancel(worker)
        self.silences.cancel(worker)
        group = worker.group
        group.idle.pop(worker, None)
        del group.workers[worker]
        group.slots -= worker.slots
        group.keepers -= worker.keeper != b""
        if not group.workers:
            for service in group.services.values():
                del service.groups[group]
                service.joint_groups -= group.is_joint
                if not service.joint_groups:
                    service.urgency = -1
                if not service.groups:
                    self.departed.pop(service.name, None)
                    self.departed[service.name] = (worker.process_name, now)
                    if len(self.departed) > MAX_DEPARTED:
                        del self.departed[next(iter(self.departed))]
            del self.groups[group.key]
            self.offers -= len(group.services)
        del worker.process.workers[worker]
        if not worker.process.workers:
            self.processes.pop(worker.process_key, None)

    def resize(self, worker: WorkerPeer, slots: int) -> None:
        """Set how many requests a worker takes at a time."""
        worker.group.slots += slots - worker.slots
        worker.slots = slots
        worker.group.idle.pop(worker, None)

    def reorder(self, service: BrokerService) -> None:
        """Note that another request of a service may be the next one."""
        if not service.joint_groups:
            return
        first, before = service.waiting.first, service.urgency
        after = -1 if first is None else first.priority
        if after != before:
            service.urgency = after
            for group in service.groups:
                group.move(service, before, after)

    def count_users(self) -> None:
        """Count the workers of each user again: connections may have changed users."""
        self.of_users.clear()
        for worker in self.workers.values():
            if worker.user is not None:
                self.of_users[worker.user.name] = self.of_users.get(worker.user.name, 0) + 1

    def report(self, most: int) -> tuple[list[WorkerReport], int]:
        """Describe the workers by process, and return how many processes are left out: those that registered last, once
        `most` workers, services and requests are described. Any thread may call this."""
        processes: dict[WorkerProcess, list[WorkerPeer]] = {}
        for worker in self.workers.copy().values():
            processes.setdefault(worker.process, []).append(worker)
        reports: list[WorkerReport] = []
        for workers in processes.values():
            if most <= 0:
                break
            reports.append(_report(workers))
            most -= len(workers) + len(reports[-1].services) + len(reports[-1].requests)
        return reports, len(processes) - len(reports)

    def give(self, worker: WorkerPeer, request: Request) -> None:
        """Give a worker with a free slot a request. The worker becomes the most recently used one of its group."""
        request.holder = worker.peer
        worker.requests[request.token] = request
        worker.process.in_hand += 1
        if (mark := request.mark) is not None:
            self.delivered[mark] = request
        group = worker.group
        if group.limits and request.service in group.limits:
            worker.taken[request.service] = worker.taken.get(request.service, 0) + 1
        group.idle.pop(worker, None)
        if len(worker.requests) < worker.slots:
            group.idle[worker] = None

    def take(self, worker: WorkerPeer, request: Request) -> None:
        """Take a request from the worker that has it."""
        del worker.requests[request.token]
        request.holder = None
        worker.process.in_hand -= 1
        if (mark := request.mark) is not None and self.delivered.get(mark) is request:
            del self.delivered[mark]
        if worker.taken and request.service in worker.taken:
            worker.taken[request.service] -= 1

    def unwant(self, peer: Peer, name: bytes, mark: bytes, reason: bytes) -> tuple[WorkerPeer, Request] | None:
        """Mark a request as unwanted by its client, so that no other worker gets it. Return it with the worker that has
        it; None: none has."""
        request = self.delivered.get((peer, mark))
        if request is None or request.service != name:
            return None
        request.wanted, request.reason = False, reason
        return None if request.holder is None else (self.workers[request.holder], request)

    def heard(self, worker: WorkerPeer, now: float) -> None:
        """Note a message from a worker."""
        worker.heartbeat.messages += 1
        worker.heard_at = now
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
            worker.group.idle.pop(worker, None)
        return silent

    def _await(self, worker: WorkerPeer, now: float) -> None:
        """Wait for the next message."""
        silence = worker.heartbeat.patience
        if worker.requests and worker.dialect.silent_when_busy:
            silence = self._config.silent_worker_timeout
        self.silences.set(worker, now + silence)

    def _sends(self, worker: WorkerPeer, now: float) -> bool:
        patience = worker.heartbeat.patience
        going_on = worker.inflow is not None and worker.inflow.goes_on(now, patience)
        if going_on:
            self.silences.set(worker, now + patience)
        return going_on


def _report(workers: list[WorkerPeer]) -> WorkerReport:
    first = workers[0]
    groups = dict.fromkeys(worker.group for worker in workers)
    in_hand = [one for worker in workers for one in worker.requests.copy().values()]
    return WorkerReport(
        first.process_name,
        None if first.user is None else first.user.name,
        first.version,
        sorted({name for group in groups for name in group.services}),
        sum(worker.slots for worker in workers),
        min(worker.registered_at for worker in workers),
        max(worker.heard_at for worker in workers),
        [
            (one.context, one.service, one.sent_at)
            for one in in_hand
            if one.service and not first.process.holds_back(one)
        ],
    )
