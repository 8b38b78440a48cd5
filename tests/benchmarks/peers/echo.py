"""Plain MDP requests through a broker to ten workers and back: the same client and the same workers, in C, for both."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers import servers
from benchmarks.peers.peer import Peer

HERE = Path(__file__).parent
HEADERS = HERE.parents[1] / "interop"
MOST = 50_000
"""Requests in flight; a broker may refuse more than it has room for."""


class Echo(Peer):
    """A broker and the programs in C."""

    def start(self) -> None:
        self.programs = build(self.folder)
        self.used = 0.0
        self.endpoint = self.broker()
        for number in range(10 if self.terms.job == "many" else 1):
            worker = self.folder / f"worker {number}"
            self.run("workers", self.programs / "echo_worker", self.endpoint, "bench.echo", log=worker)
        self.ask(100, 1)

    def broker(self) -> str:
        """Its endpoint."""
        raise NotImplementedError

    def timed(self, count: int) -> float:
        return self.ask(count, 1 if self.terms.job == "one" else min(count, MOST))

    def cpu(self) -> dict[str, float]:
        return {**super().cpu(), "client": self.used}

    def ask(self, count: int, window: int) -> float:
        """Seconds from the first request to the last reply, by the client's own clock."""
        command = [self.programs / "echo_client", self.endpoint, "bench.echo", str(count), str(window)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.endpoint}: {done.stderr.strip()}")
        seconds, used = map(float, done.stdout.split())
        self.used += used
        return seconds


class Titanic(Echo):
    """`titanic broker`."""

    name = "titanic broker"

    def broker(self) -> str:
        endpoint = f"tcp://127.0.0.1:{servers.free_port()}"
        log = self.folder / "log"
        process = self.run("broker", sys.executable, "-m", "titanic", "broker", "--bind", endpoint, log=log)
        servers.reachable(int(endpoint.rpartition(":")[2]), process)
        return endpoint

    def version(self) -> str:
        return servers.said(sys.executable, "-m", "titanic", "--version")


class Rival(Echo):
    """A broker that runs already."""

    name = "rival"

    def broker(self) -> str:
        if self.terms.rival is None:
            raise servers.Missing("give its endpoint: --rival tcp://127.0.0.1:PORT")
        if self.terms.rival_pid is not None:
            if not Path(f"/proc/{self.terms.rival_pid}").exists():
                raise servers.Missing(f"there is no process {self.terms.rival_pid}")
            self.sides["broker"] = [self.terms.rival_pid]
        return self.terms.rival

    def version(self) -> str:
        pid = self.terms.rival_pid
        program = "" if pid is None else f", {Path(f'/proc/{pid}/exe').readlink()}"
        return f"{self.endpoint}{program}"


def build(folder: Path) -> Path:
    """Compile client and worker. Missing without a compiler or libzmq's header."""
    if shutil.which("cc") is None:
        raise servers.Missing("there is no C compiler, cc (apt-get install gcc libc6-dev)")
    for name in ("echo_client", "echo_worker"):
        source = [str(HERE / f"{name}.c"), "-o", str(folder / name), "-lzmq"]
        command = ["cc", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-I", str(HEADERS), *source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if re.search(r"zmq\.h|-lzmq", done.stderr):
            raise servers.Missing("there is no libzmq to compile with (apt-get install libzmq3-dev, or make tools)")
        if done.returncode:
            raise RuntimeError(done.stderr)
    return folder
