"""What workers write down of their work, and what can be read from it.

A line is `WORD TIME EXECUTION REST`. TIME is that of the monotonic clock, which all processes of a machine share;
EXECUTION names the worker, how often it was started, and counts: `worker1.4-17`.

    begin    body       before anything is done
    end      parts      just before the last part of the reply is sent, `parts` before it
    failed   parts      just before an error is raised, with so many parts sent
    dies     parts      just before the process kills itself
    damaged  body       the body is not what was submitted
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path


def note(descriptor: int, word: str, execution: str, rest: object) -> None:
    """Write a line, in one piece."""
    os.write(descriptor, f"{word} {time.monotonic():.6f} {execution} {rest}\n".encode())


def reply_of(execution: str, parts: int, size: int) -> list[list[bytes]]:
    """The parts of the reply of an execution; the last one is the FINAL of those that say `end`."""
    return [[f"{execution}/{part}/{parts}/{size}".encode(), bytes([part]) * size + b"."] for part in range(parts + 1)]


def read_reply(frames: list[bytes]) -> str | None:
    """The execution that all of a reply comes from; None when it is not one whole reply of a single execution."""
    if frames and frames[-1] == b"":
        frames = frames[:-1]  # how a stream ends whose last part is empty
    try:
        execution, _, parts, size = frames[0].decode().split("/")
        whole = [frame for part in reply_of(execution, int(parts), int(size)) for frame in part]
    except (IndexError, ValueError):
        return None
    return execution if whole == frames else None


class Execution:
    """A worker was at work on a request. Without an `outcome` it never came to an end."""

    def __init__(self, name: str, began: float) -> None:
        self.name = name
        self.worker = name.rsplit("-", 1)[0]
        self.began = began
        self.ended: float | None = None
        self.outcome = ""
        self.parts = 0

    def __repr__(self) -> str:
        return f"{self.name} {self.outcome or 'never ended'}"


class Journal:
    """All lines of all workers."""

    def __init__(self, path: Path) -> None:
        self.executions: dict[str, list[Execution]] = defaultdict(list)
        """Of each body, in the order in which they began."""
        self.deaths: dict[str, float] = {}
        """When workers killed themselves."""
        self.damaged: list[str] = []
        known: dict[str, Execution] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            word, when, name, rest = line.split(" ", 3)
            if word == "begin":
                known[name] = Execution(name, float(when))
                self.executions[rest].append(known[name])
            elif word == "damaged":
                self.damaged.append(rest)
            else:
                execution = known[name]
                execution.outcome, execution.ended, execution.parts = word, float(when), int(rest)
                if word == "dies":
                    self.deaths.setdefault(execution.worker, float(when))
        for each in self.executions.values():
            each.sort(key=lambda execution: execution.began)
        self.all = known
