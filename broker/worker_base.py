"""What workers have in common, however they call their handlers: registrations with brokers, what becomes of the
exceptions of a handler, the ways to part.

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
from functools import lru_cache, partial
from typing import Any, Protocol

import zmq

from broker.config import WorkerConfig
from broker.core.endpoints import Servers
from broker.core.mdp import Command, Frames, error_body
from broker.core.worker import Job, SessionState, WorkerSession
from broker.errors import OutOfSockets, RemoteError, UsageError
from broker.handlers import Delivery, Measure, TooLarge, error_frames, failure
from broker.io.channels import WorkerChannel
from broker.io.curve import Curve
from broker.io.dealer import Dealer
from broker.io.loop import Channel, Loop
from broker.io.sockets import require_connections
from broker.worker_log import WorkerLog

log = logging.getLogger("broker.worker")

PATIENCE = 0.2
"""Seconds for which a request may wait."""


class Handlers(Protocol):
    """How handlers are called."""

    def call(self, function: Callable[..., Any], *args: Any) -> bool:
        """Have a function called, soon; False when that is impossible."""

    def done(self) -> None:
        """One of the calls is done."""


class WorkerBase:
    """A worker with its registrations, in a loop."""

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
        """Get ready to serve these services, with `jobs` requests at a time in all."""
        if jobs < 1:
            raise UsageError(f"jobs is {jobs}; it must be 1 or more")
        self._loop = Loop()
        self._ended = False
        self._curve = curve
        self._config = config or WorkerConfig()
        self._channels: list[WorkerRegistration] = []
        self._logs: list[WorkerLog] = []
        endpoints = Servers(endpoint).names
        places = [[name] for name in endpoints] if everywhere else [endpoints]
        what = f"{jobs} jobs for each of {len(handlers)} services" + (
            f" at {len(places)} brokers" if everywhere else ""
        )
        watched = self._watch or any(len(names) > 1 for names in places)
        require_connections(len(places) * len(handlers) * jobs, what, watched=watched)
        slots = JobSlots(self._loop, jobs) if len(places) * len(handlers) > 1 else None
        for service, handler in handlers.items():
            for names in places:
                sessions = [self._new_session(service, config) for _ in range(jobs)]
                self._register(sessions, handler, names, slots)
        if slots is not None:
            self._loop.add(slots)

    def _register(
        self, sessions: Sequence[WorkerSession], handler: Any, endpoints: Sequence[str], slots: JobSlots | None
    ) -> None:
        """Be registered for a service at one of these endpoints, and say in the log what becomes of that."""
        channels = [WorkerRegistration(self, session, handler, endpoints, self._watch, slots) for session in sessions]
        report = WorkerLog(
            log,
            sessions[0].service.decode(errors="replace"),
            " or ".join(endpoints),
            self._config.heartbeat_interval,
            partial(_any_registered, channels),
            kind=self._registers_at,
            where=partial(_registered_at, channels),
            probe=channels[0].key_probe,
        )
        for channel in channels:
            channel.log = report
            self._loop.add(channel)
        self._loop.add(report)
        self._channels += channels
        self._logs.append(report)

    _passes_on = False
    """Whether requests are executed by others, so that the end of this process is not the end of their worker."""

    _watch = False
    """Whether to learn from the transport when the connection breaks: for protocols without heartbeats."""

    _registers_at = "broker"
    """What the log calls it."""

    def _connection(self, channel: WorkerRegistration, endpoints: Sequence[str], *, watch: bool) -> Dealer:
        """Called by a channel, for the sockets that it speaks through."""
        return Dealer(zmq.Context.instance(), endpoints, watch=watch, hold=True, curve=self._curve, spread=True)

    def _new_session(self, service: bytes, config: WorkerConfig | None) -> WorkerSession:
        """Protocols other than MDP have their own."""
        process = "" if self._passes_on else _process_name(os.getpid())
        return WorkerSession(service, config, now=time.monotonic(), process=process)

    def _open(self) -> None:
        """Connect, before it runs. An endpoint that cannot be right raises EndpointError."""
        now = time.monotonic()
        try:
            for channel in self._channels:
                channel.tick(now)
                channel.flush(now)
        except BaseException:
            self._loop.close_unless_running()
            raise

    def _leave(self) -> None:
        """Take no more requests, finish those in hand, say good-bye, end the loop. Any thread may call this."""
        self._loop.call(self._part, WorkerRegistration.leave)
        self._loop.close_unless_running()

    def abandon(self) -> None:
        """End `run` without waiting for the requests in hand: the broker is told, and gives them to another worker.

        Any thread may ask. What the handlers still return is dropped.
        """
        self._loop.call(self._part, WorkerRegistration.give_up)
        self._loop.stop()

    def every(self, seconds: float, function: Callable[[], None]) -> None:
        """Have a function called again and again in the loop that speaks to the broker; it must not wait.

        Call this before `run` or `start`. The function is called also while requests are in hand, but not once the
        worker has ended or while it is stuck: that is what a watchdog wants to know.
        """
        self._loop.add(Beat(seconds, function))

    @property
    def registered(self) -> int:
        """How many of the workers are connected and have heard from the broker, just now; 0 when it has ended."""
        return 0 if self._ended else sum(session.registered for session in self.sessions)

    @property
    def sessions(self) -> list[WorkerSession]:
        """Its sessions with the broker, one for each job."""
        return [channel.session for channel in self._channels]

    def _part(self, way: Callable[[WorkerRegistration, float], None]) -> None:
        """Have all registrations part with the broker, in one of their ways."""
        for report in self._logs:
            report.leave()
        for channel in self._channels:
            way(channel, time.monotonic())

    def _log_fault(self) -> None:
        names = {session.service.decode() for session in self.sessions}
        log.exception("a fault of this program: the worker of %s has ended", ", ".join(sorted(names)))

    # -- handlers -------------------------------------------------------------------------------------------

    def _handle(self, channel: WorkerRegistration, job: Job) -> Any:
        """Have the handler work on a request, and give the reply back: what `Handlers` are told to call."""
        raise NotImplementedError

    def _measure(self, channel: WorkerRegistration) -> Measure:
        """What may be sent for one request."""
        return Measure(self._config.max_reply, joined=channel.joins_parts)

    def _failed(self, channel: WorkerRegistration, job: Job, error: BaseException) -> Frames:
        """The error reply for what a handler has raised. There is always one: without it the worker would never be free
        again."""
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
    """One registered worker: its session and its connection."""

    log: WorkerLog
    """What says of it that it is there."""
    delivery: Delivery | None = None
    """What is in hand, or was last."""

    def __init__(
        self,
        worker: WorkerBase,
        session: WorkerSession,
        handler: Any,
        endpoints: Sequence[str],
        watch: bool,
        slots: JobSlots | None,
    ) -> None:
        """`hand`: does its work, and that of others; None: it has its own turn."""
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
        """The handler has said how far it is. Any thread may call this."""
        self._worker._loop.call(self._tell, delivery)

    def _tell(self, delivery: Delivery) -> None:
        if (said := delivery.take_progress()) is not None:
            self.session.progress(delivery.number, said, time.monotonic())
            self._worker._loop.touch(self)

    def _cancel(self, number: int) -> None:
        if self.delivery is not None and self.delivery.number == number:
            self.delivery.cancel()

    @property
    def joins_parts(self) -> bool:
        """Whether all parts of a reply go out in one message. Any thread may ask."""
        return not self.session.dialect.has(Command.PARTIAL)

    def leave(self, now: float) -> None:
        """Finish what is in hand, and say good-bye."""
        self.session.leave(now)
        self._worker._loop.touch(self)

    def give_up(self, now: float) -> None:
        """Say good-bye, also with a request in hand."""
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
        """Have the handler called for a request."""
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
    """What the workers of this process have in common; another one after a fork. The part before the slash is shown."""
    return f"{socket.gethostname()[:24]}:{pid}/{os.urandom(4).hex()}"


def _any_registered(channels: Sequence[WorkerRegistration]) -> bool:
    """Whether any is registered, or was and is only busy elsewhere."""
    return any(channel.session.present for channel in channels)


def _registered_at(channels: Sequence[WorkerRegistration]) -> str:
    """Where they are registered."""
    return " and ".join(dict.fromkeys(channel.server for channel in channels if channel.session.registered))


class JobSlots(Channel):
    """Does the requests of several registrations, as many at a time as it has arms. It lives in their loop, without a
    socket."""

    rests = True

    def __init__(self, loop: Loop, slots: int = 1) -> None:
        self._loop = loop
        self._count = slots
        self._groups: dict[object, list[WorkerRegistration]] = {}
        """Those that are alike: for the same service, at the same broker."""
        self._busy: set[WorkerRegistration] = set()
        """Whose requests are being worked on."""
        self._waiting: dict[WorkerRegistration, Job] = {}
        self._leave_at: float | None = None
        """When those that are not at work leave."""

    def add(self, registration: WorkerRegistration, group: object) -> None:
        """Work for one more. The same `group` is for those that are alike."""
        self._groups.setdefault(group, []).append(registration)

    def take(self, registration: WorkerRegistration, job: Job, now: float) -> None:
        """A request has come."""
        if len(self._busy) < self._count:
            self._begin(registration, job, now)
        else:
            self._waiting[registration] = job

    def drop(self, registration: WorkerRegistration, now: float) -> None:
        """The connection is gone: nobody wants the reply to what waits here."""
        if (job := self._waiting.pop(registration, None)) is not None:
            registration.session.final(job.number, [], now)
            self._loop.touch(registration)

    def done(self, registration: WorkerRegistration, now: float) -> None:
        """What was begun is done."""
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
        """It takes long: others are to do what waits, and what comes."""
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
