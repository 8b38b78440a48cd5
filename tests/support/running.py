"""Things that run for real, and waiting for what they do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from broker import EndpointError

SUPPORT = Path(__file__).parent
PATIENCE = 60.0
"""Seconds after which something that should happen has not; no test takes as long unless it fails."""


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    pause = Event()
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        pause.wait(0.002)


def again(bind: Callable[[str], str], endpoint: str) -> None:
    """Bind where something has just ended: ZeroMQ closes its sockets a little later than they are closed."""

    def bound() -> bool:
        try:
            return bind(endpoint) == endpoint
        except EndpointError:
            return False

    until(bound)


@contextmanager
def script(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of this folder, in a process of its own; its output is piped. It is killed at the end."""
    root = SUPPORT.parent.parent
    command = [sys.executable, str(SUPPORT / name), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=root, env={"PYTHONPATH": str(root)}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    text = process.stdout.readline().strip()
    assert text, "the process ended without a word"
    return text
