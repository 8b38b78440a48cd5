"""Which faults there are and when: a plan that follows from a seed. `python -m support.chaos_plan SEED SECONDS` prints
it.

There are lanes, and each has one fault after another: the database one, each node one for itself, one for its way to
the database and one for the ways of clients and workers to it, and the programs of clients and workers. So what the
faults of different lanes do to each other is up to when they meet.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MOST_LEASES = 3.0
"""How long somebody stands still at most, in leases."""


class Fault(NamedTuple):
    """In a lane: `pause` seconds after the last fault is over, this happens, and it lasts `seconds`."""

    lane: str
    number: int
    pause: float
    kind: str
    seconds: float


class Kind(NamedTuple):
    """How often it comes up, beside others of the lane, and how long it lasts: from, to, in leases."""

    weight: int
    least: float = 0.0
    most: float = 0.0


DATABASE = {
    "fail over, primary killed": Kind(24),
    "fail over, primary isolated": Kind(16),
    "fail over, primary stands still": Kind(6),
    "fail over, primary came back alone": Kind(5),
    "fail over, commits cancelled": Kind(4),
    "primary killed": Kind(8),
    "primary stands still": Kind(6, 0.1, 2.0),
    "a backend killed": Kind(4),
    "connections ended": Kind(6),
    "standby killed": Kind(4, 0.0, 1.5),
    "standby stands still": Kind(4, 0.1, 1.5),
    "standby cut": Kind(4),
    "standby cut off": Kind(4, 0.1, 1.5),
    "disk full": Kind(8, 0.1, 1.0),
}
NODE = {
    "killed": Kind(8, 0.0, 1.5),
    "terminated": Kind(3),
    "drained": Kind(3),
    "stands still": Kind(8, 0.05, MOST_LEASES),
    "clock": Kind(6),
}
STORE = {
    "cut": Kind(6),
    "stalled": Kind(5, 0.05, 2.0),
    "deaf": Kind(5, 0.05, 2.0),
    "deaf, then cut": Kind(5, 0.02, 0.5),
    "down": Kind(4, 0.05, 2.0),
}
PEERS = {
    "clients cut": Kind(4),
    "clients stalled": Kind(4, 0.05, 2.0),
    "clients deaf": Kind(4, 0.05, 1.0),
    "clients down": Kind(3, 0.05, 2.0),
    "workers cut": Kind(4),
    "workers stalled": Kind(4, 0.05, 2.0),
    "workers deaf": Kind(3, 0.05, 1.0),
    "workers down": Kind(3, 0.05, 2.0),
}
PROGRAMS = {
    "worker killed": Kind(6),
    "worker stands still": Kind(4, 0.05, 2.0),
    "worker terminated": Kind(2),
    "client killed": Kind(4),
    "client stands still": Kind(2, 0.05, 2.0),
}


def lanes(nodes: int) -> dict[str, tuple[dict[str, Kind], float]]:
    """Each with its faults, and with how many seconds are between two, on average."""
    found = {"database": (DATABASE, 9.0), "programs": (PROGRAMS, 14.0)}
    for node in range(1, nodes + 1):
        found[f"n{node}"] = NODE, 18.0
        found[f"n{node} store"] = STORE, 16.0
        found[f"n{node} peers"] = PEERS, 16.0
    return found


def plan(lane: str, nodes: int, seed: int, lease: float) -> Iterator[Fault]:
    """The faults of a lane, without end."""
    kinds, between = lanes(nodes)[lane]
    dice = random.Random(f"{seed} {lane}")
    names, weights = [*kinds], [kind.weight for kind in kinds.values()]
    number = 0
    while True:
        number += 1
        pause = between * dice.uniform(0.3, 1.7)
        name = names[0] if number == 1 else dice.choices(names, weights)[0]  # also a short run has a fail-over
        yield Fault(lane, number, pause, name, dice.uniform(kinds[name].least, kinds[name].most) * lease)


def main(arguments: Sequence[str]) -> None:
    seed, seconds, nodes, lease = int(arguments[0]), float(arguments[1]), 3, 4.0
    found = []
    for lane in lanes(nodes):
        at = 0.0
        for fault in plan(lane, nodes, seed, lease):
            at += fault.pause
            if at > seconds:
                break
            found.append((at, fault))
            at += fault.seconds
    for at, fault in sorted(found):
        print(f"{at:8.1f} {fault.lane:10} {fault.number:4} {fault.kind} {fault.seconds:.2f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
