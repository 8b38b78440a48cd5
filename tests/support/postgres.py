"""A real PostgreSQL for tests: a server of our own in memory or in /tmp, with a database for each test.

It never is one of the system's clusters. The data of a fresh server is made once by initdb and kept below
$XDG_CACHE_HOME (for root /var/cache); each server begins with a copy, which takes 0.1 s instead of 1 s. As root the
server runs as an unprivileged user, since PostgreSQL refuses root. It dies with the process that started it.

Over its socket nobody needs a password: `url()`. Over TCP on the loopback `titanic` has one: `url(tcp=True)`.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg
import pytest
from support.memory import in_memory
from support.ports import free_port
from support.waiting import until

from titanic.store.postgres import schema

USER, PASSWORD = "titanic", "not so secret"
_ADMIN = "postgres"
_PLACE = "titanic-postgres-"
_numbers = count(1)

_RULES = """\
local all all trust
local replication all trust
host all all 127.0.0.1/32 scram-sha-256
host replication all 127.0.0.1/32 trust
"""
_SETTINGS = {
    "dynamic_shared_memory_type": "mmap",  # in its folder, so nothing is left of one that is killed
    "jit": "off",
    "log_checkpoints": "off",
    "max_connections": "80",
    "max_parallel_workers_per_gather": "0",
    "max_wal_size": "64MB",
    "min_wal_size": "8MB",
    "shared_buffers": "32MB",
    "wal_receiver_timeout": "5s",
    "wal_retrieve_retry_interval": "100ms",
    "wal_sender_timeout": "5s",
}


def _folder() -> str | None:
    """Where the programs of the newest PostgreSQL are. Debian does not put them into PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return str(found[-1].parent) if found else None


BIN = _folder() or ""
needs_postgres = pytest.mark.skipif(
    not (BIN or shutil.which("initdb") or "CI" in os.environ), reason="needs PostgreSQL (make tools)"
)


def program(name: str) -> str:
    """A program of PostgreSQL's."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")
    assert found, f"{name} is not installed: make tools, or apt-get install postgresql"
    return found


@cache
def _account() -> pwd.struct_passwd | None:
    """Who runs it, if we are root: PostgreSQL's user, else nobody."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def as_user(*command: str | Path) -> list[str]:
    """The command for that user. What it starts ends at once when this process does."""
    account = _account()
    who = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"] if account else []
    return ["setpriv", *who, "--pdeathsig=QUIT", *map(str, command)]


def alone(script: str) -> list[str]:
    """A script of bash in a namespace of processes: when this process ends, or the script, all that it has started is
    gone at once."""
    who = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    spaces = ["unshare", *who, "--pid", "--mount-proc", "--fork", "--kill-child"]
    return ["setpriv", "--pdeathsig=KILL", *spaces, "bash", "-c", script]


def programs_for(folder: Path, *more: str) -> None:
    """Fill a folder for PATH with PostgreSQL's programs, and others, that run as that user."""
    folder.mkdir()
    for path in (*Path(BIN).iterdir(), *(Path("/bin", name) for name in more)):
        command = " ".join(part for part in as_user(path) if not part.startswith("--pdeathsig"))
        (folder / path.name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / path.name).chmod(0o755)


