"""`titanic worker` in trouble: parents and processes that are killed or stopped, and what became of each request."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from support.cli_titanic import Running, alive, serving
from support.torture import LONG, SEED, figures, tally
from support.waiting import until

from titanic import Client

FAULTS = 1000 if LONG else 14
LEAST_REQUESTS = 200
WORKERS = 2
MOST_AHEAD = 30
"""Requests that are submitted before others have ended."""

APP = """
import os
import time

from titanic.tasks import Tasks

app = Tasks(name="chaos")
LEDGER = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND)


def note(what: str, number: int) -> None:
    os.write(LEDGER, f"{what} {number} {os.getpid()} {time.monotonic():.4f}\\n".encode())


@app.task
def work(number: int, seconds: float) -> int:
    note("begin", number)
    time.sleep(seconds)
    note("end", number)
    return number * 3
"""

KILLED = "kill a process", "kill a parent", "kill a parent and its processes"
"""Faults after which a request that was in hand may be executed again."""
OTHERS = "stop a process for a while", "end a parent", "stop a parent for a while"


class Play:
    """A server, two `titanic worker`, and a ledger in which each execution is written down."""

    def __init__(self, folder: Path, endpoint: str, dice: random.Random) -> None:
        self.folder = folder
        self.dice = dice
        self.ledger = folder / "ledger"
        self.ledger.touch()
        (folder / "chaos_app.py").write_text(APP)
        self._endpoint = endpoint
        self._count = 0
        self.workers: list[Running] = [self._start() for _ in range(WORKERS)]
        self.deaths: dict[int, float] = {}
        """When the signal was sent that killed a process."""
        self.done: Counter[str] = Counter()

    def _start(self) -> Running:
        self._count += 1
        path = f"{self.folder}:{os.environ.get('PYTHONPATH', '')}"
        options = ("--endpoint", self._endpoint, "--processes", "2", "--jobs", "2", "--grace", "20")
        return Running(
            *(self.folder / f"worker-{self._count}.log", "worker", "chaos_app:app", *options),
            PYTHONPATH=path,
            PYTHONDONTWRITEBYTECODE="1",
            LEDGER=str(self.ledger),
        )

    def children(self, worker: Running) -> list[int]:
        found = re.findall(r"process \d+ is pid (\d+)", worker.log.read_text())
        return [pid for pid in map(int, found) if alive(pid)]

    def fault(self, what: str) -> None:
        at = self.dice.randrange(WORKERS)
        worker = self.workers[at]
        children = until(lambda: self.children(worker))
        child = self.dice.choice(children)
        match what:
            case "kill a process":
                self._kill(child)
            case "kill a parent":
                self.deaths |= dict.fromkeys(children, time.monotonic())
                worker.kill()
                until(lambda: not any(alive(pid) for pid in children))
                self._replace(at)
            case "kill a parent and its processes":
                for pid in children:
                    self._kill(pid)
                worker.kill()
                self._replace(at)
            case "end a parent":
                worker.send(signal.SIGTERM)
                assert worker.ends() == 0, worker.log.read_text()
                self._replace(at)
            case "stop a process for a while" | "stop a parent for a while":
                pid = child if what == "stop a process for a while" else worker.process.pid
                os.kill(pid, signal.SIGSTOP)
                most = self.ended() + self.dice.randrange(5, 60)
                until(lambda: self.ended() >= most)  # the others go on
                os.kill(pid, signal.SIGCONT)
        self.done[what] += 1

    def _replace(self, at: int) -> None:
        self.workers[at].end()
        self.workers[at] = self._start()

    def _kill(self, pid: int) -> None:
        self.deaths[pid] = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))

    def ended(self) -> int:
        return self.ledger.read_bytes().count(b"end ")

    def executions(self) -> dict[int, list[tuple[float, float]]]:
        """When each request was executed, from begin to end, or to the death of the process."""
        found: dict[int, list[tuple[float, float]]] = {}
        open_ones: dict[tuple[int, int], float] = {}
        for line in self.ledger.read_text().splitlines():
            what, *facts = line.split()
            number, pid, when = int(facts[0]), int(facts[1]), float(facts[2])
            if what == "begin":
                open_ones[number, pid] = when
            else:
                found.setdefault(number, []).append((open_ones.pop((number, pid)), when))
        for (number, pid), when in open_ones.items():
            found.setdefault(number, []).append((when, self.deaths[pid]))
        return found


@contextmanager
def play(folder: Path, dice: random.Random) -> Iterator[tuple[Play, Client]]:
    with ExitStack() as stack:
        options = ("--max-attempts", "1000", "--retry-first", "50ms", "--retry-most", "1s")
        _, endpoint = stack.enter_context(serving(folder, *options))
        one = Play(folder, endpoint, dice)
        stack.callback(lambda: [worker.end() for worker in one.workers])
        yield one, stack.enter_context(Client(endpoint, timeout=30))


@pytest.mark.torture(short=True)
def test_nothing_is_lost_and_nothing_runs_twice_without_a_death(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    with play(tmp_path, dice) as (one, client):
        uuids: dict[int, str] = {}
        over = threading.Event()

        def submit() -> None:
            while not over.is_set() or len(uuids) < LEAST_REQUESTS:
                number = len(uuids)
                body = json.dumps({"args": [number, round(dice.uniform(0.001, 0.15), 3)]})
                uuids[number] = client.submit("chaos.work", body)
                until(lambda: len(uuids) < one.ended() + MOST_AHEAD or over.is_set())

        submitting = threading.Thread(target=submit)
        submitting.start()
        for _ in range(FAULTS):
            one.fault(dice.choice(KILLED + OTHERS))
        over.set()
        submitting.join()
        for number, uuid in uuids.items():
            assert client.wait(uuid, timeout=60) == [str(number * 3).encode()]
        charged = {number: client.show(uuid)["attempts"] for number, uuid in uuids.items()}
    executions = one.executions()
    assert executions.keys() == uuids.keys()
    together = {
        number: times
        for number, times in executions.items()
        if any(later[0] < earlier[1] for earlier, later in zip(sorted(times), sorted(times)[1:], strict=False))
    }
    assert together == {}, "executed by two workers at a time"
    again = [number for number, times in executions.items() if len(times) > 1]
    deaths = len(one.deaths)
    assert len(again) <= 2 * deaths, "a process has two requests at most"
    attempts = sum(charged.values()) - len(charged)
    assert attempts <= one.done["kill a process"] + one.done["kill a parent and its processes"] * 2
    tally["processes killed"] += deaths
    tally["acknowledged requests checked"] += len(uuids)
    figures.append(f"workers: {sum(one.done.values())} faults, {len(uuids)} requests, {len(again)} executed again")
