"""A task: its options and middleware, what a worker does with a request for it (`Definition`), and what callers use,
typed as the function it was made from (`Task`, `AsyncTask`)."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Unpack, cast, get_args
from uuid import uuid4

from broker import RemoteError
from titanic import telemetry
from titanic.client.batching import KEY_PREFIX
from titanic.errors import CallerError, InvalidRequest, RequestFailed
from titanic.jobs.context import Cancelled, Failed, Retry, Unready, current_or_none
from titanic.logs import event
from titanic.protocol.submit_options import ManyOptions, SharedOptions, SubmitOptions, encode
from titanic.schedules import Schedule
from titanic.tasks.flow import Flow, FlowApp, Link, stage_options
from titanic.tasks.flow_worker import FlowPlace, FlowStage, Steps
from titanic.tasks.task_errors import InvalidArguments, UnknownArguments, as_raised, describe, unlike
from titanic.tasks.ticket import AioTicket, AioTickets, Ticket, Tickets
from titanic.tasks.values import Serializer, Values
from titanic.util.text import duration

Errors = type[Exception] | tuple[type[Exception], ...]


OnLimit = Literal["kill", "cancel", "leave"]
"""What happens to a task that exceeds its limit and goes on."""


MakeKey = Callable[..., str | None]
"""Makes a key of the arguments of a call; None: it has none."""


class TaskOptions(SharedOptions, total=False):
    """The options of `Tasks.task`, which explains them."""

    service: str
    key: MakeKey
    unique: MakeKey
    retry_on: Errors
    fatal: Errors
    raises: Errors
    jobs: int
    on_limit: OnLimit


_OF_TASKS = TaskOptions.__annotations__.keys() - SharedOptions.__annotations__.keys()
"""Those that a submission does not have, or that mean something else there."""


_OF_SUBMISSIONS = ManyOptions.__annotations__.keys() | SubmitOptions.__annotations__.keys()
"""Those of submissions. (Compiled, a TypedDict does not have those that it inherits.)"""


def check_options(function: AnyFunction, options: TaskOptions) -> None:
    """Raise CallerError for an option that neither tasks nor submissions have, and for a value that no server takes."""
    code = getattr(function, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}: " if code is not None else ""
    if unknown := options.keys() - TaskOptions.__annotations__.keys() - _OF_SUBMISSIONS:
        name = min(unknown)
        advice = f"there are {', '.join(sorted(TaskOptions.__annotations__))}"
        if name in ("cron", "every"):
            advice = f"write @app.{name}(…) above @app.task"
        raise CallerError(f"{where}task {function.__name__} has {name}", "there is no such option", advice)
    if said := submit_options(options):
        from titanic.protocol.messages import Submit, read  # the client does without

        unique = {"unique": "-"} if options.get("unique") else {}
        try:
            read(Submit, encode({**said, **unique}).encode())
        except (ValueError, InvalidRequest) as error:
            raise CallerError(f"{where}task {function.__name__}", str(error)) from None


def submit_options(options: TaskOptions) -> SubmitOptions:
    """Those of them that each submission has."""
    said: dict[str, Any] = {name: value for name, value in options.items() if name not in _OF_TASKS}
    if options.get("on_limit") == "leave":
        said["on_limit"] = "leave"
    return cast(SubmitOptions, said)


def as_tuple(errors: Errors) -> tuple[type[Exception], ...]:
    """One class or several, as `isinstance` takes them."""
    return errors if isinstance(errors, tuple) else (errors,)


OF_ONE = ("key", "key_for")
"""Options by which requests are found again, of which ticks of schedules have their own."""

KEEP_NOTHING = 3600.0
"""Seconds that the reply of a task is kept that returns None and has no `keep`."""


@dataclass(slots=True, frozen=True)
class Call:
    """A call of a task in a worker. `titanic.current()` is the request."""

    service: str
    name: str
    """The function's name."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


AnyFunction = Callable[..., Any]
Before = Callable[[Call], object]
After = Callable[[Call, Any], object]
OnError = Callable[[Call, BaseException], object]

AnyBefore = TypeVar("AnyBefore", bound=Before)
AnyAfter = TypeVar("AnyAfter", bound=After)
AnyOnError = TypeVar("AnyOnError", bound=OnError)


