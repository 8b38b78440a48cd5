"""Flows as workers run them: what is stored of a flow, what follows a step, and the service that runs flows.

A flow consists of chains of stages. Its request holds the plan; each step carries its place and the stages that follow
in its chain. A group is a flow within a flow: a stage like any other, for the service of the app's flows. Bodies are in
the app's format:

    step    {"args": […], "kwargs": {…}, "flow": {"root", "parent", "at", "then": [stage, …]}}
    flow    {"args": [], "kwargs": {"plan": {"chains": [[stage, …], …], …}}}, with its own "flow" if it is a step
    stage   {"service", "args", "kwargs", "options"}; the previous reply is inserted before its args

A step submits its successor before it replies. If its worker dies in between, the step runs again and submits the
successor again with the same key, which has no effect. So every step that has a reply has a successor, unless its flow
had failed by then.

The flow's own request submits the first step of each chain, polls their progress, and replies with the last replies.
Between polls it occupies no worker: it is postponed, longer each time, which does not count as an attempt. No state is
kept between polls: the plan is in the body, and the keys find the steps. Any worker can poll next.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from titanic import telemetry
from titanic.client.flows import END, ERROR, KEY_FOR, place, sweep
from titanic.client.request_queue import AppQueues, RequestQueue
from titanic.errors import RequestError, RequestFailed, UnknownRequest
from titanic.jobs.context import Cancelled, Failed, Retry, current
from titanic.protocol.tsp import step_key
from titanic.tasks.values import Decode, Serializer


class FlowStage(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A call that is to be made."""

    service: str
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}
    options: dict[str, Any] = {}
    alone: bool = False
    """Whether it gets no reply of what is before it."""


