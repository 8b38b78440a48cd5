"""Celery's names for tasks, flows and schedules of Titanic: a program changes an import and the address of the broker.

    from titanic.celery import Celery, chain, chord, crontab, group, shared_task

README.md has what differs. What has no equivalent raises CallerError. Celery itself is not needed.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

from broker import DEFAULT_ENDPOINT, Handler
from titanic.errors import CallerError, InvalidRequest, TimedOut, UnknownRequest
from titanic.jobs.context import Retry, current_or_none
from titanic.protocol.submit_options import Span
from titanic.schedules import Schedule
from titanic.tasks import Flow, Submission, TaskFailed, Tasks, Ticket, gather
from titanic.tasks.task import AnyFunction

PAGE = "see titanic/celery/README.md"

IGNORED = {
    *("acks_late", "exchange", "ignore_result", "pydantic", "queue", "reject_on_worker_lost", "retry", "retry_jitter"),
    *("retry_policy", "routing_key", "serializer", "track_started"),
}
"""Options of tasks and of `apply_async` that have no meaning here, or always hold: each task is a queue of its own."""

CONF = {
    **dict.fromkeys(("broker_url", "result_backend", "timezone", "task_default_queue", "task_create_missing_queues")),
    **dict.fromkeys(("task_routes", "task_queues", "task_acks_late", "task_reject_on_worker_lost", "enable_utc")),
    **dict.fromkeys(("task_track_started", "result_extended", "broker_connection_retry_on_startup", "include")),
    **dict.fromkeys(("broker_connection_retry", "broker_transport_options", "worker_prefetch_multiplier", "imports")),
    **dict.fromkeys(("task_time_limit", "task_soft_time_limit", "task_default_priority", "result_expires")),
    **dict.fromkeys(("task_ignore_result", "task_serializer", "result_serializer", "accept_content", "beat_schedule")),
}
"""The settings that `Celery.conf` can have. Each is None until it is set; README.md has what they do."""

FIXED = ("task_time_limit", "task_soft_time_limit", "task_default_priority", "task_ignore_result", "result_expires")
"""Those that tasks take when they are declared."""

LEAST_ATTEMPTS = 10
"""Attempts that a task without `autoretry_for` has at least: a worker's death may be one."""

MOST_ATTEMPTS = 65_535

LEAST_DELAY = 0.001
"""Seconds before a retry that is to come at once."""

LINKS = {"link", "link_error"}

OF_STEPS = {*LINKS, "priority", "time_limit", "soft_time_limit"}
"""Options that a task with links has itself; the others are those of the flow."""

STATES = {"delayed": "PENDING", "running": "STARTED", "done": "SUCCESS", "failed": "FAILURE", "expired": "REVOKED"}


class MaxRetriesExceededError(Exception):
    """`self.retry` was called after the last retry."""


def options_of(
    countdown: Span | None = None,
    eta: datetime | None = None,
    expires: Span | datetime | None = None,
    priority: int | None = None,
    time_limit: float | None = None,
    soft_time_limit: float | None = None,
    ignore_result: bool = False,
    **others: Any,
) -> dict[str, Any]:
    """Celery's options of a request as those of `Client.submit`."""
    limits = [limit for limit in (time_limit, soft_time_limit) if limit is not None]
    if unknown := sorted(others.keys() - IGNORED):
        raise CallerError(f"there is no option {', '.join(unknown)} here", "", PAGE)
    if isinstance(expires, datetime):
        expires = max(timedelta(microseconds=1), expires - datetime.now(UTC))
    found: dict[str, Any] = {"delay": countdown, "at": eta, "ttl": expires, "priority": priority}
    found |= {"limit": min(limits, default=None), "keep": "never" if ignore_result else None}
    return {name: value for name, value in found.items() if value is not None}


