"""Workers that call functions in threads, beside the heartbeats.

A handler gets a request's body frames and returns the reply: bytes, text, or a list of frames. It may also yield: each
value is sent at once as a PARTIAL, and the generator's return value is the FINAL. An exception becomes an error reply
(see `broker.core.mdp`) and a line in the log; raise `RemoteError` to choose its status and text. A reply that is too
large for the broker becomes an error reply 413.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType

from broker.config import DEFAULT_ENDPOINT, WorkerConfig
from broker.core.mdp import Callback, Frames, service_fault
from broker.core.worker import Job
from broker.errors import UsageError
from broker.handlers import DELIVERY, Delivery, Handler, HandlerThreads, error_reply, execute
from broker.io.curve import Key, credentials
from broker.worker_base import WorkerBase, WorkerRegistration, log


class Worker(WorkerBase):
    """Serves one service, with `jobs` requests at a time.

        Worker("echo", lambda frames: frames).run()

    With several endpoints it picks one at random, and goes to the next when that broker is lost or sends it away: at
    once if the connection broke or the broker said DISCONNECT, else when its heartbeats fail. When all are gone it
    waits and tries them again. With `everywhere` it is registered at all of them, and still executes `jobs` requests at
    a time (`broker.worker_base.JobSlots`). `run` blocks until another thread (or a signal handler) calls
    `stop`, which lets requests in hand finish. Ctrl-C does so by itself; for other signals,
    `signal.signal(signal.SIGTERM, lambda *_: worker.stop())`. `start` runs it in a thread of its own. As a context
    manager it is started and stopped.
    """

    _handlers: HandlerThreads
    _thread: threading.Thread | None = None

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
        """`endpoint`, `key`, `server_key`: as of `broker.Client`. A worker with a refused key logs why, and goes on
        trying. `everywhere`: be registered at all endpoints, not only at one."""
        name = service.encode() if isinstance(service, str) else service
        if fault := service_fault(name):
            raise UsageError(fault)
        self.service = name
        self._handlers = HandlerThreads(jobs)
        self._begin({name: handler}, endpoint, jobs, everywhere, config, credentials(key, server_key))

    def run(self) -> None:
        """Serve until `stop`, or until Ctrl-C, which acts as `stop`; a second one raises KeyboardInterrupt."""
        try:
            with interrupts(self.stop):
                self._loop.run()
        finally:
            self._ended = True
            self._handlers.end()
        if self._fault is not None:
            raise self._fault

    def start(self) -> Worker:
        """Serve in a thread of its own. An invalid endpoint raises EndpointError here, not there."""
        self._open()
        self._thread = threading.Thread(target=self._run_in_thread, name="worker", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take no more requests, finish those in hand, say good-bye, end `run`.

        Any thread may call this. A call from a handler returns at once, since the end waits for the handler.
        """
        self._leave()
        if self._thread is not None and threading.get_ident() not in self._handlers:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except UsageError as error:
            log.error("%s", error)
        except Exception:
            self._log_fault()

    def _handle(self, channel: WorkerRegistration, job: Job, delivery: Delivery) -> None:
        """Execute a request in a handler thread."""
        DELIVERY.set(delivery)
        measure = self._measure(channel)

        def send(part: Frames) -> None:
            self._loop.call(channel.partial, job, measure.part(part))

        try:
            with delivery.observed():
                body = measure.last(execute(self._services[job.service], job.body, send))
        except BaseException as error:
            body = error_reply(error, job, self._config.max_reply)
        self._loop.call(channel.final, job, body)


class MultiWorker(Worker):
    """Serves several services, with `jobs` requests at a time in all.

    MultiWorker({"upper": upper, "lower": lower}, jobs=4).run()
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        jobs: int = 1,
        limits: Mapping[str, int] = MappingProxyType({}),
        everywhere: bool = False,
        config: WorkerConfig | None = None,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`handlers`: a function for each service. `limits`: how many requests of a service at a time, at most; default
        `jobs`. The other arguments are those of `Worker`."""
        if not handlers:
            raise UsageError("no service given; give at least one")
        of_names = {name.encode(): handler for name, handler in handlers.items()}
        for name in of_names:
            if fault := service_fault(name):
                raise UsageError(fault)
        for service, limit in limits.items():
            if service not in handlers or limit < 1:
                raise UsageError(f"limits has {limit} for {service}; give 1 or more, for names in handlers")
        most = {service.encode(): limit for service, limit in limits.items()}
        self.service = next(iter(of_names))
        self._handlers = HandlerThreads(jobs)
        self._begin(of_names, endpoint, jobs, everywhere, config, credentials(key, server_key), most)


@contextmanager
def interrupts(stop: Callback) -> Iterator[None]:
    """Treat Ctrl-C as a request to end, not as an exception in the middle of something.

    While the block runs, the first SIGINT calls `stop`; the second raises KeyboardInterrupt, as always.

    A program with a handler of its own keeps it. Outside the main thread, where Python handles no signals, nothing
    changes.
    """
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, usual)
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
