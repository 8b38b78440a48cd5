"""Flows: tasks that follow each other, and groups of them.

flow = resize.step("a.png").then(publish, quality=80)
album = gather(thumb.step(name) for name in names).then(make_album)
ticket = flow.submit()
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, Unpack

import msgspec
from msgspec import structs

from titanic.client.flows import sweep
from titanic.client.request_queue import AppQueues
from titanic.errors import CallerError, RequestFailed
from titanic.protocol.submit_options import SubmitOptions, encode
from titanic.tasks.flow_worker import FlowPlan, FlowStage, PlanFormat
from titanic.tasks.task_errors import InvalidReply, as_raised
from titanic.tasks.ticket import AioTicket, Ticket
from titanic.tasks.values import Serializer

P = ParamSpec("P")
Rest = ParamSpec("Rest")
R = TypeVar("R", covariant=True)
Before = TypeVar("Before")
Item = TypeVar("Item")
Next = TypeVar("Next")

ReadReply = Callable[[list[bytes]], Any]


class FlowApp(AppQueues, Protocol):
    """An app, as its tasks see it."""

    @property
    def flows(self) -> FlowHost:
        """What its flows have in common."""


class FlowHost(NamedTuple):
    """What the flows of an app have in common."""

    service: str
    format: Serializer
    queues: AppQueues


class Link(NamedTuple):
    """A task with arguments, as a part of a flow: how its reply is read, and what it may raise."""

    host: FlowHost
    stage: FlowStage
    read: ReadReply
    declared: tuple[type[Exception], ...]


class Linkable(Protocol[P, R]):
    """A task, perhaps with options."""

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Flow[R]:
        """The task with its arguments, as the first step of a flow."""

    def link(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, first: bool) -> Link:
        """The task with arguments; those behind the reply before it, if it is not the first."""


class FlowReplies(NamedTuple):
    """What replies of a flow mean."""

    service: str
    read_reply: ReadReply
    declared: tuple[type[Exception], ...]

    def failure(self, failed: RequestFailed) -> Exception:
        """What is raised for a flow that has failed."""
        return as_raised(failed, self.declared)


class FlowTicket(Ticket[R]):
    """A submitted flow. Its reply is that of the last step."""

    __slots__ = ("_flows",)

    def __init__(self, replies: FlowReplies, queues: AppQueues, uuid: str) -> None:
        super().__init__(replies, queues, uuid)
        self._flows = queues

    def close(self) -> None:
        """Delete the flow and its reply: waiting steps are cancelled, the workers of running ones are notified."""
        client = self._flows.client
        client.close(self.uuid)
        sweep(client, self.uuid)

    def __repr__(self) -> str:
        return f"<FlowTicket {self.uuid} of {self.task.service}>"


class Flow(Generic[R]):
    """Tasks in sequence. It does not change: each method returns a new flow."""

    def __init__(
        self,
        host: FlowHost | None,
        stages: Sequence[FlowStage],
        read: ReadReply,
        declared: tuple[type[Exception], ...],
        on_error: FlowStage | None = None,
    ) -> None:
        """`host`: None: it is a gather without flows; its reply is []."""
        self._host = host
        self.stages = [*stages]
        self.read = read
        self.declared = declared
        self._on_error = on_error

    @property
    def host(self) -> FlowHost:
        """What the flows of its app have in common. Raises CallerError if it has no task that would name one."""
        if self._host is None:
            raise CallerError("gather has no flows", "its reply is [], and it has no app", "append a task")
        return self._host

    def then(
        self: Flow[Before], task: Linkable[Concatenate[Before, Rest], Next], *args: Rest.args, **kwargs: Rest.kwargs
    ) -> Flow[Next]:
        """Add a task to the flow. Its first argument is the flow's reply; the others are given here.

        Raises InvalidArguments if they do not match.
        """
        if self._host is None:
            link = task.link(([], *args), kwargs, first=True)
        else:
            link = task.link(args, kwargs, first=False)
        return Flow(link.host, [*self.stages, link.stage], link.read, (*self.declared, *link.declared), self._on_error)

    def afterwards(self, task: Linkable[P, Next], *args: P.args, **kwargs: P.kwargs) -> Flow[Next]:
        """Add a task that does not get the flow's reply: all of its arguments are given here."""
        link = task.link(args, kwargs, first=True)
        stages, declared = [*self.stages, structs.replace(link.stage, alone=True)], (*self.declared, *link.declared)
        return Flow(link.host, stages, link.read, declared, self._on_error)

    def each(
        self: Flow[Sequence[Item]],
        task: Linkable[Concatenate[Item, Rest], Next],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Flow[list[Next]]:
        """Add a task for each item of the flow's reply, a list. The item is the first argument; the reply is the list
        of their replies, in the order of the items."""
        link = task.link(args, kwargs, first=False)
        if self._host is None:
            return Flow(None, [], self.read, (), self._on_error)
        host = self.host
        stage = PlanFormat(host.format).stage_of(host.service, FlowPlan(each=link.stage), {})
        read = _reads_list(host.format, [link.read])
        return Flow(host, [*self.stages, stage], read, (*self.declared, *link.declared), self._on_error)

    def on_error(self, task: Linkable[Concatenate[str, Rest], Any], *args: Rest.args, **kwargs: Rest.kwargs) -> Flow[R]:
        """Run a task once if the flow fails for good; its first argument is the reason."""
        stage = task.link(args, kwargs, first=False).stage
        return Flow(self._host, self.stages, self.read, self.declared, stage)

    def submit(self, **options: Unpack[SubmitOptions]) -> FlowTicket[R]:
        """Submit the flow; return its ticket once it is on disk. The options are those of `Client.submit`, and apply to
        the flow as a whole: with a `key` it is executed once, with a `ttl` it ends within that time or expires, without
        `on_error`."""
        return self.ticket(self.host.queues.client.submit(self.host.service, self.body(), **options))

    def ticket(self, uuid: str) -> FlowTicket[R]:
        """A ticket for what was submitted before, perhaps by another process."""
        return FlowTicket(self.replies, self.host.queues, uuid)

    @property
    def aio(self) -> AioFlow[R]:
        """The same in asyncio: `ticket = await flow.aio.submit()`, `await ticket.reply()`."""
        return AioFlow(self)

    @property
    def replies(self) -> FlowReplies:
        """What its replies mean."""
        return FlowReplies(self.host.service, self.read, self.declared)

    def body(self) -> bytes:
        """The body of a request for it."""
        stage = FlowStage(self.host.service, [], {"plan": PlanFormat(self.host.format).raw(self._plan())})
        return PlanFormat(self.host.format).body(stage, [], None)

    def _plan(self) -> FlowPlan:
        return FlowPlan([self.stages], single=True, on_error=self._on_error)

    def as_chain(self, host: FlowHost) -> list[FlowStage]:
        """Its stages, as a chain of another flow of this app."""
        if self._host is None:
            return [PlanFormat(host.format).stage_of(host.service, FlowPlan(), {})]
        if self._on_error is None:
            return self.stages
        return [PlanFormat(host.format).stage_of(host.service, self._plan(), {})]

    def __repr__(self) -> str:
        return f"<Flow {' → '.join(stage.service for stage in self.stages)}>"


class AioFlowTicket(AioTicket[R]):
    """As `FlowTicket`; what takes time is awaited."""

    __slots__ = ("_blocking",)

    def __init__(self, blocking: FlowTicket[R], queues: AppQueues) -> None:
        super().__init__(blocking.task, queues, blocking.uuid)
        self._blocking = blocking

    async def close(self) -> None:
        """As of `FlowTicket`."""
        from asyncio import to_thread  # only when used

        await to_thread(self._blocking.close)  # it is many questions, one after another


class AioFlow(Generic[R]):
    """A flow as coroutines submit it."""

    def __init__(self, flow: Flow[R]) -> None:
        self._flow = flow

    async def submit(self, **options: Unpack[SubmitOptions]) -> AioFlowTicket[R]:
        """As `Flow.submit`."""
        host = self._flow.host
        return self.ticket(await host.queues.aio_client.submit(host.service, self._flow.body(), **options))

    def ticket(self, uuid: str) -> AioFlowTicket[R]:
        """A ticket for what was submitted before, perhaps by another process."""
        return AioFlowTicket(self._flow.ticket(uuid), self._flow.host.queues)


def gather(flows: Iterable[Flow[Next]]) -> Flow[list[Next]]:
    """Run flows in parallel: the reply is the list of their replies, in order. It fails if one of them fails. Without
    flows the reply is []."""
    every = [*flows]
    if not every:
        return Flow(None, [], lambda _: [], ())
    host = next((flow._host for flow in every if flow._host is not None), None) or every[0].host
    stage = PlanFormat(host.format).stage_of(host.service, FlowPlan([flow.as_chain(host) for flow in every]), {})
    declared = tuple(dict.fromkeys(kind for flow in every for kind in flow.declared))
    return Flow(host, [stage], _reads_list(host.format, [flow.read for flow in every]), declared)


def stage_options(options: SubmitOptions) -> dict[str, Any]:
    """Options of a task as a step has them. Raises CallerError for those that a step cannot have."""
    for name in ("key", "unique"):
        if name in options:
            raise CallerError(f"a step of a flow has no {name} of its own", "", f"give {name} to Flow.submit")
    said: dict[str, Any] = json.loads(encode({**options}))
    for name in ("key_for", "unique_until", "unique_for", "keep", "keep_failed", "keep_body"):  # its flow needs it
        said.pop(name, None)
    return said


def any_reply(format: Serializer) -> ReadReply:
    """What reads replies of any type."""
    decode = format.decoder(Any)

    def read(frames: list[bytes]) -> Any:
        try:
            (frame,) = frames
            return decode(frame)
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidReply("the reply of the flow is not a value", str(error)) from None

    return read


def _reads_list(format: Serializer, reads: Sequence[ReadReply]) -> ReadReply:
    """What reads a list of replies; each by its own, or all by the same."""
    decode = format.decoder(list[msgspec.Raw])

    def read(frames: list[bytes]) -> list[Any]:
        try:
            (frame,) = frames
            values = decode(frame)
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidReply("the reply of the flow is not a list", str(error)) from None
        own = reads if len(reads) == len(values) else [reads[0]] * len(values)
        return [one([bytes(value)]) for one, value in zip(own, values, strict=True)]

    return read
