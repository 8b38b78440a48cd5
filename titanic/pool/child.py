"""A child of the pool, as a program: `python -m titanic.pool.child REPORTS JOBS`, two descriptors.

Its configuration is the first line of its standard input. It says lines of JSON by REPORTS, a pipe:

    {"ready": true, "files": […], "app": …}    it works; the sources that it has loaded, and its `Declaration`
    {"leaving": "got SIGTERM"}                 it wants to end
    {"fault": "…", "files": […]}               it cannot work

By JOBS, a socket, it gets requests and replies to them (`child_messages.py`). It has no connection to a broker.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ
from typing import Any

from broker import (
    DEFAULT_ENDPOINT,
    DELIVERY,
    Channel,
    Delivery,
    Handler,
    HandlerThreads,
    Job,
    Loop,
    Measure,
    WorkerConfig,
    credentials,
    error_frames,
    error_reply,
    execute,
    named,
)
from titanic import logs, telemetry
from titanic.errors import TitanicError
from titanic.jobs.context import JobLogFilter, Unready
from titanic.pool.child_messages import (
    CHUNK,
    BeginJob,
    ChildBeat,
    JobFinal,
    JobPart,
    JobProgress,
    MessageReader,
    ToChild,
    ToParent,
    encode,
)
from titanic.pool.core import ChildConfig, Declaration
from titanic.pool.loading import chosen, involved, load, loaded
from titanic.schedules import Scheduler
from titanic.tasks import Tasks
from titanic.util.processes import end_with_parent

log = logging.getLogger("titanic.pool")

BEAT = 1.0
"""Seconds between two signs of life."""

BUSY_BEAT = 0.25
"""While it has requests: one of them may hold the GIL, and then the child is to get no others."""

PROGRESS_INTERVAL = 0.2
"""Seconds between two progress messages."""

EXIT_FAULT = 2
EXIT_ORPHANED = 1


class Reports:
    """Reports to the pool, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)

    def say(self, **message: Any) -> None:
        """Say one thing."""
        with suppress(OSError):
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")


