"""`titanic dev`: an app with all that it needs in one terminal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cli_titanic import CLEAN, Running, alive, running
from support.ports import free_port
from support.torture import LONG
from support.waiting import PATIENCE, until

from titanic import Client
from titanic.cli.dev import check_free
from titanic.errors import TitanicError
from titanic.pool.pool import Sources

SHOP = """
import logging
import os
import time
from pathlib import Path

from titanic import current
from titanic.tasks import Tasks

app = Tasks(name="shop")
VERSION = 0


@app.task
def pay(order: int) -> int:
    print("paying", order)
    with Path("journal").open("a") as journal:
        journal.write(f"{order} {VERSION} {current().attempt} {current().delivery}\\n")
        journal.flush()
    time.sleep(0.02)
    return VERSION


@app.task
def wait() -> None:
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.01)
"""


class Scene:
    """A folder with an app, and free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shop = folder / "shop.py"
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.web = f"127.0.0.1:{free_port()}"
        self.write(0)

    def write(self, version: int, more: str = "") -> None:
        """Save the app, as an editor does."""
        new = self.folder / "new"
        new.write_text(SHOP.replace("VERSION = 0", f"VERSION = {version}") + more)
        new.replace(self.shop)

    def command(self, *options: str) -> tuple[str, ...]:
        return "dev", "shop:app", "--endpoint", self.endpoint, "--web", self.web, *options

    @contextmanager
    def run(self, *options: str, log: str = "log", program: tuple[str, ...] = (), **env: str) -> Iterator[Running]:
        """Without a `program`, all of its processes are forks."""
        words = self.command(*options)
        with running(self.folder / log, *words, program=program, folder=self.folder, **env) as dev:
            yield dev

    @contextmanager
    def dev(self, *options: str, program: tuple[str, ...] = (), **env: str) -> Iterator[Running]:
        with self.run(*options, program=program, **env) as dev:
            dev.says("shop.flow .* is registered")
            yield dev

    @contextmanager
    def client(self) -> Iterator[Client]:
        with Client(self.endpoint, timeout=30) as client:
            yield client

    def journal(self) -> list[list[int]]:
        """Of each execution: the order, the version of the app, the attempt, the delivery."""
        try:
            return [[*map(int, line.split())] for line in (self.folder / "journal").read_text().splitlines()]
        except FileNotFoundError:
            return []


COLD = sys.executable, "-m", "titanic"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_first_hour(scene: Scene) -> None:
    with scene.dev(program=COLD) as dev, scene.client() as client:
        assert client.wait(client.submit("shop.pay", '{"args": [7]}'), 60) == [b"0"]
        dev.says(r"worker │ paying 7")
        dev.says(r"web    │ .* serving at")
        lines = dev.log.read_text().splitlines()
        assert lines[0].endswith(f"running shop:app at {scene.endpoint}; its web console: http://{scene.web}")
        assert {line.split(" │ ")[0].strip() for line in lines[1:]} == {"serve", "worker", "web"}
        with urllib.request.urlopen(f"http://{scene.web}/services", timeout=30) as page:
            assert b"shop.pay" in page.read()
        waits = client.submit("shop.pay", '{"args": [8]}', delay=3600)
        dev.send(signal.SIGINT)
        assert dev.ends() == 0
        assert (scene.folder / ".titanic" / ".gitignore").read_text() == "*\n"
    with scene.dev() as dev, scene.client() as client:
        assert client.show(waits)["state"] == "delayed"
        dev.send(signal.SIGTERM)
        assert dev.ends() == 0
    with scene.dev("--fresh") as dev, scene.client() as client:
        dev.says(r"removed .titanic/store: \d+ KiB")
        assert client.list()[0] == []


def test_a_store_that_a_server_uses_is_not_removed(scene: Scene) -> None:
    store = scene.folder / ".titanic" / "store"
    store.parent.mkdir()
    port = f"tcp://127.0.0.1:{free_port()}"
    with running(scene.folder / "log2", "serve", "--store", store, "--bind", port) as server, Client(port) as client:
        server.says("serving at")
        uuid = client.submit("shop.pay", b"{}")
        with scene.run("--fresh") as dev:
            assert dev.ends() != 0
            fact = f"it is open in the process with pid {server.process.pid}"
            assert f"the store in .titanic/store is in use; {fact}" in dev.log.read_text()
        assert client.show(uuid)["state"] == "waiting"


