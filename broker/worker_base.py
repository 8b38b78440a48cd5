"""What all workers share: registrations with brokers, job slots, and endings.

broker.Worker       handlers in threads; a loop of its own         broker/worker.py
broker.aio.Worker   coroutines, all in the caller's asyncio loop   broker/aio/worker.py

`titanic worker` adds one with processes that execute the requests (`titanic/pool/pool_worker.py`).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol

import zmq

from broker.config import WorkerConfig
from broker.core.endpoints import Servers
from broker.core.joint_worker import JointSession
from broker.core.mdp import AT_LIMIT, KILL, MAX_SERVICES, MAX_SLOTS, Callback, Capacity, Command, Frames, error_body
from broker.core.worker import Job, SessionState, WorkerSession
from broker.errors import OutOfSockets, UsageError
from broker.handlers import Delivery, Measure
from broker.io.channels import WorkerChannel
from broker.io.curve import Curve, KeyProbe
from broker.io.dealer import Dealer
from broker.io.loop import Channel, Loop
from broker.io.sockets import require_connections
from broker.worker_log import WorkerLog

log = logging.getLogger("broker.worker")

PATIENCE = 0.2
"""Seconds that a request may wait for a job slot."""

MAX_NAMES = 5
"""Services that a log line names."""


class Handlers(Protocol):
    """Runs handlers, in threads or as tasks."""

    def call(self, function: Callable[..., Any], *args: Any) -> bool:
        """Have a function called soon. Return False if that is impossible."""

    def done(self) -> None:
        """Note that one of the calls is done."""


RETURNED, DIED = "returned", "died"
"""How a request leaves a worker without a reply: it goes to another one, or its process died."""


class JobObserver(Protocol):
    """Learns which requests workers have."""

    def watch(self, worker: WorkerBase) -> None:
        """Set itself as the observer of a worker that does not run yet."""

    # Called in the loops of the workers.

    def begun(self, delivery: Delivery) -> None:
        """The worker has this."""

    def ended(self, delivery: Delivery, body: Frames, outcome: str) -> None:
        """The worker has it no more. `outcome`: RETURNED or DIED; empty: `body` is the end of its reply, or an
        error."""


class WorkerBase:
    """A worker: its registrations with brokers, in a loop.

    At a broker that knows SLOTS it has one connection (`LeadRegistration`), at others one for each service and job.
    """

    _handlers: Handlers

    def _begin(
        self,
        handlers: Mapping[bytes, Any],
        endpoint: str | Sequence[str],
        jobs: int,
        everywhere: bool,
        config: WorkerConfig | None,
        curve: Curve | None,
        limits: Mapping[bytes, int] = MappingProxyType({}),
    ) -> None:
        """Prepare to serve these services, with `jobs` requests at a time in all. `limits`: of some services fewer."""
        if jobs < 1:
            raise UsageError(f"jobs is {jobs}; it must be 1 or more")
        self._loop = Loop()
        self._ended = False
        self._leaving = False
        self._fault: UsageError | None = None
        """Why it has ended by itself."""
        self._curve = curve
        self._config = config or WorkerConfig()
        self._jobs = jobs
        self._services = dict(handlers)
        self._limits = {service: min(limits.get(service, jobs), jobs) for service in handlers}
        self._channels: list[WorkerRegistration] = []
        self._logs: list[WorkerLog] = []
        endpoints = Servers(endpoint).names
        targets = [[name] for name in endpoints] if everywhere else [endpoints]
        shares_slots = len(targets) * len(handlers) > 1
        self._slots = JobSlots(self._loop, jobs) if shares_slots else None
        keeps = not self._passes_on
        more = keeps or len(handlers) * jobs > 1 or self._has_children
        joins = self._joins and len(targets) == 1 and more and len(self._config.versions) > 1
        if joins and jobs <= MAX_SLOTS and len(handlers) <= MAX_SERVICES:
            process = "" if self._passes_on else _process_name(os.getpid())
            capacity = Capacity(jobs, {name: most if most < jobs else 0 for name, most in self._limits.items()})
            session = JointSession(
                capacity,
                config,
                now=time.monotonic(),
                process=process,
                children=self._has_children,
                keeper=os.urandom(8).hex().encode() if keeps else b"",
            )
            self._add([LeadRegistration(self, session, endpoints, self._slots)], list(handlers), endpoints)
        else:
            self._require(len(targets), watched=self._watch or any(len(names) > 1 for names in targets))
            for service in handlers:
                for names in targets:
                    sessions = [self._new_session(service, config) for _ in range(self._limits[service])]
                    channels = [WorkerRegistration(self, session, names, self._slots) for session in sessions]
                    self._add(channels, [service], names)
        if self._slots is not None:
            self._loop.add(self._slots)

    def _require(self, targets: int, *, watched: bool) -> None:
        """Raise UsageError if there cannot be a connection for each service and job."""
        connections = sum(self._limits.values())
        what = f"{connections} jobs of {len(self._services)} services" + (
            f" at {targets} brokers" if targets > 1 else ""
        )
        require_connections(targets * connections, what, watched=watched)

    def _add(self, channels: Sequence[WorkerRegistration], services: Sequence[bytes], endpoints: Sequence[str]) -> None:
        """Add registrations for these services, and log what happens to them."""
        names = [service.decode(errors="replace") for service in services]
        report = WorkerLog(
            log,
            names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else ""),
            " or ".join(endpoints),
            self._config.heartbeat_interval,
            Registrations(self._channels if len(services) > 1 else channels),
            kind=self._registers_at,
            services='", "'.join(names[:MAX_NAMES]),
        )
        for channel in channels:
            channel.log = report
            self._loop.add(channel)
        self._loop.add(report)
        self._channels += channels
        self._logs.append(report)

    def _arrange(self, lead: LeadRegistration, now: float) -> None:
        """Have a connection for each further service and job if the lead's broker does not know SLOTS, else none."""
        if self._leaving:
            return
        others = [channel for channel in self._channels if channel is not lead and not channel.retired]
        if lead.session.joint:
            for channel in others:
                channel.retired = True
                channel.leave(now)
            self._note_elsewhere(lead, now)
        elif not others:
            try:
                self._require(1, watched=self._watch or len(lead.endpoints) > 1)
            except UsageError as error:
                self._fault = error
                self._loop.stop()
                return
            services = [service for service, most in self._limits.items() for _ in range(most)]
            for service in services[1:]:  # the lead is the first
                session = self._new_session(service, self._config)
                channel = WorkerRegistration(self, session, lead.endpoints, self._slots)
                channel.log, channel.lead = lead.log, lead
                self._loop.add(channel)
                self._channels.append(channel)

    def _note_elsewhere(self, lead: LeadRegistration, now: float) -> None:
        """Have the lead offer only slots that are there, and that no request of another connection takes."""
        others = sum(channel.session.is_working for channel in self._channels if channel is not lead)
        lead.session.note_elsewhere(others + self._missing, now)
        self._loop.touch(lead)

    def _release(self, channel: WorkerRegistration) -> None:
        """Close a retired connection."""
        self._channels.remove(channel)
        if self._slots is not None:
            self._slots.remove(channel)
        self._loop.call(self._loop.remove, channel)
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        """End the loop if all registrations have ended."""
        if all(session.stopped for session in self.sessions):
            self._loop.stop()

    observer: JobObserver | None = None
    """None: its requests are not observed."""

    _passes_on = False
    """Whether other processes execute the requests, so that the end of this process is not the end of their worker."""

    _has_children = False
    """Whether it has processes of its own that execute the requests, and die without it."""

    _missing = 0
    """How many of its jobs it cannot do now; negative: so many more it can."""

    _joins = True
    """Whether it may have one connection for all."""

    _watch = False
    """Whether the transport reports a broken connection: for protocols without heartbeats."""

    _registers_at = "broker"
    """What the log calls the other side."""

    def _connection(self, channel: WorkerRegistration, endpoints: Sequence[str], *, watch: bool) -> Dealer:
        """Make the connections of a channel."""
        return Dealer(zmq.Context.instance(), endpoints, watch=watch, hold=True, curve=self._curve, spread=True)

    def _new_session(self, service: bytes, config: WorkerConfig | None) -> WorkerSession:
        """Make a session; protocols other than MDP override this."""
        process = "" if self._passes_on else _process_name(os.getpid())
        return WorkerSession(service, config, now=time.monotonic(), process=process)

    def _open(self) -> None:
        """Connect before the loop runs. Raises EndpointError for an invalid endpoint."""
        now = time.monotonic()
        try:
            for channel in self._channels:
                channel.tick(now)
                channel.flush(now)
        except BaseException:
            self._loop.close_unless_running()
            raise

    def _leave(self) -> None:
        """Take no more requests, finish those in hand, say good-bye and end the loop. Any thread may call this."""
        self._loop.call(self._part)
        self._loop.close_unless_running()

    def abandon(self) -> None:
        """End `run` without waiting for the requests in hand: the broker is notified and gives them to another worker.

        Any thread may call this. What the handlers still return is dropped.
        """
        self._loop.call(self._part, True)
        self._loop.stop()

    def every(self, seconds: float, function: Callback) -> None:
        """Call a function at intervals, in the loop that speaks to the broker. It must not block.

        Call this before `run` or `start`. The function is also called while requests are in hand, but not once the
        worker has ended or is stuck: a watchdog can rely on it.
        """
        self._loop.add(Beat(seconds, function))

    @property
    def registered(self) -> int:
        """How many requests at a time the brokers may send that it has heard from; 0 after the end. A request of a
        worker that has a connection for each service and job counts once for each service."""
        return 0 if self._ended else sum(session.slots for session in self.sessions if session.registered)

    @property
    def reconnects(self) -> int:
        """How often a broker was lost."""
        return sum(report.lost for report in self._logs)

    @property
    def sessions(self) -> list[WorkerSession]:
        """The sessions with the broker: one, or one for each service and job."""
        return [channel.session for channel in list(self._channels)]

    def _part(self, at_once: bool = False) -> None:
        """End all registrations, with requests in hand or (`at_once`) without them."""
        self._leaving = True
        for report in self._logs:
            report.leave()
        for channel in list(self._channels):
            if at_once:
                channel.give_up(time.monotonic())
            else:
                channel.leave(time.monotonic())

    def _log_fault(self) -> None:
        names = sorted(service.decode() for service in self._services)
        log.exception("a bug in this program: the worker of %s has ended", ", ".join(names))

    # -- handlers -------------------------------------------------------------------------------------------

    def _handle(self, channel: WorkerRegistration, job: Job, delivery: Delivery) -> Any:
        """Run the handler on a request and give the reply back; passed to `Handlers.call`."""
        raise NotImplementedError

    def _measure(self, channel: WorkerRegistration) -> Measure:
        """Make the check of what may be sent for one request."""
        return Measure(self._config.max_reply, joined=channel.joins_parts)


