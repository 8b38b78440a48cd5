"""All that takes part in the chaos: the database, nodes, workers and clients, and the ways between them."""

from __future__ import annotations

import json
import random
import re
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from support.chaos_database import Database, Trouble
from support.chaos_plan import Fault, lanes, plan
from support.lines import Heard, Line, Lines
from support.ports import free_port
from support.postgres import PASSWORD, USER
from support.processes import SUPPORT, Process

from titanic import Client
from titanic.errors import TitanicError

DRAINED = 15.0
"""Seconds until a node that is drained should have ended, if the others let it."""


class Size(NamedTuple):
    """How much of each there is."""

    nodes: int = 3
    workers: int = 2
    jobs: int = 4
    clients: int = 3
    threads: int = 5
    batch: int = 300
    lease: float = 4.0


class Node:
    """`titanic serve`, and the ways to it and from it."""

    def __init__(self, name: str, folder: Path, lines: Lines, database: Database, lease: float) -> None:
        self.name = name
        self.port = free_port()
        self.output = folder / f"{name}.out"
        self.heard = Heard(lease * 0.3)
        self.store = [lines.add(server.port, self.heard) for server in database.servers]
        for server, line in zip(database.servers, self.store, strict=True):
            database.ways[id(server)].append(line)
        self.clients, self.workers = lines.add(self.port), lines.add(self.port)
        self._clock = folder / f"{name}.clock"
        self._lease = lease
        hosts = ",".join(f"127.0.0.1:{line.port}" for line in self.store)
        self._url = f"postgresql://{USER}:{quote(PASSWORD)}@{hosts}/{database.name}"
        self.set_clock(0)
        self.starts = 0
        self.process: Process | None = None

    def start(self) -> None:
        self.starts += 1
        with self.output.open("a") as output:
            output.write("--- start\n")
        more = (
            "--capacity",
            "256MiB",
            "--retry-first",
            "0.2",
            "--retry-most",
            "2",
            "--max-attempts",
            "1000",
            "--poison-deaths",
            "1000",
        )
        self.process = Process(
            SUPPORT / "chaos_node.py", str(self._clock), str(self._lease), "serve", "--config", "/dev/null",
            "--bind", f"tcp://127.0.0.1:{self.port}", "--node-name", self.name, *more, "--grace", "3",
            output=self.output, TITANIC_STORE=self._url,
        )  # fmt: skip

    def set_clock(self, microseconds: int) -> None:
        """From now on its wall clock is wrong by so much."""
        if not self._clock.exists():
            self._clock.write_bytes(bytes(8))
        with self._clock.open("r+b") as file:
            file.write(struct.pack("q", microseconds))


