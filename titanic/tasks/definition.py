"""A task as its app knows it: how it is called, how its values travel, and what a worker does for a request."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

from broker import RemoteError
from titanic.errors import CallerError, RequestFailed
from titanic.jobs.context import current_or_none
from titanic.jobs.ending import Cancelled, Failed, Retry, Unready
from titanic.logs import event
from titanic.protocol.submit_options import SubmitOptions
from titanic.tasks.failures import InvalidArguments, UnknownArguments, as_raised, describe, unlike
from titanic.tasks.middleware import Call, Middleware
from titanic.tasks.options import TaskOptions, as_tuple, submit_options
from titanic.tasks.values import Serializer, Values
from titanic.workflows.plan import Place
from titanic.workflows.steps import Steps

log = logging.getLogger("titanic.tasks")


def no_task(function: Any, *, named: bool) -> str:
    """Why something cannot be a task; empty: it can. `named`: a service is given for it."""
    if isinstance(getattr(function, "definition", None), Definition):
        return "it is a task already"
    if not callable(function) or not isinstance(getattr(function, "__name__", None), str):
        return "it is no function with a name"
    if function.__name__ == "<lambda>" and not named:
        return "a lambda has no name, which the service would have"
    inside, _, _ = function.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(function).parameters), "")
    if inside and not inside.endswith("<locals>") and first in ("self", "cls"):
        return f"it is a method, whose '{first}' would have to travel"
    return ""


class Definition:
    """What `@app.task` was said of a function."""

    def __init__(
        self,
        service: str,
        function: Callable[..., Any],
        format: Serializer,
        middleware: Middleware,
        options: TaskOptions,
        steps: Steps | None = None,
    ) -> None:
        """`steps`: what is done around steps of flows; without it they fail."""
        self.service = service
        self.function = function
        self.name: str = function.__name__
        self.is_async = inspect.iscoroutinefunction(function)
        self.options = submit_options(options)
        self._format = format
        self._middleware = middleware
        self._steps = steps
        self._key = options.get("key")
        self._fatal = as_tuple(options.get("fatal", ()))
        self._retry_on = as_tuple(options["retry_on"]) if "retry_on" in options else None
        self._raises = as_tuple(options.get("raises", ()))
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

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The idempotency key that a call has by its arguments. Keys of a task are its own: its service stands before
        them."""
        if self._key is None:
            return None
        bound = inspect.signature(self.function).bind(*args, **kwargs)
        bound.apply_defaults()
        return self._named(self._key(*bound.args, **bound.kwargs))

    def said(self, options: SubmitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SubmitOptions:
        """The options of a call: with its key, and in a handler with the trace of the request there."""
        key = self._named(options["key"]) if "key" in options else self.key_of(args, kwargs)
        said = traced(options)
        return said if key is None else {**said, "key": key}

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
            self._log(f"its reply cannot travel: {error}", None)
            raise Failed(f"the reply of {self.name} cannot travel: {error}") from error
        if place is not None and self._steps is not None:
            self._steps.follow(place, reply)
        self._middleware.returned(call, value)
        return reply

    def _call(self, frames: list[bytes]) -> tuple[Call, Place | None]:
        """The call, and its place if it is a step of a flow."""
        if len(frames) != 1:
            raise Failed(f"a request for {self.service} has {len(frames)} frames; this version knows what one means")
        try:
            (args, kwargs), flow = self.values.read_step(frames[0])
        except UnknownArguments as error:
            self._log(str(error), None)
            raise Unready(str(error)) from error
        except InvalidArguments as error:
            self._log(str(error), None)
            raise Failed(str(error)) from error
        call = Call(self.service, self.name, args, kwargs)
        if not bytes(flow):
            return call, None
        if self._steps is None:
            raise Failed(f"a request for {self.service} is a step of a flow, which is not known here")
        return call, self._steps.read(flow)

    def _ended(self, call: Call, error: Exception) -> RemoteError:
        """The error reply for what the task has raised."""
        if isinstance(error, (Retry, Cancelled)):
            return cast(RemoteError, error)
        if isinstance(error, ImportError) and not isinstance(error, self._declared):
            text, detail = describe(error)
            self._log(text, error)
            return Unready(text, *detail)
        self._middleware.failed(call, error)
        if isinstance(error, Failed):
            return cast(RemoteError, error)
        text, detail = describe(error, attributes=isinstance(error, self._raises))
        self._log(text, None if isinstance(error, self._declared) else error)
        if isinstance(error, self._declared) and type(error) not in self._warned and (why := unlike(error, detail)):
            self._warned.add(type(error))
            what = (
                "clients of %s cannot make %s again of its arguments (%s); have its __init__ pass all that it takes on"
            )
            log.warning(what, self.service, type(error).__name__, why)
        fatal = isinstance(error, self._fatal)
        if self._retry_on is not None and not isinstance(error, self._retry_on):
            fatal = True
        return Failed(text, *detail) if fatal else RemoteError(500, text, detail)

    def _log(self, text: str, error: Exception | None) -> None:
        """`error`: one that nobody expected, whose traceback is to be seen."""
        uuid, where = "", "not of a queue"
        if (request := current_or_none()) and len(request.uuid) == 32:
            uuid, where = request.uuid, f"{request.uuid}, attempt {request.attempt} of {request.attempts}"
        extra = event("task-failed", uuid=bytes.fromhex(uuid), service=self.service.encode())
        log.warning("%s failed (%s): %s", self.service, where, text, extra=extra, exc_info=error)


def _await(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What an `async def` task returns; its own import, for those who have none."""
    from titanic.tasks.event_loop import EVENT_LOOP

    return EVENT_LOOP.run(coroutine)


def traced(options: SubmitOptions) -> SubmitOptions:
    """Options with the trace of the request that is being handled here, if they have none."""
    request = current_or_none()
    trace = request.trace if request is not None else ""
    return {**options, "trace": trace} if trace and "trace" not in options else options