class Middleware:
    """They are called in the thread, or on the event loop, of the task."""

    def __init__(self) -> None:
        self.before: list[Before] = []
        self.after: list[After] = []
        self.error: list[OnError] = []
        self.on_failed = ""
        """The service that gets a request for each one of a task that has failed for good; empty: none."""

    def begins(self, call: Call) -> None:
        """Before the task. What one of them raises, the attempt ends with."""
        for function in self.before:
            function(call)

    def returned(self, call: Call, value: object) -> None:
        """The task is done: what they raise changes nothing, and is logged."""
        for function in reversed(self.after):
            try:
                function(call, value)
            except Exception:
                log.exception("an @app.after function failed, for %s", call.service)

    def failed(self, call: Call, error: BaseException) -> None:
        """The attempt has failed: what they raise changes nothing, and is logged."""
        for function in reversed(self.error):
            try:
                function(call, error)
            except Exception:
                log.exception("an @app.error function failed, for %s", call.service)


log = logging.getLogger("titanic.tasks")


def no_task(function: Any, *, named: bool) -> str:
    """Why something cannot be a task; empty: it can. `named`: a service is given for it."""
    if isinstance(getattr(function, "definition", None), Definition):
        return "it is already a task; @app.cron and @app.every stand above @app.task"
    if not callable(function) or not isinstance(getattr(function, "__name__", None), str):
        return "it is not a named function"
    if function.__name__ == "<lambda>" and not named:
        return "a lambda has no name for the service"
    inside, _, _ = function.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(function).parameters), "")
    if inside and not inside.endswith("<locals>") and first in ("self", "cls"):
        return f"it is a method, and its '{first}' cannot be sent"
    return ""


