"""What all workers share: registrations with brokers, job slots, error replies for exceptions of handlers, and endings.

broker.Worker       handlers in threads; a loop of its own         broker/worker.py
broker.aio.Worker   coroutines, all in the caller's asyncio loop   broker/aio/worker.py
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

import zmq

from broker.config import WorkerConfig
from broker.core.endpoints import Servers
from broker.core.mdp import Command, Frames, error_body
from broker.core.worker import Job, SessionState, WorkerSession
from broker.errors import OutOfSockets, RemoteError, UsageError
from broker.handlers import Delivery, Measure, TooLarge, error_frames, failure
from broker.io.channels import WorkerChannel
from broker.io.curve import Curve, KeyProbe
from broker.io.dealer import Dealer
from broker.io.loop import Channel, Loop
from broker.io.sockets import require_connections
from broker.worker_log import WorkerLog

log = logging.getLogger("broker.worker")

PATIENCE = 0.2
"""Seconds that a request may wait for a job slot."""


class Handlers(Protocol):
    """Runs handlers, in threads or as tasks."""

    def call(self, function: Callable[..., Any], *args: Any) -> bool:
        """Have a function called soon. Return False if that is impossible."""

    def done(self) -> None:
        """Note that one of the calls is done."""


class WorkerBase:
    """A worker: its registrations with brokers, in a loop."""

    _handlers: Handlers

    def _begin(
        self,
        handlers: Mapping[bytes, Any],
        endpoint: str | Sequence[str],
        jobs: int,
        everywhere: bool,
        config: WorkerConfig | None,
        curve: Curve | None,
    ) -> None:
        """Prepare to serve these services, with `jobs` requests at a time in all."""
        if jobs < 1:
            raise UsageError(f"jobs is {jobs}; it must be 1 or more")
        self._loop = Loop()
        self._ended = False
        self._curve = curve
        self._config = config or WorkerConfig()
        self._channels: list[WorkerRegistration] = []
        self._logs: list[WorkerLog] = []
        endpoints = Servers(endpoint).names
        targets = [[name] for name in endpoints] if everywhere else [endpoints]
        what = f"{jobs} jobs for each of {len(handlers)} services" + (
            f" at {len(targets)} brokers" if everywhere else ""
        )
        watched = self._watch or any(len(names) > 1 for names in targets)
        require_connections(len(targets) * len(handlers) * jobs, what, watched=watched)
        slots = JobSlots(self._loop, jobs) if len(targets) * len(handlers) > 1 else None
        for service, handler in handlers.items():
            for names in targets:
                sessions = [self._new_session(service, config) for _ in range(jobs)]
                self._register(sessions, handler, names, slots)
        if slots is not None:
            self._loop.add(slots)

    def _register(
        self, sessions: Sequence[WorkerSession], handler: Any, endpoints: Sequence[str], slots: JobSlots | None
    ) -> None:
        """Register for a service with one of these endpoints, and log what happens to the registrations."""
        channels = [WorkerRegistration(self, session, handler, endpoints, self._watch, slots) for session in sessions]
        report = WorkerLog(
            log,
            sessions[0].service.decode(errors="replace"),
            " or ".join(endpoints),
            self._config.heartbeat_interval,
            Registrations(channels),
            kind=self._registers_at,
        )
        for channel in channels:
            channel.log = report
            self._loop.add(channel)
        self._loop.add(report)
        self._channels += channels
        self._logs.append(report)

    _passes_on = False
    """Whether other processes execute the requests, so that the end of this process is not the end of their worker."""

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

    def every(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function at intervals, in the loop that speaks to the broker. It must not block.

        Call this before `run` or `start`. The function is also called while requests are in hand, but not once the
        worker has ended or is stuck: a watchdog can rely on it.
        """
        self._loop.add(Beat(seconds, function))

    @property
    def registered(self) -> int:
        """How many of its sessions are connected and have heard from the broker; 0 after the end."""
        return 0 if self._ended else sum(session.registered for session in self.sessions)

    @property
    def sessions(self) -> list[WorkerSession]:
        """The sessions with the broker, one for each job."""
        return [channel.session for channel in self._channels]

    def _part(self, at_once: bool = False) -> None:
        """End all registrations, with requests in hand or (`at_once`) without them."""
        for report in self._logs:
            report.leave()
        for channel in self._channels:
            if at_once:
                channel.give_up(time.monotonic())
            else:
                channel.leave(time.monotonic())

    def _log_fault(self) -> None:
        names = {session.service.decode() for session in self.sessions}
        log.exception("a bug in this program: the worker of %s has ended", ", ".join(sorted(names)))

    # -- handlers -------------------------------------------------------------------------------------------

    def _handle(self, channel: WorkerRegistration, job: Job) -> Any:
        """Run the handler on a request and give the reply back; passed to `Handlers.call`."""
        raise NotImplementedError

    def _measure(self, channel: WorkerRegistration) -> Measure:
        """Make the check of what may be sent for one request."""
        return Measure(self._config.max_reply, joined=channel.joins_parts)

    def _failed(self, channel: WorkerRegistration, job: Job, error: BaseException) -> Frames:
        """Make the error reply for an exception of a handler. It always returns one: without a reply the worker would
        never be free again."""
        if isinstance(error, RemoteError):
            try:
                # Without the parts before it, whatever the version.
                return Measure(self._config.max_reply, joined=False).last(error_frames(error))
            except BaseException as fault:
                error = fault
        if isinstance(error, TooLarge):
            self._complain(channel, logging.WARNING, "a reply of %s was not sent: %s (%s)", error, job)
            return error_body(413, str(error))
        # SystemExit too: it would end the thread of the handler only, and silently.
        self._complain(channel, logging.ERROR, "handler of %s failed (%s)", job, error=error)
        return failure(error, traced=bool(job.context))

    def _complain(
        self,
        channel: WorkerRegistration,
        level: int,
        text: str,
        *facts: object,
        error: BaseException | None = None,
    ) -> None:
        # No memory, a fault in somebody's log handler: the reply is to go out all the same.
        with suppress(BaseException):
            log.log(level, text, channel.session.service.decode(), *facts, exc_info=error)


