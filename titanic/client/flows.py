"""The requests of a flow: the keys that connect them, finding them, closing them, listing them as a tree.

Idempotency keys alone connect the steps of a flow. With the UUID of a flow its steps can be found, and submitting a
step again gives the same request.

    flow:<UUID of the flow>:<chain>.<stage>     a step; both numbers count from 0
    flow:<UUID of the flow>:error               the task that runs because the flow failed
    flow:<UUID of the flow>:end                 the request that closes the steps of a finished flow

A group within a flow is a flow itself, and a step of the outer one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple, TypedDict

from titanic.client.request_queue import RequestQueue
from titanic.errors import UnknownRequest
from titanic.protocol.answers import RequestInfo
from titanic.protocol.submit_options import MOST_UUIDS

KEY_FOR = 30 * 86_400.0
"""Seconds that such a key counts: a flow may take so long."""

ERROR = "error"
END = "end"


def step_key(flow: str, place: str) -> str:
    """The key of what is at this place in a flow."""
    return f"flow:{flow}:{place}"


def place(chain: int, stage: int) -> str:
    """A place in a flow."""
    return f"{chain}.{stage}"


FEW = 10
"""Chains that are requested at first: most flows have fewer."""


class FoundStep(NamedTuple):
    """A step of a flow that was submitted. `state` is empty when it is closed."""

    at: str
    uuid: str
    state: str


def steps_of(client: RequestQueue, flow: str) -> list[FoundStep]:
    """The steps of a flow, in the order of their stages, then of their chains, and what is executed because it has
    failed; not those of flows within it."""
    failed, heads = _look(client, flow, [ERROR]), _look(client, flow, [place(chain, 0) for chain in range(FEW)])
    found, first = heads, FEW
    while heads:
        heads = _look(client, flow, [place(chain, 0) for chain in range(first, first + MOST_UUIDS)])
        found = [*found, *heads]
        first += MOST_UUIDS
    reached = found
    for stage in count(1):
        if not reached:
            break
        reached = _look(client, flow, [place(int(step.at.partition(".")[0]), stage) for step in reached])
        found = [*found, *reached]
    return [*found, *failed]


def flows_among(client: RequestQueue, steps: Sequence[FoundStep]) -> list[str]:
    """Those of them that are flows themselves."""
    keys = {step_key(step.uuid, place(0, 0)): step.uuid for step in steps}
    found, _ = client.find([*keys])
    return [keys[key] for key in found]


def sweep(client: RequestQueue, root: str) -> None:
    """Close all steps of a flow, and those of flows within it. What sweeps is closed last: so it is done again after a
    crash, for the keys last longer than the requests."""
    for steps in _levels(client, root):
        client.close_many([step.uuid for step in steps if step.state])
    client.close_many([step.uuid for step in _look(client, root, [END]) if step.state])


def _levels(client: RequestQueue, root: str) -> Iterator[list[FoundStep]]:
    flows = [root]
    while flows:
        steps = [step for flow in flows for step in steps_of(client, flow)]
        yield steps
        flows = flows_among(client, steps)


def _look(client: RequestQueue, flow: str, places: Sequence[str]) -> list[FoundStep]:
    uuids, states = client.find([step_key(flow, at) for at in places])
    found = ((at, uuids.get(step_key(flow, at), "")) for at in places)
    return [FoundStep(at, uuid, states.get(uuid, "")) for at, uuid in found if uuid]


MOST = 20
"""Steps of a flow that are described; of the others, only their number in each state is given."""

SUFFIX = ".flow"
"""How the services of flows end."""


class FlowStep(TypedDict):
    """A step. `at`: its chain and its stage, or `error`. `service` and `state` are empty when it is closed. `took`: the
    seconds that it ran, its last attempt; None: it has not ended, or is closed."""

    at: str
    uuid: str
    service: str
    state: str
    took: float | None
    flow: FlowTree | None
    """If it is a flow itself."""


class FlowTree(TypedDict):
    """The steps of a flow, chain by chain; `more`: how many others there are in which state."""

    steps: list[FlowStep]
    more: dict[str, int]


def flow_tree(client: RequestQueue, uuid: str) -> FlowTree:
    """The steps of a flow that exist."""
    found = sorted(steps_of(client, uuid), key=_place)
    shown = found[:MOST]
    flows = set(flows_among(client, shown)) if shown else set[str]()
    rows = ((step, _row(client, step)) for step in shown)
    steps = [
        FlowStep(
            at=step.at,
            uuid=step.uuid,
            service="" if row is None else row["service"],
            state=step.state,
            took=None if row is None or not row["finished_at"] else _took(row),
            flow=flow_tree(client, step.uuid) if step.uuid in flows else None,
        )
        for step, row in rows
    ]
    return FlowTree(steps=steps, more=dict(Counter(step.state or "closed" for step in found[MOST:])))


def _place(step: FoundStep) -> tuple[bool, list[int]]:
    return step.at == ERROR, [int(number) for number in step.at.split(".")] if step.at != ERROR else []


def _row(client: RequestQueue, step: FoundStep) -> RequestInfo | None:
    try:
        return client.show(step.uuid) if step.state else None
    except UnknownRequest:
        return None


def _took(row: RequestInfo) -> float:
    return max(0, row["finished_at"] - (row["dispatched_at"] or row["submitted_at"])) / 1e6
