"""A flow as a tree: the steps that were submitted, with their states, found by their keys. Who asks sees what he may
read; keys are those of the user whose workers have submitted the steps."""

from __future__ import annotations

from collections import Counter
from typing import Protocol, TypedDict

from titanic.errors import UnknownRequest
from titanic.protocol.answers import RequestInfo
from titanic.protocol.flow_keys import ERROR
from titanic.workflows.sweeping import Finds, FoundStep, flows_among, steps_of

MOST = 20
"""Steps of a flow that are described; of the others it is told how many there are in each state."""

SUFFIX = ".flow"
"""How the services of flows end."""


class Shows(Finds, Protocol):
    """What this wants of a queue: some methods of `titanic.Client`."""

    def show(self, uuid: str) -> RequestInfo:
        """What is known of a request."""


class FlowStep(TypedDict):
    """A step. `at`: its chain and its stage, or `error`. `service` and `state` are empty when it is closed."""

    at: str
    uuid: str
    service: str
    state: str
    flow: FlowTree | None
    """If it is a flow itself."""


class FlowTree(TypedDict):
    """The steps of a flow, chain by chain; `more`: how many others there are in which state."""

    steps: list[FlowStep]
    more: dict[str, int]


def flow_tree(client: Shows, uuid: str) -> FlowTree:
    """The steps of a flow that exist."""
    found = sorted(steps_of(client, uuid), key=_place)
    shown = found[:MOST]
    flows = set(flows_among(client, shown)) if shown else set[str]()
    steps = [
        FlowStep(
            at=step.at,
            uuid=step.uuid,
            service=_service(client, step),
            state=step.state,
            flow=flow_tree(client, step.uuid) if step.uuid in flows else None,
        )
        for step in shown
    ]
    return FlowTree(steps=steps, more=dict(Counter(step.state or "closed" for step in found[MOST:])))


def _place(step: FoundStep) -> tuple[bool, list[int]]:
    return step.at == ERROR, [int(number) for number in step.at.split(".")] if step.at != ERROR else []


def _service(client: Shows, step: FoundStep) -> str:
    if not step.state:
        return ""
    try:
        return client.show(step.uuid)["service"]
    except UnknownRequest:
        return ""
