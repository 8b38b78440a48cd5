"""A node of a later version begins to share the database of an earlier one, while requests come and go."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cli_titanic import Running, running
from support.ports import free_port
from support.postgres import needs_postgres, shared_server
from support.serving import QUICK, config
from support.waiting import PATIENCE, until

from broker import Worker
from titanic import Client, Server
from titanic.errors import StoreTooNew
from titanic.store import LeaseConfig, open_store
from titanic.store.postgres.schema import FORMAT
from titanic.version import __version__

pytestmark = needs_postgres

ROOT = Path(__file__).parents[2]
LATER = "99.0.0"
PROGRAM = (sys.executable, "-P", "-m", "titanic")
"""Not the one in the present directory."""


@pytest.fixture
def url() -> Iterator[str]:
    name = shared_server().new_database()
    yield shared_server().url(name)
    shared_server().drop_database(name)


def later_version(folder: Path, oldest: int) -> Path:
    """A copy of this version with the next format, whose tables are for nodes that know the format `oldest`."""
    for package in ("titanic", "broker"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    change(folder / "titanic/version.py", f'"{__version__}"', f'"{LATER}"')
    schema = folder / "titanic/store/postgres/schema.py"
    change(schema, f"\nFORMAT = {FORMAT}\n", f"\nFORMAT = {FORMAT + 1}\n")
    upgrade = f'Upgrade("ALTER TABLE titanic.request ADD later integer NOT NULL DEFAULT 0", {oldest})'
    schema.write_text(f"{schema.read_text()}\nUPGRADES[{FORMAT}] = {upgrade}\n")
    return folder


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, after))


class Traffic:
    """A client that submits one request after another, at whichever endpoint there is; few wait at a time."""

    def __init__(self, executed: list[bytes], *endpoints: str) -> None:
        self.accepted: list[str] = []
        self._executed = executed
        self.error: Exception | None = None
        self._endpoints = endpoints
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Client(self._endpoints, timeout=5) as client:
                while not self._ended.is_set():
                    if len(self.accepted) > len(self._executed) + 50:
                        self._ended.wait(0.01)
                        continue
                    self.accepted.append(client.submit("echo", f"{len(self.accepted)}"))
        except Exception as error:
            self.error = error

    def goes_on(self) -> None:
        """Wait until more has been accepted."""
        before = len(self.accepted)
        until(lambda: self.error or len(self.accepted) > before + 20)
        assert self.error is None

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE)
        assert self.error is None


@contextmanager
def running_traffic(executed: list[bytes], *endpoints: str) -> Iterator[Traffic]:
    """Traffic that has begun."""
    traffic = Traffic(executed, *endpoints)
    try:
        traffic.goes_on()
        yield traffic
    finally:
        traffic.stop()


@pytest.mark.parametrize("compatible", [True, False])
def test_requests_flow_while_nodes_are_replaced(url: str, tmp_path: Path, compatible: bool) -> None:
    copy = later_version(tmp_path / "later", FORMAT if compatible else FORMAT + 1)
    lease = LeaseConfig(lease=10, renew=0.5)
    executed: list[bytes] = []

    def echo(frames: list[bytes]) -> list[bytes]:
        executed.append(frames[0])
        return frames

    endpoint = f"tcp://127.0.0.1:{free_port()}"
    options = ("--store", url, "--bind", endpoint, "--node-name", "later")
    with (
        Server(config(tmp_path, store=url, node_name="earlier", lease=lease, grace=5.0)) as earlier,
        Worker("echo", echo, earlier.endpoints[0], config=QUICK),
        running_traffic(executed, earlier.endpoints[0], endpoint) as traffic,
        running(tmp_path / "log", "serve", *options, program=PROGRAM, PYTHONPATH=str(copy)) as later,
    ):
        later.says("serving at")
        with Worker("echo", echo, endpoint, config=QUICK):
            if compatible:
                both_work(endpoint, traffic)
                earlier.drain()
                until(lambda: earlier.drained)
                open_store(url).close()
            else:
                until(lambda: not earlier.alive)
                assert isinstance(earlier.problem, StoreTooNew)
                with pytest.raises(StoreTooNew):
                    open_store(url)
            earlier.stop()
            traffic.goes_on()
            traffic.stop()
            all_is_done(endpoint, traffic, later)
    assert len(set(executed)) == len(traffic.accepted)
    if compatible:
        assert len(executed) == len(traffic.accepted), "each is executed once"


def both_work(endpoint: str, traffic: Traffic) -> None:
    with Client(endpoint, timeout=30) as client:
        until(lambda: len(client.nodes() or ()) == 2)
        assert {row["name"]: row["version"] for row in client.nodes() or ()} == {
            "earlier": __version__,
            "later": LATER,
        }
        traffic.goes_on()


def all_is_done(endpoint: str, traffic: Traffic, later: Running) -> None:
    with Client(endpoint, timeout=30) as client:
        replies = dict(client.replies(traffic.accepted, 60))
        assert [replies[uuid] for uuid in traffic.accepted] == [[b"%d" % n] for n in range(len(traffic.accepted))]
        client.close_many(traffic.accepted)
        assert [row["name"] for row in client.nodes() or ()] == ["later"]
    assert "Traceback" not in later.log.read_text()
