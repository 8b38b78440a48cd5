"""Submits flows of flow_app.py, each with a key of its own: python flow_client.py SEED COUNT JOURNAL.

It may be killed and started again: what it has submitted before gets the same UUID. It writes down each UUID with what
is to come of it.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from support.flow_app import add, app, double, last, total, up_to

from titanic.errors import RequestError
from titanic.tasks import Flow, gather


def flow_of(seed: int, number: int) -> tuple[Flow[int], int]:
    """A flow, and its reply."""
    dice = random.Random(f"{seed} {number}")
    name, n = f"{number}", dice.randrange(100)
    kind = dice.randrange(4)
    if kind == 0:  # a chain
        flow, value = double.step(n), 2 * n
        for _ in range(dice.randrange(3)):
            flow, value = flow.then(add, 3), value + 3
        return flow.then(last, name), value + 1
    wide = dice.randrange(1, 6)
    if kind == 1:  # a chord
        return gather(double.step(one) for one in range(wide)).then(total, name), sum(2 * one for one in range(wide))
    if kind == 2:  # a chord of chains, one of which has a chord in it
        inner = gather(double.step(one) for one in range(wide)).then(total, f"inner {name}")
        flows = [inner.then(add, 1), *(double.step(one).then(add, 1) for one in range(wide))]
        return gather(flows).then(total, name), 2 * sum(2 * one for one in range(wide)) + 1 + wide
    return up_to.step(wide).each(add, 7).then(total, name), sum(range(wide)) + 7 * wide


def main(seed: int, count: int, journal: Path) -> None:
    done = {int(line.split()[0]) for line in journal.read_text().splitlines() if line.endswith(".")}
    for number in range(count):
        if number in done:
            continue
        flow, value = flow_of(seed, number)
        while True:
            try:
                uuid = flow.submit(key=f"flow {seed} {number}").uuid
                break
            except RequestError:
                continue  # a time-out has taken its time
        with journal.open("a") as file:
            file.write(f"{number} {uuid} {value} .\n")
    app.client.disconnect()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