class WorkerRegistration(WorkerChannel):
    """One registration with one broker, for one service: a session and its connection."""

    log: WorkerLog
    """Logs whether it is registered."""
    delivery: Delivery | None = None
    """The present delivery, or the last one."""

    def __init__(
        self,
        worker: WorkerBase,
        session: WorkerSession,
        handler: Any,
        endpoints: Sequence[str],
        watch: bool,
        slots: JobSlots | None,
    ) -> None:
        """`slots`: shared with other registrations; None: it has a slot of its own."""
        super().__init__(session, worker._connection(self, endpoints, watch=watch or len(endpoints) > 1))
        session.several = len(endpoints) > 1
        self.handler = handler
        self._worker = worker
        self._slots = slots
        if slots is not None:
            slots.add(self, (session.service, *endpoints))

    def partial(self, job: Job, body: Frames) -> None:
        self.session.partial(job.number, body, time.monotonic())
        self._worker._loop.touch(self)

    def final(self, job: Job, body: Frames) -> None:
        self.session.final(job.number, body, time.monotonic())
        self._worker._handlers.done()
        self._worker._loop.touch(self)
        if self._slots is not None:
            self._slots.done(self, time.monotonic())

    def progress(self, delivery: Delivery) -> None:
        """Send the handler's progress. Any thread may call this."""
        self._worker._loop.call(self._send_progress, delivery)

    def _send_progress(self, delivery: Delivery) -> None:
        if (said := delivery.take_progress()) is not None:
            self.session.progress(delivery.number, said, time.monotonic())
            self._worker._loop.touch(self)

    def _cancel(self, number: int) -> None:
        if self.delivery is not None and self.delivery.number == number:
            self.delivery.cancel()

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
        if self._slots is None:
            self.work(job)
        else:
            self._slots.take(self, job, time.monotonic())

    def work(self, job: Job) -> None:
        """Call the handler for a request."""
        worker = self._worker
        self.delivery = Delivery(job.context, self, job.number)
        if not worker._handlers.call(worker._handle, self, job):
            body = error_body(500, "the worker cannot start a thread; try again later")
            self.session.final(job.number, body, time.monotonic())
            worker._loop.touch(self)
            if self._slots is not None:
                self._slots.done(self, time.monotonic())

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
        if all(session.stopped for session in self._worker.sessions):
            self._worker._loop.stop()


@lru_cache(maxsize=1)
def _process_name(pid: int) -> str:
    """Name this process for its workers, anew after a fork. The part before the slash is shown to users."""
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
    """Distributes the requests of several registrations among a few slots: of a worker with several brokers or
    services.

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
        """Registrations whose requests are running."""
        self._waiting: dict[WorkerRegistration, Job] = {}
        self._leave_at: float | None = None
        """When the idle registrations leave."""

    def add(self, registration: WorkerRegistration, group: object) -> None:
        """Add a registration. Those for the same service at the same brokers share a `group`."""
        self._groups.setdefault(group, []).append(registration)

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
                if other not in self._busy and not other.session.held:
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

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        self._seconds = seconds
        self._function = function
        self._at = 0.0

    def tick(self, now: float) -> None:
        self._at = now + self._seconds
        self._function()

    def next_deadline(self) -> float:
        return self._at
