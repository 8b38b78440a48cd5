"""What is lost at `kill -9` of the worker, of the server, and by a power cut: said by what was executed afterwards.

unshare -n sh -c 'ip link set lo up; python tests/benchmarks/side_by_side/losses.py PYTHON_OF_THE_OTHERS'

A power cut takes what was answered and not synced. strace tells when the server has synced; what a caller was told of
later than the beginning of the last sync that ended would not be there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import processes

LIBRARIES = ("titanic", "celery", "dramatiq", "rq", "huey")

WORKED, STORED = 10, 100
"""Tasks of the two tests."""

PATIENCE = 100.0
"""Seconds for what the library brings back by itself."""

SYNCED = re.compile(r"(\d+\.\d+) (<\.\.\. )?(?:fdatasync|fsync|msync)\b.* = 0 <(\d+\.\d+)>")
"""As strace has it: with the time at which it began, or, when something else came between, at which it ended."""

STEADY = """
import note, time
note.submit("unused", 1)
end = time.time() + 3.5
while (began := time.time()) < end:
    note.submit("unused", 1)
    print(began, flush=True)
"""
"""Says when each of its submissions began, once it is answered."""

EVERYSEC = ("--appendonly", "yes", "--appendfsync", "everysec")


def submit(library: str, module: str, notes: Path, count: int, log: Path) -> None:
    call = f"import {module}; {module}.submit({str(notes)!r}, {count})"
    assert processes.start(library, "-c", call, log=log).wait(100) == 0, log.read_text()


def noted(notes: Path, *, begun: bool = False) -> set[str]:
    """What was executed; or only begun."""
    lines = notes.read_text().split() if notes.exists() else []
    return {line for line in lines if line.startswith("begun-") == begun}


def killed_worker(library: str, module: str, folder: Path) -> str:
    """One job at a time; killed with the fourth of ten in hand."""
    notes, log = folder / f"{library}-{module}.worked", folder / f"{library}-{module}.worked.log"
    first = processes.worker(library, module, log)
    submit(library, module, notes, WORKED, log)
    begun = processes.until(lambda: len(noted(notes, begun=True)) >= 4, 60)
    processes.kill(first)
    assert begun, log.read_text()
    began = time.monotonic()
    second = processes.worker(library, module, log)
    processes.until(lambda: len(noted(notes)) == WORKED, PATIENCE)
    took = time.monotonic() - began
    processes.kill(second)
    missing = WORKED - len(noted(notes))
    return f"{missing} of {WORKED} not executed within {PATIENCE:g} s" if missing else f"0 of {WORKED}, {took:.0f} s"


def killed_server(library: str, folder: Path, start: Callable[[], subprocess.Popen[bytes]]) -> str:
    """Killed with all of them stored, and no worker yet."""
    notes, log = folder / f"{library}.stored", folder / f"{library}.stored.log"
    server = start()
    submit(library, "note", notes, STORED, log)
    processes.kill(server)
    server = start()
    worker = processes.worker(library, "note", log)
    done = -1
    while done < len(noted(notes)) < STORED:  # as long as there is more every half minute
        done = len(noted(notes))
        processes.until(lambda: len(noted(notes)) == STORED, 30)
    processes.kill(worker)
    processes.kill(server)
    return f"{STORED - len(noted(notes))} of {STORED}"


def power_cut(library: str, folder: Path, start: Callable[[], subprocess.Popen[bytes]]) -> str:
    """Stored one after another; then it is looked which of them were answered and not synced at the end."""
    trace, times = folder / "strace", folder / "times"
    server = start()
    command = [
        "strace",
        "-f",
        "-ttt",
        "-T",
        "-e",
        "trace=fdatasync,fsync,msync",
        "-o",
        str(trace),
        "-p",
        str(server.pid),
    ]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    processes.until(trace.exists, 10)
    assert processes.start(library, "-c", STEADY, log=times).wait(60) == 0, times.read_text()
    processes.kill(server)
    tracer.wait(30)
    began = [float(line.split()[0]) for line in times.read_text().splitlines()]
    synced = [float(time) - (float(took) if late else 0.0) for time, late, took in SYNCED.findall(trace.read_text())]
    lost = sum(at > max(synced, default=0.0) for at in began)
    return f"{lost} of {len(began)}; {len(synced)} syncs"


def main() -> None:
    processes.PYTHON["others"] = sys.argv[1]
    folder = Path(tempfile.mkdtemp(prefix="losses"))
    print(folder)
    workers = [(library, "note") for library in LIBRARIES] + [("celery", "note_late")]
    servers = [processes.titanic_server(folder), processes.redis_server(folder)]

    def report(library: str, module: str) -> None:
        print("worker", library, module, killed_worker(library, module, folder), flush=True)

    threads = [threading.Thread(target=report, args=one) for one in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in servers:
        processes.kill(server)

    def fresh(name: str) -> Path:
        made = folder / name
        made.mkdir()
        return made

    for library in LIBRARIES:
        if library == "titanic":
            place = fresh("titanic")
            print(
                "server", library, killed_server(library, place, partial(processes.titanic_server, place)), flush=True
            )
            continue
        for name, settings in (("no", ()), ("everysec", EVERYSEC)):
            there = fresh(f"{library}-{name}")
            lost = killed_server(library, there, partial(processes.redis_server, there, *settings))
            print("server", library, f"appendonly {name}", lost, flush=True)
    cut = fresh("cut")
    servers_of: dict[str, Callable[[], subprocess.Popen[bytes]]] = {
        "titanic": partial(processes.titanic_server, cut),
        "rq": partial(processes.redis_server, cut, *EVERYSEC),
    }
    for library, start in servers_of.items():
        print("power cut", library, power_cut(library, fresh(f"cut-{library}"), start), flush=True)


if __name__ == "__main__":
    main()
