"""`titanic worker` in trouble: parents and processes that are killed, stopped or without memory, pipes that are full,
connections that are cut or stalled, and what became of each request."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from support.cli_titanic import Running, alive, serving
from support.relay import Relay
from support.torture import LONG, SEED, figures, tally
from support.waiting import until

from titanic import Client

FAULTS = 1000 if LONG else 9
LEAST_REQUESTS = 200
WORKERS = 2
MOST_AHEAD = 30
"""Requests that are submitted before others have ended."""
LARGE = 300_000
"""Bytes of a body that fills the pipe to a process that does not read."""
MEGABYTES = 100
"""Memory of a request that needs some: more than a process without memory gets."""

APP = """
import os
import time

from titanic.tasks import Tasks

app = Tasks(name="chaos")
LEDGER = os.open("LEDGER", os.O_WRONLY | os.O_APPEND)


def note(what: str, number: int) -> None:
    os.write(LEDGER, f"{what} {number} {os.getpid()} {time.monotonic():.4f}\\n".encode())


@app.task
def work(number: int, seconds: float, megabytes: int, text: str) -> int:
    note("begin", number)
    try:
        memory = bytearray(megabytes << 20)
    except MemoryError:
        note("fail", number)
        raise
    time.sleep(seconds)
    note("end", number)
    return number * 3
"""

KILLED = "kill a process", "kill a parent", "kill a parent and its processes"
"""Faults after which a request that was in hand may be executed again."""
OTHERS = (
    *("stop a process for a while", "end a parent", "stop a parent for a while"),
    *("cut a connection", "stall a connection", "no memory for a process"),
)


class Play:
    """A server, two `titanic worker`, and a ledger in which each execution is written down."""

    def __init__(self, folder: Path, endpoint: str, dice: random.Random) -> None:
        self.folder = folder
        self.dice = dice
        self.ledger = folder / "ledger"
        self.ledger.touch()
        (folder / "chaos_app.py").write_text(APP.replace('LEDGER"', f'{self.ledger}"'))
        self._lines = [Relay(endpoint) for _ in range(WORKERS)]
        self._count = 0
        self.workers: list[Running] = [self._start(line) for line in self._lines]
        self.deaths: dict[int, float] = {}
        """When the signal was sent that killed a process."""
        self.done: Counter[str] = Counter()

    def end(self) -> None:
        for worker in self.workers:
            worker.end()
        for line in self._lines:
            line.close()

    def _start(self, line: Relay) -> Running:
        self._count += 1
        path = f"{self.folder}:{os.environ.get('PYTHONPATH', '')}"
        options = ("--endpoint", line.endpoint, "--processes", "2", "--jobs", "2", "--grace", "20")
        return Running(
            *(self.folder / f"worker-{self._count}.log", "worker", "chaos_app:app", *options),
            PYTHONPATH=path,
            PYTHONDONTWRITEBYTECODE="1",
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
            case "cut a connection":
                self._lines[at].reset()
            case "stall a connection":
                self._lines[at].stall()
                most = self.ended() + self.dice.randrange(5, 60)
                until(lambda: self.ended() >= most)  # the others go on
                self._lines[at].go_on()
            case "no memory for a process":
                most = resource.prlimit(child, resource.RLIMIT_AS)[1]
                pages = int(Path(f"/proc/{child}/statm").read_text().split()[0])
                resource.prlimit(child, resource.RLIMIT_AS, (pages * resource.getpagesize() + (8 << 20), most))
        self.done[what] += 1

    def _replace(self, at: int) -> None:
        self.workers[at].end()
        self.workers[at] = self._start(self._lines[at])

    def _kill(self, pid: int) -> None:
        self.deaths[pid] = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))

    def logged(self, what: str) -> int:
        """How often the workers' logs have this."""
        return sum(len(re.findall(what, path.read_text())) for path in self.folder.glob("worker-*.log"))

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
            else:  # "end" or "fail"
                found.setdefault(number, []).append((open_ones.pop((number, pid)), when))
        for (number, pid), when in open_ones.items():  # one without memory may end by itself
            found.setdefault(number, []).append((when, self.deaths.get(pid, when)))
        return found


@contextmanager
def play(folder: Path, dice: random.Random) -> Iterator[tuple[Play, Client]]:
    with ExitStack() as stack:
        options = ("--max-attempts", "1000", "--poison-deaths", "1000", "--retry-first", "50ms", "--retry-most", "1s")
        _, endpoint = stack.enter_context(serving(folder, *options))
        one = Play(folder, endpoint, dice)
        stack.callback(one.end)
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
                megabytes, size = MEGABYTES * (number % 10 == 3), LARGE * (number % 7 == 5)
                body = json.dumps({"args": [number, round(dice.uniform(0.001, 0.15), 3), megabytes, "x" * size]})
                uuids[number] = client.submit("chaos.work", body)
                until(lambda: len(uuids) < one.ended() + MOST_AHEAD or over.is_set())

        submitting = threading.Thread(target=submit)
        submitting.start()
        for what in dice.sample(KILLED + OTHERS, 9) + dice.choices(KILLED + OTHERS, k=FAULTS - 9):
            one.fault(what)
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
    failed, ended = one.logged(r" failed \("), one.logged(r"process \d+ (was )?ended ")
    again = [number for number, times in executions.items() if len(times) > 1]
    deaths = len(one.deaths)
    assert len(again) <= failed + 2 * (deaths + ended), "a process has two requests at most"
    attempts = sum(charged.values()) - len(charged)
    unlogged = 2 * (one.done["kill a parent"] + one.done["kill a parent and its processes"])  # its processes end, too
    assert attempts <= failed + ended + unlogged, f"{one.done}; {[one for one in charged.items() if one[1] > 1]}"
    tally["processes killed"] += deaths
    tally["acknowledged requests checked"] += len(uuids)
    faults = sum(one.done.values())
    figures.append(f"workers: {faults} faults, {len(uuids)} requests; {len(again)} again, {failed} failed")
