"""All that may be killed: a server, perhaps with a broker of its own, and workers; as processes, on one store."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from support.lives import Death
from support.processes import SUPPORT, Process
from support.random_worker import SERVICES

from titanic.errors import StoreError, StoreLocked
from titanic.store import MIN_CAPACITY
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check, check_apart

SURVIVING = ("synced", "relaxed")
"""What a killed server loses nothing with, on any file system: servers take turns."""


class Cast:
    """Who plays. Whoever is killed or kills itself is started again."""

    def __init__(self, path: Path, stack: ExitStack, *, integrated: bool, workers: int) -> None:
        self.path = path
        self.store = path / "store"
        self.endpoint = f"ipc://{path}/titanic.ipc"
        self.journal = path / "journal"
        self.deaths: list[Death] = []
        self.births: dict[str, float] = {}
        self.starts = 0
        stack.push(self._leave)
        way = "serve" if integrated else "attach"
        self._makers: dict[str, Callable[[str], Process]] = {
            "server": lambda _: self._node(way, str(self.store), str(MIN_CAPACITY), SURVIVING[self.starts % 2])
        }
        if not integrated:
            self._makers["broker"] = lambda _: self._node("broker")
        self.running: dict[str, tuple[str, Process]] = {}
        for role in self._makers:
            self.start(role)
        for number in range(workers):
            self.add_worker(f"worker{number}")

    def _leave(self, kind: type[BaseException] | None, *_: object) -> None:
        """Nobody outlives the test; when it failed, it shows what was said last."""
        for _, process in self.running.values():
            process.kill()
        for path in self.path.glob("*.out") if kind else ():
            print(f"--- {path}", path.read_text(errors="replace")[-1500:], sep="\n")

    @property
    def roles(self) -> list[str]:
        return [*self._makers]

    def _node(self, mode: str, *arguments: str) -> Process:
        return Process(SUPPORT / "server_process.py", mode, self.endpoint, *arguments, output=self.path / f"{mode}.out")

    def _worker(self, name: str) -> Process:
        script, output = SUPPORT / "random_worker.py", self.path / "worker.out"
        return Process(script, self.endpoint, str(self.journal), name, *SERVICES, output=output)

    def add_worker(self, role: str) -> None:
        self._makers[role] = self._worker
        self.start(role)

    def start(self, role: str) -> None:
        self.starts += 1
        name = f"{role}.{self.starts}" if role.startswith("worker") else role
        self.births[name] = time.monotonic()
        self.running[role] = name, self._makers[role](name)

    def kill(self, role: str) -> None:
        """With SIGKILL. It stays away until it is started."""
        self._end(role, lambda process: process.kill())

    def terminate(self, role: str) -> None:
        """With SIGTERM: it ends as it should."""

        def end(process: Process) -> None:
            code = process.terminate()
            early = code == -signal.SIGTERM  # it had hardly begun
            itself = code == -signal.SIGKILL and role.startswith("worker")
            assert code == 0 or early or itself, f"{role} ended with {code}; {self.path}"

        self._end(role, end)

    def _end(self, role: str, end: Callable[[Process], None]) -> None:
        name, process = self.running.pop(role)
        assert process.running or role.startswith("worker"), f"{role} has ended by itself"
        began = time.monotonic()
        end(process)
        self.deaths.append(Death(name, began, time.monotonic()))

    def mend(self) -> bool:
        """Workers that killed themselves come back. Always true."""
        for role, (_, process) in [*self.running.items()]:
            if not process.running:
                assert role.startswith("worker"), f"{role} has ended by itself"
                self.start(role)
        return True

    def check(self) -> None:
        """The store is sound, and no larger than it may be, with a server or without."""
        assert (self.store / "data.mdb").stat().st_size <= MIN_CAPACITY
        try:
            with LmdbStore.open(self.store, to_repair=True, verified=True) as store:
                assert check(store) == []
        except StoreLocked:
            try:
                assert check_apart(self.store).problems == []
            except StoreError as error:  # it is full: what reads it makes way
                if "the store needs them" not in str(error) and "(SIGKILL)" not in str(error):
                    raise

    def complaints(self) -> list[str]:
        """Faults of the programs that their logs tell of."""
        lines = [line for path in self.path.glob("*.out") for line in path.read_text(errors="replace").splitlines()]
        return [line for line in lines if "Traceback" in line or "a bug in this program" in line]