class WorkerRegistration(WorkerChannel):
    """One registration with one broker: a session and its connection."""

    log: WorkerLog
    """Logs whether it is registered."""
    lead: LeadRegistration | None = None
    """The registration that it stands beside."""
    retired = False
    """Whether it ends when it has no request, because its lead has registered for all."""

    def __init__(
        self, worker: WorkerBase, session: WorkerSession, endpoints: Sequence[str], slots: JobSlots | None
    ) -> None:
        """`slots`: shared with other registrations; None: it has its own."""
        super().__init__(session, worker._connection(self, endpoints, watch=worker._watch or len(endpoints) > 1))
        session.has_other_endpoints = len(endpoints) > 1
        self._deliveries: dict[int, Delivery] = {}
        """By the numbers of the jobs that are at work."""
        self._worker = worker
        self._slots = slots
        if slots is not None:
            slots.add(self, (session.service, *endpoints))

    def partial(self, job: Job, body: Frames) -> None:
        self.session.partial(job.number, body, time.monotonic())
        self._worker._loop.touch(self)

    def final(self, job: Job, body: Frames) -> None:
        self._worker._handlers.done()
        self._done(job, body)

    def _forget(self, job: Job, body: Frames, outcome: str) -> None:
        delivery, observer = self._deliveries.pop(job.number), self._worker.observer
        if observer is not None:
            observer.ended(delivery, body, outcome)

    def _done(self, job: Job, body: Frames, outcome: str = "") -> None:
        now = time.monotonic()
        self._forget(job, body, outcome)
        self.session.final(job.number, body, now)
        self._worker._loop.touch(self)
        if self._slots is not None and not self.session.joint:
            self._slots.done(self, now)
        if self.lead is not None and self.lead.session.joint:
            self._worker._note_elsewhere(self.lead, now)

    def give_back(self, job: Job) -> None:
        """Return a request that was not started. Only for a connection that knows SLOTS."""
        raise NotImplementedError

    def died(self, suspects: Sequence[Job], others: Sequence[Job], among: int, text: str) -> None:
        """Report that the process died that executed these jobs, with no reply. Any of `suspects` may be the cause;
        with those of other connections they are `among` so many.

        A broker that does not know LOST gets an error reply if there is no other suspect. Else its connection ends, as
        if the worker had died.
        """
        if among != 1 or not self.session.joint:
            if among != 1 or others:
                self.session.lost(time.monotonic())
            for job in others:
                self._done(job, [], RETURNED)
        else:
            for job in others:
                self.give_back(job)
        for job in suspects:
            self._done(job, error_body(500, text), DIED)

    def progress(self, delivery: Delivery) -> None:
        """Send the handler's progress. Any thread may call this."""
        self._worker._loop.call(self._send_progress, delivery)

    def _send_progress(self, delivery: Delivery) -> None:
        if (said := delivery.take_progress()) is not None:
            self.session.progress(delivery.number, said, time.monotonic())
            self._worker._loop.touch(self)

    def _cancel(self, number: int, why: bytes) -> None:
        if (delivery := self._deliveries.get(number)) is not None:
            delivery.at_limit, delivery.kills = why == AT_LIMIT, why == KILL
            delivery.cancel()

    @property
    def joins_parts(self) -> bool:
        """Whether all parts of a reply go out in one message. Any thread may read it."""
        return not self.session.dialect.has(Command.PARTIAL)

    def leave(self, now: float) -> None:
        """Finish the request in hand and say good-bye."""
        self.session.leave(now)
        self._worker._loop.touch(self)

    def give_up(self, now: float) -> None:
        """Say good-bye, even with a request in hand."""
        session = self.session
        self.leave(now)
        if session.state is SessionState.BUSY:
            if session.parts_politely:
                self._dealer.send([(session.connection, session.dialect.encode(Command.DISCONNECT, ()))])
            session.lost(now)

    def _begin(self, job: Job) -> None:
        if self._slots is None or self.session.joint:
            self.work(job)
        else:
            self._slots.take(self, job, time.monotonic())

    def work(self, job: Job) -> None:
        """Call the handler for a request."""
        worker = self._worker
        delivery = self._deliveries[job.number] = Delivery(job.context, self, job.number, job.service)
        if worker.observer is not None:
            worker.observer.begun(delivery)
        if not worker._handlers.call(worker._handle, self, job, delivery):
            self._done(job, error_body(500, "the worker cannot start a thread; try again later"))

    def _stranded(self, now: float) -> None:
        if self._slots is not None:
            self._slots.drop(self, now)

    def _starved(self, error: OutOfSockets, now: float) -> None:
        super()._starved(error, now)  # it comes back after a while, as after any other loss
        self.log.starved(str(error), now)

    def _refused(self, now: float) -> None:
        self.log.refused(now)
        self._worker._loop.touch(self.log)

    def _presence_changed(self) -> None:
        self._worker._loop.touch(self.log)

    def _stopped(self) -> None:
        if self.retired:
            self.retired = False
            self._worker._release(self)
        else:
            self._worker._stop_if_done()


