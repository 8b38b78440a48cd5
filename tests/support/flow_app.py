"""An app whose flows are tortured. Where it is: TITANIC_ENDPOINT. Each step writes down what it has executed."""

from __future__ import annotations

import os
from pathlib import Path

from titanic.tasks import Tasks

app = Tasks(os.environ.get("TITANIC_ENDPOINT", "tcp://127.0.0.1:1"), name="flows", timeout=2.0)


def note(what: str) -> None:
    """Write it down, outside of all that is tested."""
    path = os.environ.get("FLOW_JOURNAL")
    if path:
        with Path(path).open("a") as file:
            file.write(what + "\n")


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task
def add(number: int, more: int) -> int:
    return number + more


@app.task
def up_to(number: int) -> list[int]:
    return list(range(number))


@app.task
def last(value: int, name: str) -> int:
    note(name)
    return value + 1


@app.task
def total(values: list[int], name: str) -> int:
    note(name)
    return sum(values)