class JobRunner(Channel):
    """Executes the requests that the parent sends, in threads. Replies go out from these, so that no job waits for the
    loop."""

    rests = True

    def __init__(
        self, handlers: dict[bytes, Handler], config: ChildConfig, parent: socket.socket, reports: Reports
    ) -> None:
        self._handlers = handlers
        self._reports = reports
        self._version = config.deploy
        self._parent = parent
        self._max_reply = WorkerConfig().max_reply
        self._threads = HandlerThreads(config.jobs)
        self._deliveries: dict[int, Delivery] = {}
        """By the numbers of the requests in hand."""
        self._finished: deque[int] = deque()
        """Numbers of requests that are done, which the loop has not noted yet."""
        self._reader: MessageReader[ToChild] = MessageReader(ToChild)  # type: ignore[arg-type]
        self._sending = threading.Lock()
        self._beat_at = 0.0
        self._unreported: dict[int, Delivery] = {}
        """Requests with progress that was not sent yet."""
        self._report_at = 0.0
        self._loop = Loop()
        self._loop.add(self)
        self._loop.watch(parent.fileno(), self, {}, EVENT_READ)

    def run(self) -> None:
        """Execute requests until the parent closes its side."""
        self._loop.run()
        self._threads.end()

    # -- the loop's ------------------------------------------------------------------------------------------

    def drain(self, now: float) -> bool:
        try:
            data = self._parent.recv(CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._note_finished()
        if not data:
            self._end()
        for message in self._reader.feed(data):
            if isinstance(message, BeginJob):
                self._begin(message)
            elif (delivery := self._deliveries.get(message.number)) is not None:
                delivery.cancel()
        return False

    def tick(self, now: float) -> None:
        if now >= self._beat_at:
            self._note_finished()
            self._beat_at = now + (BUSY_BEAT if self._deliveries else BEAT)
            self._send(ChildBeat(memory()))
        if self._unreported and now >= self._report_at:
            self._report_at = now + PROGRESS_INTERVAL
            unreported, self._unreported = self._unreported, {}
            for number, delivery in unreported.items():
                if (said := delivery.take_progress()) is not None:
                    self._send(JobProgress(number, said))

    def next_deadline(self) -> float:
        return min(self._beat_at, self._report_at) if self._unreported else self._beat_at

    def _begin(self, request: BeginJob) -> None:
        if not self._deliveries:
            self._beat_at = min(self._beat_at, time.monotonic() + BUSY_BEAT)
        job = Job(request.number, request.body, request.client, request.service)
        delivery = self._deliveries[job.number] = Delivery(job.context, self, job.number, job.service)
        if not self._threads.call(self._handle, job, delivery, Measure(self._max_reply, joined=request.joined)):
            del self._deliveries[job.number]
            self._reports.say(leaving="cannot start a thread")  # else it would get, and give back, more and more
            self._send(JobFinal(job.number, error_frames(Unready("the worker cannot start a thread"))))

    def _note_finished(self) -> None:
        while self._finished:
            self._deliveries.pop(self._finished.popleft(), None)
            self._threads.done()

    def _end(self) -> None:
        """The parent wants this process to end, or has died: then what it has in hand goes to other workers now, and
        must not be executed twice at a time."""
        if self._deliveries:
            log.warning("the parent process is gone; exiting")
            os._exit(EXIT_ORPHANED)
        self._loop.unwatch(self._parent.fileno())
        self._loop.stop()

    # -- the threads' ----------------------------------------------------------------------------------------

    def _handle(self, job: Job, delivery: Delivery, measure: Measure) -> None:
        """Execute a request in a handler thread."""
        DELIVERY.set(delivery)

        def send(part: list[bytes]) -> None:
            self._send(JobPart(job.number, measure.part(part)))

        try:
            with delivery.observed():
                body = measure.last(execute(self._handlers[job.service], job.body, send))
        except BaseException as error:
            if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
                self._reports.say(leaving="is out of memory")  # else it would get, and fail, more and more
            elif isinstance(error, Unready):  # which of several versions was it?
                error.text += f"; this worker has version {self._version}: start one of the caller's version"
            body = error_reply(error, job, self._max_reply)
        self._finished.append(job.number)  # first: the parent may close its side when it has the reply
        self._send(JobFinal(job.number, body))

    def progress(self, delivery: Delivery) -> None:
        """Send the handler's progress. Any thread may call this."""
        self._loop.call(self._note_progress, delivery)

    def _note_progress(self, delivery: Delivery) -> None:
        self._unreported[delivery.number] = delivery
        self._loop.touch(self)

    def _send(self, message: ToParent) -> None:
        with self._sending, suppress(OSError):
            self._parent.sendall(encode(message))


def memory() -> int:
    """Bytes of memory of this process; 0 where that is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def main() -> None:
    """Work until the pool ends it."""
    reports = Reports(int(sys.argv[1]))
    document = _read_configuration()
    end_with_parent(document.pop("parent"))
    parent = socket.socket(fileno=int(sys.argv[2]))
    parent.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool's business
    number = document.pop("number")
    config = ChildConfig(**{**document, "endpoint": tuple(document["endpoint"])})
    logs.begin(config.log_level, config.log_format, process=str(number), job=JobLogFilter())
    with suppress(Exception):  # stderr may be no file
        faulthandler.enable()  # SIGABRT, SIGSEGV: every thread says where it is
    try:
        app = load(config.target)
        declaration, handlers, scheduler = _prepare(app, config)
        if config.otel and telemetry.on is None:  # the app may have done so, with its own providers
            telemetry.instrument(endpoint=declaration.endpoint)
    except (TitanicError, ValueError) as error:
        reports.say(fault=str(error), files=[*loaded(), *involved(config.target, error.__cause__)])
        sys.exit(EXIT_FAULT)
    signal.signal(signal.SIGTERM, lambda *_: reports.say(leaving="got SIGTERM"))
    runner = JobRunner(handlers, config, parent, reports)
    reports.say(ready=True, files=loaded(), app=declaration)
    if scheduler is not None:
        threading.Thread(target=_submit_ticks, args=(scheduler,), name="scheduler", daemon=True).start()
    runner.run()
    if scheduler is not None:
        scheduler.stop()


def _read_configuration() -> dict[str, Any]:
    with os.fdopen(os.dup(0), "rb") as lines:
        document: dict[str, Any] = json.loads(lines.readline())
    with Path(os.devnull).open("rb") as nothing:  # a task is not to read what is meant for us
        os.dup2(nothing.fileno(), 0)
    return document


def _submit_ticks(scheduler: Scheduler) -> None:
    try:
        scheduler.run()
    except TitanicError as error:
        log.error("the schedules of the tasks are not running: %s", error)


def _prepare(app: Tasks, config: ChildConfig) -> tuple[Declaration, dict[bytes, Handler], Scheduler | None]:
    """What the parent needs to know of an app, its handlers, and what runs its schedules, if it has some. Raises
    TitanicError or a BrokerError."""
    if config.endpoint:
        if (own := named(app.endpoint)) not in (config.endpoint, (DEFAULT_ENDPOINT,)):
            text = "the app names the endpoint %s, which programs that submit use; this worker uses %s"
            log.info(text, ",".join(own), ",".join(config.endpoint))
        app.endpoint = config.endpoint
    if config.key_file is not None or config.server_key is not None:
        app.key, app.server_key = config.key_file, config.server_key
    if app.handlers.keys() == {app.flows.service}:
        raise TitanicError(f"{config.target} has no task and no service", "", "declare one with @app.task")
    services = chosen(config, app.handlers)
    endpoints = (app.endpoint,) if isinstance(app.endpoint, str) else tuple(app.endpoint)
    curve = credentials(app.key, app.server_key)
    declaration = Declaration(
        tuple((name, app.limits.get(name, 0), _on_limit(app, name)) for name in services),
        endpoints,
        None if curve is None else tuple(key.decode() for key in curve),
    )
    handlers = {name.encode(): handler for name, handler in services.items()}
    return declaration, handlers, app.scheduler() if app.schedules else None


def _on_limit(app: Tasks, service: str) -> str:
    task = app.definitions.get(service)
    return "kill" if task is None else task.on_limit


if __name__ == "__main__":
    main()