class Cluster:
    """Whoever ends is started again. `troubles` has all that was done to them."""

    def __init__(self, folder: Path, stack: ExitStack, size: Size, seed: int) -> None:
        self.folder = folder
        self.size = size
        self._seed = seed
        self.over = threading.Event()
        self._parted = threading.Event()
        stack.callback(self._parted.set)
        self._lock = threading.RLock()
        self._ending: set[str] = set()
        """Programs that are not there on purpose."""
        self.troubles: list[Trouble] = []
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._record = (folder / "faults").open("w", buffering=1)
        stack.callback(self._record.close)
        lines = stack.enter_context(Lines())
        self.database = Database(stack, folder, lines, self.over)
        self.nodes = {
            f"n{at + 1}": Node(f"n{at + 1}", folder, lines, self.database, size.lease) for at in range(size.nodes)
        }
        self.programs: dict[str, Process] = {}
        self._births: Counter[str] = Counter()
        stack.callback(self._end)
        for node in self.nodes.values():
            node.start()
        self._threads: list[tuple[str, threading.Event]] = []

    def begin(self) -> None:
        """Workers and clients come, and somebody looks after all."""
        for at in range(self.size.workers):
            self._start_program(f"w{at + 1}")
        for at in range(self.size.clients):
            self._start_program(f"c{at + 1}")
        self._thread("who looks after all", self._mend)

    def strike(self) -> None:
        """From now on there are faults, until `over` is set."""
        for lane in lanes(self.size.nodes):
            self._thread(lane, lambda lane=lane: self._lane(lane))

    def calm(self) -> None:
        """No more faults. All is well again when this returns."""
        self.over.set()
        for name, done in self._threads:
            assert done.wait(120), f"{name} goes on"
        for node in self.nodes.values():
            for line in (*node.store, node.clients, node.workers):
                assert line.state == "up"
        self._look()
        self.database.well()

    def endpoints(self) -> str:
        """Of clients: those of all nodes."""
        return ",".join(_tcp(node.clients) for node in self.nodes.values())

    # -- programs ----------------------------------------------------------------------------------------------

    def _start_program(self, role: str) -> None:
        self._births[role] += 1
        name = f"{role}.{self._births[role]}"
        output = self.folder / f"{role}.out"
        size = self.size
        if role.startswith("w"):
            places = [f"{name}={_tcp(node.workers)}" for name, node in self.nodes.items()]
            arguments = [SUPPORT / "chaos_worker.py", str(self.folder / "journal"), name, str(size.jobs), *places]
        else:
            ledger = str(self.folder / f"ledger.{name}")
            numbers = (str(size.threads), str(size.batch))
            arguments = [SUPPORT / "chaos_client.py", ledger, name, *numbers, self.endpoints()]
        self.programs[role] = Process(*arguments, output=output)

    def end_clients(self, seconds: float) -> None:
        """They finish what they are at."""
        clients = [process for role, process in self.programs.items() if role.startswith("c")]
        for process in clients:
            process.signal(signal.SIGTERM)
        end = time.monotonic() + seconds
        for process in clients:
            while process.running and time.monotonic() < end:
                threading.Event().wait(0.05)
            if process.running:
                self.wrong.append("a client did not finish its round though all is well")
            elif process.terminate():
                self.wrong.append(f"a client ended with {process.terminate()}")

    def _mend(self) -> None:
        while not self.over.wait(0.2):
            self._look()

    def _look(self) -> None:
        """Whoever ended by himself is started again, as a service manager would."""
        with self._lock:
            for name, node in self.nodes.items():
                if name not in self._ending and node.process is not None and not node.process.running:
                    self._ended(node)
                    now = time.monotonic()
                    self._trouble(Trouble(name, "ended", now, now))
                    node.start()
            for role, process in [*self.programs.items()]:
                if role not in self._ending and not process.running and not self.over.is_set():
                    self.wrong.append(f"{role} ended by itself")
                    self._start_program(role)

    def _ended(self, node: Node) -> None:
        """A node that cannot reach its database when it starts may end. Later it may not."""
        said = node.output.read_text(errors="replace")
        last = said.rpartition("--- start")[2]
        self.counts["starts in vain"] += 1
        if re.search(r"\bserving at ", last):
            self.wrong.append(f"{node.name} ended by itself: {last[-600:]}")

    def _end(self) -> None:
        self.over.set()
        everybody = [*self.programs.values(), *(node.process for node in self.nodes.values() if node.process)]
        for process in everybody:
            process.kill()

    # -- faults ------------------------------------------------------------------------------------------------

    def _thread(self, name: str, what: Callable[[], None]) -> None:
        done = threading.Event()
        self._threads.append((name, done))
        threading.Thread(target=self._guarded, args=(what, done), daemon=True).start()

    def _guarded(self, what: Callable[[], None], done: threading.Event) -> None:
        """The thread stays when it is done: a server of PostgreSQL dies with the thread that started it."""
        try:
            what()
            done.set()
            self._parted.wait()
        except BaseException as error:  # the test says so when it ends
            self.wrong.append(f"the chaos itself failed: {type(error).__name__}: {error}")
            self.over.set()
            raise

    def _trouble(self, trouble: Trouble, fault: Fault | None = None) -> None:
        self.troubles.append(trouble)
        self._record.write(json.dumps([*trouble, fault]) + "\n")

    def _lane(self, lane: str) -> None:
        dice = random.Random(f"{self._seed} {lane} details")
        for fault in plan(lane, self.size.nodes, self._seed, self.size.lease):
            if self.over.wait(fault.pause):
                return
            who, _, part = lane.partition(" ")
            if lane == "database":
                trouble = self.database.strike(fault.kind, fault.seconds, dice)
            elif lane == "programs":
                trouble = self._program(fault, dice)
            elif part:
                trouble = self._line(self.nodes[who], part, fault)
            else:
                trouble = self._node(self.nodes[who], fault, dice)
            self.counts["faults"] += 1
            self.counts[fault.kind if part != "store" else f"store {fault.kind}"] += 1
            self._trouble(trouble, fault)

    def _line(self, node: Node, part: str, fault: Fault) -> Trouble:
        lines, what = node.store, fault.kind
        if part == "peers":
            part, _, what = fault.kind.partition(" ")
            lines = [node.clients if part == "clients" else node.workers]
        began = time.monotonic()
        state = what.partition(",")[0]
        if state != "cut":
            for line in lines:
                line.set(state, fault.lane)
            self.over.wait(fault.seconds)
        if what.endswith("cut"):
            for line in lines:
                line.cut()
        for line in lines:
            line.set("up", fault.lane)
        return Trouble(f"{node.name} {part}", what, began, time.monotonic())

    def _node(self, node: Node, fault: Fault, dice: random.Random) -> Trouble:
        began, what = time.monotonic(), fault.kind
        assert node.process is not None
        if fault.kind == "clock":
            hours = dice.choice((0.0, dice.uniform(-48, 48), dice.uniform(-0.01, 0.01)))
            node.set_clock(int(hours * 3_600_000_000))
        elif fault.kind == "stands still":
            node.process.signal(signal.SIGSTOP)
            self.over.wait(fault.seconds)
            node.process.signal(signal.SIGCONT)
        else:
            with self._lock:
                self._ending.add(node.name)
            if fault.kind == "killed":
                node.process.kill()
                self.over.wait(fault.seconds)
            elif fault.kind == "drained" and self._drained(node):
                self.counts["drained to the end"] += 1
            else:
                what = "terminated"
                if code := node.process.terminate():
                    self.counts[f"terminated nodes with code {code}"] += 1
            node.start()
            with self._lock:
                self._ending.discard(node.name)
        return Trouble(node.name, what, began, time.monotonic())

    def _drained(self, node: Node) -> bool:
        """Have it drained; false when it has not ended by itself after some time."""
        assert node.process is not None
        try:
            with Client(self.endpoints().split(","), timeout=2, retries=1) as client:
                client.drain(node.name)
        except TitanicError:
            return False
        until = time.monotonic() + DRAINED
        while node.process.running and time.monotonic() < until and not self.over.wait(0.05):
            pass
        if node.process.running:
            return False
        if code := node.process.terminate():
            self.wrong.append(f"{node.name} was drained and ended with {code}")
        return True

    def _program(self, fault: Fault, dice: random.Random) -> Trouble:
        kind, _, what = fault.kind.partition(" ")
        with self._lock:
            role = dice.choice([role for role in sorted(self.programs) if role[0] == kind[0]])
            process = self.programs[role]
            self._ending.add(role)
        name = f"{role}.{self._births[role]}"
        began = time.monotonic()
        if what == "stands still":
            process.signal(signal.SIGSTOP)
            self.over.wait(fault.seconds)
            process.signal(signal.SIGCONT)
        else:
            if what == "killed":
                process.kill()
            else:
                process.terminate()
            self._start_program(role)
        with self._lock:
            self._ending.discard(role)
        return Trouble(name, what, began, time.monotonic())


def _tcp(line: Line) -> str:
    return f"tcp://127.0.0.1:{line.port}"
