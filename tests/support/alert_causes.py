"""What makes each alert fire and what resolves it: scripts for a stage, played with a real Prometheus.

It scrapes each second, and times in the rules (`for`, windows) are a thirtieth of what they are. Where a threshold is
hours, the server's clock is ahead (faketime).
"""

from __future__ import annotations

import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from support.cli_titanic import Running, running
from support.ports import free_port
from support.processes import SUPPORT, Process
from support.scraping import ALERTS, Prometheus, samples
from support.small_disk import Disk, small_disk
from support.torture import figures
from support.waiting import until

from broker import RemoteError, Worker
from titanic import Client
from titanic.errors import Refused, TitanicError

PATIENCE = 300.0
QUICKER = 30

SHOP = """
import os

from titanic.tasks import Tasks

app = Tasks(name="shop")


@app.task
def die() -> None:
    os.kill(os.getpid(), 9)
"""


def at_clock(clock: str) -> tuple[str, ...]:
    """Run a program with another clock. The command `faketime` would be its parent, and end alone."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return "env", f"LD_PRELOAD={library}", f"FAKETIME={clock}"


def quick_rules() -> str:
    """The alerts, with times that are shorter."""

    def shorter(match: re.Match[str]) -> str:
        seconds = int(match[2]) * {"s": 1, "m": 60, "h": 3600}[match[3]]
        return f"{match[1]}{seconds * 1000 // QUICKER}ms"

    return re.sub(r"(for: |\[)(\d+)([smh])", shorter, ALERTS.read_text())


class Stage:
    """A server, which may be started again, and what acts on it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.store = folder / "store"
        self.address, self.metrics = f"tcp://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.prometheus: Prometheus
        self.servers: list[Running] = []
        self._going_on: list[tuple[threading.Thread, threading.Event]] = []

    def serve(self, *options: str, program: tuple[str, ...] = (), own: bool = True) -> None:
        """Start the server, in place of the one that runs. `program`: what runs it. `own`: it has a broker."""
        for one in self.servers[-1:]:
            one.end()
        where = ("--bind", self.address) if own else ()
        words = ("serve", *where, "--store", self.store, "--metrics", self.metrics, *options)
        program = (*program, sys.executable, "-m", "titanic")
        log = self.folder / f"serve{len(self.servers)}.log"
        self.servers.append(self.stack.enter_context(running(log, *words, program=program)))
        self.servers[-1].says("metrics at")

    def serve_at(self, clock: str, *options: str) -> None:
        """Start the server with another clock, as faketime has them."""
        self.serve(*options, program=at_clock(clock))

    def serve_faulty(self, call: str, fault: str) -> None:
        """Start the server; strace injects faults into a system call of it."""
        words = ("-e", f"trace={call}", "-e", f"inject={call}:{fault}")
        self.serve(program=("strace", "-D", "-f", "--seccomp-bpf", "-o", "/dev/null", *words))

    def restart(self) -> None:
        """Have the server end and start again."""
        self.serve()

    def end(self) -> None:
        """End the server."""
        self.servers[-1].end()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self.servers[-1].process.pid

    def small_disk(self, size: int) -> Disk:
        """A disk of its own for the store of the next server."""
        disk = self.stack.enter_context(small_disk(self.folder / "disk", "tmpfs", size))
        self.store = disk.path / "store"
        return disk

    def back_up(self, clock: str = "+0") -> None:
        """Make a backup at another time."""
        words = ("backup", self.folder / f"backup{clock}", "--store", self.store)
        program = (*at_clock(clock), sys.executable, "-m", "titanic")
        with running(self.folder / "backup.log", *words, program=program) as one:
            assert one.ends() == 0

    def read_for_long(self) -> Callable[[], object]:
        """Have a process read the store and come to no end; what kills it."""
        log = self.folder / "reader.log"
        reader = self.stack.enter_context(Process(SUPPORT / "long_reader.py", self.store, output=log))
        until(lambda: "begun" in log.read_text())
        return reader.kill

    def samples(self) -> dict[str, float]:
        return samples(f"http://{self.metrics}")

    def client(self) -> Client:
        return self.stack.enter_context(Client(self.address, timeout=60))

    def keep(self, act: Callable[[], object], every: float = 0.2) -> None:
        """Do it again and again, in a thread."""
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(every):
                with suppress(TitanicError):
                    act()

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        self._going_on.append((thread, ended))

    def rest(self) -> None:
        """Do so no longer."""
        for thread, ended in self._going_on:
            ended.set()
            thread.join(PATIENCE)
        self._going_on.clear()


Script = Callable[[Stage], Iterator[str]]
"""It makes all well, then brings about the cause, then cures it, and names each."""


def down(stage: Stage) -> Iterator[str]:
    stage.serve()
    yield "the server runs"
    stage.servers[-1].kill()
    yield "the server was killed"
    stage.serve()
    yield "it was started again"


