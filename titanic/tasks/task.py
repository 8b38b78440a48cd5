"""A task as those see it who call it: typed as the function that it was made of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack

from titanic.protocol.submit_options import SubmitOptions
from titanic.schedules import Schedule
from titanic.tasks.aio_ticket import AioTicket, AioTickets
from titanic.tasks.definition import Definition, traced
from titanic.tasks.flow import Flow, FlowApp, Link, stage_options
from titanic.tasks.ticket import Ticket, Tickets
from titanic.workflows.plan import Stage

P = ParamSpec("P")
Rest = ParamSpec("Rest")
R = TypeVar("R", covariant=True)
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
        return Submission(self.definition, self._queues, {**self._options, **options})

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Have the task executed; the ticket is there once the request is on disk.

        Raises InvalidArguments when the arguments do not fit the signature, and as `Client.submit`.
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
        """Submit the task once for each item, its first argument; the other arguments are those of all.

        Nothing is submitted before all of them are known to fit. Then many travel in each message: of those in a
        message all are accepted, or none.
        """
        task, queues = self.definition, self._queues
        frames, keys, options = self._written_each(items, args, kwargs)
        return Tickets(task, queues, queues.client.submit_many(task.service, frames, keys=keys, **options))

    @property
    def aio(self) -> AioSubmission[P, R]:
        """The same in asyncio: `ticket = await resize.aio.submit("a.png")`, `await ticket.reply()`."""
        return AioSubmission(self)

    def _written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, SubmitOptions]:
        """The body of a call, and its options."""
        task = self.definition
        return task.values.write(args, kwargs), task.said(self._options, args, kwargs)

    def _written_each(
        self, items: Iterable[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[bytes], list[str] | None, SubmitOptions]:
        """The bodies of calls, their keys, if they have some, and their options."""
        task = self.definition
        calls = [(item, *args) for item in items]
        frames = [task.values.write(call, kwargs) for call in calls]
        options, keys = traced(self._options), None
        if "key" not in options:
            found = [task.key_of(call, kwargs) for call in calls]
            keys = [key for key in found if key is not None] or None
        return frames, keys, options

    def scheduled(self, schedule: Schedule, args: tuple[Any, ...]) -> Schedule:
        """A schedule that submits the task with these arguments. Its ticks have keys of their own."""
        options: Any = {name: value for name, value in self._options.items() if name not in ("key", "key_for")}
        return replace(schedule, body=self.definition.values.write(args, {}), options=options)

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Flow[R]:
        """The task with these arguments as a flow, to which others can be added: `resize.step("a.png").then(publish)`.

        Raises InvalidArguments when they do not fit the signature.
        """
        link = self.link(args, kwargs, first=True)
        return Flow(link.host, [link.stage], link.read, link.declared)

    def link(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, first: bool) -> Link:
        """For flows: the task as a step, the first one or one that has the reply before it as its first argument."""
        task = self.definition
        given = task.values.step(args, kwargs, first=first)
        stage = Stage(task.service, given.args, given.kwargs, stage_options(self._options))
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
        frames, keys, options = self._task._written_each(items, args, kwargs)
        uuids = await queues.aio_client.submit_many(definition.service, frames, keys=keys, **options)
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
    """An `async def` function that is a task: called, it is awaited as ever; a worker awaits it."""

    def __init__(self, function: Callable[P, Coroutine[Any, Any, R]], definition: Definition, queues: FlowApp) -> None:
        super().__init__(definition, queues, definition.options)
        functools.update_wrapper(self, function)
        self._function = function

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._function(*args, **kwargs)
