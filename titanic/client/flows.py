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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple, TypedDict

from titanic.client.request_queue import RequestQueue
from titanic.errors import UnknownRequest
from titanic.protocol.documents import ClosedStep, RequestInfo
from titanic.protocol.submit_options import MOST_UUIDS
from titanic.protocol.tsp import FLOW_SUFFIX, step_key

KEY_FOR = 30 * 86_400.0
"""Seconds that such a key counts: a flow may take so long."""

ERROR = "error"
END = "end"


def place(chain: int, stage: int) -> str:
    """A place in a flow."""
    return f"{chain}.{stage}"


Find = Callable[[Sequence[str]], tuple[dict[str, str], dict[str, str]]]
"""`Client.find`."""

FEW = 10
"""Chains that are requested at first: most flows have fewer."""


class FoundStep(NamedTuple):
    """A step of a flow that was submitted. `state` is empty when it is closed."""

    at: str
    uuid: str
    state: str


def steps_of(find: Find, flow: str) -> list[FoundStep]:
    """The steps of a flow, in the order of their stages, then of their chains, and what is executed because it has
    failed; not those of flows within it."""
    failed, heads = _look(find, flow, [ERROR]), _look(find, flow, [place(chain, 0) for chain in range(FEW)])
    found, first = heads, FEW
    while heads:
        heads = _look(find, flow, [place(chain, 0) for chain in range(first, first + MOST_UUIDS)])
        found = [*found, *heads]
        first += MOST_UUIDS
    reached = found
    for stage in count(1):
        if not reached:
            break
        reached = _look(find, flow, [place(int(step.at.partition(".")[0]), stage) for step in reached])
        found = [*found, *reached]
    return [*found, *failed]


def flows_among(find: Find, steps: Sequence[FoundStep]) -> list[str]:
    """Those of them that are flows themselves."""
    keys = {step_key(step.uuid, place(0, 0)): step.uuid for step in steps}
    found, _ = find([*keys])
    return [keys[key] for key in found]


def sweep(client: RequestQueue, root: str) -> None:
    """Close all steps of a flow, and those of flows within it. What sweeps is closed last: so it is done again after a
    crash, for the keys last longer than the requests."""
    for steps in _levels(client, root):
        client.close_many([step.uuid for step in steps if step.state])
    client.close_many([step.uuid for step in _look(client.find, root, [END]) if step.state])


def _levels(client: RequestQueue, root: str) -> Iterator[list[FoundStep]]:
    flows = [root]
    while flows:
        steps = [step for flow in flows for step in steps_of(client.find, flow)]
        yield steps
        flows = flows_among(client.find, steps)


def _look(find: Find, flow: str, places: Sequence[str]) -> list[FoundStep]:
    uuids, states = find([step_key(flow, at) for at in places])
    found = ((at, uuids.get(step_key(flow, at), "")) for at in places)
    return [FoundStep(at, uuid, states.get(uuid, "")) for at, uuid in found if uuid]


MOST = 20
"""Steps of a flow that are described; of the others, only their number in each state is given."""


class FlowStep(TypedDict):
    """A step. `at`: its chain and its stage, or `error`. `state` is empty when it is closed; `closed`: the one that it
    had then. `took`: the seconds of its last attempt, or of a flow; None: it has not ended. What the server does not
    remember of a closed step is empty, or None."""

    at: str
    uuid: str
    service: str
    state: str
    closed: str
    took: float | None
    flow: FlowTree | None
    """If it is a flow itself."""


class FlowTree(TypedDict):
    """The steps of a flow, chain by chain; `more`: how many others there are in which state."""

    steps: list[FlowStep]
    more: dict[str, int]


def flow_tree(client: RequestQueue, uuid: str, closed: Sequence[ClosedStep] = ()) -> FlowTree:
    """The steps of a flow. `closed`: what the server remembers of those that are closed."""
    return _tree(client, partial(client.find, flow=uuid), uuid, {step["uuid"]: step for step in closed})


def _tree(client: RequestQueue, find: Find, uuid: str, closed: dict[str, ClosedStep]) -> FlowTree:
    found = sorted(steps_of(find, uuid), key=_place)
    shown = found[:MOST]
    flows = set(flows_among(find, shown)) if shown else set[str]()
    steps: list[FlowStep] = []
    for step in shown:
        row, old = _row(client, step), closed.get(step.uuid)
        if row is not None:
            closed |= {one["uuid"]: one for one in row.get("closed_steps", ())}
        one = FlowStep(at=step.at, uuid=step.uuid, service="", state=step.state, closed="", took=None, flow=None)
        if row is not None:
            one |= {"service": row["service"], "took": _took(row)}
        elif old is not None:
            one |= {"service": old["service"], "closed": old["state"], "took": old["took"]}
        one["flow"] = _tree(client, find, step.uuid, closed) if step.uuid in flows else None
        steps.append(one)
    return FlowTree(steps=steps, more=dict(Counter(step.state or "closed" for step in found[MOST:])))


def _place(step: FoundStep) -> tuple[bool, list[int]]:
    return step.at == ERROR, [int(number) for number in step.at.split(".")] if step.at != ERROR else []


def _row(client: RequestQueue, step: FoundStep) -> RequestInfo | None:
    try:
        return client.show(step.uuid) if step.state else None
    except UnknownRequest:
        return None


def _took(row: RequestInfo) -> float | None:
    if not row["finished_at"]:
        return None
    is_flow = row["service"].endswith(FLOW_SUFFIX)  # its last attempt is only the last poll of its steps
    return max(0, row["finished_at"] - ((not is_flow and row["dispatched_at"]) or row["submitted_at"])) / 1e6
