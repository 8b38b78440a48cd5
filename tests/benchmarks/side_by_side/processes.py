"""Servers and workers of the libraries, at their default ports: to be run in a network of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
TITANIC, REDIS = 5555, 6379
PYTHON: dict[str, str] = {"titanic": sys.executable}
"""The interpreter of each library; the others' is the program's argument."""

WORKERS = {
    "titanic": ["-m", "titanic", "worker", "{}:app"],
    "celery": ["-m", "celery", "-A", "{}", "worker", "-c", "1", "-l", "error", "-n", "{}@here"],
    "dramatiq": ["-m", "dramatiq", "{}", "-p", "1", "-t", "1"],
    "rq": ["-c", "from rq.cli import main; main()", "worker", "--with-scheduler"],
    "huey": ["-m", "huey.bin.huey_consumer", "{}.huey", "-w", "1"],
    "taskiq": ["-m", "taskiq", "worker", "{}:broker", "--workers", "1"],
}


def python(library: str) -> str:
    return PYTHON.get(library, PYTHON["others"])


def start(library: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """A process of a library's interpreter, in the library's folder."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2]) if library == "titanic" else "."}
    with log.open("ab") as out:
        command = [python(library), *arguments]
        return subprocess.Popen(
            command, cwd=HERE / library, env=environment, stdout=out, stderr=out, start_new_session=True
        )


def worker(library: str, module: str, log: Path) -> subprocess.Popen[bytes]:
    return start(library, *[part.format(module) for part in WORKERS[library]], log=log)


def titanic_server(folder: Path) -> subprocess.Popen[bytes]:
    process = start("titanic", "-m", "titanic", "serve", "--store", str(folder / "S"), log=folder / "titanic.log")
    reachable(TITANIC)
    return process


def redis_server(folder: Path, *settings: str) -> subprocess.Popen[bytes]:
    """As it comes, in a folder; `settings` say otherwise."""
    with (folder / "redis.log").open("ab") as out:
        command = ["redis-server", "--dir", str(folder), *settings]
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    reachable(REDIS)
    return process


def reachable(port: int) -> None:
    def open_() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    assert until(open_, 60), f"nobody is at port {port}"


def until(condition: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9, with all that it has started."""
    below: list[int] = [process.pid]
    for pid in below:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            below += [int(child) for child in children.read_text().split()]
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(60)