class LeadRegistration(WorkerRegistration):
    """The registration of a worker for all its services and jobs, at a broker that knows SLOTS. At another it is for
    the first service and one job, and `WorkerBase._arrange` adds the others."""

    session: JointSession

    def __init__(
        self, worker: WorkerBase, session: JointSession, endpoints: Sequence[str], slots: JobSlots | None
    ) -> None:
        super().__init__(worker, session, endpoints, slots)
        self.endpoints = endpoints
        self._arranged = 0
        """The number of the connection for which the others were arranged."""

    def close(self) -> None:
        """Close the connection; the broker is not to wait for the requests of a worker that is interrupted."""
        session = self.session
        if session.joint and session.state is SessionState.BUSY:
            with suppress(OutOfSockets):
                self._dealer.send([(session.connection, session.dialect.encode(Command.DISCONNECT))])
        super().close()

    def give_back(self, job: Job) -> None:
        self._forget(job, [], RETURNED)
        self.session.give_back(job.number, time.monotonic())
        self._worker._loop.touch(self)

    def died(self, suspects: Sequence[Job], others: Sequence[Job], among: int, text: str) -> None:
        if not self.session.says_lost:
            super().died(suspects, others, among, text)
            return
        for job in suspects:
            self._forget(job, [], DIED)
        for job in others:
            self._forget(job, [], RETURNED)
        numbers = [job.number for job in suspects], [job.number for job in others]
        self.session.lose(*numbers, time.monotonic())
        self._worker._loop.touch(self)

    def flush(self, now: float) -> None:
        super().flush(now)
        if self.session.registered and self.session.connection != self._arranged:
            self._arranged = self.session.connection
            self._worker._arrange(self, now)