def test_running_tasks_finish_and_a_second_signal_ends_them(scene: Scene) -> None:
    for signals in (1, 2):
        (scene.folder / "begun").unlink(missing_ok=True)
        with scene.dev() as dev, scene.client() as client:
            uuid = client.submit("shop.wait", "{}")
            until((scene.folder / "begun").exists)
            dev.send(signal.SIGINT)
            dev.says("waiting for running tasks; Ctrl-C again ends them at once")
            assert client.show(uuid)["state"] == "running"
            if signals == 1:
                (scene.folder / "go").touch()
                assert dev.ends() == 0
                (scene.folder / "go").unlink()
            else:
                dev.send(signal.SIGINT)
                assert dev.ends() == 130
    with scene.dev() as dev, scene.client() as client:
        (scene.folder / "go").touch()
        assert client.wait(uuid, 60) == [b"null"]
        assert len(client.list(service="shop.wait", state="done")[0]) == 2


def test_an_error_in_the_app_waits_for_the_next_save(scene: Scene) -> None:
    scene.write(0, "def broken(:")
    with scene.run() as dev, scene.client() as client:
        dev.says(r"cannot import shop; SyntaxError: .*; see \S+/shop.py:\d+; waiting for a change of its source")
        uuid = client.submit("shop.pay", '{"args": [7]}')
        scene.write(1)
        assert client.wait(uuid, 60) == [b"1"]