class Definition:
    """What `@app.task` was said of a function."""

    def __init__(
        self,
        service: str,
        function: AnyFunction,
        format: Serializer,
        middleware: Middleware,
        options: TaskOptions,
        steps: Steps | None = None,
    ) -> None:
        """`steps`: what is done around steps of flows; without it they fail."""
        check_options(function, options)
        self.service = service
        self.function = function
        self.name: str = function.__name__
        self.is_async = inspect.iscoroutinefunction(function)
        self.options = submit_options(options)
        if function.__annotations__.get("return", Ellipsis) in (None, "None"):
            self.options.setdefault("keep", KEEP_NOTHING)
        self._format = format
        self._middleware = middleware
        self._steps = steps
        self._key, self._unique = options.get("key"), options.get("unique")
        self._fatal = as_tuple(options.get("fatal", ()))
        self._retry_on = as_tuple(options["retry_on"]) if "retry_on" in options else None
        self._raises = as_tuple(options.get("raises", ()))
        self.jobs = options.get("jobs")
        """Requests at a time in a worker; None: as many as that has jobs."""
        if self.jobs is not None and self.jobs < 1:
            raise CallerError(f"task {self.name} has jobs={self.jobs}", "it would never run", "give 1 or more")
        self.on_limit: OnLimit = options.get("on_limit", "kill")
        """What happens to it at its limit."""
        if self.on_limit not in get_args(OnLimit):
            fact = f"there are {', '.join(get_args(OnLimit))}"
            raise CallerError(f"task {self.name} has on_limit={self.on_limit!r}", fact, "give one of them")
        self._declared = (*self._raises, *self._fatal, *(self._retry_on or ()))
        self._warned: set[type[Exception]] = set()
        """Classes of exceptions that clients cannot make again."""
        self._values: Values | None = None
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            what, fact = f"{self.name} cannot be a task", "it is a generator, and a task has one reply"
            raise CallerError(what, fact, "return a list, or make it an @app.service")
        with suppress(NameError):  # it may be defined below the task
            self._values = Values(self.name, function, format)

    @property
    def values(self) -> Values:
        """How its arguments and its reply travel. Raises CallerError for annotations of which that is unknown."""
        if self._values is None:
            self._values = Values(self.name, self.function, self._format)
        return self._values

    def check(self) -> None:
        """Raise CallerError for annotations that are not understood."""
        try:
            self._values = self.values
        except NameError as error:
            raise CallerError(f"{self.name}: an annotation cannot be read", str(error), "define it") from None

    # -- for a client ----------------------------------------------------------------------------------------

    def given(self, options: SubmitOptions) -> SubmitOptions:
        """Options of a call, with the service to notify of a failure."""
        target = self._middleware.on_failed
        return {**options, "on_failed": target} if target and "on_failed" not in options else options

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The idempotency key that a call has by its arguments. Keys of a task are its own: its service stands before
        them."""
        made = None if self._key is None else self._made(self._key, args, kwargs)
        return None if made is None else self._named(made)

    def _made(self, make: MakeKey, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        bound = inspect.signature(self.function).bind(*args, **kwargs)
        bound.apply_defaults()
        return make(*bound.args, **bound.kwargs)

    def said(self, options: SubmitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SubmitOptions:
        """The options of a call: with its keys, and in a handler with the trace of the request there."""
        key = self._named(options["key"]) if "key" in options else self.key_of(args, kwargs)
        said: SubmitOptions = {**traced(options)}
        if key is not None:
            said["key"] = key
        if (unique := self.unique_of(options, args, kwargs)) is not None:
            said["unique"] = unique
        return said

    def unique_of(self, options: SubmitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The unique key of a call, by its options or its arguments."""
        if "unique" in options:
            return options["unique"]
        return None if self._unique is None else self._made(self._unique, args, kwargs)

    def _named(self, key: str) -> str:
        return f"{self.service}:{key}"

    @property
    def declared(self) -> tuple[type[Exception], ...]:
        """Exceptions that a client raises again."""
        return self._declared

    def failure(self, failed: RequestFailed) -> Exception:
        """What a client raises for a request of this task that has failed."""
        return as_raised(failed, self._declared)

    def read_reply(self, frames: list[bytes]) -> Any:
        """What the task has returned. Raises InvalidReply."""
        return self.values.read_reply(frames)

    # -- for a worker ----------------------------------------------------------------------------------------

    def handle(self, frames: list[bytes]) -> bytes:
        """The handler of its worker: the reply to a request. Raises RemoteError."""
        call, place = self._call(frames)
        if place is not None and self._steps is not None:
            self._steps.begin(place)
        try:
            self._middleware.begins(call)
            value = self.function(*call.args, **call.kwargs)
            if self.is_async:
                value = _await(value)
        except Exception as error:
            raise self._ended(call, error) from error
        try:
            reply = self.values.write_reply(value)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            self._log(f"its reply cannot be sent: {error}", NOT_AGAIN)
            raise Failed(f"the reply of {self.name} cannot be sent: {error}") from error
        if place is not None and self._steps is not None:
            self._steps.follow(place, reply)
        self._middleware.returned(call, value)
        return reply

    def _call(self, frames: list[bytes]) -> tuple[Call, FlowPlace | None]:
        """The call, and its place if it is a step of a flow."""
        if len(frames) != 1:
            raise Failed(f"a request for {self.service} has {len(frames)} frames; this version accepts one")
        try:
            (args, kwargs), flow = self.values.read_step(frames[0])
        except UnknownArguments as error:
            self._log(str(error), GIVEN_BACK)
            raise Unready(str(error)) from error
        except InvalidArguments as error:
            self._log(str(error), NOT_AGAIN)
            raise Failed(str(error)) from error
        call = Call(self.service, self.name, args, kwargs)
        if not bytes(flow):
            return call, None
        if self._steps is None:
            raise Failed(f"a request for {self.service} is a step of a flow, which this app cannot run")
        return call, self._steps.read(flow)

    def _ended(self, call: Call, error: Exception) -> RemoteError:
        """The error reply for what the task has raised."""
        if isinstance(error, (Retry, Cancelled)):
            return cast(RemoteError, error)
        if isinstance(error, ImportError) and not isinstance(error, self._declared):
            text, detail = describe(error)
            self._log(text, GIVEN_BACK, error)
            return Unready(text, *detail)
        self._middleware.failed(call, error)
        if isinstance(error, Failed):
            self._log(error.text, NOT_AGAIN)
            return cast(RemoteError, error)
        text, detail = describe(error, attributes=isinstance(error, self._raises))
        fatal = isinstance(error, self._fatal)
        if self._retry_on is not None and not isinstance(error, self._retry_on):
            fatal = True
        self._log(text, NOT_AGAIN if fatal else _next_attempt(), None if isinstance(error, self._declared) else error)
        if isinstance(error, self._declared) and type(error) not in self._warned and (why := unlike(error, detail)):
            self._warned.add(type(error))
            what = "clients of %s cannot recreate %s from its arguments (%s); its __init__ must pass on all of them"
            log.warning(what, self.service, type(error).__name__, why)
        return Failed(text, *detail) if fatal else RemoteError(500, text, detail)

    def _log(self, text: str, follows: str, error: Exception | None = None) -> None:
        """`follows`: what the queue does next. `error`: an unexpected one, to be logged with its traceback."""
        uuid, where, follows = "", "not of a queue", f"; {follows}" if follows else ""
        if (request := current_or_none()) and len(request.uuid) == 32:
            uuid, where = request.uuid, f"{request.uuid}, attempt {request.attempt} of {request.attempts}"
        extra = event("task-failed", uuid=bytes.fromhex(uuid), service=self.service.encode())
        log.warning("%s failed (%s): %s%s", self.service, where, text, follows, extra=extra, exc_info=error)


