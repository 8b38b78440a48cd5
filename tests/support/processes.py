"""Real processes, so that they can really be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from support.waiting import PATIENCE

import broker

ROOT = Path(__file__).parents[2]
PACKAGES = Path(broker.__file__).parents[1]
"""Where the packages are that are tested: here, or in the compiled build."""
PYTHONPATH = os.pathsep.join(map(str, (PACKAGES, ROOT / "data", ROOT / "tests")))
"""For processes of tests, so that they run what the tests run."""
SUPPORT = Path(__file__).parent


class Process:
    """A process that runs until it is killed or the `with` block ends."""

    def __init__(self, *arguments: str | Path, output: Path, **more: str) -> None:
        """`more`: of the environment."""
        environment = {**os.environ, **more, "PYTHONPATH": PYTHONPATH}
        self._output = output
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, *map(str, arguments)], env=environment, stdout=file, stderr=file
            )
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def stands_still(self) -> bool:
        """Whether it was stopped by a signal."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def signal(self, number: signal.Signals) -> None:
        """Send it, if the process is there."""
        if self.running:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: it has no time for anything."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM, and how it ended."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        self.signal(number)
        return self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            print(f"--- {self._output}", self._output.read_text()[-3000:], sep="\n")


def worker_process(endpoint: str, service: str, log: Path, mode: str = "echo") -> Process:
    """A worker (worker_process.py)."""
    script = SUPPORT / "worker_process.py"
    return Process(script, endpoint, service, log, mode, output=log.with_suffix(".out"))


@contextmanager
def script(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of this folder, in a process of its own; its output is piped. It is killed at the end."""
    command = [sys.executable, str(SUPPORT / name), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": PYTHONPATH}
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