def test_what_is_in_use_is_named(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> None:
    with scene.dev() as dev:
        with scene.run(log="log2") as other:
            assert other.ends() == 1
            line = f"titanic dev is already running in {scene.folder}; its process is {dev.process.pid}; stop that one"
            assert line in other.log.read_text()
        elsewhere = Scene(tmp_path_factory.mktemp("elsewhere"))
        for option, mine, theirs in (("--endpoint", elsewhere, scene), ("--web", scene, elsewhere)):
            elsewhere.endpoint, elsewhere.web = theirs.endpoint, mine.web
            if option == "--web":
                elsewhere.endpoint = f"tcp://127.0.0.1:{free_port()}"
            with elsewhere.run() as other:
                assert other.ends() == 1
                assert re.search(rf"cannot listen on 127\S+; the port is in use; .*: {option} ", other.log.read_text())


def test_other_faults_of_an_address_are_the_commands_business() -> None:
    check_free("nowhere.invalid", 1, "")
    check_free("192.0.2.1", 1, "")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken, pytest.raises(TitanicError, match="in use"):
        check_free("::1", taken.getsockname()[1], "--web")


def test_a_part_that_ends_ends_all(scene: Scene) -> None:
    with scene.dev(program=COLD) as dev:
        (server,) = children(dev.process.pid, "serve")
        os.kill(server, signal.SIGKILL)
        assert dev.ends() == 128 + 9
        dev.says(r"dev    │ serve has ended with exit code -9; stopping the others")


def test_nothing_is_left_when_it_is_killed(scene: Scene) -> None:
    with scene.dev(program=COLD) as dev:
        parts = children(dev.process.pid, "")
        workers = [pid for part in parts for pid in children(part, "")]
        assert (len(parts), len(workers)) == (3, 1)
        dev.kill()
        until(lambda: not any(map(alive, [*parts, *workers])))


def children(parent: int, command: str) -> list[int]:
    """The processes that one has started, by a word of their command lines."""
    pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [
        int(pid)
        for pid in pids
        if not command or command.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]


def test_schedules_of_a_file(scene: Scene) -> None:
    schedules = scene.folder / "schedules.toml"
    schedules.write_text("nonsense")
    with scene.dev("--schedules", "schedules.toml") as dev, scene.client() as client:
        dev.says("cron is waiting for its file to change")
        schedules.write_text('[often]\nservice = "shop.pay"\nevery = 1\nbody = \'{"args": [1]}\'\n')
        until(scene.journal)
        schedules.write_text('[often]\nservice = "shop.pay"\nevery = 1\nbody = \'{"args": [2]}\'\n')
        until(lambda: scene.journal()[-1][0] == 2)
        assert client.list(state="failed")[0] == []
        dev.send(signal.SIGINT)
        assert dev.ends() == 0


ELSEWHERE = """
import os
import select
import signal
import socket
import time

for module, names in {
    os: "pidfd_open posix_fallocate fdatasync O_TMPFILE pipe2 eventfd memfd_create sched_getaffinity O_PATH",
    select: "epoll",
    signal: "sigtimedwait sigwaitinfo",
    socket: "SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK TCP_USER_TIMEOUT TCP_KEEPIDLE TCP_KEEPINTVL TCP_INFO",
    time: "CLOCK_BOOTTIME",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


class Socket(socket.socket):
    def bind(self, address):
        if address[:1] in (b"\\0", "\\0"):
            raise OSError("no abstract names here")
        super().bind(address)


socket.socket = Socket
"""
"""Takes away what only Linux has, before anything is imported."""


def test_without_what_only_linux_has(scene: Scene) -> None:
    """Server, worker and console, a restart of the worker, and a client in a program of its own."""
    without = scene.folder / "without"
    without.mkdir()
    (without / "sitecustomize.py").write_text(ELSEWHERE)
    client = """
import select
import sys
import broker
import shop
assert not hasattr(select, "epoll")
shop.app.endpoint = sys.argv[1]
print(shop.pay.submit(7).reply(timeout=60))
with broker.Worker("upper", lambda frames: frames[0].upper(), sys.argv[1]):
    print(shop.app.client.wait(shop.app.client.submit("upper", "hello"), 60))
with shop.app.testing():
    print(shop.pay.submit(8).reply())
import socket
from broker.io.dealer import Pulse
with socket.create_server(("127.0.0.1", 0)) as there, socket.create_connection(there.getsockname()) as here:
    pulse = Pulse(here.fileno())
    assert [pulse.beats(second) for second in (10.0, 11.0)] == [True, True]
"""
    path = f"{without}:{scene.folder}:{os.environ.get('PYTHONPATH', '')}"
    with scene.dev(program=COLD, PYTHONPATH=path) as dev:
        for version in (0, 1):
            if version:
                scene.write(version, "import select\nassert not hasattr(select, 'epoll')\n")
                until(lambda: b"1" in version_of(scene))
            command, env = [sys.executable, "-c", client, scene.endpoint], CLEAN | {"PYTHONPATH": path}
            done = subprocess.run(
                command, cwd=scene.folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            assert (done.stdout, done.stderr) == (f"{version}\n[b'HELLO']\npaying 8\n{version}\n", "")
        with urllib.request.urlopen(f"http://{scene.web}/services", timeout=30) as page:
            assert b"shop.pay" in page.read()
        dev.send(signal.SIGINT)
        assert dev.ends() == 0
    assert "Traceback" not in dev.log.read_text()


def version_of(scene: Scene) -> list[bytes]:
    """The version of the app that the worker has now."""
    with scene.client() as client:
        return client.wait(client.submit("shop.pay", '{"args": [7]}'), 60)


@pytest.mark.torture(short=True)
def test_saves_while_jobs_run(scene: Scene) -> None:
    """Each save takes effect, none of the requests is lost, and none is executed twice: the processes of a version
    finish what they have."""
    saves, broken, at_once = (50, 5, 20) if LONG else (3, 3, 10)
    uuids: list[str] = []
    enough = threading.Event()

    def submit() -> None:
        with scene.client() as client:
            while not enough.is_set():
                begin = len(uuids)
                bodies = [f'{{"args": [{order}]}}' for order in range(begin, begin + at_once)]
                uuids.extend(client.submit_many("shop.pay", bodies))
                until(lambda: enough.is_set() or len(uuids) - len(scene.journal()) < 5 * at_once)

    with scene.dev("--processes", "2", "--jobs", "2") as dev, scene.client() as client:
        submitting = threading.Thread(target=submit)
        submitting.start()
        try:
            until(scene.journal)
            for version in range(1, saves + 1):
                if version % broken == 0:
                    scene.write(version, "def broken(:")
                    dev.says(rf"(?s)(waiting for a change of its source.*){{{version // broken}}}")
                scene.write(version)
                until(lambda version=version: any(line[1] == version for line in scene.journal()[-100:]))
        finally:
            enough.set()
            submitting.join()
        replies = dict(client.replies(uuids, 120))
        assert {type(reply) for reply in replies.values()} == {list}
        executions = Counter(line[0] for line in scene.journal())
        assert executions == Counter(range(len(uuids)))
        # One that is given back before it began is delivered again.
        assert {tuple(line[2:]) for line in scene.journal()} <= {(1, 1), (1, 2)}
        assert {line[1] for line in scene.journal()} == set(range(saves + 1))
        assert not re.search("killing|replacing", dev.log.read_text())


def test_what_was_written_since_it_was_read_has_changed(tmp_path: Path) -> None:
    (tmp_path / "shop.py").touch()
    written = (tmp_path / "shop.py").stat().st_mtime_ns
    before, since = Sources(), Sources()
    before.watch([str(tmp_path / "shop.py")], written + 1)
    since.watch([str(tmp_path / "shop.py")], written)
    assert (before.changed(), since.changed()) == ("", str(tmp_path / "shop.py"))
    assert since.changed() == ""
