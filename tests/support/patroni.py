"""Three machines with PostgreSQL under Patroni and etcd, as deploy/nodes/patroni.yml has them; only addresses differ.

A machine is a process namespace: when its first process is killed, all others in it are gone at once, as in a power
cut (but for what the system has not yet written to the disk). All of it dies with the test.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import yaml
from support.ports import free_port
from support.postgres import BIN, PASSWORD, USER, alone, as_user, new_place, own
from support.waiting import until

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy/nodes/patroni.yml"
PROGRAMS = {"patroni": "patroni", "patronictl": "patroni", "etcd": "etcd-server", "initdb": "postgresql"}
PATIENCE = 120.0
"""Seconds until a cluster is whole again: a lease of 20 s, pg_rewind or a copy, on a busy machine."""


def expect_programs() -> None:
    """Say what to install when something is missing."""
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    missing = sorted({package for name, package in PROGRAMS.items() if shutil.which(name, path=path) is None})
    # Patroni speaks to etcd by a package that Debian only suggests.
    command = ["/usr/bin/python3", "-c", "import etcd"]
    if "patroni" in missing or subprocess.run(command, capture_output=True, check=False).returncode:
        missing.append("python3-etcd")
    assert not missing, f"this needs Patroni and etcd; on Debian: apt-get install {' '.join(missing)}"


class Member:
    """One of the machines."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.folder = folder
        self.config = folder / "patroni.yml"
        self.port, self.rest, self.client, self.peer = (free_port() for _ in range(4))
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, all_of_them: list[Member]) -> None:
        """Write its settings: those of the handbook, at this machine's addresses."""
        self.folder.mkdir()
        own(self.folder)
        settings = yaml.safe_load(CONFIG.read_text())
        settings["name"] = self.name
        settings["etcd"]["hosts"] = ",".join(f"127.0.0.1:{one.client}" for one in all_of_them)
        rest, database = f"127.0.0.1:{self.rest}", f"127.0.0.1:{self.port}"
        settings["restapi"] = {"listen": rest, "connect_address": rest}
        ours = {"data_dir": "data", "pgpass": "pgpass", "bin_dir": "", "listen": "", "connect_address": ""}
        assert ours.keys() <= settings["postgresql"].keys()
        settings["postgresql"] |= {"listen": database, "connect_address": database, "bin_dir": BIN}
        settings["postgresql"] |= {name: str(self.folder / name) for name in ("data", "pgpass")}
        settings["postgresql"]["data_dir"] = settings["postgresql"].pop("data")
        small = {"shared_buffers": "32MB", "dynamic_shared_memory_type": "mmap", "wal_keep_size": "64MB"}
        settings["postgresql"]["parameters"] = small | {"unix_socket_directories": str(self.folder)}
        self.config.write_text(yaml.safe_dump(settings, sort_keys=False))
        self._cluster = ",".join(f"{one.name}=http://127.0.0.1:{one.peer}" for one in all_of_them)

    def start(self) -> None:
        """Switch it on."""
        assert self._process is None
        peer, client = f"http://127.0.0.1:{self.peer}", f"http://127.0.0.1:{self.client}"
        etcd = [
            "etcd",
            "--enable-v2",
            f"--name={self.name}",
            f"--data-dir={self.folder / 'etcd'}",
            f"--initial-cluster={self._cluster}",
        ]
        etcd += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        etcd += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        log = self.folder / "log"
        lines = (" ".join(as_user(*command)) for command in (etcd, ["patroni", self.config]))
        script = "\n".join(f"{line} >>{log} 2>&1 &" for line in lines) + "\nwait"
        command = alone(script)
        env = {"PATH": f"{BIN}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}
        self._process = subprocess.Popen(command, cwd="/", env=env, start_new_session=True)

    def kill(self) -> None:
        """The machine is gone, with all that ran there."""
        if self._process is not None:
            with suppress(ProcessLookupError, FileNotFoundError):
                os.kill(self._first(), signal.SIGKILL)
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def kill_postgres(self) -> None:
        """PostgreSQL is killed, all of its processes; Patroni sees it."""
        self._signal(signal.SIGKILL, "postgres")

    def pause(self) -> None:
        """PostgreSQL and Patroni stand still, and etcd does not."""
        for _ in range(2):  # what is started meanwhile, too
            self._signal(signal.SIGSTOP, "patroni", "postgres")

    def go_on(self) -> None:
        self._signal(signal.SIGCONT, "patroni", "postgres")

    def _signal(self, number: signal.Signals, *names: str) -> None:
        for pid in self._processes():
            with suppress(ProcessLookupError, FileNotFoundError):
                if Path(f"/proc/{pid}/comm").read_text().strip() in names:
                    os.kill(pid, number)

    def _first(self) -> int:
        """The process that is number 1 there, by its number here."""
        assert self._process is not None
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _processes(self) -> list[int]:
        """All of them but the first, which a signal of ours would not stop."""
        first = self._first()
        space = Path(f"/proc/{first}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int(entry.name) != first and (entry / "ns/pid").readlink() == space:
                    found.append(int(entry.name))
        return found

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


class Cluster:
    """Three members, one of which is the leader, and one its synchronous standby."""

    def __init__(self, folder: Path) -> None:
        self.members = [Member(folder / name, name) for name in ("db1", "db2", "db3")]
        self.made_anew = 0
        """Members that `recover` has made anew."""
        for one in self.members:
            one.configure(self.members)

    def start(self) -> None:
        """Make it, with a database of Titanic's."""
        for one in self.members:
            one.start()
        until(self.whole, PATIENCE, every=0.1)
        self.sql(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
        self.sql(f"CREATE DATABASE {USER} OWNER {USER}")

    def url(self) -> str:
        """How Titanic reaches the leader, whichever it is; the password is in PGPASSWORD."""
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.members)
        return f"postgresql://{USER}@{hosts}/{USER}?target_session_attrs=read-write"

    def sql(self, statement: str) -> None:
        """Do it at the leader as the superuser."""
        secret = yaml.safe_load(CONFIG.read_text())["postgresql"]["authentication"]["superuser"]
        hosts = ",".join("127.0.0.1" for _ in self.members)
        where = {"host": hosts, "port": ",".join(str(one.port) for one in self.members), "dbname": "postgres"}
        attributes = {"user": secret["username"], "password": secret["password"], "target_session_attrs": "read-write"}
        with psycopg.connect(**where, **attributes, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    def roles(self) -> dict[str, str]:
        """What each member that runs is, as Patroni says it: `leader`, `sync_standby`, `replica`."""
        for one in self.members:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{one.rest}/cluster", timeout=2) as answer:
                found: list[dict[str, Any]] = json.load(answer)["members"]
                return {each["name"]: each["role"] for each in found if each["state"] in ("running", "streaming")}
        return {}

    def whole(self) -> bool:
        """Whether there are a leader, a synchronous standby and a third one."""
        return sorted(self.roles().values()) == ["leader", "replica", "sync_standby"]

    def recover(self) -> None:
        """Wait until it is whole. A member that Patroni does not bring back is made anew, as an operator does it: it
        may have more of an old time line than the others, and then PostgreSQL refuses to start."""
        try:
            until(self.whole, PATIENCE, every=0.2)
        except AssertionError:
            there = self.roles()
            for one in (one for one in self.members if one.name not in there):
                self._patronictl(one, "reinit", "titanic", one.name, "--force")
                self.made_anew += 1
            until(self.whole, PATIENCE, every=0.2)

    def member(self, role: str) -> Member:
        """The one with this role; waits until there is one."""

        def found() -> Member | None:
            names = [name for name, each in self.roles().items() if each == role]
            return next((one for one in self.members if one.name in names), None)

        one = until(found, PATIENCE, every=0.1)
        assert one is not None
        return one

    def switch_over(self) -> None:
        """As an operator does it, before he upgrades the leader's machine."""
        leader, standby = self.member("leader"), self.member("sync_standby")
        whose = ["--leader", leader.name, "--candidate", standby.name, "--force"]
        self._patronictl(leader, "switchover", "titanic", *whose)

    def _patronictl(self, member: Member, *words: str) -> None:
        command = ["patronictl", "-c", str(member.config), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def close(self) -> None:
        for one in self.members:
            one.kill()


@contextmanager
def new_cluster() -> Iterator[Cluster]:
    """One that runs."""
    expect_programs()
    folder, lock = new_place()
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    except BaseException:
        for one in cluster.members:
            print(f"--- {one.name}", one.log()[-3000:], sep="\n")
        raise
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
