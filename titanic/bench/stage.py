"""The processes that are measured: server, broker and workers on a store of their own."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from broker import Pipeline, Worker, new_keys
from titanic.client.client import Client
from titanic.errors import TimedOut
from titanic.store import Durability, remove_store
from titanic.util.processes import Children, Process, uninterrupted

PATIENCE = 60.0
"""Seconds to wait for one answer."""

POLL_INTERVAL = 0.001
"""Seconds between two checks whether a server listens."""

TOGETHER = 250
"""Services with workers that share a process."""

MEMORY = Path("/dev/shm")

ACCESS = """
[users.bench]
keys = ["bench.key"]
submit = ["*"]
work = ["*"]
call = ["*"]
read = "own"
close = true
metrics = true
"""
"""The access file of an encrypted stage: the measuring user may do everything that the loads do."""

_UTIME, _STIME = 11, 12
"""Fields of /proc/PID/stat behind the name of the command."""


class Stage:
    """A store of its own with its server, or with a broker and a server, and workers. All of it ends with the block."""

    def __init__(
        self,
        folder: Path | None,
        *,
        apart: bool = False,
        durability: Durability = "synced",
        encrypted: bool = False,
        url: str | None = None,
    ) -> None:
        """`encrypted`: the server has access control, and clients and workers have keys, all of it made here. Not with
        `apart`. `url`: the store is in this database, and removed at the end."""
        self.folder = Path(tempfile.mkdtemp(prefix="s", dir=home(folder, durability)))
        self.endpoint = f"ipc://{self.folder}/b"
        self._children = Children()
        self._processes: dict[str, Process] = {}
        self._apart = apart
        self._durability = durability
        self._url = url
        self._key: Path | None = None
        self._server_key: Path | None = None
        self._access: tuple[str, ...] = ()
        """Options of the server."""
        if encrypted:
            self._encrypt()

    def __enter__(self) -> Self:
        try:
            if self._apart:
                self._start("broker", "-m", "titanic", "broker", "--bind", self.endpoint)
            self.serve()
            self.client = self._connect()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self._end()

    def serve(self) -> float:
        """Start the server and return the seconds until its first answer."""
        where = "--broker" if self._apart else "--bind"
        store = self._url or str(self.folder / "store")
        start = time.perf_counter()
        options = ("--store", store, "--capacity", "64GiB", "--durability", self._durability, *self._access)
        self._start("serve", "-m", "titanic", "serve", where, self.endpoint, *options)
        self._wait_until_it_listens(start + PATIENCE)
        with self._connect(timeout=0.1, retries=0) as client:
            while True:
                try:
                    client.stats()
                    return time.perf_counter() - start
                except TimedOut:
                    if time.perf_counter() - start > PATIENCE:
                        raise

    def _wait_until_it_listens(self, until: float) -> None:
        """Wait until a server listens at the endpoint. ZeroMQ would check that every 100 ms, and each start would
        take a multiple of it."""
        address = self.endpoint.removeprefix("ipc://")
        while time.perf_counter() < until:
            with socket.socket(socket.AF_UNIX) as line:
                if line.connect_ex(address) == 0:
                    return
            time.sleep(POLL_INTERVAL)

    def kill(self) -> None:
        """Kill the server."""
        process = self._processes.pop("serve")
        process.kill()
        process.wait()

    def pipeline(self) -> Pipeline:
        """Another connection."""
        return Pipeline(self.endpoint, timeout=PATIENCE, key=self._key, server_key=self._server_key)

    def work(self, service: str, jobs: int) -> None:
        """Start a process with some echo workers; return when they answer."""
        name = f"work {service} {jobs}"
        if name not in self._processes:
            code = "import sys; from titanic.bench import stage; stage.echo(*sys.argv[1:])"
            self._start(name, "-c", code, self.endpoint, service, str(jobs), *self._key_files())
            with self._connect() as client:
                client.call(service, b"are you there")

    def work_many(self, services: int) -> None:
        """Start a worker for each of some services, TOGETHER in a process; return when all of them answer."""
        code = "import sys; from titanic.bench import stage; stage.echo_many(*sys.argv[1:])"
        for first in range(0, services, TOGETHER):
            last = min(services, first + TOGETHER)
            self._start(f"work {first}", "-c", code, self.endpoint, str(first), str(last), *self._key_files())
        with self._connect() as client:
            for number in range(services):
                client.call(f"many{number}", b"are you there")

    @staticmethod
    def now() -> float:
        """Seconds that only go forward."""
        return time.perf_counter()

    def cpu(self) -> dict[str, float]:
        """Seconds of processor time until now, by kind of process; `client` is this one."""
        pids = [("client", os.getpid()), *((name.split()[0], one.pid) for name, one in self._processes.items())]
        used: dict[str, float] = {}
        for name, pid in pids:
            if (seconds := cpu_seconds(pid)) is not None:
                used[name] = used.get(name, 0.0) + seconds
        return used

    def counts(self) -> dict[str, float]:
        """What the server has counted until now: its commits and, where the system reports it, thread switches."""
        counted = {"commits": float(self.client.stats()["since_start"]["commits"])}
        switches = thread_switches(self._processes["serve"].pid)
        return counted if switches is None else {"switches": switches, **counted}

    def memory(self) -> int | None:
        """Bytes of the server's own memory."""
        return memory_bytes(self._processes["serve"].pid)

    def _connect(self, timeout: float = PATIENCE, retries: int = 2) -> Client:
        return Client(self.endpoint, timeout=timeout, retries=retries, key=self._key, server_key=self._server_key)

    def _encrypt(self) -> None:
        """Make keys for both sides, and the access file."""
        self._server_key, secret = new_keys(self.folder, "server")
        _, self._key = new_keys(self.folder, "bench")
        access = self.folder / "access.toml"
        access.write_text(ACCESS)
        self._access = ("--access", str(access), "--key", str(secret))

    def _key_files(self) -> tuple[str, ...]:
        """For the program of a process that works."""
        return (str(self._key), str(self._server_key)) if self._key is not None else ()

    def _start(self, name: str, *arguments: str) -> None:
        log = self.folder / f"{name}.log"
        self._processes[name] = self._children.start(log, *arguments)

    def _end(self) -> None:
        with uninterrupted():
            self._children.end()
            if self._url is not None:
                remove_store(self._url)
            shutil.rmtree(self.folder, ignore_errors=True)


