"""Limits of services that admins set while servers run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.access_files import ALICE, AccessFiles
from support.each import each
from support.nodes import cluster, deafen, heard_of_each_other
from support.ports import free_port
from support.postgres import needs_postgres, shared_server
from support.processes import SUPPORT, Process
from support.serving import QUICK, config, serving
from support.waiting import until

from broker import Worker
from titanic import Client, InvalidRequest, Refused, Server
from titanic.errors import Forbidden
from titanic.facts import set_service
from titanic.settings import ServiceLimits
from titanic.store import LeaseConfig

NONE = dict.fromkeys(("waiting", "bytes", "running", "rate"))
FILE = {b"mail": ServiceLimits(running=3, waiting=100)}


@pytest.fixture(params=["lmdb", pytest.param("postgresql", marks=needs_postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    if request.param == "lmdb":
        yield tmp_path / "store"
        return
    postgres = shared_server()
    name = postgres.new_store()
    yield postgres.url(name)
    postgres.drop_database(name)


def at_work(store: Path | str, **settings: Any) -> Server:
    return Server(config(Path(), store=store, presence_most=0.1, **settings))


class Held:
    """A worker that holds what it gets until it is let go, and knows how many it has had at once."""

    def __init__(self, server: Server, stack: ExitStack, jobs: int = 6) -> None:
        self.now: list[bytes] = []
        self.go = threading.Event()
        worker = stack.enter_context(Worker("mail", self._work, server.endpoints[0], jobs=jobs, config=QUICK))
        stack.callback(self.go.set)
        until(lambda: worker.registered == jobs)

    def _work(self, frames: list[bytes]) -> list[bytes]:
        self.now.append(frames[0])
        self.go.wait(600)
        self.now.remove(frames[0])
        return frames


def row_of(client: Client, name: str = "mail") -> Any:
    return client.stats(services=True)["by_service"][name]


def test_a_limit_applies_at_once_and_until_it_is_reset(store: Path | str) -> None:
    with at_work(store) as server, Client(server.endpoints[0], timeout=60) as client, ExitStack() as stack:
        answer = client.set_limits("mail", running=2)
        assert (answer["done"], answer["limits"]) == (1, NONE | {"running": 2})
        assert answer["limits_set"]["configured"] == NONE
        held = Held(server, stack)
        uuids = [client.submit("mail", b"%d" % n) for n in range(8)]
        until(lambda: len(held.now) == 2)
        why = until(lambda: found if (found := client.show(uuids[-1], why=True)["why"])["kind"] == "limit" else None)
        assert "the limit running=2 (set " in why["text"]
        assert (why["limit"], why["next"]) == (2, "titanic limits mail --running N")
        client.set_limits("mail", running=4)
        until(lambda: len(held.now) == 4)
        client.set_limits("mail", running=1)  # stops none
        assert len(held.now) == 4
        assert client.set_limits("mail", running=None)["limits"] == NONE
        until(lambda: len(held.now) == 6)
        assert "limits_set" not in row_of(client)
        assert [(one["act"], one["text"]) for one in client.audit()["acts"]] == [
            ("limits", "running=configured"),
            ("limits", "running=1"),
            ("limits", "running=4"),
            ("limits", "running=2"),
        ]


def test_a_lower_limit_takes_back_what_no_worker_has_begun(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=60) as client, ExitStack() as stack:
        begun: list[bytes] = []
        go = threading.Event()

        def work(frames: list[bytes]) -> list[bytes]:
            begun.append(frames[0])
            if frames == [b"hold"]:
                go.wait(600)
            return frames

        stack.enter_context(Worker("mail", work, server.endpoints[0], jobs=2, config=QUICK))
        stack.callback(go.set)
        client.replies(client.submit_many("mail", [b"x"] * 2000), 60)  # fast ones: more are given ahead
        uuids = client.submit_many("mail", [b"hold"] * 50)
        until(lambda: begun.count(b"hold") == 2)
        client.set_limits("mail", running=2, rate=1)
        until(lambda: server.dispatcher.stats()["running"] == 2)
        go.set()
        assert client.set_limits("mail", running=None, rate=None)["limits"] == NONE
        assert all(outcome == [b"hold"] for _, outcome in client.replies(uuids, 60))


def test_limits_are_laid_over_the_configured_ones_and_outlast_the_server(store: Path | str) -> None:
    with at_work(store, limits=FILE) as server, Client(server.endpoints[0], timeout=60) as client:
        client.set_limits("mail", running=8, rate=0.5)
        client.set_limits("größe", bytes=1000)
        assert client.set_limits("mail", running=8)["done"] == 0
        assert client.set_limits("nothing", running=None) == {
            "done": 0,
            "service": "nothing",
            "paused": False,
            "on_end": None,
            "limits": NONE,
        }
    with at_work(store, limits=FILE) as server, Client(server.endpoints[0], timeout=60) as client:
        row = until(lambda: found if "limits_set" in (found := row_of(client)) else None)
        assert row["limits"] == {"waiting": 100, "bytes": None, "running": 8, "rate": 0.5}
        was_set = row["limits_set"]
        assert was_set.pop("at") > 0
        configured = {"waiting": 100, "bytes": None, "running": 3, "rate": None}
        assert was_set == {
            "waiting": None,
            "bytes": None,
            "running": 8,
            "rate": 0.5,
            "configured": configured,
            "by": "",
        }
        with pytest.raises(Refused, match="bytes"):
            client.submit("größe", b"x" * 1001)
        if isinstance(store, Path):
            server.reload(replace(server.config, limits={b"mail": ServiceLimits(waiting=1, running=5)}))
            until(lambda: row_of(client)["limits"] == {"waiting": 1, "bytes": None, "running": 8, "rate": 0.5})
        client.set_limits("mail", running=None, rate=None)
        assert row_of(client)["limits"] == row_of(client)["limits"] | {"running": server.config.limits[b"mail"].running}
        assert "limits_set" not in row_of(client)


def test_limits_outlast_a_kill(store: Path | str, tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    arguments = SUPPORT / "server_process.py", "serve", endpoint, store
    with Process(*arguments, output=tmp_path / "out") as process, Client(endpoint, timeout=60) as client:
        client.set_limits("mail", running=2)
        process.kill()
    with Process(*arguments, output=tmp_path / "out"), Client(endpoint, timeout=60) as client:
        until(lambda: client.stats(services=True)["by_service"].get("mail", {}).get("limits") == NONE | {"running": 2})
        assert [one["act"] for one in client.audit()["acts"]] == ["limits"]


@needs_postgres
@pytest.mark.parametrize("deaf", [False, True])
def test_limits_reach_every_node_and_hold_over_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool) -> None:
    if deaf:  # then they are read when the lease is renewed
        deafen(monkeypatch)
    with cluster(tmp_path, 2, limits=FILE, lease=LeaseConfig(renew=0.2)) as nodes, ExitStack() as stack:
        if not deaf:
            heard_of_each_other(nodes)
        a, b = nodes.clients
        a.set_limits("mail", running=1)
        until(lambda: row_of(b)["limits"] == {"waiting": 100, "bytes": None, "running": 1, "rate": None})
        held = [Held(server, stack, jobs=2) for server in nodes.servers]
        uuids = [a.submit("mail", b"%d" % n) for n in range(6)]
        until(lambda: sum(len(one.now) for one in held) == 1)
        nodes.add(limits=FILE)  # a node with the configured limits joins
        until(lambda: row_of(nodes.clients[2])["limits"]["running"] == 1)
        b.set_limits("mail", running=None)
        until(lambda: "limits_set" not in row_of(a))
        until(lambda: sum(len(one.now) for one in held) == 3)
        for one in held:
            one.go.set()
        for uuid in uuids:
            a.wait(uuid, 60)


@needs_postgres
def test_two_admins_change_limits_at_two_nodes_at_once(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as nodes:
        a, b = nodes.clients
        for turn in range(1, 6):
            other = threading.Thread(target=b.set_limits, args=("mail",), kwargs={"rate": float(turn)})
            other.start()
            a.set_limits("mail", running=turn)
            other.join()
            for client in (a, b):
                expected = NONE | {"running": turn, "rate": float(turn)}
                until(lambda client=client, expected=expected: row_of(client)["limits"] == expected)


def test_who_may_set_limits_and_who_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    users = ALICE + '[users.bob]\nkeys = ["bob.key"]\nread = "own"\nmetrics = true\n'
    users += '[users.queue]\nkeys = ["queue.key"]\nadmin = true\n'
    files = AccessFiles(tmp_path / "access", users)
    caplog.set_level("INFO")
    with serving(tmp_path, access=files.path, key=files.key) as server, ExitStack() as stack:
        alice, bob, chief = (
            stack.enter_context(
                Client(server.endpoints[0], timeout=60, key=files.secret(name), server_key=files.server_key)
            )
            for name in ("alice", "bob", "queue")
        )
        for client in (alice, bob):
            with pytest.raises(Forbidden, match="admin = true"):
                client.set_limits("mail", running=1)
        assert "mail" not in chief.stats(services=True)["by_service"]
        assert chief.set_limits("mail", rate=1 / 60)["limits_set"]["by"] == "queue"
        assert row_of(chief)["limits_set"]["by"] == "queue"
        assert row_of(bob)["limits_set"]["by"] == ""
        (act,) = chief.audit(act="limits")["acts"]
        assert (act["user"], act["service"], act["text"]) == ("queue", "mail", "rate=1/m")
        assert "user 'queue': limits of 'mail' rate=1/m" in caplog.text


@each(
    "wrong, text",
    [
        ({"running": 0}, "running must be a number from 1 to "),
        ({"running": 1.5}, "running must be a number"),
        ({"waiting": (1 << 44) + 1}, "waiting must be a number"),
        ({"bytes": "1"}, "bytes must be a number"),
        ({"rate": 0}, "rate must be a number of attempts a second"),
        ({"rate": 100_001}, "rate must be a number of attempts a second"),
        ({"keep": 1}, "keep"),
        ({"running": 1, "service": "titanic.list"}, "service"),
    ],
)
def test_what_cannot_be_set(client: Client, wrong: dict[str, Any], text: str) -> None:
    (answer,) = client.call("titanic.admin", json.dumps({"do": "set", "service": "mail", **wrong}))
    assert answer.startswith(b"400 ")
    assert text in answer.decode()
    assert client.stats(services=True)["by_service"] == {}


def test_the_number_of_services_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_service, "MOST", 2)
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=60) as client:
        for name in ("a", "b", "a"):
            client.set_limits(name, running=2)
        with pytest.raises(InvalidRequest, match="the maximum is 2"):
            client.set_limits("c", running=2)
        client.set_limits("a", running=None)
        client.set_limits("c", running=2)
        assert sorted(client.stats(services=True)["by_service"]) == ["b", "c"]


@contextmanager
def paused_too(client: Client) -> Iterator[None]:
    client.set_service("mail", paused=True)
    yield
    client.set_service("mail", paused=False)


def test_a_pause_and_limits_are_apart(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=60) as client:
        client.set_limits("mail", running=2)
        with paused_too(client):
            assert row_of(client)["paused"]
            assert row_of(client)["limits"]["running"] == 2
            client.set_limits("mail", running=3)
            assert row_of(client)["paused"]
        assert row_of(client)["limits"]["running"] == 3
        client.set_limits("mail", running=None)
        assert "settings" not in client.stats()


def test_a_higher_rate_applies_at_once_whatever_the_lower_one_held_back(store: Path | str) -> None:
    with at_work(store) as server, Client(server.endpoints[0], timeout=60) as client, ExitStack() as stack:
        held = Held(server, stack)
        client.set_limits("mail", rate=0.1 / 3600)
        uuids = client.submit_many("mail", [b"%d" % n for n in range(3)])
        until(lambda: len(held.now) == 1)
        until(lambda: client.show(uuids[-1], why=True)["why"]["kind"] == "rate")
        client.set_limits("mail", rate=100)
        until(lambda: len(held.now) == 3)