class CeleryNames:
    """What has names of Celery. Others raise AttributeError that says where the equivalents are."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no {type(self).__name__}.{name} here; {PAGE}", name=name, obj=self)


class AsyncResult(CeleryNames):
    """What was submitted, with Celery's methods. `get` raises what the task has failed with: TaskFailed, or a class in
    its `throws`; and TimedOut. `revoke` deletes the request; a running task is informed."""

    def __init__(self, id: str, app: Celery | None = None, ticket: Ticket[Any] | None = None) -> None:
        """`id`: a UUID, or the `task_id` that it was submitted with. `app`: by default the one that was made last."""
        self.id, self._app, self._known = id, app or latest(), ticket

    @property
    def ticket(self) -> Ticket[Any]:
        """The request's. Raises UnknownRequest."""
        if self._known is None:
            key, queue = self._app.key_of(self.id), self._app.client
            uuid = queue.find([key])[0].get(key, self.id)
            task = self._app.definitions.get(queue.show(uuid)["service"])
            self._known = self._app.flow(uuid) if task is None else Ticket(task, self._app, uuid)
        return self._known

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED; PENDING also if there is no such request."""
        try:
            row = self._app.client.show(self.ticket.uuid)
        except (UnknownRequest, InvalidRequest):
            return "PENDING"
        return "RETRY" if row["state"] == "delayed" and row["attempts"] else STATES.get(row["state"], "PENDING")

    status = state

    def get(self, timeout: Span | None = None, propagate: bool = True, interval: float = 0.5) -> Any:
        try:
            return self.ticket.reply(timeout=math.inf if timeout is None else timeout)
        except TimedOut:
            raise
        except Exception as error:
            if propagate:
                raise
            return error

    @property
    def result(self) -> Any:
        return self.get(propagate=False) if self.ready() else None

    @property
    def traceback(self) -> str | None:
        error = self.result
        failed = error if isinstance(error, TaskFailed) else getattr(error, "__cause__", None)
        return failed.traceback if isinstance(failed, TaskFailed) else None

    def ready(self) -> bool:
        return self.state in ("SUCCESS", "FAILURE", "REVOKED")

    def successful(self) -> bool:
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        return self.state == "FAILURE"

    def revoke(self, terminate: bool = False) -> None:
        self.ticket.close()

    def forget(self) -> None:
        """Delete its request if that has ended."""
        if self.ready():
            self.ticket.close()

    @property
    def task_id(self) -> str:
        return self.id

    wait = get


class Signature(CeleryNames):
    """A task with arguments, or a chain or a group of such `parts`."""

    def __init__(self, app: Celery, task: Task | None = None, /, *args: Any, **kwargs: Any) -> None:
        self.app, self.task, self.args, self.kwargs = app, task, args, kwargs
        self.parts: list[Signature] = []
        self.is_group = self.immutable = False
        self.options: dict[str, Any] = {}

    def set(self, **options: Any) -> Signature:
        """Give it options of `apply_async`."""
        self.immutable = options.pop("immutable", self.immutable)
        self.options |= options
        return self

    def link(self, callback: Signature) -> Signature:
        """Have a task follow it."""
        return self.set(link=[*_listed(self.options.get("link")), callback])

    def link_error(self, errback: Signature) -> Signature:
        """Have a task run if it fails."""
        return self.set(link_error=[*_listed(self.options.get("link_error")), errback])

    on_error = link_error

    @property
    def step(self) -> Submission[..., Any]:
        """Its task, or its first task, as a step of a flow. Raises CallerError for a group."""
        if self.is_group:
            raise CallerError("a group cannot follow a task", "each of its tasks would get the reply", PAGE)
        if self.task is None:
            return self.parts[0].step
        return self.task.submission.options(**options_of(**_without_links(self.options)))

    def flow(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] = {}, after: bool = False, immutable: bool = False
    ) -> Flow[Any]:
        """It as a flow. Its task, its first task or each task of the group gets `args` before its own, and `kwargs`;
        `after`: it also gets the reply of what is before it; `immutable`: it gets none of them."""
        return self._linked(self._flow(args, kwargs, after, immutable))

    def _flow(self, args: Iterable[Any], kwargs: Mapping[str, Any], after: bool, immutable: bool) -> Flow[Any]:
        """It as a flow, without its own links."""
        if immutable := immutable or self.immutable:
            args, kwargs, after = (), {}, False
        if self.task is not None:
            link = self.step.link((*args, *self.args), {**self.kwargs, **kwargs}, first=not after)
            link.stage.alone = immutable
            return Flow(link.host, [link.stage], link.read, link.declared)
        if self.is_group:
            return gather(part.flow(args, kwargs, after, immutable) for part in self.parts)
        flow = self.parts[0].flow(args, kwargs, after, immutable)
        for before, part in pairwise(self.parts):
            if before.is_linked and not part.immutable:
                raise CallerError("a link is before another task", "that would get the linked task's reply", PAGE)
            if before.is_group:  # an errback of a chord's body is also for its header
                flow = part._linked(_chained(flow, part._flow((), {}, True, False)))
            else:
                flow = _chained(flow, part.flow(after=True))
        return flow

    def _linked(self, flow: Flow[Any]) -> Flow[Any]:
        """A flow with its links."""
        for link in _listed(self.options.get("link")):
            flow = _chained(flow, link.flow(after=True))
        for one in _listed(self.options.get("link_error")):
            if one.task is None or one.has_links:
                raise CallerError("an errback has links, or is a chain or a group", "it must be one task", PAGE)
            (stage,) = one.flow(after=True).stages
            flow = Flow(flow.host, flow.as_chain(flow.host), flow.read, flow.declared, stage)
        return flow

    @property
    def has_links(self) -> bool:
        """Whether it has itself a link or an errback."""
        return any(self.options.get(name) for name in LINKS)

    @property
    def is_linked(self) -> bool:
        """Whether its reply is that of a linked task."""
        last = self.parts if self.is_group else self.parts[-1:]
        return bool(self.options.get("link")) or any(part.is_linked for part in last)

    def apply_async(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] = {}, task_id: str | None = None, **options: Any
    ) -> AsyncResult:
        """Submit it; `args` and `kwargs` as of `flow`. `task_id` is its idempotency key. With a `link` it is the chain
        of both: the result is that of the linked task."""
        whole = copy(self)
        whole.options = options = {**self.options, **options}
        said: Any = options_of(**_without_links(options))
        key: Any = {} if task_id is None else {"key": self.app.key_of(task_id)}
        if self.task is None or whole.has_links:
            whole.options = {name: value for name, value in options.items() if name in OF_STEPS}
            ticket: Ticket[Any] = whole.flow(args, kwargs).submit(**said, **key)
        else:
            args, kwargs = ((), {}) if self.immutable else (args, kwargs)
            task = whole.step
            body, said = task._written((*args, *self.args), {**self.kwargs, **kwargs})
            ticket = task.ticket(self.app.client.submit(task.service, body, **{**said, **key}))
        return AsyncResult(task_id or ticket.uuid, self.app, ticket)

    def delay(self, /, *args: Any, **kwargs: Any) -> AsyncResult:
        """Submit it with these arguments before its own, unless it is immutable."""
        return self.apply_async(args, kwargs)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the task here; submit a chain or a group."""
        if self.task is None:
            return self.delay(*args, **kwargs)
        return self.task(*args, *self.args, **{**self.kwargs, **kwargs})

    def __or__(self, other: Signature) -> Signature:
        return chain(self, other)


