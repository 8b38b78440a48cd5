"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from titanic.errors import TitanicError

Process = subprocess.Popen[bytes]


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with_parent(parent: int = 0) -> None:
    """Have the kernel kill this process when its parent dies, on Linux. `parent`: its pid; this process ends if that is
    another one by now."""
    with suppress(AttributeError):  # not Linux
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(1)


def without_options() -> dict[str, str]:
    """The environment for a command that this process starts: without the variables that set options."""
    return {key: value for key, value in os.environ.items() if not key.startswith("TITANIC_") or key == "TITANIC_PURE"}


class Children:
    """Starts Python processes and ends them. Threads may share it."""

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._lock = threading.Lock()
        self._over = False

    def start(self, log: Path, *arguments: str) -> Process:
        """Run `python …`, stdout and stderr into a file.

        It has a session of its own, so that Ctrl-C does not reach it, and none of the variables that set options. It
        is the same build as this one, compiled or not.
        """
        with uninterrupted(), self._lock:
            if self._over:  # the folder of the log may be gone, too
                raise TitanicError("shutting down: no more processes are started")
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=without_options(),
                    start_new_session=True,
                )
            self._processes.append(process)
            return process

    def end(self) -> None:
        """End all, the last one first. The second SIGTERM makes a command end at once, with all that it started."""
        with self._lock:
            self._over = True
        for process in reversed(self._processes):
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
                process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM: between its start and its registration, a process would be forgotten."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