class FlowPlace(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Where a step is: `at` this place of the flow `parent`, which may be within others; `root` is the outermost. What
    follows it."""

    root: str
    parent: str
    at: str
    then: list[FlowStage] = []

    @property
    def key(self) -> str:
        """The step's idempotency key."""
        return step_key(self.parent, self.at)

    @property
    def next(self) -> FlowPlace:
        """Where the next step is."""
        chain, _, stage = self.at.partition(".")
        return FlowPlace(self.root, self.parent, f"{chain}.{int(stage) + 1}", self.then[1:])


class FlowPlan(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What a flow is made of: `chains`; or the stage `each`, once for each item of the reply before it. `single`: there
    is one chain, whose reply is that of the flow; else the flow replies with a list."""

    chains: list[list[FlowStage]] = []
    each: FlowStage | None = None
    single: bool = False
    on_error: FlowStage | None = None


class FlowArguments(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Arguments of the service of flows. Without a plan: close what is left of the flow in `flow`."""

    plan: FlowPlan | None = None


class FlowBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The body of a request for the service of flows."""

    args: list[msgspec.Raw] = []
    kwargs: FlowArguments = msgspec.field(default_factory=FlowArguments)
    flow: FlowPlace | None = None


class StepBody(msgspec.Struct, omit_defaults=True):
    """The body of a step."""

    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}
    flow: FlowPlace | None = None


class PlanFormat:
    """Plans as bytes, and back. Raises MsgspecError for others."""

    def __init__(self, format: Serializer) -> None:
        self.encode = format.encode
        self.read_body: Decode[FlowBody] = format.decoder(FlowBody)
        self.read_place: Decode[FlowPlace] = format.decoder(FlowPlace)
        self.read_items: Decode[list[msgspec.Raw]] = format.decoder(list[msgspec.Raw])

    def raw(self, value: object) -> msgspec.Raw:
        """A value, to be put into a larger one."""
        return msgspec.Raw(self.encode(value))

    def stage_of(self, service: str, plan: FlowPlan, options: dict[str, Any]) -> FlowStage:
        """The stage that a flow within a flow is."""
        return FlowStage(service, [], {"plan": self.raw(plan)}, options)

    def body(self, stage: FlowStage, first: list[msgspec.Raw], place: FlowPlace | None) -> bytes:
        """The body of the request for a stage. `first`: the reply before it, if there is one."""
        return self.encode(StepBody([*([] if stage.alone else first), *stage.args], stage.kwargs, place))


GOES_ON = ("waiting", "delayed", "running", "failed")
"""States of a flow in which its steps are executed. `failed` is one of them, because the flow may be retried."""


class Steps:
    """The steps of an app's flows."""

    def __init__(self, queues: AppQueues, format: PlanFormat) -> None:
        self._queues = queues
        self.format = format

    @property
    def client(self) -> RequestQueue:
        """The app's queue."""
        return self._queues.client

    def read(self, frame: msgspec.Raw) -> FlowPlace:
        """Where a step is, as its body says. Raises Failed when that is no place."""
        try:
            return self.format.read_place(frame)
        except msgspec.MsgspecError as error:
            raise Failed(f"the next stages of this flow cannot be decoded: {error}") from None

    def begin(self, place: FlowPlace) -> None:
        """Check a step before it is executed. Raises Failed when it is not of the flow that it names: the permission to
        submit a task is none to have others executed. Raises Cancelled when the flow has ended."""
        self.check(place)
        telemetry.note_flow(place.root)
        if self.state(place.root) not in GOES_ON:
            sweep(self.client, place.root)
            raise Cancelled("its flow has ended")

    def check(self, place: FlowPlace) -> None:
        """Raise Failed unless this request was submitted as this step by a worker of the same user."""
        found, _ = self.client.find([place.key])
        if not current() or found.get(place.key) != current().uuid:
            raise Failed("this is not the flow step that it claims to be; submit flows with Flow.submit")

    def state(self, uuid: str) -> str:
        """The state of a request; empty when it is closed."""
        try:
            return self.client.show(uuid)["state"]
        except UnknownRequest:
            return ""

    def follow(self, place: FlowPlace, reply: bytes) -> None:
        """Submit what follows a step that returns `reply`. A flow that has failed does so itself when it is retried."""
        if place.then and "failed" not in map(self.state, {place.parent, place.root}):
            self.submit(place.then[0], [msgspec.Raw(reply)], place.next)

    def submit(self, stage: FlowStage, first: list[msgspec.Raw], place: FlowPlace) -> None:
        """Submit a stage as the step at this place, once however often it is done."""
        body = self.format.body(stage, first, place)
        self.client.submit(stage.service, body, **self.options(stage), key=place.key)

    def options(self, stage: FlowStage) -> Any:
        """With what a stage is submitted, but the key. Its flow needs it longer than others of its service are kept."""
        said = {**stage.options, **dict.fromkeys(("key_for", "keep", "keep_failed"), KEY_FOR)}
        if telemetry.on is None:  # else it has that of the span which submits it
            said |= current().traced
        return said


FIRST_PAUSE = 0.02
LONGEST_PAUSE = 60.0
GROWTH = 1.5
"""Growth of the seconds between two polls."""

MOST_KNOWN = 10_000
"""Flows with a remembered pause."""

AWAY = 1.0
"""Seconds until it is tried again when the queue takes nothing."""


class _Chain(NamedTuple):
    """How far a chain is: its last step that was submitted, and that one's state; stage -1: none was."""

    stages: list[FlowStage]
    stage: int
    uuid: str
    state: str

    @property
    def is_done(self) -> bool:
        return self.state == "done" and self.stage == len(self.stages) - 1


class FlowService:
    """The handler of the service of an app's flows."""

    def __init__(self, steps: Steps, service: str) -> None:
        self._steps = steps
        self._service = service
        self._pauses: OrderedDict[str, float] = OrderedDict()

    def handle(self, frames: list[bytes]) -> bytes:
        """The reply to a request. Raises Retry while the flow is not done, Failed when one of its steps has failed."""
        if not current():
            what = "a flow needs its UUID, which this broker does not pass to workers"
            raise Failed(f"{what}; use the integrated broker of titanic serve, or titanic broker")
        uuid = current().uuid
        body = self._read(frames)
        try:
            if body.kwargs.plan is None:
                return self._sweep(body)
            root = self._begin(uuid, body.flow)
            return self._look(uuid, root, body, _chains(body.kwargs.plan, body, self._steps))
        except (RequestFailed, UnknownRequest) as error:  # of a step that was closed between two questions
            raise Retry(str(error), after=FIRST_PAUSE, count=False) from error
        except RequestError as error:
            raise Retry(f"the flow cannot continue now: {error}", after=AWAY, count=False) from error

    def _read(self, frames: list[bytes]) -> FlowBody:
        try:
            (frame,) = frames
            return self._steps.format.read_body(frame)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Failed(f"this is not a flow: {error}; submit flows with Flow.submit") from None

    def _begin(self, uuid: str, place: FlowPlace | None) -> str:
        """The UUID of the outermost flow."""
        if place is not None:
            self._steps.begin(place)
            return place.root
        if not self._steps.state(uuid):
            advice = 'give it read = "all", or have the same user submit flows and work for them'
            raise Failed(f"the user of this worker may not see the flow {uuid}; {advice}")
        telemetry.note_flow(uuid)
        return uuid

    # -- a poll ----------------------------------------------------------------------------------------------

    def _look(self, uuid: str, root: str, body: FlowBody, chains: list[list[FlowStage]]) -> bytes:
        plan, found = body.kwargs.plan or FlowPlan(), self._find(uuid, chains)
        for chain in found:
            if chain.stage >= 0 and chain.state in ("failed", "expired", ""):
                raise self._failure(uuid, root, plan, chain)
        first = body.args if plan.each is None else []
        self._submit_heads(uuid, root, first, found)
        self._go_on(uuid, root, found)
        if not all(chain.is_done for chain in found):
            raise Retry("its steps are not done", after=self._pause(uuid), count=False)
        self._pauses.pop(uuid, None)
        reply = self._reply(plan, found)
        if body.flow is not None:
            self._steps.follow(body.flow, reply)
        else:
            end = FlowStage(self._service)
            self._steps.submit(end, [], FlowPlace(uuid, uuid, END))
        return reply

    def _find(self, uuid: str, chains: Sequence[list[FlowStage]]) -> list[_Chain]:
        """How far each chain is. Later stages are asked for later, so what follows a step that is done is seen."""
        longest = max(map(len, chains), default=0)
        keys = {
            step_key(uuid, place(number, stage)): (number, stage)
            for stage in range(longest)
            for number, stages in enumerate(chains)
            if stage < len(stages)
        }
        uuids, states = self._steps.client.find([*keys])
        last = {number: (stage, uuids[key]) for key, (number, stage) in keys.items() if key in uuids}
        none = (-1, "")
        return [
            _Chain(stages, *last.get(number, none), states.get(last.get(number, none)[1], ""))
            for number, stages in enumerate(chains)
        ]

    def _submit_heads(self, uuid: str, root: str, first: list[msgspec.Raw], found: Sequence[_Chain]) -> None:
        """Submit the first step of each chain that has none."""
        new = [(number, chain.stages) for number, chain in enumerate(found) if chain.stage < 0]
        steps = self._steps
        for _, group in groupby(new, key=_kind):
            heads = [*group]
            head = heads[0][1][0]
            places = [FlowPlace(root, uuid, place(number, 0), stages[1:]) for number, stages in heads]
            bodies = [steps.format.body(stages[0], first, at) for (_, stages), at in zip(heads, places, strict=True)]
            keys = [at.key for at in places]
            steps.client.submit_many(head.service, bodies, keys=keys, **steps.options(head))

    def _go_on(self, uuid: str, root: str, found: Sequence[_Chain]) -> None:
        """Submit what follows steps that are done and were not followed: their workers do not know flows, or the flow
        had failed."""
        left = {
            chain.uuid: (number, chain)
            for number, chain in enumerate(found)
            if chain.state == "done" and not chain.is_done
        }
        for one, ended in self._steps.client.replies([*left], 0) if left else ():
            number, chain = left[one]
            if isinstance(ended, Exception) or len(ended) != 1:
                continue  # it is seen at the next poll
            self._steps.follow(
                FlowPlace(root, uuid, place(number, chain.stage), chain.stages[chain.stage + 1 :]), ended[0]
            )

    def _reply(self, plan: FlowPlan, found: Sequence[_Chain]) -> bytes:
        """The reply of a flow when its chains are done."""
        replies: dict[str, bytes] = {}
        for uuid, ended in self._steps.client.replies([chain.uuid for chain in found]) if found else ():
            if isinstance(ended, Exception):
                raise ended
            if len(ended) != 1:
                raise Failed(f"the reply of step {uuid} has {len(ended)} frames; a step replies with one value")
            replies[uuid] = ended[0]
        values = [replies[chain.uuid] for chain in found]
        return values[0] if plan.single else self._steps.format.encode([msgspec.Raw(value) for value in values])

    def _failure(self, uuid: str, root: str, plan: FlowPlan, chain: _Chain) -> Failed:
        """How the flow fails because of this step. Has what was to follow in that case executed."""
        what = f"step {chain.uuid} ({chain.stages[chain.stage].service})"
        if not chain.state:
            failed = Failed(f"{what} was closed")
        else:
            ((_, ended),) = self._steps.client.replies([chain.uuid])
            if not isinstance(ended, RequestFailed):
                raise Retry(f"{what} was retried", after=FIRST_PAUSE, count=False)
            failed = Failed(str(ended).removeprefix("failed: "), *ended.detail)
        if plan.on_error is not None:
            self._steps.submit(plan.on_error, [self._steps.format.raw(failed.text)], FlowPlace(root, uuid, ERROR))
        return failed

    def _pause(self, uuid: str) -> float:
        """Seconds until the next poll: longer than the last one, and in proportion to the age of the flow, which
        other workers may have seen."""
        last = self._pauses.pop(uuid, FIRST_PAUSE / GROWTH)
        submitted = current().submitted
        age = 0.0 if submitted is None else time.time() - submitted.timestamp()
        pause = self._pauses[uuid] = min(max(last * GROWTH, age / 4), LONGEST_PAUSE)
        if len(self._pauses) > MOST_KNOWN:
            self._pauses.popitem(last=False)
        return pause

    # -- the end ---------------------------------------------------------------------------------------------

    def _sweep(self, body: FlowBody) -> bytes:
        """Close what is left of a flow that is done."""
        if body.flow is None:
            raise Failed("this is not a flow: it has no plan; submit flows with Flow.submit")
        self._steps.check(body.flow)
        state = self._steps.state(body.flow.root)
        if state in GOES_ON and state != "failed":
            raise Retry("the flow is about to reply", after=FIRST_PAUSE, count=False)
        sweep(self._steps.client, body.flow.root)
        raise Cancelled("it has closed itself")


def _chains(plan: FlowPlan, body: FlowBody, steps: Steps) -> list[list[FlowStage]]:
    """The chains of a flow. Raises Failed when the reply before it is no list."""
    if plan.each is None:
        return plan.chains
    try:
        (items,) = body.args
        each = plan.each
        return [
            [FlowStage(each.service, [item, *each.args], each.kwargs, each.options)]
            for item in steps.format.read_items(items)
        ]
    except (msgspec.MsgspecError, ValueError) as error:
        raise Failed(f"the previous reply is not a list, so no steps can be made of it: {error}") from None


def _kind(head: tuple[int, list[FlowStage]]) -> tuple[str, str]:
    """What first steps have in common that travel together."""
    stage = head[1][0]
    return stage.service, repr(sorted(stage.options.items()))
