"""A day's load in an hour: 50 tasks with bodies of 1 to 100 kB, of which 1 % fail, while services are paused, workers
and servers are restarted, killed and upgraded. What is to be seen: each request that was accepted ends as it has to,
memory stays flat, and how long submitting takes, and until a worker starts.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import click
from support.cli_titanic import Running
from support.ports import free_port
from support.scraping import samples
from support.waiting import until

from titanic import Client
from titanic.errors import RequestFailed, TitanicError

TASKS, TENTHS, SUBMITTERS = 50, 10, 8
SAMPLE_EVERY, PATIENCE, PAGE = 2.0, 600.0, os.sysconf("SC_PAGE_SIZE")
MOST_GROWTH = 1.2
"""How much more memory a process may have in the last quarter than in the second."""

APP = f"""
import time

from titanic import Failed
from titanic.tasks import Tasks

app = Tasks(name="day")


def make(number: int):
    def run(at: int, seconds: float, fails: bool, body: str) -> list[float]:
        began = time.time()
        time.sleep(seconds)
        if fails:
            raise Failed("as it has to")
        return [at, began]

    app.task(service=f"day.task{{number}}")(run)


for number in range({TASKS}):
    make(number)
"""


class Day:
    """The processes, what they are asked, and what became of it."""

    def __init__(self, folder: Path, python: str, rate: float, seconds: float) -> None:
        self._folder, self._python, self._rate, self._seconds = folder, python, rate, seconds
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self._metrics = {name: f"127.0.0.1:{free_port()}" for name in ("server", "worker")}
        self._running: dict[str, Running] = {}
        self._started = 0
        self._begun = time.monotonic()
        self._ended = threading.Event()
        self._accepted: SimpleQueue[tuple[str, int, int, float, bool] | None] = SimpleQueue()
        self.submits: list[list[float]] = [[] for _ in range(TENTHS)]
        self.starts: list[list[float]] = [[] for _ in range(TENTHS)]
        """Seconds that submitting took, and until the attempt, by the tenth of the submission."""
        self.refused: Counter[str] = Counter()
        self.faults: list[str] = []
        self.memory: dict[str, list[tuple[float, float]]] = {"server": [], "worker": []}
        """By process: when, and how many MB of its own; the pages of the mapped store are the kernel's."""

    def start(self, name: str, python: str = "") -> None:
        """Start a process."""
        self._python = python or self._python
        words: list[str | Path] = ["serve", "--bind", self.endpoint, "--store", self._folder / "store"]
        words += ["--capacity", "2GiB", "--max-attempts", "5"]
        if name == "worker":
            words = ["worker", "day_app:app", "--endpoint", self.endpoint, "--processes", "2", "--jobs", "16"]
        words += ["--metrics", self._metrics[name]]
        self._started += 1
        log, program = self._folder / f"{name}{self._started}.log", (self._python, "-m", "titanic")
        self._running[name] = Running(log, *words, program=program, PYTHONPATH=str(self._folder))

    def restart(self, name: str, *, kill: bool = False, python: str = "") -> None:
        """End a process, or kill it, and start another."""
        self._running[name].send(signal.SIGKILL if kill else signal.SIGTERM)
        self._running[name].ends()
        self.start(name, python)

    def replace_worker(self) -> None:
        """Start a new worker while the old one finishes its requests, as an upgrade does."""
        old = self._running["worker"]
        self.start("worker")
        self._running["worker"].says("is registered at")
        old.send(signal.SIGTERM)
        old.ends()

    def upgrade(self) -> None:
        """Go on with the version of this tree."""
        self.restart("server", python=sys.executable)
        self.replace_worker()

    def end(self) -> None:
        """End all processes."""
        for one in self._running.values():
            one.end()

    def submit(self, number: int) -> None:
        """Submit at this submitter's share of the rate until the time is over."""
        chance, at = random.Random(number), number
        due = time.monotonic()
        with Client(self.endpoint, timeout=15) as client:
            while (now := time.monotonic()) < self._begun + self._seconds:
                if now < due:
                    time.sleep(due - now)
                due = max(due + SUBMITTERS / self._rate * chance.expovariate(1), now - 1)
                fails, body = chance.random() < 0.01, "x" * int(1000 * 100 ** chance.random())
                document = f'{{"args": [{at}, {chance.uniform(0.001, 0.1):.3f}, {str(fails).lower()}, "{body}"]}}'
                began, submitted = time.monotonic(), time.time()
                tenth = min(TENTHS - 1, int((began - self._begun) / self._seconds * TENTHS))
                uuid = self._submit(client, f"day.task{chance.randrange(TASKS)}", document, f"day {at}")
                self.submits[tenth].append(time.monotonic() - began)
                self._accepted.put((uuid, at, tenth, submitted, fails))
                at += SUBMITTERS

    def _submit(self, client: Client, service: str, document: str, key: str) -> str:
        while True:
            try:
                return client.submit(service, document, key=key)
            except TitanicError as error:  # a server that stops refuses; the same key is stored once
                self.refused[re.sub(r"\d+", "0", f"{error}")] += 1
                time.sleep(0.1)

    def collect(self) -> None:
        """Compare each reply with what it has to be, and close the request."""
        with Client(self.endpoint, timeout=15) as client:
            over = False
            while not over:
                known: dict[str, tuple[int, int, float, bool]] = {}
                while not over and (not known or not self._accepted.empty()) and len(known) < 500:
                    if not (over := (one := self._accepted.get()) is None):
                        known[one[0]] = one[1:]
                end = time.monotonic() + PATIENCE
                while known and time.monotonic() < end:
                    with suppress(TitanicError):  # a server that stops
                        for uuid, ended in client.replies([*known], PATIENCE):
                            client.close(uuid)
                            self._check(ended, *known.pop(uuid))
                self.faults += [f"request {at} has no reply" for at, *_ in known.values()]

    def _check(self, ended: object, at: int, tenth: int, submitted: float, fails: bool) -> None:
        if isinstance(ended, RequestFailed) and fails:
            return
        numbers = str(ended[0], "utf-8").strip("[]").split(",") if isinstance(ended, list) and not fails else []
        if len(numbers) != 2 or int(float(numbers[0])) != at:
            self.faults.append(f"request {at} ended with {ended!r:.200}")
            return
        self.starts[tenth].append(float(numbers[1]) - submitted)

    def look(self) -> None:
        """Note the memory of server and worker."""
        while not self._ended.wait(SAMPLE_EVERY):
            for name, address in self._metrics.items():
                with suppress(OSError, AssertionError):
                    children = samples(f"http://{address}").get("titanic_worker_processes_memory_bytes", 0)
                    statm = Path(f"/proc/{self._running[name].process.pid}/statm").read_text().split()
                    size = (int(statm[1]) - int(statm[2])) * PAGE + children
                    self.memory[name].append((time.monotonic() - self._begun, size / 1e6))

    def pause_some(self) -> None:
        """Pause a few services for a twentieth of the time."""
        names = [f"day.task{number}" for number in random.Random(3).sample(range(TASKS), 5)]
        with Client(self.endpoint, timeout=15) as client:
            for paused in (True, False):
                for name in names:
                    client.set_service(name, paused=paused)
                if paused:
                    time.sleep(self._seconds / 20)

    def run(self, events: dict[int, tuple[str, Callable[[], None]]]) -> None:
        """Have the day, with events in some tenths."""
        self._begun = time.monotonic()
        threads = [threading.Thread(target=self.submit, args=(n,)) for n in range(SUBMITTERS)]
        others = [threading.Thread(target=one) for one in (self.collect, self.look)]
        for thread in (*threads, *others):
            thread.start()
        for tenth, (_, event) in events.items():
            time.sleep(max(0.0, self._begun + (tenth + 0.3) * self._seconds / TENTHS - time.monotonic()))
            event()
        for thread in threads:
            thread.join()
        self._accepted.put(None)
        others[0].join()
        self._ended.set()


