"""An app: the tasks and services of a program, and how it reaches Titanic."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from broker import DEFAULT_ENDPOINT, Handler, Key, MultiWorker, credentials, service_fault
from titanic.client.client import Client
from titanic.client.request_queue import AioQueue, RequestQueue
from titanic.errors import CallerError
from titanic.protocol.submit_options import Span
from titanic.schedules import Missed, Schedule, Scheduler
from titanic.tasks.flow import FlowHost, FlowReplies, FlowTicket, any_reply
from titanic.tasks.flow_worker import FlowService, PlanFormat, Steps
from titanic.tasks.task import (
    AnyAfter,
    AnyBefore,
    AnyFunction,
    AnyOnError,
    AsyncFunction,
    AsyncTask,
    Definition,
    Middleware,
    Submission,
    Task,
    TaskOptions,
    no_task,
)
from titanic.tasks.task_errors import FailedRequest, FailedService, TaskFailed
from titanic.tasks.ticket import Reach
from titanic.tasks.values import Serializer, TypeCodec
from titanic.util.text import quoted

if TYPE_CHECKING:  # a program that submits tasks needs no store and no dispatcher
    from titanic.tasks.event_loops import LoopClients
    from titanic.tasks.memory_queue import MemoryQueue, QueueSettings

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
AnyHandler = TypeVar("AnyHandler", bound=Handler)
AnyOnFailed = TypeVar("AnyOnFailed", bound=Callable[[FailedRequest, TaskFailed], object])
AnyTask = TypeVar("AnyTask", bound=Submission[..., Any])

UNNAMED = "unnamed"
"""A schedule until it is known of which task."""


class TaskDecorator(Protocol):
    """Makes a task of a function."""

    @overload
    def __call__(self, function: AsyncFunction[P, R], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class ScheduleDecorator(Protocol):
    """Has a task submitted at times; makes one of a function."""

    @overload
    def __call__(self, task: AnyTask, /) -> AnyTask: ...
    @overload
    def __call__(self, task: AsyncFunction[P, R], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, task: Callable[P, R], /) -> Task[P, R]: ...


class Tasks:
    """The tasks of a program.

        app = Tasks("tcp://127.0.0.1:5555", name="shop")

        @app.task(max_attempts=3)
        def resize(path: str, width: int = 80) -> Size: ...

        ticket = resize.submit("a.png", width=120)
        size = ticket.reply(timeout=10)

    `titanic worker MODULE:app` executes them.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        name: str = "tasks",
        serializer: str = "json",
        timeout: Span = 15.0,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`endpoint`, `timeout`, `key` and `server_key` are those of `titanic.Client`. `name` begins the names of the
        services: that of `resize` is NAME.resize. `serializer`: json or msgpack, the same for clients and workers."""
        self.name = name
        self.endpoint = endpoint
        self.key, self.server_key = key, server_key
        self.definitions: dict[str, Definition] = {}
        """Its tasks, by their services."""
        self._services: dict[str, Handler] = {}
        self._schedules: list[tuple[Schedule, Submission[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._format = Serializer(serializer)
        self._timeout = timeout
        self._middleware = Middleware()
        self._client: tuple[int, Client] | None = None
        """With the process that it belongs to."""
        self._lock = threading.Lock()
        self._loop_clients: LoopClients | None = None
        self._test: MemoryQueue | None = None
        self.flows = FlowHost(f"{name}.flow", self._format, self)
        """What its flows have in common."""
        self._steps = Steps(self, PlanFormat(self._format))
        self._add(self.flows.service, FlowService(self._steps, self.flows.service).handle)

    # -- tasks and services ----------------------------------------------------------------------------------

    @overload
    def task(self, function: AsyncFunction[P, R], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, function: AnyFunction | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a task of a function, as `@app.task` or as `@app.task(…)` with options:

            max_attempts  failed attempts after which it fails for good; default the server's
            limit         maximum run time of one attempt
            on_limit      kill (default): `titanic worker` cancels it, and kills its process if it continues; cancel:
                          only cancels it; leave: an attempt may exceed its limit, its late reply counts, and the next
                          attempt begins only when it has ended or its worker is lost
            ttl           time after which it expires, even between attempts, unless it is running or has ended
            delay         earliest start, from the submission
            priority      0 to 9, default 4; higher ones start first
            retry_first   back-off after the first failure, doubles with each failure; default the server's
            retry_most    longest back-off; each varies by ± 10 %; default the server's
            keep          how long its reply is kept unless it is closed; "never": until clients that wait have it;
                          default the server's, for a task annotated `-> None` an hour
            keep_failed   how long it is kept if it fails or expires; default the server's
            keep_body     how long its body is kept when it has ended, for a retry; "never": only until it succeeds;
                          default as long as the request
            unique        makes the unique key of a call from its arguments: while an earlier call counts, `submit`
                          returns its ticket, with `found`
            unique_until  how long a call counts: until it is "started" by a worker, or "done" (default): has ended
            unique_for    or the time for which it counts, also after a success
            key           makes the idempotency key of a call from its arguments: the same key is executed once
            key_for       how long keys count, default a day
            retry_on      exceptions after which it is retried; default all
            fatal         exceptions after which it fails for good at once
            raises        further exceptions that `reply` raises as themselves, like those above
            service       the name of its service; default NAME.function
            jobs          maximum requests at a time in a `titanic worker`, over all its processes; default: all jobs

        Arguments and results may have the types that msgspec knows (of the standard library, dataclasses, TypedDict,
        NamedTuple, enums, and msgspec's own), pydantic models, and those of `register_type`. Raises CallerError for
        others.
        """
        if function is None:
            return partial(self._task, options=options)
        return self._task(function, options)

    def _task(self, function: AnyFunction, options: TaskOptions) -> Task[Any, Any] | AsyncTask[Any, Any]:
        if fact := no_task(function, named="service" in options):
            raise CallerError(f"{quoted(function)} cannot be a task", fact, "decorate a function of a module")
        service = options.get("service") or f"{self.name}.{function.__name__}"
        definition = Definition(service, function, self._format, self._middleware, options, self._steps)
        self._add(service, definition.handle)
        self.definitions[service] = definition
        kind = AsyncTask if definition.is_async else Task
        return kind(function, definition, self)

    def service(self, name: str) -> Callable[[AnyHandler], AnyHandler]:
        """Serve a service of this name with a function from frames to frames, as for `broker.Worker`."""

        def add(handler: AnyHandler) -> AnyHandler:
            if inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler):
                what = f"the handler of {name} is async"
                raise CallerError(what, "handlers of raw frames run in threads", "make it a task, or a plain function")
            self._add(name, handler)
            return handler

        return add

    def _add(self, service: str, handler: Handler) -> None:
        if fault := service_fault(service.encode()):
            raise CallerError(fault)
        if service in self._services:
            raise CallerError(f"{service} is declared twice", "names of tasks and services are unique", "rename one")
        self._services[service] = handler

    @property
    def handlers(self) -> dict[str, Handler]:
        """What a worker does for each service. Raises CallerError for annotations that name what is still undefined."""
        for definition in self.definitions.values():
            definition.check()
        return {**self._services}

    @property
    def limits(self) -> dict[str, int]:
        """The `jobs` of tasks that have their own."""
        return {name: task.jobs for name, task in self.definitions.items() if task.jobs is not None}

    def worker(self, *, jobs: int = 1) -> MultiWorker:
        """Make a worker of all tasks and services in this process, in threads: `run` it, or use it in a `with`.
        `titanic worker` executes them in separate processes."""
        return MultiWorker(
            self.handlers, self.endpoint, jobs=jobs, limits=self.limits, key=self.key, server_key=self.server_key
        )

    def register_type(self, kind: type[T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
        """Accept a type of yours, and its subclasses when they are sent, in arguments and replies: `encode` turns a
        value into data that JSON or msgpack can have, `decode` turns data into a value. Register it above the tasks
        that use it.

        Raises CallerError for a type that needs no registration, or has one.
        """
        caller = sys._getframe(1)
        self._format.register(kind, TypeCodec(encode, decode, f"{caller.f_code.co_filename}:{caller.f_lineno}"))

    # -- schedules -------------------------------------------------------------------------------------------

    def cron(
        self, expression: str, *args: Any, tz: str = "UTC", missed: Missed = "skip", name: str = ""
    ) -> ScheduleDecorator:
        """Submit a task by a cron expression, with these arguments. Write it above `@app.task`, or without that above a
        function.

        Five fields, or six that begin with seconds: `*/10 * * * * *` is every ten seconds.
        `missed`: which ticks to submit that no scheduler could submit in time: skip, once or all. `name`: that of the
        schedule; default: the task's service. `scheduler` runs schedules. Raises InvalidSchedule.
        """
        return partial(self._scheduled, args, Schedule(name or UNNAMED, UNNAMED, cron=expression, tz=tz, missed=missed))

    def every(self, span: Span, *args: Any, missed: Missed = "skip", name: str = "") -> ScheduleDecorator:
        """Submit a task at intervals, of seconds or a timedelta, counted from 1970: 3600 is each full hour."""
        return partial(self._scheduled, args, Schedule(name or UNNAMED, UNNAMED, every=span, missed=missed))

    def _scheduled(self, args: tuple[Any, ...], schedule: Schedule, task: Any) -> Any:
        if not isinstance(task, Submission):
            task = self._task(task, {})
        name = task.service if schedule.name == UNNAMED else schedule.name
        self._schedules.append((replace(schedule, name=name, service=task.service), task, args, {}))
        return task

    @property
    def schedules(self) -> list[Schedule]:
        """Those of its tasks. Raises InvalidArguments for arguments that do not fit."""
        return [task.scheduled(schedule, args, kwargs) for schedule, task, args, kwargs in self._schedules]

    def scheduler(self) -> Scheduler:
        """Make a scheduler of the tasks' schedules: `run` it in a thread, in any number of processes."""
        return Scheduler(self._connected(), self.schedules)

    # -- middleware ------------------------------------------------------------------------------------------

    def before(self, function: AnyBefore) -> AnyBefore:
        """Call a function with each `Call` before the task. If it raises, the attempt ends as if the task had
        raised."""
        self._middleware.before.append(function)
        return function

    def after(self, function: AnyAfter) -> AnyAfter:
        """Call a function with each `Call` and the task's result; the last function added comes first."""
        self._middleware.after.append(function)
        return function

    def error(self, function: AnyOnError) -> AnyOnError:
        """Call a function with each failed `Call` and the exception, not for `Retry` and `Cancelled`. The last function
        added comes first."""
        self._middleware.error.append(function)
        return function

    def failed(self, function: AnyOnFailed) -> AnyOnFailed:
        """Call a function once for each request of a task that failed for good or expired, with its `FailedRequest` and
        the `TaskFailed`, whatever the reason: its last attempt, its limit, the death of its worker. The call is a
        request for the service NAME.failed, stored in the same commit; any worker of the app executes it, and retries
        it if the function raises. It covers requests submitted by an app that has the function."""
        service = f"{self.name}.failed"
        if inspect.iscoroutinefunction(function):
            raise CallerError(f"the function of {service} is async", "it runs in a thread", "make it a plain function")
        self._add(service, FailedService(function).handle)
        self._middleware.on_failed = service
        return function

    # -- the queue -------------------------------------------------------------------------------------------

    @property
    def client(self) -> RequestQueue:
        """The client that submits its tasks: one `titanic.Client`, for all threads of the process."""
        return self._connected() if self._test is None else self._test

    @property
    def aio_client(self) -> AioQueue:
        """The client of coroutines: one `titanic.aio.Client` for each event loop."""
        if self._test is not None:
            from titanic.tasks.memory_queue import AioMemory

            return AioMemory(self._test)
        if self._loop_clients is None:
            from titanic.tasks.event_loops import LoopClients  # imports asyncio: only when used

            with self._lock:
                self._loop_clients = self._loop_clients or LoopClients(self._reach)
        return self._loop_clients.client

    def _connected(self) -> Client:
        known = self._client
        if known is not None and known[0] == os.getpid():
            return known[1]
        with self._lock:
            if self._client is None or self._client[0] != os.getpid():  # what a fork has inherited is its parent's
                endpoint, timeout, curve = self._reach()
                self._client = os.getpid(), Client(endpoint, timeout=timeout, key=curve)
            return self._client[1]

    def _reach(self) -> Reach:
        """How Titanic is reached, with the keys as they are now."""
        return self.endpoint, self._timeout, credentials(self.key, self.server_key)

    def flow(self, uuid: str) -> FlowTicket[Any]:
        """Make a ticket for a flow submitted before, perhaps by another process. A ticket of `Flow.ticket` knows the
        type of the reply."""
        return FlowTicket(FlowReplies(self.flows.service, any_reply(self._format), ()), self, uuid)

    @contextmanager
    def testing(self, *, worker: bool = True, **settings: Unpack[QueueSettings]) -> Iterator[MemoryQueue]:
        """Replace the server, in tests of tasks, with a queue in memory. It executes requests in this thread, when a
        reply is requested or on command. Nothing sleeps: `MemoryQueue.advance` moves the clock, and with it the
        schedules. Without a `worker` all requests wait. The settings are those of a server: `max_attempts`,
        `retry_first`, `retry_most`."""
        if self._test is not None:
            raise CallerError("the app is being tested already", "its queue is in memory", "leave its `with` first")
        from titanic.tasks.memory_queue import MemoryQueue

        self._test = MemoryQueue(self, worker=worker, **settings)
        try:
            yield self._test
        finally:
            self._test = None
