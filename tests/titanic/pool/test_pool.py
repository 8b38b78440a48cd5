"""`titanic worker`, as its users run it: processes that are killed, replaced, stopped."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Unpack

import pytest
from support.cli_titanic import Running, alive, running, titanic
from support.nodes import cluster, heard_of_each_other
from support.ports import free_port
from support.postgres import needs_postgres
from support.serving import config, with_broker
from support.torture import LONG
from support.waiting import until

from broker import Worker
from broker.core import mmi
from broker.core.mdp import KILLS, KNOWN_WORDS
from titanic import Client, Server, current
from titanic.cluster import notifications
from titanic.errors import TimedOut
from titanic.pool.core import ChildConfig, PoolConfig
from titanic.pool.pool import Pool
from titanic.protocol.submit_options import SubmitOptions
from titanic.tasks import Tasks

APP = """
import asyncio
import ctypes
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from titanic import current
from titanic.tasks import Tasks

app = Tasks(name="shop")
VERSION = 1


@app.task
def whoami() -> tuple[int, int]:
    return os.getpid(), VERSION


@app.task
def wait_for(folder: str) -> int:
    Path(folder, f"begun-{os.getpid()}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    Path(folder, f"ended-{os.getpid()}").touch()
    return os.getpid()


@app.task
async def linger(folder: str) -> None:
    Path(folder, "lingers").touch()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        Path(folder, f"cancelled-{current().uuid}-{current().cancelled}").touch()
        raise


@app.task(jobs=1)
def one_at_a_time(folder: str) -> int:
    return wait_for(folder)


@app.task
def die() -> None:
    os.kill(os.getpid(), 9)


@app.task
def dies_once(folder: str, way: str) -> bool:
    if not Path(folder, "died").exists():
        Path(folder, "died").touch()
        if way == "exit":
            os._exit(3)
        if way == "segfault":
            ctypes.string_at(0)
        os.kill(os.getpid(), 9)
    return True


@app.task
def hold_gil(folder: str) -> None:
    Path(folder, f"begun-{os.getpid()}").touch()
    ctypes.PyDLL(None).sleep(600)


@app.task
def use(megabytes: int) -> int:
    return len(bytearray(megabytes << 20)) >> 20


@app.task
def use_much(folder: str) -> int:
    while not Path(folder, f"limited-{os.getpid()}").exists():
        time.sleep(0.01)
    return len(bytearray(2000 << 20))


@app.task
def hang(folder: str) -> None:
    for before in Path(folder).glob("hangs-*"):
        if Path("/proc", before.name.partition("-")[2]).exists():
            Path(folder, "overlap").touch()
    Path(folder, f"hangs-{os.getpid()}").touch()
    threading.Event().wait()


@app.task
async def go_on(folder: str) -> None:
    hanging = asyncio.create_task(asyncio.to_thread(hang, folder))
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.shield(hanging)


@app.task(on_limit="cancel")
def overlong(folder: str) -> int:
    while not current().cancelled:
        time.sleep(0.01)
    return wait_for(folder)


@app.task(limit=0.1, on_limit="leave")
def left(folder: str) -> bool:
    wait_for(folder)
    return current().cancelled
"""


OTHERS = (
    "shop.flow",
    "shop.whoami",
    "shop.wait_for",
    "shop.linger",
    "shop.die",
    "shop.use",
    "shop.use_much",
    "shop.hang",
    "shop.go_on",
    "shop.dies_once",
    "shop.hold_gil",
    "shop.overlong",
    "shop.left",
)

SCHEDULED = """

@app.every(1, "ticks")
@app.task
def note(text: str) -> None:
    with Path("notes").open("a") as notes:
        notes.write(f"{text} {current().key}\\n")
"""


@contextmanager
def pool(
    folder: Path, server: Server, *options: str, schedules: str = "", program: Sequence[str] = ()
) -> Iterator[Running]:
    if not (folder / "pool_shop.py").exists():
        (folder / "pool_shop.py").write_text(APP + schedules.replace('"notes"', f'"{folder}/notes"'))
    endpoint = server.endpoints[0]
    path = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    with running(
        *(folder / "log", "worker", "pool_shop:app", "--endpoint", endpoint, *options),
        program=program,
        PYTHONPATH=path,
        PYTHONDONTWRITEBYTECODE="" if "--reload" in options else "1",
    ) as worker:
        worker.says(r"shop.flow \(and \d+ more\) is registered")
        yield worker


def pids(worker: Running) -> list[int]:
    """Of the children, in the order in which they were started."""
    return [int(pid) for pid in re.findall(r"process \d+ is pid (\d+)", worker.log.read_text())]


def ask(client: Client, task: str, *arguments: object, **options: Unpack[SubmitOptions]) -> str:
    texts = ", ".join(f'"{argument}"' for argument in arguments)
    return client.submit(f"shop.{task}", f'{{"args": [{texts}]}}', **options)


def begun(folder: Path) -> list[Path]:
    return list(folder.glob("begun-*"))


def test_a_day_of_a_pool(server: Server, client: Client, tmp_path: Path) -> None:
    """Requests that one process has had enough of, one that is killed, and a stop that waits for what is in hand."""
    with pool(tmp_path, server, "--max-requests", "3", "--jobs", "2") as worker:
        uuids = [ask(client, "whoami") for _ in range(7)]
        seen = {client.wait(uuid, timeout=50)[0] for uuid in uuids}
        assert len(seen) >= 2
        for number in (1, 2):
            worker.says(rf"process {number} has started 3 requests; replacing it")
        until(lambda: len(pids(worker)) == 3 and not any(alive(pid) for pid in pids(worker)[:2]))

        os.kill(killed := pids(worker)[-1], signal.SIGKILL)
        worker.says(r"was ended by signal 9; replacing it")
        until(lambda: pids(worker)[-1] != killed)
        held = ask(client, "wait_for", tmp_path)
        until(lambda: begun(tmp_path))
        worker.send(signal.SIGTERM)
        worker.says("stopping")
        assert alive(int(begun(tmp_path)[0].name.partition("-")[2]))
        (tmp_path / "go").touch()
        assert worker.ends() == 0
        assert client.reply(held) is not None
    assert not [pid for pid in pids(worker) if alive(pid)]
    assert worker.log.read_text().count("is registered") == 1, "it has one connection"
    assert "Traceback" not in worker.log.read_text()


def test_a_task_that_kills_its_processes_fails_and_the_next_one_does_not_wait(
    server: Server, client: Client, tmp_path: Path
) -> None:
    with pool(tmp_path, server) as worker:
        uuid = client.submit("shop.die", '{"args": []}', max_attempts=3)
        until(lambda: client.show(uuid)["state"] == "failed")
        assert client.show(uuid)["attempts"] == 3
        client.wait(ask(client, "whoami"), timeout=50)
        deaths = re.findall(r"process \d+ was ended by signal 9; (.*)", worker.log.read_text())
        assert deaths == ["replacing it"] * 3


@pytest.mark.parametrize(
    ("room", "fact", "attempts"), [(64 << 20, "is out of memory", 2), (1 << 20, "cannot start a thread", 1)]
)
def test_a_process_without_memory_is_replaced(
    server: Server, client: Client, tmp_path: Path, room: int, fact: str, attempts: int
) -> None:
    with pool(tmp_path, server) as worker:
        worker.says("process 1 is pid")
        child = pids(worker)[0]
        most = resource.prlimit(child, resource.RLIMIT_AS)[1]
        size = int(Path(f"/proc/{child}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(child, resource.RLIMIT_AS, (size + room, most))
        uuid = client.submit("shop.use", '{"args": [200]}', retry_first=0.05)
        assert client.wait(uuid, timeout=50) == [b"200"]
        assert client.show(uuid)["attempts"] == attempts
        worker.says(f"process 1 {fact}; replacing it")


def test_an_async_task_is_cancelled_when_its_request_is_closed(server: Server, client: Client, tmp_path: Path) -> None:
    with pool(tmp_path, server, "--jobs", "2") as worker:
        uuid = ask(client, "linger", tmp_path)
        until((tmp_path / "lingers").exists)
        client.close(uuid)
        until((tmp_path / f"cancelled-{uuid}-True").exists)
        assert client.wait(ask(client, "whoami"), timeout=50)
        assert "Traceback" not in worker.log.read_text()


def test_schedules_of_tasks_run_with_the_workers_and_each_tick_once(server: Server, tmp_path: Path) -> None:
    with pool(tmp_path, server, "--processes", "2", schedules=SCHEDULED):
        until(lambda: (tmp_path / "notes").exists() and len((tmp_path / "notes").read_text().splitlines()) >= 3)
    notes = (tmp_path / "notes").read_text().splitlines()
    assert len(set(notes)) == len(notes)
    assert all(re.fullmatch(r"ticks cron:shop.note:\S+Z", note) for note in notes)


def test_what_is_not_done_within_the_grace_is_ended(server: Server, client: Client, tmp_path: Path) -> None:
    with pool(tmp_path, server, "--grace", "1") as worker:
        ask(client, "wait_for", tmp_path)
        until(lambda: begun(tmp_path))
        worker.send(signal.SIGTERM)
        assert worker.ends() == 1
        assert "killing process 1: its jobs did not finish in time" in worker.log.read_text()
    assert not alive(pids(worker)[0])


def test_a_second_signal_ends_it_at_once_and_others_get_the_requests(
    server: Server, client: Client, tmp_path: Path
) -> None:
    with pool(tmp_path, server) as worker:
        uuid = ask(client, "wait_for", tmp_path)
        until(lambda: begun(tmp_path))
        worker.send(signal.SIGTERM)
        worker.says("stopping")
        worker.send(signal.SIGTERM)
        assert worker.ends() == 143
    assert not alive(pids(worker)[0])
    with Worker("shop.wait_for", lambda frames: [b"another"], server.endpoints[0]):
        assert client.wait(uuid, timeout=50) == [b"another"]
    assert client.show(uuid)["attempts"] == 1


def test_children_whose_parent_is_killed_end_at_once_and_that_is_no_attempt(
    server: Server, client: Client, tmp_path: Path
) -> None:
    with pool(tmp_path, server, "--processes", "2") as worker:
        uuid = ask(client, "wait_for", tmp_path)
        until(lambda: begun(tmp_path))
        worker.kill()
        until(lambda: not any(alive(pid) for pid in pids(worker)))
    with Worker("shop.wait_for", lambda frames: [b"another"], server.endpoints[0]):
        assert client.wait(uuid, timeout=50) == [b"another"]
    assert client.show(uuid)["attempts"] == 1


CONTROL_GROUPS = Path("/sys/fs/cgroup")


def limit_memory(process: int) -> Path:
    """Put a process into a control group of its own, of version 1 or 2. That needs root."""
    is_first = (CONTROL_GROUPS / "memory").is_dir()
    group = CONTROL_GROUPS / ("memory" if is_first else ".") / f"titanic-{process}"
    group.mkdir()
    (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(200 << 20))
    (group / "cgroup.procs").write_text(str(process))
    return group


@pytest.mark.torture
@pytest.mark.parametrize(("processes", "jobs"), [(2, 1), (1, 4)])
def test_only_the_request_that_needs_too_much_memory_is_charged(
    server: Server, client: Client, tmp_path: Path, processes: int, jobs: int
) -> None:
    """The kernel kills its process. If that has other requests, each runs alone next time."""
    groups: dict[int, Path] = {}

    def limited(worker: Running) -> bool:
        for child in pids(worker):
            if child not in groups and alive(child):
                groups[child] = limit_memory(child)
                (tmp_path / f"limited-{child}").touch()
        return True

    with pool(tmp_path, server, "--processes", str(processes), "--jobs", str(jobs)) as worker:
        held = [ask(client, "wait_for", tmp_path) for _ in range(3 // processes)]
        until(lambda: all(client.show(one)["state"] == "running" for one in held) and begun(tmp_path))
        hungry = ask(client, "use_much", tmp_path, max_attempts=2, retry_first=0.05)
        until(lambda: limited(worker) and client.show(hungry)["state"] == "failed")
        assert client.show(hungry)["attempts"] == 2
        (tmp_path / "go").touch()
        for one in held:
            client.wait(one, timeout=50)
            assert client.show(one)["attempts"] == 1
        assert client.wait(ask(client, "whoami"), timeout=50)
        assert "Traceback" not in worker.log.read_text()
    until(lambda: not any((group / "cgroup.procs").read_text() for group in groups.values()))
    for group in groups.values():
        group.rmdir()


@pytest.mark.parametrize("way", ["exit", "segfault"])
def test_a_death_with_one_request_is_an_attempt_and_the_next_one_is_alone(
    server: Server, client: Client, tmp_path: Path, way: str
) -> None:
    with pool(tmp_path, server, "--processes", "2") as worker:
        held = ask(client, "wait_for", tmp_path)
        until(lambda: begun(tmp_path))
        uuid = ask(client, "dies_once", tmp_path, way)
        assert client.wait(uuid, timeout=50) == [b"true"]
        assert client.show(uuid)["attempts"] == 2
        (tmp_path / "go").touch()
        client.wait(held, timeout=50)
        assert client.show(held)["attempts"] == 1
        assert len(pids(worker)) == 3


def test_a_death_with_several_requests_is_no_attempt_of_any(server: Server, client: Client, tmp_path: Path) -> None:
    """Each of them runs alone next time, while the others go on."""
    with pool(tmp_path, server, "--jobs", "3") as worker:
        held = [ask(client, "wait_for", tmp_path) for _ in range(2)]
        until(lambda: sum(row["state"] == "running" for row in map(client.show, held)) == 2)
        until(lambda: begun(tmp_path))
        uuid = ask(client, "dies_once", tmp_path, "exit")
        assert client.wait(uuid, timeout=50) == [b"true"]
        (tmp_path / "go").touch()
        for one in held:
            client.wait(one, timeout=50)
        assert [client.show(one)["attempts"] for one in (uuid, *held)] == [1, 1, 1]
        assert client.wait(ask(client, "whoami"), timeout=50)
        assert len(pids(worker)) > 2, "there was an extra process, because none was idle"


def test_what_runs_alone_does_not_wait_for_what_does(server: Server, client: Client, tmp_path: Path) -> None:
    with pool(tmp_path, server, "--jobs", "4"):
        held = [ask(client, "wait_for", tmp_path) for _ in range(3)]
        until(lambda: all(client.show(one)["state"] == "running" for one in held) and begun(tmp_path))
        uuid = client.submit("shop.die", '{"args": []}', max_attempts=3, retry_first=0.05)
        until(lambda: client.show(uuid)["state"] == "failed")
        assert client.show(uuid)["attempts"] == 3
        (tmp_path / "go").touch()
        for one in held:
            client.wait(one, timeout=50)
            assert client.show(one)["attempts"] == 1


def test_a_restart_of_the_server(tmp_path: Path) -> None:
    """Jobs go on, and a process that dies meanwhile is reported afterwards."""
    bind = (f"tcp://127.0.0.1:{free_port()}",)

    with (
        Server(config(tmp_path, bind=bind)) as server,
        Client(bind[0], timeout=30) as client,
        pool(tmp_path, server, "--processes", "2") as worker,
    ):
        folders = [tmp_path / "one", tmp_path / "two"]
        for folder in folders:
            folder.mkdir()
        uuids = [ask(client, "wait_for", folder) for folder in folders]
        until(lambda: begun(folders[0]) and begun(folders[1]))
        server.stop()
        os.kill(int(begun(folders[1])[0].name.partition("-")[2]), signal.SIGKILL)
        worker.says(r"was ended by signal 9")
        (folders[0] / "go").touch()
        with Server(config(tmp_path, bind=bind)) as server:
            client.wait(uuids[0], timeout=50)
            until(lambda: len(begun(folders[1])) == 2)
            assert client.show(uuids[1])["state"] == "running"
            (folders[1] / "go").touch()
            client.wait(uuids[1], timeout=50)
            assert [client.show(uuid)["attempts"] for uuid in uuids] == [1, 2]
    assert len(begun(folders[0])) == 1


def test_a_worker_that_stops_gives_its_last_replies_to_a_server_that_returns(tmp_path: Path) -> None:
    bind = (f"tcp://127.0.0.1:{free_port()}",)

    with (
        Server(config(tmp_path, bind=bind)) as server,
        Client(bind[0], timeout=30) as client,
        pool(tmp_path, server) as worker,
    ):
        uuid = ask(client, "wait_for", tmp_path)
        until(lambda: begun(tmp_path))
        server.stop()
        (tmp_path / "go").touch()
        worker.send(signal.SIGTERM)
        until(lambda: not alive(pids(worker)[0]))  # it has finished its job
        with Server(config(tmp_path, bind=bind)):
            client.wait(uuid, timeout=50)
            assert client.show(uuid)["attempts"] == 1
            assert worker.ends() == 0
    assert len(begun(tmp_path)) == 1


@pytest.mark.parametrize("has_job", [False, True])
def test_a_worker_that_stops_waits_for_a_server_no_longer_than_its_grace(tmp_path: Path, has_job: bool) -> None:
    with (
        Server(config(tmp_path)) as server,
        Client(server.endpoints[0]) as client,
        pool(tmp_path, server, "--grace", "1" if has_job else "600") as worker,
    ):
        if has_job:
            ask(client, "wait_for", tmp_path)
            until(lambda: begun(tmp_path))
        server.stop()
        (tmp_path / "go").touch()
        until(lambda: not has_job or [*tmp_path.glob("ended-*")])  # the grace is for the server, not for the job
        worker.send(signal.SIGTERM)
        assert worker.ends() == 0
        assert ("without a stored reply will run again" in worker.log.read_text()) == has_job


@pytest.mark.parametrize("task", ["hang", "go_on"])
def test_at_its_limit_a_job_is_killed_before_the_next_attempt_begins(
    server: Server, client: Client, tmp_path: Path, task: str
) -> None:
    """What its process had beside it starts anew."""
    with pool(tmp_path, server, "--jobs", "2", "--watchdog", "0.2") as worker:
        held = ask(client, "wait_for", tmp_path)
        until(lambda: begun(tmp_path))
        uuid = ask(client, task, tmp_path, limit=0.2, max_attempts=2, retry_first=0.01)
        until(lambda: client.show(uuid)["state"] == "failed")
        assert client.show(uuid)["reason"] == "no reply within its limit of 0.2 s"
        assert client.show(uuid)["attempts"] == 2
        assert not (tmp_path / "overlap").exists()
        until(lambda: len(begun(tmp_path)) >= 2)
        (tmp_path / "go").touch()
        client.wait(held, timeout=50)
        assert client.show(held)["attempts"] == 1
        assert re.search(
            rf"still runs shop.{task} \(\w{{32}}; .*\), 200 ms beyond its limit; killing it", worker.log.read_text()
        )


@pytest.mark.settings(limit_grace=0.1)
def test_a_job_that_is_only_cancelled_at_its_limit(server: Server, client: Client, tmp_path: Path) -> None:
    with pool(tmp_path, server, "--jobs", "2", "--watchdog", "0.1") as worker:
        uuid = ask(client, "overlong", tmp_path, limit=0.2, max_attempts=1)
        until(lambda: client.show(uuid)["state"] == "failed")
        until(lambda: begun(tmp_path))
        assert client.wait(ask(client, "whoami"), timeout=50)
        (tmp_path / "go").touch()
        until(lambda: client.stats()["running"] == 0)
        assert len(pids(worker)) == 1


@pytest.mark.settings(limit_grace=0.1)
def test_a_job_that_is_left_at_its_limit(server: Server, client: Client, tmp_path: Path) -> None:
    with pool(tmp_path, server, "--jobs", "2", "--watchdog", "0.1") as worker:
        app = Tasks(server.endpoints[0], name="shop", timeout=60)

        @app.task(limit=0.1, on_limit="leave")
        def left(folder: str) -> bool:
            return False

        ticket = left.submit(str(tmp_path))
        until(lambda: begun(tmp_path))
        uuid = ask(client, "overlong", tmp_path, limit=0.1, max_attempts=1)
        until(lambda: client.show(uuid)["state"] == "failed")
        (tmp_path / "go").touch()
        assert ticket.reply(60) is False, "it was not cancelled"
        assert client.show(ticket.uuid)["attempts"] == 1
        assert len(pids(worker)) == 1
        app.client.disconnect()


@pytest.mark.parametrize(
    ("kind", "before"), [("stand-alone", "wanted"), ("integrated", "closed"), ("integrated", "leaving")]
)
def test_a_closed_job_is_killed_on_demand(tmp_path: Path, kind: str, before: str) -> None:
    """It may have been closed before, without that, or its process may have had its last request. What its process had
    beside it starts anew."""
    options = ("--max-requests", "2") if before == "leaving" else ()
    with (
        with_broker(tmp_path, kind) as server,
        Client(server.endpoints[0], timeout=30) as client,
        pool(tmp_path, server, "--jobs", "2", *options) as worker,
    ):
        waiting = client.submit("absent", "x")
        held = ask(client, "wait_for", tmp_path)
        until(lambda: begun(tmp_path))
        uuid = ask(client, "hang", tmp_path)
        until(lambda: list(tmp_path.glob("hangs-*")))
        if before == "closed":
            assert client.close(uuid) == []
        assert client.close(uuid, waiting, kill=True) == []
        until(lambda: not alive(pids(worker)[0]))
        until(lambda: len(begun(tmp_path)) == 2)
        (tmp_path / "go").touch()
        client.wait(held, timeout=50)
        assert client.show(held)["attempts"] == 1
        assert client.close(held, kill=True) == []
        assert re.search(
            r"has shop.hang \(\w{32}; .*\), which was closed with --kill; killing it", worker.log.read_text()
        )
        until(lambda: client.stats()["running"] == 0)


@needs_postgres
def test_a_job_of_another_node_is_killed_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(tmp_path, 2) as nodes, pool(tmp_path, nodes[1]) as worker:
        heard_of_each_other(nodes)
        monkeypatch.setattr(notifications, "POLL_INTERVAL", 60.0)  # a poll does not say what was killed
        client = nodes.clients[0]
        uuid = ask(client, "hang", tmp_path)
        until(lambda: list(tmp_path.glob("hangs-*")))
        assert client.close(uuid, kill=True) == []
        until(lambda: not alive(pids(worker)[0]))
        handling, go = threading.Event(), threading.Event()

        def handle(frames: list[bytes]) -> None:
            handling.set()
            go.wait(60)

        with Worker("echo", handle, nodes[1].endpoints[0]):
            uuid = client.submit("echo", "x")
            assert handling.wait(60)
            assert client.close(uuid, kill=True) == [uuid]
            go.set()


@pytest.mark.parametrize("kind", ["integrated", "stand-alone"])
@pytest.mark.parametrize("older", [False, True])
def test_other_workers_cannot_be_killed(
    tmp_path: Path, kind: str, older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if older:
        words = [word.decode() for word in KNOWN_WORDS if word != KILLS]
        describe = mmi._DOCUMENTS[b"mmi.broker"]
        monkeypatch.setitem(mmi._DOCUMENTS, b"mmi.broker", lambda *args: {**describe(*args), "knows": words})
    cancelled, handling, answered = (threading.Event() for _ in range(3))

    def handle(frames: list[bytes]) -> None:
        handling.set()
        until(lambda: current().cancelled)
        cancelled.set()
        answered.wait(60)  # a worker that ended by itself before would not be named

    with with_broker(tmp_path, kind) as server, Client(server.endpoints[0], timeout=30) as client:
        if older:
            with pool(tmp_path, server) as worker:
                uuid = ask(client, "wait_for", tmp_path)
                until(lambda: begun(tmp_path))
                assert client.close(uuid, kill=True) == [uuid]
                (tmp_path / "go").touch()
                until(lambda: client.stats()["running"] == 0)
                assert alive(pids(worker)[0])
            return
        with Worker("echo", handle, server.endpoints[0]):
            uuid = client.submit("echo", "x")
            assert handling.wait(60)
            done = titanic("close", "--kill", "--json", uuid, "--endpoint", server.endpoints[0])
            answered.set()
            assert done.code == 1
            assert f"{uuid} is closed, but not killed: its worker cannot end it" in done.err
            assert done.json == {"uuids": [uuid], "not_killed": [uuid]}
            assert cancelled.wait(60)


def test_what_waits_to_run_alone_goes_back_when_it_is_closed(server: Server, client: Client, tmp_path: Path) -> None:
    """The process that died, and the extra one, take long to start."""
    slow = f"\nwhile Path('{tmp_path}', 'slow').exists():\n    time.sleep(0.01)\n"
    with pool(tmp_path, server, "--processes", "2", "--jobs", "2", schedules=slow) as worker:
        until(lambda: client.workers()["services"]["shop.whoami"] == 4)
        held: dict[int, str] = {}
        while len(held) < 2:  # one for each process
            uuid = ask(client, "wait_for", tmp_path)
            until(lambda: len(begun(tmp_path)) > len(held))
            (pid,) = {int(path.name.removeprefix("begun-")) for path in begun(tmp_path)} - set(held)
            held[pid] = uuid
        (tmp_path / "slow").touch()
        uuid = ask(client, "dies_once", tmp_path, "exit")
        until(lambda: len(pids(worker)) > 3)
        (dead,) = [pid for pid in held if not alive(pid)]
        until(lambda: [client.show(one)["state"] for one in (uuid, *held.values())] == ["running"] * 3)
        client.close(held.pop(dead))
        until(lambda: client.stats()["running"] == 2)
        (tmp_path / "slow").unlink()
        client.wait(uuid, timeout=50)
        (tmp_path / "go").touch()
        (other,) = held.values()
        client.wait(other, timeout=50)
        assert client.show(other)["attempts"] == 1


@pytest.mark.parametrize("known", ["slots", "process"])
def test_deaths_at_an_older_broker(
    server: Server, client: Client, tmp_path: Path, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["titanic:1", "titanic:process", *(["titanic:slots"] if known == "slots" else [])]
    describe = mmi._DOCUMENTS[b"mmi.broker"]
    monkeypatch.setitem(mmi._DOCUMENTS, b"mmi.broker", lambda *args: {**describe(*args), "knows": words})
    with pool(tmp_path, server, "--processes", "2") as worker:
        uuid = ask(client, "dies_once", tmp_path, "kill")
        assert client.wait(uuid, timeout=50) == [b"true"]
        assert client.show(uuid)["attempts"] == 2
        (tmp_path / "died").unlink()
        assert client.wait(ask(client, "whoami"), timeout=50)
        worker.send(signal.SIGTERM)
        assert worker.ends() == 0
    with pool(tmp_path, server, "--jobs", "2"):
        held = ask(client, "wait_for", tmp_path)
        until(lambda: begun(tmp_path))
        uuid = ask(client, "dies_once", tmp_path, "kill")
        until((tmp_path / "died").exists)
        (tmp_path / "go").touch()
        for one in (uuid, held):
            client.wait(one, timeout=50)
        assert [client.show(one)["attempts"] for one in (uuid, held)] == [1, 1]


@pytest.mark.torture(short=True)
def test_a_job_that_holds_the_gil_ends_nothing(server: Server, client: Client, tmp_path: Path) -> None:
    """When LONG until the job has ended, after ten minutes."""
    with pool(tmp_path, server, "--processes", "2") as worker:
        uuid = ask(client, "hold_gil", tmp_path)
        until(lambda: begun(tmp_path))
        (registered,) = client.workers()["workers"] or ()
        for _ in range(20):
            assert client.wait(ask(client, "whoami"), timeout=50)
        assert client.show(uuid)["state"] == "running"
        while LONG and client.show(uuid)["state"] == "running":
            assert client.wait(ask(client, "whoami"), timeout=50)
            with suppress(TimedOut):
                client.wait(uuid, timeout=1)
        (row,) = client.workers()["workers"] or ()
        assert abs(row["registered_at"] - registered["registered_at"]) < 100_000, "it was never lost"
        info = client.show(uuid)
        assert (info["state"], info["attempts"]) == (("done", 1) if LONG else ("running", 0))
        assert len(pids(worker)) == 2


def test_one_that_does_not_read_gets_nothing_more(server: Server, client: Client, tmp_path: Path) -> None:
    with pool(tmp_path, server, "--processes", "2", "--jobs", "2") as worker:
        uuid = ask(client, "wait_for", tmp_path)
        until(lambda: begun(tmp_path))
        stopped = int(begun(tmp_path)[0].name.partition("-")[2])
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: client.workers()["services"]["shop.whoami"] == 3)
        for _ in range(20):
            (reply,) = client.wait(ask(client, "whoami"), timeout=50)
            assert f"[{stopped}," not in reply.decode()
        (tmp_path / "go").touch()
        os.kill(stopped, signal.SIGCONT)
        client.wait(uuid, timeout=50)
        until(lambda: client.workers()["services"]["shop.whoami"] == 4)
        assert len(pids(worker)) == 2


def test_an_idle_one_that_does_not_read_gets_nothing(server: Server, client: Client, tmp_path: Path) -> None:
    with pool(tmp_path, server, "--processes", "2") as worker:
        until(lambda: client.workers()["services"]["shop.whoami"] == 2)
        stopped = pids(worker)[0]
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: client.workers()["services"]["shop.whoami"] == 1)
        for _ in range(5):
            (reply,) = client.wait(ask(client, "whoami"), timeout=50)
            assert f"[{stopped}," not in reply.decode()
        os.kill(stopped, signal.SIGCONT)
        until(lambda: client.workers()["services"]["shop.whoami"] == 2)


def test_one_connection_for_many_services_and_jobs(server: Server, client: Client, tmp_path: Path) -> None:
    more = "\nfor number in range(1000):\n    app.service(f'more.{number}')(lambda frames: frames)\n"
    options, program = ("--jobs", "100", "--processes", "2"), (sys.executable, "-m", "titanic")
    with pool(tmp_path, server, *options, schedules=more, program=program) as worker:
        until(lambda: client.workers()["services"]["more.7"] == 200)
        assert client.wait(client.submit("more.999", b"x"), timeout=50) == [b"x"]
        (row,) = client.workers()["workers"] or ()
        assert row["slots"] == 200
        resident = int(Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident < 60 << 20
        assert not re.search(r"titanic\.tasks", Path(f"/proc/{worker.process.pid}/maps").read_text())


def test_sources_that_change(server: Server, client: Client, tmp_path: Path) -> None:
    with pool(tmp_path, server, "--reload") as worker:
        assert client.wait(ask(client, "whoami"), timeout=50)[0].endswith(b",1]")
        (tmp_path / "pool_shop.py").write_text("def f(:\n")
        worker.says(r"pool_shop.py has changed; restarting")
        worker.says(r"SyntaxError: .*; waiting for a change of its source")
        (tmp_path / "pool_shop.py").write_text(APP.replace("VERSION = 1", "VERSION = 12"))
        assert client.wait(ask(client, "whoami"), timeout=50)[0].endswith(b",12]")
    assert not (tmp_path / "__pycache__").exists(), "Python takes sources of the same size and second for the same"


def test_a_task_with_jobs_of_its_own(server: Server, client: Client, tmp_path: Path) -> None:
    with pool(tmp_path, server, "--jobs", "2"):
        assert client.workers()["services"] == {"shop.one_at_a_time": 1, **dict.fromkeys(OTHERS, 2)}


def test_only_some_services(server: Server, client: Client, tmp_path: Path) -> None:
    (tmp_path / "pool_shop.py").write_text(APP)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    options = ["--endpoint", server.endpoints[0], "--only", "shop.whoami", "--only", "shop.die", "--except", "shop.die"]
    with running(tmp_path / "log", "worker", "pool_shop:app", *options, PYTHONPATH=path) as worker:
        worker.says("shop.whoami is registered")
        assert client.wait(ask(client, "whoami"), timeout=50)
        assert {name for name, number in client.workers()["services"].items() if number} == {"shop.whoami"}


def test_versions_side_by_side(server: Server, client: Client, tmp_path: Path) -> None:
    """A rolling deployment: what the old version does not know goes back, and the new one does it."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "v2").mkdir()
    with pool(tmp_path / "v1", server, "--deploy", "v1"):
        uuid = client.submit("shop.whoami", b'{"args": [], "kwargs": {"loud": true}}')
        said = until(lambda: client.show(uuid)["reason"])
        assert "argument 'loud'; this worker has version v1: start one of the caller's version" in said
        (tmp_path / "v2/pool_shop.py").write_text(APP.replace("def whoami()", "def whoami(loud: bool = False)"))
        with pool(tmp_path / "v2", server, "--deploy", "v2"):
            until(lambda: {row["version"] for row in client.workers()["workers"] or ()} == {"v1", "v2"})
            assert client.wait(uuid, timeout=50)
        assert client.show(uuid)["attempts"] == 1


def test_an_app_that_cannot_be_worked_for(tmp_path: Path) -> None:
    (tmp_path / "pool_shop.py").write_text("from titanic.tasks import Tasks\napp = Tasks()\n")
    ended = titanic("worker", "pool_shop:app", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert ended.code == 2
    assert "titanic: pool_shop:app has no task and no service; declare one" in ended.err


@pytest.mark.parametrize(("fault", "killed"), [("", 1), ("too many sockets", 0)])
def test_a_connection_that_ends_by_itself_is_the_end(fault: str, killed: int) -> None:
    """A bug: the service manager starts it again. What it cannot do at all is wrong usage."""
    pool = Pool(PoolConfig(), ChildConfig("shop"))
    pool._workers.append(SimpleNamespace(ended=True, stopping=False, fault=fault))  # type: ignore[arg-type]
    pool._look_at_workers(time.monotonic())
    assert (pool.fault, pool.killed, pool._core.ended) == (fault, killed, True)