@click.command()
@click.option("--minutes", type=float, default=60.0, show_default=True)
@click.option("--rate", type=float, default=100.0, show_default=True, help="Requests a second.")
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="Begin with another tree's version.")
def main(minutes: float, rate: float, before: Path | None) -> None:
    """Have a day of so many minutes. Exit code 1: something was lost or wrong, or memory grew."""
    first = str(before.resolve() / ".venv/bin/python") if before else sys.executable
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="day-")))
        (folder / "day_app.py").write_text(APP)
        day = Day(folder, first, rate, 60 * minutes)
        stack.callback(day.end)
        day.start("server")
        day.start("worker")
        until(lambda: Client(day.endpoint, timeout=60).stats()["store"], PATIENCE)
        events = {
            1: ("five services paused", day.pause_some),
            2: ("workers replaced", day.replace_worker),
            4: ("server restarted", lambda: day.restart("server")),
            5: ("worker killed", lambda: day.restart("worker", kill=True)),
            6: ("server killed", lambda: day.restart("server", kill=True)),
            8: ("server and workers upgraded", day.upgrade),
        }
        day.run(events)
        sys.exit(report(day, {tenth: name for tenth, (name, _) in events.items()}))


def report(day: Day, events: dict[int, str]) -> int:
    """Print what was measured; 1: something was wrong."""
    print("| tenth | requests | submit p50, ms | p99, ms | start p50, ms | p99, ms | event |")
    print("|--:|--:|--:|--:|--:|--:|--|")
    for tenth, found in enumerate(zip(day.submits, day.starts, strict=True)):
        parts = [quantiles(values, n=100) if len(values) > 1 else [0.0] * 99 for values in found]
        cells = [f"{1000 * value:.1f}" for part in parts for value in (part[49], part[98])]
        print(f"| {tenth + 1} | {len(found[0])} | {' | '.join(cells)} | {events.get(tenth, '')} |")
    bad = len(day.faults)
    for name, sizes in day.memory.items():
        quarters = [[mb for at, mb in sizes if lo <= at / sizes[-1][0] * 4 < lo + 1.001] for lo in range(4)]
        usual = [median(quarter) if quarter else 0.0 for quarter in quarters]
        print(f"{name}: MB in the quarters:", *map(round, usual), "at most", round(max(mb for _, mb in sizes)))
        bad += usual[3] > MOST_GROWTH * usual[1]
    print(f"{sum(map(len, day.submits))} requests accepted, {day.refused.total()} times refused before")
    print(*(f"{times} × {why}" for why, times in day.refused.most_common(5)), sep="\n")
    print(f"{len(day.faults)} lost or wrong", *day.faults[:5], sep="\n")
    return int(bad > 0)


if __name__ == "__main__":
    main()