def run(*command: str | Path) -> None:
    done = subprocess.run(as_user(*command), capture_output=True, text=True, cwd="/", timeout=60, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def own(path: Path) -> None:
    """Give a folder to that user."""
    if account := _account():
        os.chown(path, account.pw_uid, account.pw_gid)


def new_place() -> tuple[Path, int]:
    """A folder of our own, and the lock that tells others that we live. Those of the dead are removed."""
    parent = in_memory(2 << 30) or Path(tempfile.gettempdir())
    for old in parent.glob(f"{_PLACE}*/lock"):
        with suppress(OSError), old.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old.parent, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=_PLACE, dir=parent))
    lock = os.open(place / "new", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (place / "new").rename(place / "lock")  # nobody finds it unlocked while we live
    place.chmod(0o711)
    return place, lock


def _fresh_data(data: Path) -> None:
    """The data of a server that has never run."""
    kept = Path(os.environ.get("XDG_CACHE_HOME") or ("/var/cache" if os.geteuid() == 0 else Path.home() / ".cache"))
    kept /= "titanic-tests"
    kept.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([program("initdb"), "--version"], capture_output=True, text=True, check=True).stdout
    template = kept / f"postgres-{re.sub('[^0-9.]+', '-', version).strip('-')}-2"
    with (kept / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.exists():
            data.mkdir(mode=0o700)
            own(data)
            options = ("--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--wal-segsize=1", "--no-sync")
            run(program("initdb"), "-D", data, "-U", _ADMIN, *options)
            copied = template.with_suffix(".new")
            shutil.rmtree(copied, ignore_errors=True)
            subprocess.run(["cp", "-a", data, copied], check=True)
            copied.rename(template)
            return
    subprocess.run(["cp", "-a", template, data], check=True)


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class PostgresServer:
    """A server of our own. `folder` has its data, its socket and its log."""

    def __init__(self, folder: Path | None = None, *, data: Path | None = None, **settings: str) -> None:
        """Not started yet. `folder`: where all is kept, else a new one; `data`: a folder for the data, if that is to be
        elsewhere, such as on a small disk. `settings` are those of postgresql.conf."""
        self._lock: int | None = None
        if folder is None:
            folder, self._lock = new_place()
        self.folder = folder
        own(folder)
        self.data = data or folder / "data"
        self.port = free_port()
        self.settings = settings
        self.wal_elsewhere = False
        """Its log of changes is in its folder, not with the data: a server that cannot write it ends."""
        self._process: subprocess.Popen[bytes] | None = None
        self._template = ""
        self._kept: psycopg.Connection[Any] | None = None
        """A connection for what each test needs."""

    # -- running -----------------------------------------------------------------------------------------------

    def create(self) -> Self:
        """Make its data, and start it. It has the user `titanic`."""
        _fresh_data(self.data)
        if self.wal_elsewhere:
            shutil.copytree(self.data / "pg_wal", self.folder / "wal")
            subprocess.run(["chown", "--recursive", f"--reference={self.data}", self.folder / "wal"], check=True)
            shutil.rmtree(self.data / "pg_wal")
            (self.data / "pg_wal").symlink_to(self.folder / "wal")
        self.configure()
        self.start()
        self.sql(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
        return self

    def configure(self) -> None:
        """Write its settings. It reads them when it starts, or by `reload`."""
        folders = {"unix_socket_directories": str(self.folder), "listen_addresses": "127.0.0.1"}
        settings = _SETTINGS | folders | {"port": str(self.port)} | self.settings
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        (self.data / "postgresql.conf").write_text("".join(lines))
        (self.data / "pg_hba.conf").write_text(_RULES)

    def start(self, *, wait: bool = True) -> None:
        """Start it; it is ready when this returns, unless told not to `wait`."""
        assert self._process is None
        with (self.folder / "log").open("ab") as log:
            command = as_user(program("postgres"), "-D", self.data)
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", env={"LC_ALL": "C.UTF-8"})
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until it answers."""

        def ready() -> bool:
            assert self.running, f"PostgreSQL ended:\n{self.log()[-3000:]}"
            with suppress(psycopg.OperationalError), psycopg.connect(self.url("postgres", user=_ADMIN)):
                return True
            return False

        until(ready)

    def stop(self, mode: str = "immediate") -> None:
        """Stop it as the operating system would kill it; with "fast" in good order, with "kill" it has no time at all,
        and no other process of it is left."""
        if self._process is None:
            return
        others: list[int] = []
        if mode == "kill":
            self._process.send_signal(signal.SIGSTOP)  # it starts no more of them
            others = self._others()
            for pid in (self._process.pid, *others):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            self._process.send_signal({"immediate": signal.SIGQUIT, "fast": signal.SIGINT}[mode])
        self._process.wait(60)
        self._process = None
        until(lambda: not any(map(_lives, others)))  # while one does, no other server may have the data

    def restart(self, mode: str = "immediate") -> None:
        self.stop(mode)
        self.start()

    def reload(self, **settings: str) -> None:
        """Change settings of the running server; it has them when this returns."""
        self.settings |= settings
        self.configure()
        with self.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
        for name, value in settings.items():
            until(lambda name=name, value=value: self.sql("SELECT current_setting(%s)", name) == value)

    def restore(self) -> None:
        """Have it run as when it was made, without the databases that it was given."""
        if self.running:
            self.go_on()
        if self.settings:
            self.stop()
            self.settings.clear()
            self.configure()
        if not self.running:
            self._process = None
            self.start()
        self._template = ""
        with self.connect() as connection:
            named = "SELECT datname FROM pg_database WHERE datname LIKE 'test_%'"
            for (name,) in connection.execute(named).fetchall():
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @property
    def pid(self) -> int:
        """Of its first process, the parent of all others."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def pause(self) -> None:
        """Stand still (SIGSTOP), all of its processes: connections stay, and nobody answers."""
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)  # first: it starts no more of them
        for pid in self._others():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _others(self) -> list[int]:
        """Its processes but the first."""
        assert self._process is not None
        pid = self._process.pid
        with suppress(OSError):  # it has ended
            return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        """Stop it, and remove all that it had."""
        if self._kept is not None:
            self._kept.close()
        if self.running:
            self.go_on()
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- databases ---------------------------------------------------------------------------------------------

    def url(self, database: str = USER, *, user: str = USER, password: str | None = None, tcp: bool = False) -> str:
        """How to reach a database: by the socket, or by TCP and with a password, the right one unless given."""
        if not tcp:
            return f"postgresql://{user}@/{database}?host={quote(str(self.folder), safe='')}&port={self.port}"
        word = PASSWORD if password is None else password
        return f"postgresql://{user}:{quote(word)}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """As the superuser; each statement is a transaction."""
        return psycopg.connect(self.url(database, user=_ADMIN), autocommit=True)

    def sql(self, statement: str, *values: object, database: str = "postgres") -> Any:
        """Do it as the superuser. The first column of the first row, if there are rows."""
        with self.connect(database) as connection:
            done = connection.execute(statement, values or None)
            row = done.fetchone() if done.description else None
            return row[0] if row else None

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """As `connect` does, which takes as long as what is then done: the server that all share keeps it."""
        if self._kept is not None:
            yield self._kept
            return
        with self.connect() as connection:
            yield connection

    def new_database(self, template: str = "template0") -> str:
        """The name of a new database that belongs to `titanic`, empty or as `template` is."""
        name = f"test_{next(_numbers)}"
        with self._connected() as connection:
            files = "STRATEGY FILE_COPY" if connection.info.server_version >= 150000 else ""  # less work than its log
            connection.execute(f"CREATE DATABASE {name} OWNER {USER} TEMPLATE {template} {files}")
        return name

    def new_store(self) -> str:
        """The same with a new store in it: to copy its tables takes half the time of making them."""
        if not self._template:
            name = self.new_database()
            with psycopg.connect(self.url(name), autocommit=True) as connection:
                schema.prepare(connection, name)
            self._template = name
        name = self.new_database(self._template)
        self.sql("UPDATE titanic.meta SET store_id = gen_random_uuid(), made_at = now()", database=name)
        return name

    def drop_database(self, name: str) -> None:
        """Remove it, whoever is connected."""
        with self._connected() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def cut_connections(self, database: str) -> int:
        """End all connections to a database, as an operator does; how many there were."""
        ended = "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE datname = %s AND pid <> %s"
        with self.connect() as connection:
            row = connection.execute(ended, (database, connection.info.backend_pid)).fetchone()
            return int(row[0]) if row else 0


@cache
def shared_server() -> PostgresServer:
    """The one that all tests of this process share: they leave it running."""
    server = PostgresServer().create()
    server._kept = server.connect()
    atexit.register(server.close)
    return server


@cache
def _spare() -> PostgresServer:
    server = PostgresServer().create()
    atexit.register(server.close)
    return server


@contextmanager
def spare_server() -> Iterator[PostgresServer]:
    """One that a test may stop, pause and reload: the tests of this process have it one after the other."""
    server = _spare()
    try:
        yield server
    finally:
        server.restore()


@contextmanager
def new_server(**settings: str) -> Iterator[PostgresServer]:
    """One of its own, for a test that starts it with other settings."""
    with PostgresServer(**settings) as server:
        yield server.create()
