"""A worker of a service: calls a function for each request, in a thread beside the heartbeats.

The handler gets the request's body frames and returns the reply: bytes, text, or a list of frames. It may also
yield: each yielded value is sent at once as a PARTIAL, the generator's return value is the FINAL. An exception
becomes an error reply (see `broker.core.mdp`) and a line in the log; raise `RemoteError` to choose its status
and text. A reply that is too large for the broker becomes an error reply 413.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import zmq

from broker.config import DEFAULT_ENDPOINT, WorkerConfig
from broker.core.endpoints import Servers
from broker.core.job import Job
from broker.core.mdp import Command, Frames, error_body, service_fault
from broker.core.worker import SessionState, WorkerSession
from broker.delivery import DELIVERY, Delivery
from broker.errors import OutOfSockets, RemoteError, UsageError
from broker.hand import Hand, Registration
from broker.handlers import Handler, HandlerThreads, Measure, TooLarge, error_frames, execute, failure
from broker.interrupts import interrupts
from broker.io.channel import Channel
from broker.io.curve import Curve, Key, credentials
from broker.io.dealer import Dealer
from broker.io.loop import Loop
from broker.worker_log import WorkerLog

log = logging.getLogger(__name__)


class Worker:
    """Serves one service with `jobs` registered workers, each with one request at a time.

        Worker("echo", lambda frames: frames).run()

    Of several endpoints each worker chooses one at random, works for it, and goes to the next when that broker is lost
    or sends it away: at once when the connection broke or the broker said DISCONNECT, else when its heartbeats have
    failed. When all are gone it waits, and tries them all again. With `everywhere` it is registered at all of them, and
    still does one request at a time (`broker.hand`).
    `run` blocks until another thread (or a signal handler) calls `stop`, which lets requests in hand finish. Ctrl-C
    does so by itself; for other signals, `signal.signal(signal.SIGTERM, lambda *_: worker.stop())`.
    `start` runs it in a thread of its own. As a context manager it is started and stopped.
    """

    def __init__(
        self,
        service: str | bytes,
        handler: Handler,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        jobs: int = 1,
        everywhere: bool = False,
        config: WorkerConfig | None = None,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`endpoint`, `key`, `server_key`: as of `broker.Client`. A worker whose key is refused logs why, and goes on
        trying. `everywhere`: be registered at all endpoints, not only at one."""
        name = service.encode() if isinstance(service, str) else service
        if fault := service_fault(name):
            raise UsageError(fault)
        self.service = name
        self._begin({name: handler}, endpoint, jobs, everywhere, config, credentials(key, server_key))

    def _begin(
        self,
        handlers: Mapping[bytes, Handler],
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
        self._handlers = HandlerThreads(jobs)
        self._thread: threading.Thread | None = None
        self._ended = False
        self._curve = curve
        self._config = config or WorkerConfig()
        self._channels: list[_Registration] = []
        self._logs: list[WorkerLog] = []
        endpoints = Servers(endpoint).names
        places = [[name] for name in endpoints] if everywhere else [endpoints]
        hand = Hand(self._loop, jobs) if len(places) * len(handlers) > 1 else None
        for service, handler in handlers.items():
            for names in places:
                sessions = [self._new_session(service, config) for _ in range(jobs)]
                self._register(sessions, handler, names, hand)
        if hand is not None:
            self._loop.add(hand)

    def _register(
        self, sessions: Sequence[WorkerSession], handler: Handler, endpoints: Sequence[str], hand: Hand | None
    ) -> None:
        """Be registered for a service at one of these endpoints, and say in the log what becomes of that."""
        channels = [_Registration(self, session, handler, endpoints, self._watch, hand) for session in sessions]
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

    _watch = False
    """Whether to learn from the transport when the connection breaks: for protocols without heartbeats."""

    _registers_at = "broker"
    """What the log calls it."""

    def _connection(self, channel: _Registration, endpoints: Sequence[str], *, watch: bool) -> Dealer:
        """Called by a channel, for the sockets that it speaks through."""
        return Dealer(zmq.Context.instance(), endpoints, watch=watch, hold=True, curve=self._curve, spread=True)

    def _new_session(self, service: bytes, config: WorkerConfig | None) -> WorkerSession:
        """Protocols other than MDP have their own."""
        return WorkerSession(service, config, now=time.monotonic())

    def run(self) -> None:
        """Serve until `stop`, or until Ctrl-C, which ends it as `stop` does; a second one is a KeyboardInterrupt."""
        try:
            with interrupts(self.stop):
                self._loop.run()
        finally:
            self._ended = True
            self._handlers.end()

    def start(self) -> Worker:
        """Serve in a thread of its own. An endpoint that cannot be right raises EndpointError here, not there."""
        now = time.monotonic()
        try:
            for channel in self._channels:
                channel.tick(now)
                channel.flush(now)
        except BaseException:
            self._loop.close_unless_running()
            raise
        self._thread = threading.Thread(target=self._run_in_thread, name="worker", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take no more requests, finish those in hand, say good-bye, end `run`.

        Any thread may call this. A handler that does is not kept waiting: the end waits for the handler.
        """
        self._loop.call(self._part, _Registration.leave)
        self._loop.close_unless_running()
        if self._thread is not None and threading.get_ident() not in self._handlers:
            self._thread.join()
            self._thread = None

    def abandon(self) -> None:
        """End `run` without waiting for the requests in hand: the broker is told, and gives them to another worker.

        Any thread may ask. What the handlers still return is dropped.
        """
        self._loop.call(self._part, _Registration.give_up)
        self._loop.stop()

    def every(self, seconds: float, function: Callable[[], None]) -> None:
        """Have a function called again and again in the thread that speaks to the broker; it must not wait.

        Call this before `run` or `start`. The function is called also while requests are in hand, but not once the
        worker has ended or while it is stuck: that is what a watchdog wants to know.
        """
        self._loop.add(_Beat(seconds, function))

    @property
    def registered(self) -> int:
        """How many of the workers are connected and have heard from the broker, just now; 0 when it has ended."""
        return 0 if self._ended else sum(session.registered for session in self.sessions)

    @property
    def sessions(self) -> list[WorkerSession]:
        """Its sessions with the broker, one for each job."""
        return [channel.session for channel in self._channels]

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except Exception:
            names = {session.service.decode() for session in self.sessions}
            log.exception("a fault of this program: the worker of %s has ended", ", ".join(sorted(names)))

    def _part(self, way: Callable[[_Registration, float], None]) -> None:
        """Have all registrations part with the broker, in one of their ways."""
        for report in self._logs:
            report.leave()
        for channel in self._channels:
            way(channel, time.monotonic())

    def _handle(self, channel: _Registration, job: Job) -> None:
        """Runs in a handler thread. There is always a reply: without one the worker would never be free again."""
        DELIVERY.set(channel.delivery)
        try:
            body = self._answer(channel, job)
        except TooLarge as fault:
            body = error_body(413, str(fault))
            self._complain(channel, log.warning, "a reply of %s was not sent: %s (%s)", fault, job)
        except BaseException as error:  # SystemExit too: it would end this thread only, and silently
            body = failure(error, traced=bool(job.context))
            self._complain(channel, log.exception, "handler of %s failed (%s)", job)
        DELIVERY.set(None)
        self._loop.call(channel.final, job, body)

    def _complain(self, channel: _Registration, say: Callable[..., None], text: str, *facts: object) -> None:
        # No memory, a fault in somebody's log handler: the reply is to go out all the same.
        with suppress(BaseException):
            say(text, channel.session.service.decode(), *facts)

    def _answer(self, channel: _Registration, job: Job) -> Frames:
        measure = Measure(self._config.max_reply, joined=channel.joins_parts)

        def send(part: Frames) -> None:
            self._loop.call(channel.partial, job, measure.part(part))

        try:
            return measure.last(execute(channel.handler, job.body, send))
        except RemoteError as error:
            # Without the parts before it, whatever the version.
            return Measure(self._config.max_reply, joined=False).last(error_frames(error))


class _Registration(Registration):
    """One registered worker of a `Worker`: its session and its connection."""

    log: WorkerLog
    """What says of it that it is there."""
    delivery: Delivery | None = None
    """What is in hand, or was last."""

    def __init__(
        self,
        worker: Worker,
        session: WorkerSession,
        handler: Handler,
        endpoints: Sequence[str],
        watch: bool,
        hand: Hand | None,
    ) -> None:
        """`hand`: does its work, and that of others; None: it has a thread of its own."""
        super().__init__(session, worker._connection(self, endpoints, watch=watch or len(endpoints) > 1))
        self.handler = handler
        self._worker = worker
        self._hand = hand
        if hand is not None:
            hand.add(self, (session.service, *endpoints))

    def partial(self, job: Job, body: Frames) -> None:
        self.session.partial(job.number, body, time.monotonic())
        self._worker._loop.touch(self)

    def final(self, job: Job, body: Frames) -> None:
        self.session.final(job.number, body, time.monotonic())
        self._worker._handlers.done()
        self._worker._loop.touch(self)
        if self._hand is not None:
            self._hand.done(self, time.monotonic())

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
            if session.dialect.has(Command.DISCONNECT):
                self._dealer.send([(session.connection, session.dialect.encode(Command.DISCONNECT, ()))])
            session.lost(now)

    def _begin(self, job: Job) -> None:
        if self._hand is None:
            self.work(job)
        else:
            self._hand.take(self, job, time.monotonic())

    def work(self, job: Job) -> None:
        """Have a thread do a request."""
        worker = self._worker
        self.delivery = Delivery(job.context, self, job.number)
        if not worker._handlers.call(worker._handle, self, job):
            body = error_body(500, "the worker cannot start a thread; try again later")
            self.session.final(job.number, body, time.monotonic())
            worker._loop.touch(self)
            if self._hand is not None:
                self._hand.done(self, time.monotonic())

    def _stranded(self, now: float) -> None:
        if self._hand is not None:
            self._hand.drop(self, now)

    def _starved(self, error: OutOfSockets, now: float) -> None:
        super()._starved(error, now)  # it comes back after a while, as after any other loss
        self.log.starved(str(error), now)

    def _refused(self, now: float) -> None:
        self.log.refused(now)

    def _stopped(self) -> None:
        if all(session.stopped for session in self._worker.sessions):
            self._worker._loop.stop()


def _any_registered(channels: Sequence[_Registration]) -> bool:
    """Whether any is registered, or was and is only busy elsewhere."""
    return any(channel.session.registered or channel.session.aside for channel in channels)


def _registered_at(channels: Sequence[_Registration]) -> str:
    """Where they are registered."""
    return " and ".join(dict.fromkeys(channel.server for channel in channels if channel.session.registered))


class _Beat(Channel):
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
