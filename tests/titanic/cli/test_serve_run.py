"""What `titanic serve`, `broker` and `work` tell a service manager, and the signals that one sends."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli_titanic import here, running, serving
from support.service_manager import Manager
from support.shortages import no_more_threads
from support.waiting import PATIENCE, until

from titanic.cli.serve_run import Stop
from titanic.errors import StoreError

ANY = "tcp://127.0.0.1:*"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with Manager(tmp_path / "notify") as one:
        yield one


def test_the_life_of_a_queue(tmp_path: Path, manager: Manager) -> None:
    env = {**manager.env, "WATCHDOG_USEC": "2000000"}
    with running(tmp_path / "log", "serve", "--bind", ANY, "--store", tmp_path / "s", "--grace", "7", **env) as server:
        status = r"0 waiting, 0 running, 0 accepted a second; 0 % of the store used"
        assert manager.hears("READY") == {"READY": "1", "STATUS": status}
        endpoint = server.says(r"serving at (\S+);")[1]
        here("submit", "s", "x", "--endpoint", endpoint)
        assert manager.hears("WATCHDOG") == {"WATCHDOG": "1"}
        assert manager.hears("STATUS")["STATUS"].startswith(("0 waiting", "1 waiting"))
        server.send(signal.SIGHUP)
        assert int(manager.hears("RELOADING")["MONOTONIC_USEC"]) > 0
        assert manager.hears("READY")["STATUS"].startswith("1 waiting, 0 running, ")
        server.send(signal.SIGTERM)
        assert manager.hears("STOPPING") == {"STOPPING": "1", "STATUS": "stopping", "EXTEND_TIMEOUT_USEC": "27000000"}
        assert server.ends() == 0


def test_the_life_of_a_broker(tmp_path: Path, manager: Manager) -> None:
    with running(tmp_path / "log", "broker", "--bind", ANY, **manager.env) as broker:
        assert manager.hears("READY")["STATUS"] == "0 waiting, 0 workers, 0 requests a second"
        broker.send(signal.SIGHUP)
        broker.says("reloaded: nothing has changed")
        broker.send(signal.SIGTERM)
        manager.hears("STOPPING")
        assert broker.ends() == 0


def test_a_queue_is_not_ready_before_its_broker_is_there(tmp_path: Path, manager: Manager) -> None:
    endpoint = f"ipc://{tmp_path}/broker"
    arguments = ("serve", "--broker", endpoint, "--store", tmp_path / "s")
    with running(tmp_path / "queue.log", *arguments, **manager.env) as queue:
        queue.says("connecting to the broker")
        assert manager.silent("READY", 0.5)
        with running(tmp_path / "broker.log", "broker", "--bind", endpoint):
            manager.hears("READY")


def test_nothing_is_told_to_the_watchdog_of_another_process(tmp_path: Path, manager: Manager) -> None:
    env = {**manager.env, "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}
    with running(tmp_path / "log", "broker", "--bind", ANY, **env):
        manager.hears("READY")
        assert manager.silent("WATCHDOG", 1.2)


def test_the_watchdog_of_a_worker(tmp_path: Path, manager: Manager) -> None:
    """Its loop says that it goes round, however long a command takes, and the commands know nothing of that."""
    env = {**manager.env, "WATCHDOG_USEC": "800000"}
    script = (
        f"echo ${{NOTIFY_SOCKET-}} ${{WATCHDOG_USEC-}} >{tmp_path}/seen; mv {tmp_path}/seen {tmp_path}/busy; sleep 600"
    )
    with serving(tmp_path) as (_, endpoint):
        here("submit", "slow", "x", "--endpoint", endpoint)
        command = ("work", "slow", "--endpoint", endpoint, "--", "sh", "-c", script)
        with running(tmp_path / "work.log", *command, **env) as worker:
            until((tmp_path / "busy").exists)
            assert (tmp_path / "busy").read_text() == "\n"
            manager.silent("WATCHDOG", 0.0)  # what came before
            for _ in range(3):
                assert manager.hears("WATCHDOG") == {"WATCHDOG": "1"}
            worker.send(signal.SIGSTOP)
            assert manager.silent("WATCHDOG", 1.0)
            worker.send(signal.SIGCONT)
            manager.hears("WATCHDOG")


def test_the_end_needs_no_thread_that_is_not_there_yet() -> None:
    ended = []
    stop = Stop(lambda: ended.append("now"))
    with no_more_threads():
        assert ended == []
        stop.now()
    assert ended == ["now"]


def test_what_the_end_meets_is_told() -> None:
    def fail() -> None:
        raise StoreError("the disk is gone")

    with pytest.raises(StoreError, match="the disk is gone"):
        Stop(fail).now()


@pytest.mark.parametrize("command", ["serve", "broker"])
def test_reloading_while_it_starts_does_not_end_it(tmp_path: Path, command: str) -> None:
    toml = tmp_path / "titanic.toml"
    os.mkfifo(toml)
    store = ("--store", tmp_path / "s") if command == "serve" else ()
    with running(tmp_path / "log", command, "--config", toml, "--bind", ANY, *store) as server:
        with toml.open("w") as text:  # it reads that now
            server.send(signal.SIGHUP)
            text.write("log-level = 'warning'\n")
        server.says("(serving|broker) at ")
        server.send(signal.SIGTERM)
        assert server.ends() == 0


def test_settings_change_while_it_serves(tmp_path: Path) -> None:
    toml = tmp_path / "titanic.toml"
    toml.write_text("[serve]\nretry-first = 5\n")
    with serving(tmp_path, "--config", str(toml)) as (server, endpoint):
        toml.write_text(
            "[serve]\nlog-level = 'debug'\nkeep-dead = 60\nservice-limit = 's:waiting=1'\n"
            "capacity = '2GiB'\nlanes = 3\ndurability = 'relaxed'\n"
        )
        server.send(signal.SIGHUP)
        server.says("INFO titanic: reloaded: keep-dead, log-level, retry-first, service-limit\n")
        server.says("WARNING titanic: a restart is needed for: capacity, durability, lanes\n")
        assert here("submit", "s", "x", "--endpoint", endpoint).code == 0
        refused = here("submit", "s", "x", "--endpoint", endpoint)
        assert (refused.code, "its limit is 1" in refused.err) == (1, True)


def test_the_gateway_names_what_needs_a_restart(tmp_path: Path) -> None:
    toml = tmp_path / "titanic.toml"
    toml.write_text("[web]\nmax-body = '1MiB'\n")
    web = ("web", "--config", toml, "--endpoint", "ipc:///nowhere", "--bind", "127.0.0.1:0")
    with running(tmp_path / "log", *web) as gateway:
        gateway.says("serving at ")
        toml.write_text("[web]\nmax-body = '2MiB'\nprefix = '/queue'\n")
        gateway.send(signal.SIGHUP)
        gateway.says("WARNING titanic: a restart is needed for: max-body, prefix\n")
        toml.write_text("[web]\nmax-bdy = '2MiB'\n")
        gateway.send(signal.SIGHUP)
        text = "access file and certificate are read again, the settings are not"
        gateway.says(re.escape(f"ERROR titanic: {text}: {toml}:2: unknown key [web] max-bdy"))


def test_a_faulty_file_changes_nothing(tmp_path: Path) -> None:
    toml = tmp_path / "titanic.toml"
    toml.write_text("")
    with serving(tmp_path, "--config", str(toml)) as (server, endpoint):
        toml.write_text("[serve]\nservice-limit = 's:waiting=1'\nlog-leve = 'debug'\n")
        server.send(signal.SIGHUP)
        fault = f"{toml}:3: unknown key [serve] log-leve; did you mean log-level?"
        server.says(re.escape(f"ERROR titanic: not reloaded, nothing has changed: {fault}\n"))
        for _ in range(2):
            assert here("submit", "s", "x", "--endpoint", endpoint).code == 0
        toml.write_text("[serve]\nservice-limit = 's:waiting=2'\n")
        server.send(signal.SIGHUP)
        server.says("reloaded: service-limit\n")
        assert here("submit", "s", "x", "--endpoint", endpoint).code == 1


@pytest.mark.skipif(shutil.which("strace") is None and "CI" not in os.environ, reason="needs strace")
def test_the_watchdog_hears_nothing_while_a_commit_is_stuck(tmp_path: Path, manager: Manager) -> None:
    """The disk takes its time; when it is done, all goes on."""
    env = {**manager.env, "WATCHDOG_USEC": "2000000"}
    with running(tmp_path / "log", "serve", "--bind", ANY, "--store", tmp_path / "s", **env) as server:
        endpoint = server.says(r"serving at (\S+);")[1]
        manager.hears("WATCHDOG")
        slow = "inject=fdatasync:delay_enter=600000000"
        pid = str(server.process.pid)
        strace = ("strace", "-f", "-q", "-e", "trace=fdatasync", "-e", slow, "-o", f"{tmp_path}/trace", "-p", pid)
        with running(tmp_path / "strace.log", program=strace) as tracing:
            until(lambda: all(tracer(task) for task in Path(f"/proc/{pid}/task").iterdir()))
            submit = ("submit", "s", "x", "--endpoint", endpoint, "--timeout", f"{PATIENCE}")
            with running(tmp_path / "submit.log", *submit) as client:
                until(lambda: manager.silent("WATCHDOG", 1.5))
                assert client.process.poll() is None
                tracing.end()
                assert client.ends() == 0
        manager.hears("WATCHDOG")
        until(lambda: b'"waiting": 1' in here("status", "--json", "--endpoint", endpoint).out)


def tracer(task: Path) -> int:
    """Who traces a thread; 0: nobody."""
    return int((task / "status").read_text().partition("TracerPid:")[2].split()[0])


def test_a_variable_that_nobody_reads_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "log", "broker", "--bind", ANY, TITANIC_METRISC="x", TITANIC_STORE="y") as broker:
        broker.says("WARNING titanic: unknown environment variable TITANIC_METRISC; did you mean TITANIC_METRICS\\?\n")
        broker.says("broker at")
    assert "TITANIC_STORE" not in (tmp_path / "log").read_text()