def _listed(links: Any) -> list[Signature]:
    return [] if links is None else [links] if isinstance(links, Signature) else [*links]


def _without_links(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in LINKS}


def _chained(flow: Flow[Any], other: Flow[Any]) -> Flow[Any]:
    stages = [*flow.as_chain(other.host), *other.as_chain(other.host)]
    return Flow(other.host, stages, other.read, (*flow.declared, *other.declared))


def _joined(parts: Iterable[Any]) -> Signature:
    every = [*parts]
    if len(every) == 1 and not isinstance(every[0], Signature):
        every = [*every[0]]
    if not every:
        raise CallerError("a chain or a group has no tasks", "", "give it one")
    joined = Signature(every[0].app)
    joined.parts = every
    return joined


def chain(*parts: Any) -> Signature:
    """Tasks that follow each other: the reply of each is the first argument of the next."""
    joined = _joined(parts)
    for part in joined.parts[1:]:
        _ = part.step  # raises for a group
    return joined


def group(*parts: Any) -> Signature:
    """Tasks beside each other: the reply is the list of their replies."""
    joined = _joined(parts)
    joined.is_group = True
    return joined


def chord(header: Any, body: Signature | None = None) -> Any:
    """A group, and a task that gets the list of their replies: `chord(header)(body)` or `chord(header, body)()`."""
    together = header if isinstance(header, Signature) and header.is_group else group(header)
    return chain(together, body) if body is not None else lambda body: chain(together, body).delay()