def not_ready(stage: Stage) -> Iterator[str]:
    where = f"ipc://{stage.folder}/broker"
    broker = stage.stack.enter_context(running(stage.folder / "broker.log", "broker", "--bind", where))
    stage.serve("--broker", where, own=False)
    until(lambda: stage.samples()["titanic_ready"])
    yield "broker and queue run apart"
    broker.kill()
    yield "the broker was killed"
    stage.stack.enter_context(running(stage.folder / "broker2.log", "broker", "--bind", where))
    yield "the broker was started again"


def disk_full(stage: Stage) -> Iterator[str]:
    disk = stage.small_disk(48 << 20)
    stage.serve("--capacity", "64MiB")
    client = stage.client()
    client.submit("absent", b"x")
    yield "the disk has room"
    disk.fill()
    stage.keep(lambda: client.submit("absent", bytes(200_000)))
    yield "the disk was filled"
    stage.rest()
    disk.make_room()
    stage.keep(lambda: client.submit("absent", b"x"))
    yield "the disk has room again"
    stage.rest()
    stage.end()


def store_fails(stage: Stage) -> Iterator[str]:
    stage.serve_faulty("fdatasync", "error=EIO:when=20+7")
    client = stage.client()
    client.submit("absent", b"x")
    yield "the disk takes what is written"
    stage.keep(lambda: client.submit("absent", b"x"))
    yield "each seventh sync fails"
    stage.serve()
    yield "on another disk"
    stage.rest()


def store_full(stage: Stage) -> Iterator[str]:
    stage.serve("--capacity", "16MiB")
    client, uuids = stage.client(), list[str]()
    yield "the store is empty"
    for size in (50_000, 2000):
        with suppress(Refused):
            while True:
                uuids.append(client.submit("absent", bytes(size)))
    yield "requests filled the store"
    for uuid in uuids:
        client.close(uuid)
    yield "they were closed"


def fills_up(stage: Stage) -> Iterator[str]:
    stage.serve_at("+0 x60", "--capacity", "256MiB")
    client, uuids = stage.client(), list[str]()
    yield "the store does not fill"
    stage.keep(lambda: uuids.append(client.submit("absent", bytes(200_000))))
    yield "requests come, and there is no worker"
    stage.rest()
    for uuid in uuids:
        client.close(uuid)
    yield "they were closed"


def stuck(stage: Stage) -> Iterator[str]:
    stage.serve_faulty("fdatasync", "delay_exit=20000000:when=20")
    client = stage.client()
    client.submit("absent", b"x")
    yield "the disk answers"
    stage.keep(lambda: client.submit("absent", b"x"))
    yield "a sync hangs for 20 s"
    yield "it has ended"
    stage.rest()


def no_workers(stage: Stage) -> Iterator[str]:
    stage.serve()
    client = stage.client()
    yield "nothing waits"
    client.submit("mail", b"x")
    yield "a request waits, and there is no worker"
    stage.stack.enter_context(Worker("mail", lambda frames: frames, stage.address))
    yield "a worker was started"


def waits_too_long(stage: Stage) -> Iterator[str]:
    stage.serve()
    stage.client().submit("mail", b"x")
    yield "a request waits"
    stage.serve_at("+2h")
    yield "two hours later it still waits"
    stage.stack.enter_context(Worker("mail", lambda frames: frames, stage.address))
    yield "a worker was started"


def failing(stage: Stage) -> Iterator[str]:
    """The service has 1 % of the traffic."""
    stage.serve()
    client, broken = stage.client(), [False]

    def work(frames: list[bytes]) -> list[bytes]:
        if broken[0]:
            raise RemoteError(500, "no way")
        return frames

    stage.stack.enter_context(Worker("mail", work, stage.address, jobs=2))
    stage.stack.enter_context(Worker("echo", lambda frames: frames, stage.address, jobs=2))
    stage.keep(lambda: client.submit("mail", b"x", max_attempts=1), every=0.5)
    stage.keep(lambda: client.submit_many("echo", [[b"x"]] * 100), every=0.5)
    until(lambda: stage.samples().get('titanic_service_succeeded_total{service="mail"}', 0) > 2)
    yield "all requests succeed"
    broken[0] = True
    yield "those of one service fail, of 100 others one"
    broken[0] = False
    yield "they succeed again"
    stage.rest()


def poison(stage: Stage) -> Iterator[str]:
    stage.serve()
    (stage.folder / "alert_shop.py").write_text(SHOP)
    words = ("worker", "alert_shop:app", "--endpoint", stage.address)
    stage.stack.enter_context(running(stage.folder / "pool", *words, PYTHONPATH=str(stage.folder)))
    yield "workers live"
    stage.client().submit("shop.die", "{}", retry_first=0.1)
    yield "a request killed three processes"
    yield "no more died for a window"


def refusing(stage: Stage) -> Iterator[str]:
    stage.serve("--service-limit", "small:waiting=1")
    client = stage.client()
    client.submit("small", b"x")
    yield "requests are accepted"
    stage.keep(lambda: client.submit("small", b"x"))
    yield "more come than the limit of a service allows"
    stage.rest()
    yield "no more come"


