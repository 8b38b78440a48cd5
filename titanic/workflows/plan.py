"""What is stored of a flow, in the bodies of its requests, in the format of the app.

A flow is chains of stages. Its request has the plan; each step carries its place and the stages that follow it in its
chain. A group is a flow within a flow: a stage like any other, for the service of the app's flows.

    step    {"args": […], "kwargs": {…}, "flow": {"root", "parent", "at", "then": [stage, …]}}
    flow    {"args": [], "kwargs": {"plan": {"chains": [[stage, …], …], …}}}, with its own "flow" if it is a step
    stage   {"service", "args", "kwargs", "options"}; the reply before it is put in front of its args
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from titanic.protocol.flow_keys import step_key


class Stage(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A call that is to be made."""

    service: str
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}
    options: dict[str, Any] = {}


class Place(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Where a step is: `at` this place of the flow `parent`, which may be within others; `root` is the outermost. What
    follows it."""

    root: str
    parent: str
    at: str
    then: list[Stage] = []

    @property
    def key(self) -> str:
        """The step's idempotency key."""
        return step_key(self.parent, self.at)

    @property
    def next(self) -> Place:
        """Where the next step is."""
        chain, _, stage = self.at.partition(".")
        return Place(self.root, self.parent, f"{chain}.{int(stage) + 1}", self.then[1:])


class Plan(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What a flow is made of: `chains`; or the stage `each`, once for each item of the reply before it. `single`: there
    is one chain, whose reply is that of the flow; else the flow replies with a list."""

    chains: list[list[Stage]] = []
    each: Stage | None = None
    single: bool = False
    on_error: Stage | None = None


class FlowArguments(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Arguments of the service of flows. Without a plan: close what is left of the flow that `flow` tells."""

    plan: Plan | None = None


class FlowBody(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The body of a request for the service of flows."""

    args: list[msgspec.Raw] = []
    kwargs: FlowArguments = msgspec.field(default_factory=FlowArguments)
    flow: Place | None = None


class StepBody(msgspec.Struct, omit_defaults=True):
    """The body of a step."""

    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}
    flow: Place | None = None


class Format(Protocol):
    """How an app's values travel."""

    @property
    def encode(self) -> Callable[[Any], bytes]:
        """A value as bytes."""

    @property
    def decoder(self) -> Callable[[Any], Callable[[Any], Any]]:
        """Makes what decodes values of a type."""


class PlanFormat:
    """Plans as bytes, and back. Raises MsgspecError for others."""

    def __init__(self, format: Format) -> None:
        self.encode = format.encode
        self.read_body: Callable[[bytes], FlowBody] = format.decoder(FlowBody)
        self.read_place: Callable[[msgspec.Raw], Place] = format.decoder(Place)
        self.read_items: Callable[[msgspec.Raw], list[msgspec.Raw]] = format.decoder(list[msgspec.Raw])

    def raw(self, value: object) -> msgspec.Raw:
        """A value, to be put into a larger one."""
        return msgspec.Raw(self.encode(value))

    def stage_of(self, service: str, plan: Plan, options: dict[str, Any]) -> Stage:
        """The stage that a flow within a flow is."""
        return Stage(service, [], {"plan": self.raw(plan)}, options)

    def body(self, stage: Stage, first: list[msgspec.Raw], place: Place | None) -> bytes:
        """The body of the request for a stage. `first`: the reply before it, if there is one."""
        return self.encode(StepBody([*first, *stage.args], stage.kwargs, place))