class Task(CeleryNames):
    """A function that is a task, with Celery's methods. A bound one gets this as `self`."""

    def __init__(
        self,
        app: Celery,
        function: AnyFunction,
        name: str | None = None,
        bind: bool = False,
        autoretry_for: Sequence[type[Exception]] = (),
        retry_backoff: bool | float = False,
        retry_backoff_max: float = 600.0,
        retry_kwargs: Mapping[str, Any] = {},
        max_retries: int | None = 3,
        default_retry_delay: float = 180.0,
        throws: Sequence[type[Exception]] = (),
        **options: Any,
    ) -> None:
        functools.update_wrapper(self, function)
        module = app.name if function.__module__ == "__main__" else function.__module__
        self.app, self.name = app, name or f"{module}.{function.__name__}"
        self.max_retries: int | None = retry_kwargs.get("max_retries", max_retries)
        self.default_retry_delay: float = retry_kwargs.get("countdown", default_retry_delay)
        self._call = function.__get__(self) if bind else function
        attempts = MOST_ATTEMPTS if self.max_retries is None else self.max_retries + 1
        said: Any = {
            "retry_on": tuple(autoretry_for),
            "raises": (*throws, MaxRetriesExceededError),
            "max_attempts": attempts if autoretry_for else max(LEAST_ATTEMPTS, attempts),
            "retry_first": float(retry_backoff) or self.default_retry_delay or LEAST_DELAY,
            "retry_most": retry_backoff_max if retry_backoff else self.default_retry_delay or LEAST_DELAY,
            **options_of(**{**app.conf.of_tasks, **options}),
        }
        if (kept := app.conf.result_expires) and "keep" not in said:
            said |= {"keep": kept, "keep_failed": kept}
        self.submission: Submission[..., Any] = Tasks.task(app, service=self.name, **said)(self._call)
        app.tasks[self.name] = self

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    @property
    def request(self) -> Any:
        """The request that runs in this thread: its `id`, `retries`, and whether the task was `called_directly`."""
        found = current_or_none()
        return SimpleNamespace(
            id=found.uuid if found else None, retries=found.attempt - 1 if found else 0, called_directly=not found
        )

    def retry(
        self, exc: Exception | None = None, countdown: Span | None = None, max_retries: int | None = None
    ) -> Retry:
        """End this attempt; the next one begins after `countdown`. Raises Retry; after the last retry, and when called
        directly, `exc` or MaxRetriesExceededError."""
        most, request = self.max_retries if max_retries is None else max_retries, self.request
        if request.called_directly or (most is not None and request.retries >= most):
            raise exc or MaxRetriesExceededError(f"{self.name} was tried {request.retries + 1} times")
        if most is not None and request.retries + 1 >= self.submission.definition.options["max_attempts"]:
            fact = f"it was tried {request.retries + 1} times, and was declared with no more retries"
            raise CallerError(
                f"{self.name} has max_retries={most} in retry", fact, "set max_retries of its task"
            ) from exc
        raise Retry(repr(exc) if exc else "", after=self.default_retry_delay if countdown is None else countdown)

    def s(self, /, *args: Any, **kwargs: Any) -> Signature:
        """The task with arguments, for a chain or a group."""
        return Signature(self.app, self, *args, **kwargs)

    def si(self, /, *args: Any, **kwargs: Any) -> Signature:
        """The same, but in a chain it does not get the reply before it."""
        return self.s(*args, **kwargs).set(immutable=True)

    def signature(self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] = {}, **options: Any) -> Signature:
        """The task with arguments and options of `apply_async`."""
        return self.s(*args, **kwargs).set(**options)

    subtask = signature

    def delay(self, /, *args: Any, **kwargs: Any) -> AsyncResult:
        """Submit it with these arguments."""
        return self.s(*args, **kwargs).apply_async()

    def apply_async(self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] = {}, **options: Any) -> AsyncResult:
        """Submit it; the options are those of `options_of`, and `task_id`."""
        return self.s(*args, **kwargs).apply_async(**options)

    def delay_on_commit(self, /, *args: Any, **kwargs: Any) -> None:
        """Submit it when the transaction of Django's default database is committed."""
        from titanic.django.project import submit_on_commit

        submit_on_commit(self.submission, *args, **kwargs)