def slow_disk(stage: Stage) -> Iterator[str]:
    stage.serve_faulty("fdatasync", "delay_exit=700000:when=20+")
    client = stage.client()
    client.submit("absent", b"x")
    yield "the disk is quick"
    stage.keep(lambda: client.submit("absent", b"x"))
    yield "each sync takes 0.7 s"
    stage.serve()
    yield "on a quick disk again"
    stage.rest()


def forgets(stage: Stage) -> Iterator[str]:
    stage.serve("--capacity", "16MiB", "--drop-unarchived")
    client = stage.client()
    client.archive(register=True, archive="0" * 32, name="here")
    yield "closed requests are kept for the archive"
    stage.keep(lambda: client.close(client.submit("absent", bytes(60_000))), every=0.01)
    until(lambda: stage.samples()["titanic_store_lost_total"], PATIENCE)
    stage.rest()
    yield "the store dropped some that were not archived"
    yield "it dropped no more for a window"


def archive_lags(stage: Stage) -> Iterator[str]:
    stage.serve()
    client = stage.client()
    client.archive(register=True, archive="0" * 32, name="here")
    uuid = client.submit("absent", b"x")
    client.close(uuid)
    yield "a request waits for the archive"
    stage.serve_at("+5h")
    yield "five hours later it still waits"
    client.archive(upto=1, uuid=uuid, archive="0" * 32)
    yield "it was archived"


def backup_old(stage: Stage) -> Iterator[str]:
    stage.serve()
    yield "there is no backup"
    stage.back_up("-3d")
    yield "the last backup was made three days ago"
    stage.back_up()
    yield "another one was made"


def store_reader(stage: Stage) -> Iterator[str]:
    stage.serve("--capacity", "64MiB")
    client = stage.client()
    client.submit("absent", b"x")
    yield "no process reads the store for long"
    kill = stage.read_for_long()
    stage.keep(lambda: client.close(client.submit("absent", bytes(200_000))), every=0.02)
    yield "a process reads it without an end"
    stage.rest()
    kill()
    yield "the process was killed"


def restarts(stage: Stage) -> Iterator[str]:
    stage.serve()
    yield "the server runs"
    for number in range(3):
        stage.restart()
        query = f'changes(process_start_time_seconds{{job="titanic"}}[1h]) > {number}'
        until(lambda query=query: stage.prometheus.ask(query), PATIENCE)
    yield "it was restarted three times"
    yield "it ran for a window"


def few_descriptors(stage: Stage) -> Iterator[str]:
    stage.serve()
    yield "it has many descriptors"
    opened = int(stage.samples()["process_open_fds"])
    soft, hard = resource.prlimit(stage.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(stage.pid, resource.RLIMIT_NOFILE, (opened * 11 // 10, hard))
    yield "its limit is little more than it uses"
    resource.prlimit(stage.pid, resource.RLIMIT_NOFILE, (soft, hard))
    yield "the limit was raised"


SCRIPTS: dict[str, Script] = {
    "TitanicDown": down,
    "TitanicNotReady": not_ready,
    "TitanicStoreUnusable": store_fails,
    "TitanicDiskFull": disk_full,
    "TitanicStoreFull": store_full,
    "TitanicStoreFillsUp": fills_up,
    "TitanicThreadStuck": stuck,
    "TitanicNoWorkers": no_workers,
    "TitanicWaitsTooLong": waits_too_long,
    "TitanicFailing": failing,
    "TitanicFailingSlowly": failing,
    "TitanicPoison": poison,
    "TitanicRefusing": refusing,
    "TitanicSlowDisk": slow_disk,
    "TitanicForgetsUnarchived": forgets,
    "TitanicArchiveLags": archive_lags,
    "TitanicBackupOld": backup_old,
    "TitanicStoreReader": store_reader,
    "TitanicRestarts": restarts,
    "TitanicFewDescriptors": few_descriptors,
}


OF_THE_DATABASE = {"TitanicNoLeader", "TitanicNoStandby"}
"""Alerts from Patroni's metrics: `tests/system/test_patroni.py` has their causes."""


def firing(prometheus: Prometheus, alert: str) -> list[dict[str, str]]:
    """The labels of an alert that fires."""
    found = prometheus.ask(f'ALERTS{{alertname="{alert}",alertstate="firing"}}')
    return [one["metric"] for one in found]


def play(alert: str, script: Script, stage: Stage) -> None:
    """Have an alert fire by its cause and resolve by its cure."""
    prometheus, steps = stage.prometheus, script(stage)
    next(steps)
    until(lambda: prometheus.ask('up{job="titanic"} == 1'), PATIENCE, every=0.2)
    assert not firing(prometheus, alert)
    cause, began = next(steps), time.monotonic()
    (labels,) = until(lambda: firing(prometheus, alert), PATIENCE, every=0.2)
    fired, cure, cured = time.monotonic() - began, next(steps), time.monotonic()
    assert labels.get("service", "mail") == "mail"
    until(lambda: not firing(prometheus, alert), PATIENCE, every=0.2)
    resolved = time.monotonic() - cured
    for _ in steps:
        pass
    figures.append(f"{alert} | {cause} | {fired:.0f} s | {cure}: {resolved:.0f} s")
    stage.rest()