NOT_AGAIN = "not tried again"
GIVEN_BACK = "given back, for a worker of another version"


def _next_attempt() -> str:
    """What the queue does about the request that is being handled here if its attempt fails; empty: unknown."""
    request = current_or_none()
    if not request:
        return ""
    if request.attempt >= request.attempts:
        return "that was the last attempt"
    pause = "" if request.retry_in is None else f" in {duration(request.retry_in)}"  # other servers do not say it
    return f"tried again{pause} ({request.attempt + 1} of {request.attempts})"


def _await(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What an `async def` task returns; imported here, as plain tasks do not need it."""
    from titanic.tasks.event_loops import EVENT_LOOP

    return EVENT_LOOP.run(coroutine)


def traced(options: SubmitOptions) -> SubmitOptions:
    """Options with the trace of the request that is being handled here, if they have none."""
    request = current_or_none()
    # What is recorded has the span which submits it as its trace.
    if request is None or telemetry.on is not None or "trace" in options:
        return options
    return {**options, **request.traced}  # type: ignore[typeddict-item]


P = ParamSpec("P")
Rest = ParamSpec("Rest")
R = TypeVar("R", covariant=True)
AsyncFunction = Callable[P, Coroutine[Any, Any, R]]
First = TypeVar("First")
Returned = TypeVar("Returned")


class Submission(Generic[P, R]):
    """A task with options for its calls."""

    def __init__(self, definition: Definition, queues: FlowApp, options: SubmitOptions) -> None:
        self.definition = definition
        self._queues = queues
        self._options = options

    @property
    def service(self) -> str:
        """The service that the requests of this task are for."""
        return self.definition.service

    def options(self, **options: Unpack[SubmitOptions]) -> Submission[P, R]:
        """The same task with other options, those of `Client.submit`, for some calls:
        `resize.options(delay=5, priority=9).submit("a.png")`."""
        earlier: Any = {**self._options}
        if "at" in options or "delay" in options:  # one time replaces another
            earlier.pop("at", None)
            earlier.pop("delay", None)
        return Submission(self.definition, self._queues, {**earlier, **options})

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Submit a call of the task; return its ticket once the request is on disk.

        Raises InvalidArguments if the arguments do not match the signature, and as `Client.submit`.
        """
        task, queues = self.definition, self._queues
        frame, options = self._written(args, kwargs)
        return Ticket(task, queues, queues.client.submit(task.service, frame, **options))

    def map(
        self: Submission[Concatenate[First, Rest], Returned],
        items: Iterable[First],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Tickets[Returned]:
        """Submit the task once for each item, its first argument; the other arguments are the same for all.

        All arguments are checked before anything is submitted. A message has many requests, and is accepted as a whole
        or not at all; a unique one has a message of its own.
        """
        task, queues = self.definition, self._queues
        return Tickets(task, queues, queues.client.submit_many(task.service, **self._written_each(items, args, kwargs)))

    @property
    def aio(self) -> AioSubmission[P, R]:
        """The same in asyncio: `ticket = await resize.aio.submit("a.png")`, `await ticket.reply()`."""
        return AioSubmission(self)

    def _written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, SubmitOptions]:
        """The body of a call, and its options."""
        task = self.definition
        return task.values.write(args, kwargs), task.said(task.given(self._options), args, kwargs)

    def _written_each(self, items: Iterable[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What `submit_many` takes for calls: their bodies, their keys, if they have some, and their options."""
        task = self.definition
        calls = [(item, *args) for item in items]
        options: Any = {**traced(task.given(self._options))}
        uniques = [task.unique_of(options, call, kwargs) for call in calls]
        if "key" not in options:
            found = [task.key_of(call, kwargs) for call in calls]
            if any(key is not None for key in found):  # in a message with keys all have one
                options["keys"] = [f"{KEY_PREFIX}{uuid4().hex}" if key is None else key for key in found]
        if any(unique is not None for unique in uniques):
            options["uniques"] = uniques
        options.pop("unique", None)
        return {"bodies": [task.values.write(call, kwargs) for call in calls], **options}

    def scheduled(self, schedule: Schedule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Schedule:
        """A schedule that submits the task with these arguments. Its ticks have keys of their own."""
        given = self.definition.given(self._options)
        options: Any = {name: value for name, value in given.items() if name not in OF_ONE}
        if (unique := self.definition.unique_of(given, args, kwargs)) is not None:
            options["unique"] = unique
        return replace(schedule, body=self.definition.values.write(args, kwargs), options=options)

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Flow[R]:
        """Make a flow of the task with these arguments, to which others can be added:
        `resize.step("a.png").then(publish)`.

        Raises InvalidArguments if they do not match the signature.
        """
        link = self.link(args, kwargs, first=True)
        return Flow(link.host, [link.stage], link.read, link.declared)

    def link(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, first: bool) -> Link:
        """For flows: the task as a step, the first one or one that has the reply before it as its first argument."""
        task = self.definition
        given = task.values.step(args, kwargs, first=first)
        stage = FlowStage(task.service, given.args, given.kwargs, stage_options(task.given(self._options)))
        return Link(self._queues.flows, stage, task.read_reply, task.declared)

    def ticket(self, uuid: str) -> Ticket[R]:
        """A ticket for what was submitted before, perhaps by another process."""
        return Ticket(self.definition, self._queues, uuid)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.service}>"


class AioSubmission(Generic[P, R]):
    """A task as coroutines submit it: each method does what that of the task does, and what takes time is awaited."""

    def __init__(self, task: Submission[P, R]) -> None:
        self._task = task

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> AioTicket[R]:
        """As `Submission.submit`."""
        queues, definition = self._task._queues, self._task.definition
        frame, options = self._task._written(args, kwargs)
        return AioTicket(definition, queues, await queues.aio_client.submit(definition.service, frame, **options))

    async def map(
        self: AioSubmission[Concatenate[First, Rest], Returned],
        items: Iterable[First],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> AioTickets[Returned]:
        """As `Submission.map`."""
        queues, definition = self._task._queues, self._task.definition
        each = self._task._written_each(items, args, kwargs)
        uuids = await queues.aio_client.submit_many(definition.service, **each)
        return AioTickets(definition, queues, uuids)

    def ticket(self, uuid: str) -> AioTicket[R]:
        """A ticket for what was submitted before, perhaps by another process."""
        return AioTicket(self._task.definition, self._task._queues, uuid)

    def __repr__(self) -> str:
        return f"<AioSubmission {self._task.service}>"


class Task(Submission[P, R]):
    """A function that is a task: called, it is the function; submitted, it is executed by a worker."""

    def __init__(self, function: Callable[P, R], definition: Definition, queues: FlowApp) -> None:
        super().__init__(definition, queues, definition.options)
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)


class AsyncTask(Submission[P, R]):
    """An `async def` function that is a task: called, it is awaited as usual; a worker awaits it."""

    def __init__(self, function: AsyncFunction[P, R], definition: Definition, queues: FlowApp) -> None:
        super().__init__(definition, queues, definition.options)
        functools.update_wrapper(self, function)
        self._function = function

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._function(*args, **kwargs)
