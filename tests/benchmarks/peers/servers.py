"""Starting and ending the peers. Each function of a folder is a context manager that yields port and process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from support.postgres import BIN, PostgresServer

PATIENCE = 60.0
RABBITMQ = Path("/usr/lib/rabbitmq")


class Missing(Exception):
    """Something isn't installed; the text says what, and where it is to be had."""


class Started(NamedTuple):
    """A server that answers."""

    port: int
    pid: int


Server = Callable[[Path], AbstractContextManager[Started]]


@contextmanager
def redis(folder: Path) -> Iterator[Started]:
    """`appendfsync always`: an answer comes when the append-only file is synced. No snapshots beside it."""
    port = free_port()
    settings = ["--port", port, "--dir", folder, "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    with running(
        program("redis-server"), *settings, "--bind", "127.0.0.1", "--daemonize", "no", log=folder / "log"
    ) as process:
        yield reachable(port, process)


@contextmanager
def nats(folder: Path) -> Iterator[Started]:
    """`sync_interval: always`: the default acknowledges what is written, and syncs every two minutes."""
    port = free_port()
    settings = folder / "nats.conf"
    settings.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}", sync_interval: always }}\n', encoding="utf-8"
    )
    with running(program("nats-server"), "-c", settings, log=folder / "log") as process:
        yield reachable(port, process)


@contextmanager
def beanstalkd(folder: Path) -> Iterator[Started]:
    """`-f 0`: synced at each write; the default is every 50 ms."""
    port = free_port()
    with running(
        program("beanstalkd"), "-l", "127.0.0.1", "-p", port, "-b", folder, "-f", "0", log=folder / "log"
    ) as process:
        yield reachable(port, process)


@contextmanager
def rabbitmq(folder: Path) -> Iterator[Started]:
    """A node of its own with its own port mapper. Quorum queues sync before they confirm."""
    port, distribution, mapper = free_port(), free_port(), free_port()
    shell = RABBITMQ / "bin/rabbitmq-server"
    if not shell.exists():
        raise Missing("there is no rabbitmq-server (apt-get install rabbitmq-server)")
    (folder / "enabled_plugins").write_text("[].", encoding="utf-8")
    settings = {
        "HOME": folder,
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": distribution,
        "RABBITMQ_MNESIA_BASE": folder / "mnesia",
        "RABBITMQ_LOG_BASE": folder / "log",
        "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "enabled_plugins",
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "ERL_EPMD_PORT": mapper,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    environment = {name: str(value) for name, value in settings.items()}
    try:
        with running(str(shell), log=folder / "out", **environment) as process:
            yield reachable(port, process)
    finally:
        subprocess.run(["epmd", "-port", str(mapper), "-kill"], capture_output=True, check=False)


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[PostgresServer, str]]:
    """A database of its own in a server that all peers of a row share. Nothing of it is switched off (`fsync`)."""
    place = folder.parent / "postgres"
    owner = place not in _servers
    if owner:
        if not BIN:
            raise Missing("there is no PostgreSQL (apt-get install postgresql)")
        place.parent.chmod(0o711)  # its user is not ours
        place.mkdir()
        _servers[place] = PostgresServer(place, shared_buffers="256MB", max_wal_size="1GB", autovacuum_naptime="10s")
    server = _servers[place]
    try:
        if owner:
            server.create()
        yield server, server.new_database()
    finally:
        if owner:
            _servers.pop(place).close()


_servers: dict[Path, PostgresServer] = {}


def program(name: str) -> str:
    """Where a program is; Missing when it isn't anywhere."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise Missing(f"there is no {name} (apt-get install {name}, or pip install '.[peers]')")
    return found


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def reachable(port: int, process: subprocess.Popen[bytes]) -> Started:
    """Wait until somebody listens."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return Started(port, process.pid)
        except OSError:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args!r} ended with {process.returncode}") from None
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def said(*command: object) -> str:
    """The first line that a command prints."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60, check=False)
    return (done.stdout or done.stderr).partition("\n")[0].strip()


@contextmanager
def running(*command: object, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which is ended with all that it started."""
    log.parent.mkdir(exist_ok=True, parents=True)
    with (log if not log.is_dir() else log / "out").open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for number in (15, 9):
            try:
                os.killpg(process.pid, number)
                process.wait(10)
                break
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