def crontab(
    minute: Any = "*", hour: Any = "*", day_of_week: Any = "*", day_of_month: Any = "*", month_of_year: Any = "*"
) -> str:
    """A cron expression. Days and months are numbers or three letters, as in mon-fri. If both `day_of_week` and
    `day_of_month` are set, either one suffices; in Celery both must match."""
    fields = (minute, hour, day_of_month, month_of_year, day_of_week)
    return " ".join(",".join(map(str, one)) if isinstance(one, (list, set, tuple)) else str(one) for one in fields)


class Conf(CeleryNames):
    """The settings of an app, by Celery's names. Raises CallerError for others, and for those that tasks were declared
    without."""

    def __init__(self, app: Celery) -> None:
        vars(self).update({"_app": app, **CONF})

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in CONF:
            raise CallerError(f"there is no setting {name} here", "", PAGE)
        if name in FIXED and self._app.tasks:
            fact = f"{next(iter(self._app.tasks))} was declared without it"
            raise CallerError(f"{name} is set too late", fact, "set it above the tasks")
        if name.endswith(("_serializer", "accept_content")) and any(one != "json" for one in _texts(value)):
            raise CallerError(f"{name} is {value!r}", "arguments and replies are JSON, never pickle", PAGE)
        if name == "broker_url":
            self._app.endpoint = _titanic(value)
        if name in ("include", "imports"):
            self._app._include += value
        vars(self)[name] = value

    def update(self, *given: Mapping[str, Any], **settings: Any) -> None:
        """Set several."""
        for name, value in {**(given[0] if given else {}), **settings}.items():
            setattr(self, name, value)

    @property
    def of_tasks(self) -> dict[str, Any]:
        """The options that tasks have by default."""
        named = {"time_limit": self.task_time_limit, "soft_time_limit": self.task_soft_time_limit}
        named |= {"priority": self.task_default_priority, "ignore_result": self.task_ignore_result or None}
        return {name: value for name, value in named.items() if value is not None}


