"""Every alert, fired by its cause in a machine with a real systemd, where a Prometheus scrapes Titanic as installed.

The machine's clock is this system's, so clocks that are ahead come from libfaketime, as in support/alert_causes.py, and
its faulty disk from strace, which runs outside of the machine.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.alert_causes import SCRIPTS, Script, Stage, play, quick_rules
from support.machine import Machine, machine, needs_machine
from support.processes import SUPPORT
from support.scraping import PROMETHEUS, Prometheus, needs_prometheus
from support.small_disk import Disk
from support.waiting import until

pytestmark = [needs_machine, needs_prometheus, pytest.mark.torture, pytest.mark.timeout(1800)]

TOML = "/etc/titanic/titanic.toml"
STATE = "/var/lib/titanic"
SOCKET = "/run/titanic/titanic.sock"
METRICS = "127.0.0.1:9469"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


class PrometheusThere(Prometheus):
    """One in a machine."""

    def __init__(self, here: Machine, stack: ExitStack) -> None:
        self._here, self.url = here, "http://127.0.0.1:9090"
        here.says("rm -rf /srv/prometheus && mkdir -p /srv/prometheus")
        (here.folder / "srv/prometheus/rules.yml").write_text(quick_rules())
        targets = {"servers": json.dumps([METRICS]), "workers": "[]"}
        config = PROMETHEUS.format(alerts="/srv/prometheus/rules.yml", **targets)
        (here.folder / "srv/prometheus/prometheus.yml").write_text(config)
        options = ["--config.file=/srv/prometheus/prometheus.yml", "--storage.tsdb.path=/srv/prometheus/data"]
        command = f"exec prometheus {' '.join(options)} --web.listen-address=127.0.0.1:9090"
        here.says(f"sh -c 'echo $$ >/srv/prometheus/pid; {command}' >/srv/prometheus/log 2>&1 &")
        stack.callback(here.says, "kill -KILL $(cat /srv/prometheus/pid)")
        here.until(lambda: here.run("curl", "-sf", f"{self.url}/-/ready").code == 0)

    def _get(self, url: str) -> tuple[int, str]:
        done = self._here.does("curl", "-s", "--write-out", "\n%{http_code}", url)
        text, _, code = done.rpartition("\n")
        return int(code), text


class StageThere(Stage):
    """The service titanic of a machine."""

    def __init__(self, here: Machine, stack: ExitStack) -> None:
        self.here = here
        super().__init__(here.folder, stack)
        self.root = Path(f"/proc/{here.leader()}/root")
        self.address, self.metrics = f"ipc://{self.root}{SOCKET}", METRICS
        here.says(f"systemctl stop titanic; systemctl reset-failed; rm -rf {STATE}/store /var/backups/titanic/*")
        stack.callback(self.rest)
        self.prometheus = PrometheusThere(here, stack)

    def serve(self, *options: str, program: tuple[str, ...] = (), own: bool = True) -> None:
        """Start it with these settings."""
        assert not program, own
        self._serve(options)

    def _serve(self, options: tuple[str, ...], *lines: str) -> None:
        words, environment = [*options], [*lines]
        while words:
            name = words.pop(0).removeprefix("--").replace("-", "_").upper()
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
            environment.append(f'Environment="TITANIC_{name}={value}"')
        self.drop_in("titanic", *environment)
        self.here.does("systemctl", "restart", "titanic")

    def drop_in(self, unit: str, *lines: str) -> None:
        folder = self.here.folder / f"etc/systemd/system/{unit}.service.d"
        folder.mkdir(exist_ok=True)
        (folder / "stage.conf").write_text("\n".join(("[Service]", *lines, "")))
        self.here.does("systemctl", "daemon-reload")

    def serve_at(self, clock: str, *options: str) -> None:
        # Where time is quick, waits of threads are not, and it reports too late for systemd.
        self._serve(options, *clock_of(clock), "Type=exec", "WatchdogSec=0")

    def serve_faulty(self, call: str, fault: str) -> None:
        self.serve()
        words = ("-f", "-p", str(self.pid), "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:{fault}")
        log = self.here.folder / "srv/strace.log"
        with log.open("w") as stderr:
            tracer = subprocess.Popen(["strace", *words], stderr=stderr, stdin=subprocess.DEVNULL)
        self.stack.callback(tracer.wait)
        self.stack.callback(tracer.kill)
        until(lambda: "attached" in log.read_text())

    def restart(self) -> None:
        """Kill it; systemd starts it again."""
        before = self.main_pid()
        self.here.does("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "titanic")
        self.here.until(lambda: self.main_pid() not in ("0", before))
        self.here.until(lambda: self.here.shows("titanic", "ActiveState") == "active")

    def end(self) -> None:
        self.here.does("systemctl", "stop", "titanic")

    def main_pid(self) -> str:
        return self.here.shows("titanic", "MainPID")

    @property
    def pid(self) -> int:
        """Its number outside of the machine."""
        wanted, space = self.main_pid(), Path(f"/proc/{self.here.leader()}/ns/pid").readlink()
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                found = re.search(r"^NSpid:.*\t(\d+)$", status.read_text(), re.M)
                if found and found[1] == wanted and (status.with_name("ns") / "pid").readlink() == space:
                    return int(status.parent.name)
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
        raise AssertionError(f"no process {wanted} there")

    def small_disk(self, size: int) -> Disk:
        self.here.does("mount", "-t", "tmpfs", "-o", f"size={size},uid=titanic,gid=titanic,mode=750", "tmpfs", STATE)
        self.stack.callback(self.here.run, "umount", "--lazy", STATE)
        return Disk(Path(f"{self.root}{STATE}"))

    def back_up(self, clock: str = "+0") -> None:
        self.drop_in("titanic-backup", *clock_of(clock))
        self.here.does("systemctl", "start", "titanic-backup")

    def read_for_long(self) -> Callable[[], object]:
        reader = f"runuser -u titanic -- /opt/titanic/current/bin/python /srv/long_reader.py {STATE}/store"
        self.here.says(f"{reader} >/srv/reader.log 2>&1 & echo $! >/srv/reader.pid")
        self.here.until(lambda: "begun" in (self.here.folder / "srv/reader.log").read_text())
        return lambda: self.here.says("kill -KILL $(pgrep -P $(cat /srv/reader.pid))")

    def samples(self) -> dict[str, float]:
        text = self.here.does("curl", "-s", f"http://{METRICS}/metrics")
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def worker(self, service: str, command: str) -> None:
        """Start a worker; it may run already."""
        (self.here.folder / f"etc/titanic/workers/{service}.conf").write_text(f"COMMAND={command}\n")
        self.here.does("systemctl", "start", f"titanic-worker@{service}")
        self.stack.callback(self.here.run, "systemctl", "stop", f"titanic-worker@{service}")


def clock_of(clock: str) -> tuple[str, ...]:
    """Lines of a unit for another clock, as faketime has them."""
    return "Environment=LD_PRELOAD=/srv/libfaketime.so.1", f'Environment="FAKETIME={clock}"'


def down(stage: StageThere) -> Iterator[str]:
    stage.serve()
    yield "the server runs"
    settings = stage.here.folder / TOML.lstrip("/")
    good = settings.read_text()
    settings.write_text(f"{good}\n[serv]\n")
    assert stage.here.run("systemctl", "restart", "titanic").code != 0
    yield "restarted with a mistake in titanic.toml"
    settings.write_text(good)
    stage.here.does("systemctl", "restart", "titanic")
    yield "the mistake was removed"


def not_ready(stage: StageThere) -> Iterator[str]:
    stage.end()
    stage.here.does("systemctl", "start", "titanic-broker", "titanic-store")
    stage.here.until(lambda: stage.samples()["titanic_ready"])
    yield "broker and queue are two services"
    stage.here.does("systemctl", "stop", "titanic-broker")
    yield "titanic-broker was stopped"
    stage.here.does("systemctl", "start", "titanic-broker")
    yield "it was started"
    stage.here.does("systemctl", "stop", "titanic-broker", "titanic-store")


def no_workers(stage: StageThere) -> Iterator[str]:
    stage.serve()
    stage.worker("mail", "cat")
    stage.here.does("titanic", "submit", "mail", "x", "--wait", "60")
    yield "a worker runs"
    stage.here.does("systemctl", "stop", "titanic-worker@mail")
    stage.here.does("titanic", "submit", "mail", "x")
    yield "titanic-worker@mail was stopped, a request waits"
    stage.here.does("systemctl", "start", "titanic-worker@mail")
    yield "it was started"


def paused(stage: StageThere) -> Iterator[str]:
    """A service that is paused needs no workers."""
    stage.serve()
    yield "nothing waits"
    stage.here.does("titanic", "submit", "mail", "x")
    yield "a request waits, and there is no worker"
    stage.here.does("titanic", "pause", "mail")
    yield "the service was paused"


def waits_paused(stage: StageThere) -> Iterator[str]:
    stage.serve()
    stage.here.does("titanic", "submit", "mail", "x")
    yield "a request waits"
    stage.serve_at("+2h")
    yield "two hours later it still waits"
    stage.here.does("titanic", "pause", "mail")
    yield "the service was paused"


def poison(stage: StageThere) -> Iterator[str]:
    stage.serve()
    die = stage.here.folder / "usr/local/bin/die"
    die.write_text("#!/bin/sh\nkill -9 $PPID\n")
    die.chmod(0o755)
    stage.worker("mail", "die")
    yield "workers live"
    stage.client().submit("mail", "x", retry_first=0.1)
    yield "a request killed three workers"
    yield "no more died for a window"


THERE: dict[str, Callable[[StageThere], Iterator[str]]] = {
    "TitanicDown": down,
    "TitanicNotReady": not_ready,
    "TitanicNoWorkers": no_workers,
    "TitanicPoison": poison,
    "TitanicNoWorkers paused": paused,
    "TitanicWaitsTooLong paused": waits_paused,
}
ALL: dict[str, Script] = SCRIPTS | THERE  # type: ignore[assignment,operator]


@pytest.fixture(scope="module")
def here() -> Iterator[Machine]:
    with machine() as one:
        one.does("/root/deploy/install.sh", "--wheels", "/root/wheels")
        sockets = f'bind = ["tcp://127.0.0.1:5555", "ipc://{SOCKET}"]'
        one.says(f"sed -i '/^\\[serve\\]/,/^\\[work\\]/ s|^#bind = .*|{sockets}|' {TOML}")
        shutil.copy(shutil.which("prometheus") or "prometheus", one.folder / "usr/local/bin")
        shutil.copy(FAKETIME, one.folder / "srv")
        shutil.copy(SUPPORT / "long_reader.py", one.folder / "srv")
        yield one


@pytest.mark.parametrize("alert", ALL)
def test_it_fires_and_resolves(alert: str, here: Machine) -> None:
    with ExitStack() as stack:
        play(alert.partition(" ")[0], ALL[alert], StageThere(here, stack))