def home(folder: Path | None, durability: Durability) -> Path | None:
    """Where a store is to be: in the folder, or in memory."""
    return MEMORY if durability == "memory" else folder


def echo(endpoint: str, service: str, jobs: str, key: str | None = None, server_key: str | None = None) -> None:
    """Run echo workers of one service: the program of a process that `work` starts."""
    Worker(service, lambda body: body, endpoint, jobs=int(jobs), key=key, server_key=server_key).run()


def echo_many(endpoint: str, first: str, last: str, key: str | None = None, server_key: str | None = None) -> None:
    """Run an echo worker for each of some services: the program of a process that `work_many` starts."""
    workers = [
        Worker(f"many{number}", lambda body: body, endpoint, key=key, server_key=server_key)
        for number in range(int(first), int(last))
    ]
    for worker in workers:
        worker.start()
    threading.Event().wait()


def cpu_seconds(pid: int) -> float | None:
    """Processor time of a process and its threads; None where the system has no proc(5)."""
    with suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")
    return None


def thread_switches(pid: int) -> int | None:
    """How often a thread of a process gave up its processor or lost it; None where the system has no proc(5)."""
    found: list[int] = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError, IndexError, ValueError):
            lines = status.read_text().splitlines()
            found += [int(line.split()[1]) for line in lines if "ctxt_switches" in line]
    return sum(found) if found else None


def memory_bytes(pid: int) -> int | None:
    """Memory of a process without mapped files: the store's pages belong to the system's cache."""
    with suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return None