def _texts(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else [*value]


def _titanic(broker: str) -> str:
    if not re.match("(tcp|ipc)://", broker):
        advice = f"give the endpoint of titanic serve, as in {DEFAULT_ENDPOINT}"
        raise CallerError(f"broker is {broker}", "that is not a Titanic", advice)
    return broker


class Celery(Tasks, CeleryNames):
    """An app: `app = Celery("shop", broker="tcp://127.0.0.1:5555", include=["shop.tasks"])`. The broker is a Titanic,
    which keeps the results, too. `titanic worker shop.celery:app` runs the tasks."""

    latest: Celery | None = None
    """The one that was made last."""

    def __init__(
        self,
        main: str = "tasks",
        broker: str = DEFAULT_ENDPOINT,
        backend: str = "",
        include: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """`settings`: those of `conf`."""
        super().__init__(_titanic(broker), name=main)
        self._include = [*include]
        self._related: list[AnyFunction] = []
        self._job_handler: Any = None
        """What closes connections to databases around a task, in a project of Django."""
        self.tasks: dict[str, Task] = {}
        """By their names."""
        self.conf = Conf(self)
        self.on_after_configure = SimpleNamespace(connect=self._at_start)
        self.conf.update(settings)
        Celery.latest = self

    def config_from_object(self, source: Any, namespace: str = "") -> None:
        """Take settings from an object or a module, of which this may be the name: those whose names begin with
        NAMESPACE_, or all."""
        if isinstance(source, str):
            module, _, name = source.partition(":")
            source = getattr(import_module(module), name) if name else import_module(module)
        prefix = f"{namespace}_" if namespace else ""
        for name in dir(source):
            if name.startswith(prefix) and not name.startswith("_"):
                value = getattr(source, name)
                if namespace or not (callable(value) or isinstance(value, ModuleType)):
                    setattr(self.conf, name.removeprefix(prefix).lower(), value)

    def autodiscover_tasks(self, packages: Sequence[str] | None = None, related_name: str = "tasks") -> None:
        """Have workers import the module `tasks` of each of these packages; of Django's INSTALLED_APPS by default."""

        def discover() -> None:
            if packages is None:
                from django.utils.module_loading import autodiscover_modules

                from titanic.django.project import JobHandler, setup

                setup()
                autodiscover_modules(related_name)
                self._job_handler = JobHandler
            for name in packages or ():
                if find_spec(f"{name}.{related_name}") is not None:
                    import_module(f"{name}.{related_name}")

        self._related.append(discover)

    def _at_start(self, function: AnyFunction) -> AnyFunction:
        self._related.append(functools.partial(function, self))
        return function

    def add_periodic_task(
        self, schedule: Any, sig: Signature, args: Iterable[Any] = (), kwargs: Mapping[str, Any] = {}, name: str = ""
    ) -> None:
        """Submit a task at times: seconds, a timedelta, or a `crontab`."""
        if sig.task is None or sig.has_links:
            raise CallerError("only a task without links has a schedule", "", "write a task that submits the others")
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name or sig.task.name).strip("-.")
        when: Any = {"every": schedule}
        if isinstance(schedule, str):
            when = {"cron": schedule, "tz": self.conf.timezone or "UTC"}
        made = Schedule(name, sig.step.service, **when)
        self._schedules.append((made, sig.step, (*args, *sig.args), {**sig.kwargs, **kwargs}))

    def _discover(self) -> None:
        """Do what waits for the start of a worker or a scheduler."""
        for name in self._include:
            import_module(name)
        self._include = []
        while self._related:
            self._related.pop(0)()
        entries, self.conf.beat_schedule = self.conf.beat_schedule or {}, None
        for name, one in entries.items():
            if (task := self.tasks.get(one["task"])) is None:
                what = f"beat_schedule has the task {one['task']}"
                raise CallerError(what, "there is none of that name", "import its module")
            sig = task.signature(one.get("args", ()), one.get("kwargs", {}), **one.get("options", {}))
            self.add_periodic_task(one["schedule"], sig, name=name)

    def send_task(
        self, name: str, args: Iterable[Any] = (), kwargs: Mapping[str, Any] = {}, **options: Any
    ) -> AsyncResult:
        """Submit a task of this app by its name."""
        if name not in self.tasks:
            raise CallerError(f"there is no task {name} here", "its options are unknown", "import its module")
        return self.tasks[name].apply_async(args, kwargs, **options)

    def task(self, function: AnyFunction | None = None, /, **options: Any) -> Any:
        """Make a task of a function. The options are Celery's, as far as `Task` and `options_of` name them."""
        if function is None:
            return functools.partial(self.task, **options)
        return Task(self, function, **options)

    def _scheduled(self, args: tuple[Any, ...], schedule: Schedule, task: Any) -> Any:
        made = task if isinstance(task, Task) else self.task(task)
        super()._scheduled(args, schedule, made.submission)
        return made

    @property
    def handlers(self) -> dict[str, Handler]:
        """What a worker does for each service, as of `Tasks`."""
        self._discover()
        handlers = super().handlers
        if self._job_handler is not None:
            handlers = {name: self._job_handler(one, self.definitions.get(name)) for name, one in handlers.items()}
        return handlers

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules of its tasks, and of `beat_schedule`."""
        self._discover()
        return super().schedules

    def AsyncResult(self, task_id: str) -> AsyncResult:  # noqa: N802
        """The result of what was submitted before: by its UUID, or its `task_id`."""
        return AsyncResult(task_id, self)

    def key_of(self, task_id: str) -> str:
        """The idempotency key that stands for a `task_id`."""
        return f"celery:{self.name}:{task_id}"


def latest() -> Celery:
    """The app that was made last. Raises CallerError."""
    if Celery.latest is None:
        raise CallerError("there is no app", "none was made yet", "import the module of the app first")
    return Celery.latest


def shared_task(*args: Any, **options: Any) -> Any:
    """Make a task of a function for the app that was made last."""
    return latest().task(*args, **options)
