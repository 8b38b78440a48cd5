"""Finding the steps of a flow, by their keys alone, and closing them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, Protocol

from titanic.protocol.flow_keys import END, ERROR, place, step_key
from titanic.protocol.submit_options import MOST_UUIDS

FEW = 10
"""Chains that are looked for at first: most flows have fewer."""


class Finds(Protocol):
    """What finding wants of a queue: a method of `titanic.Client`."""

    def find(self, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The UUID of each key, and the state of each of these that is not closed."""


class Sweepable(Finds, Protocol):
    """What sweeping wants of a queue."""

    def close_many(self, uuids: Iterable[str]) -> None:
        """Delete any number of requests and their replies."""


class FoundStep(NamedTuple):
    """A step of a flow that was submitted. `state` is empty when it is closed."""

    at: str
    uuid: str
    state: str


def steps_of(client: Finds, flow: str) -> list[FoundStep]:
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


def flows_among(client: Finds, steps: Sequence[FoundStep]) -> list[str]:
    """Those of them that are flows themselves."""
    keys = {step_key(step.uuid, place(0, 0)): step.uuid for step in steps}
    found, _ = client.find([*keys])
    return [keys[key] for key in found]


def sweep(client: Sweepable, root: str) -> None:
    """Close all steps of a flow, and those of flows within it. What sweeps is closed last: so it is done again after a
    crash, for the keys last longer than the requests."""
    for steps in _levels(client, root):
        client.close_many([step.uuid for step in steps if step.state])
    client.close_many([step.uuid for step in _look(client, root, [END]) if step.state])


def _levels(client: Finds, root: str) -> Iterator[list[FoundStep]]:
    flows = [root]
    while flows:
        steps = [step for flow in flows for step in steps_of(client, flow)]
        yield steps
        flows = flows_among(client, steps)


def _look(client: Finds, flow: str, places: Sequence[str]) -> list[FoundStep]:
    uuids, states = client.find([step_key(flow, at) for at in places])
    found = ((at, uuids.get(step_key(flow, at), "")) for at in places)
    return [FoundStep(at, uuid, states.get(uuid, "")) for at, uuid in found if uuid]
