"""Who was at work on what, and when: what workers write down, and which executions nothing explains.

A line is `begin|end|failed TIME PID BODY`; TIME is the time of day in seconds, as in the requests' UUIDs and in the
list of kills.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ON_ITS_WAY = 0.3
"""Seconds that a request may be with a worker before it begins, on a busy machine: who dies then has died at work."""


def note(descriptor: int, word: str, body: bytes) -> None:
    """Write a line, in one piece."""
    os.write(descriptor, b"%s %.6f %d %s\n" % (word.encode(), time.time(), os.getpid(), body))


class Kill(NamedTuple):
    """Somebody was killed. A server that was may leave a copy of a request at a broker elsewhere."""

    when: float
    name: str


class Execution:
    """A worker was at work on a request. It has no end when the worker was killed."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.failed = False

    def __repr__(self) -> str:
        return f"{self.began:.3f}{' failed' if self.failed else ''}"


def read(path: Path) -> dict[str, list[Execution]]:
    """The executions of each body, in the order in which they began."""
    executions: dict[str, list[Execution]] = defaultdict(list)
    at_work: dict[tuple[str, str], deque[Execution]] = defaultdict(deque)
    for line in path.read_text().splitlines():
        word, when, pid, body = line.split()
        if word == "begin":
            executions[body].append(Execution(float(when)))
            at_work[pid, body].append(executions[body][-1])
        else:
            # After the death of a broker a worker can have a request twice, beside itself.
            at_work[pid, body].popleft().failed = word == "failed"
    for each in executions.values():
        each.sort(key=lambda execution: execution.began)
    return executions


def unexplained(executions: Sequence[Execution], kills: Iterable[Kill], submitted: float, *, copies: bool) -> int:
    """Executions but the first that follow neither a failure nor the death of anybody while the one before was going on
    or its outcome on its way. `copies`: the broker is elsewhere, and every death of the server since the request was
    `submitted` may have left one there, which is executed for nobody."""
    deaths = [kill for kill in kills if kill.when >= submitted]
    left = {kill for kill in deaths if copies and kill.name == "titanic"}
    count = 0
    for before, this in pairwise(executions):
        meanwhile = [kill for kill in deaths if before.began - ON_ITS_WAY <= kill.when <= this.began]
        if before.failed or meanwhile:
            continue
        if copy := next((kill for kill in left if kill.when < this.began), None):
            left.remove(copy)
        else:
            count += 1
    return count


def story(executions: Sequence[Execution], kills: Iterable[Kill], submitted: float) -> str:
    """What happened to a request, for people; seconds since it was submitted."""
    events = [(one.began, "failed" if one.failed else "executed") for one in executions]
    events += [(kill.when, f"kill {kill.name}") for kill in kills if kill.when >= submitted]
    last = max(one.began for one in executions)
    return ", ".join(f"{when - submitted:.3f} {what}" for when, what in sorted(events) if when <= last)