@lru_cache(maxsize=1)
def _process_name(pid: int) -> str:
    """Name this process for its workers, again after a fork. The part before the slash is shown to users."""
    return f"{socket.gethostname()[:24]}:{pid}/{os.urandom(4).hex()}"


class Registrations:
    """The registrations for a service, for the log."""

    def __init__(self, channels: Sequence[WorkerRegistration]) -> None:
        self._channels = channels

    def registered(self) -> bool:
        """Whether any is registered, or only away because the worker is busy elsewhere."""
        return any(channel.session.present for channel in self._channels)

    def registered_at(self) -> str:
        """List the endpoints where they are registered."""
        return " and ".join(dict.fromkeys(channel.server for channel in self._channels if channel.session.registered))

    def key_probe(self, when: float) -> KeyProbe:
        return self._channels[0].key_probe(when)


class JobSlots(Channel):
    """Distributes the requests of several registrations among a few slots: of a worker that is registered at several
    brokers, or for several services with a connection for each.

    MDP lets a broker send a request to any worker that is registered and free, and each registration knows only its own
    requests. So more may arrive than there are slots, and some have to wait. Short requests are executed one after
    another: one that waits here need not come over the wire later. When the requests in hand take longer than PATIENCE,
    the worker leaves its other brokers and services (DISCONNECT): these give its waiting requests to other workers and
    send nothing more. When a slot is free it returns with READY, with as many registrations for each as there are free
    slots.

                      request comes     PATIENCE is over                reply given
        ------------  ----------------  ------------------------------  ------------------------------
        a slot free   begin             –                               return
        all busy      wait              leave the others, give back     begin a waiting request; else
                                        what waits                      return

    It is a channel of their loop, without a socket.
    """

    rests = True

    def __init__(self, loop: Loop, slots: int = 1) -> None:
        self._loop = loop
        self._count = slots
        self._groups: dict[object, list[WorkerRegistration]] = {}
        """Registrations for the same service at the same brokers."""
        self._busy: set[WorkerRegistration] = set()
        """Registrations with running requests."""
        self._waiting: dict[WorkerRegistration, Job] = {}
        self._leave_at: float | None = None
        """When the idle registrations leave."""

    def add(self, registration: WorkerRegistration, group: object) -> None:
        """Add a registration. Those for the same service at the same brokers share a `group`."""
        self._groups.setdefault(group, []).append(registration)

    def remove(self, registration: WorkerRegistration) -> None:
        """Remove a registration that has ended."""
        for group in self._groups.values():
            if registration in group:
                group.remove(registration)

    def take(self, registration: WorkerRegistration, job: Job, now: float) -> None:
        """Begin a request, or have it wait."""
        if len(self._busy) < self._count:
            self._begin(registration, job, now)
        else:
            self._waiting[registration] = job

    def drop(self, registration: WorkerRegistration, now: float) -> None:
        """Drop the waiting request of a lost connection."""
        if (job := self._waiting.pop(registration, None)) is not None:
            registration.session.final(job.number, [], now)
            self._loop.touch(registration)

    def done(self, registration: WorkerRegistration, now: float) -> None:
        """Free a slot: begin a waiting request, or return to the brokers."""
        self._busy.discard(registration)
        self._leave_at = None
        if self._waiting:
            other = next(iter(self._waiting))
            self._begin(other, self._waiting.pop(other), now)
            return
        free = self._count - len(self._busy)
        for group in self._groups.values():
            here = sum(not other.session.held and other not in self._busy for other in group)
            for other in [other for other in group if other.session.held][: max(0, free - here)]:
                other.session.come_back()
                self._loop.touch(other)

    def tick(self, now: float) -> None:
        """Leave the other brokers: the requests in hand take long, so other workers get what waits and what comes."""
        self._leave_at = None
        self._waiting.clear()
        for group in self._groups.values():
            for other in group:
                if other not in self._busy and not other.session.held and not other.session.joint:
                    other.session.step_aside(now)
                    self._loop.touch(other)

    def next_deadline(self) -> float | None:
        return self._leave_at

    def _begin(self, registration: WorkerRegistration, job: Job, now: float) -> None:
        self._busy.add(registration)
        if len(self._busy) == self._count:
            self._leave_at = now + PATIENCE
            self._loop.touch(self)
        registration.work(job)


class Beat(Channel):
    """A channel without a socket that calls a function at intervals."""

    rests = True

    def __init__(self, seconds: float, function: Callback) -> None:
        self._seconds = seconds
        self._function = function
        self._at = 0.0

    def tick(self, now: float) -> None:
        self._at = now + self._seconds
        self._function()

    def next_deadline(self) -> float:
        return self._at
