"""Servers that share a database: what they tell of each other, and how one of them is drained."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client import generate_latest
from support.postgres import needs_postgres
from support.raw_mdp import raw_worker
from support.serving import QUICK, config
from support.waiting import until

import broker
from broker import Worker
from broker.patterns import Scatter, pack
from titanic import Client, InvalidRequest, Server
from titanic.cli import status
from titanic.cluster import notifications
from titanic.metrics.families import queue
from titanic.store import LeaseConfig
from titanic.version import __version__

pytestmark = needs_postgres

LEASE = LeaseConfig(lease=6, renew=0.4, margin=0.5)
DRAINING = b"503 draining: this node is shutting down: use another node"


@pytest.fixture
def servers(url: str, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    settings = {"store": url, "lease": LEASE, "grace": 5.0}
    with (
        Server(config(tmp_path, node_name="a", **settings)) as a,
        Server(config(tmp_path, node_name="b", advertise=("tcp://b.example:5555",), **settings)) as b,
    ):
        until(lambda: a.dispatcher.node.incarnation() and b.dispatcher.node.incarnation())
        yield a, b


def client_of(server: Server) -> Client:
    return Client(server.endpoints[0], timeout=30)


class Gate:
    """A worker's function: it begins, and ends when it may."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, frames: list[bytes]) -> list[bytes]:
        self.begun.set()
        assert self.go_on.wait(30)
        return frames


def test_each_node_knows_all(servers: tuple[Server, Server]) -> None:
    a, b = servers
    gate = Gate()
    with client_of(a) as at_a, client_of(b) as at_b, Worker("slow", gate, b.endpoints[0], config=QUICK):
        uuid = at_a.submit("slow", "x")
        assert gate.begun.wait(30)
        until(lambda: [row["running"] for row in at_a.nodes()] == [0, 1])
        first, second = at_a.nodes()
        assert (first["name"], first["asked"], first["endpoints"]) == ("a", True, [*a.endpoints])
        assert (second["name"], second["asked"], second["endpoints"]) == ("b", False, ["tcp://b.example:5555"])
        assert first["version"] == __version__
        assert second["services"] == {"slow": [1, 1]}
        assert (second["workers"], second["claims"], second["draining"]) == (1, 1, False)
        assert 0 < second["lease"] <= LEASE.lease
        assert {first["shard"], second["shard"]} == {1, 2}
        here, there = at_a.stats(), at_b.stats()
        for stats in (here, there):
            assert stats["running"] == 1
        assert here["node"] == {"name": "a", "running": 0, "draining": False, "access": "open"} | {
            "shard": first["shard"],
            "incarnation": first["incarnation"],
        }
        counts = {"workers": 1, "running": 1, "incarnation": second["incarnation"]}
        assert here["other_nodes"] == [{"name": "b", "draining": False, "access": "open"} | counts]
        assert (here["workers_elsewhere"], there["workers_elsewhere"]) == ({"slow": 1}, {})
        text = "".join(generate_latest(One(b)).decode())
        for line in ("titanic_nodes 2.0", "titanic_nodes_draining 0.0", "titanic_node_claims 1.0"):
            assert line in text
        for line in ('titanic_node_info{name="b"} 1.0', "titanic_node_leases_lost_total 0.0"):
            assert line in text
        gate.go_on.set()
        assert at_b.wait(uuid, 30) == [b"x"]


def test_two_of_one_name_are_told_apart_and_say_so(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifications, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(notifications, "NAMESAKES", 0.01)
    settings = {"store": url, "node_name": "a", "lease": LEASE}
    with Server(config(tmp_path, **settings)) as one, Server(config(tmp_path, **settings)) as two:
        until(lambda: sum("--node-name" in line for line in caplog.messages) == 2)
        numbers = [server.dispatcher.node.incarnation() for server in (one, two)]
        with client_of(one) as client:
            (line,) = [line for line in lines_of_status(client.stats()) if line.startswith("2 nodes")]
        assert line == f"2 nodes: a (0 running, connected, number {numbers[0]}), a (0 running, number {numbers[1]})"
    assert sum("--node-name" in line for line in caplog.messages) == 2, "once each"


def lines_of_status(document: dict[str, Any]) -> list[str]:
    out = io.StringIO()
    with redirect_stdout(out):
        status._show(document | {"workers": {}})
    return out.getvalue().splitlines()


class One:
    """A registry of what a server tells."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[object]:
        return iter(queue(self._server.snapshot()))


def test_the_dead_are_listed_while_they_hold_claims(servers: tuple[Server, Server], url: str) -> None:
    a, _ = servers
    with client_of(a) as client:
        client.submit("nobody", "x")
        with psycopg.connect(url) as connection:
            connection.execute(
                "INSERT INTO titanic.node (incarnation, name, version, endpoints, lease_until)"
                " VALUES (7, 'dead', '0', '{}', '-infinity')"
            )
            connection.execute("UPDATE titanic.ready SET incarnation = 7")
        rows = {row["name"]: row for row in client.nodes()}
        assert rows.keys() == {"a", "b", "dead"}
        assert (rows["dead"]["lease"], rows["dead"]["claims"]) == (None, 1)
        assert len(client.stats()["other_nodes"]) == 1, "the dead are no nodes"


def test_a_node_is_drained(servers: tuple[Server, Server]) -> None:
    a, b = servers
    gate = Gate()
    with client_of(a) as at_a, client_of(b) as at_b, Worker("slow", gate, a.endpoints[0], config=QUICK):
        first, second = at_a.submit("slow", "1"), at_a.submit("slow", "2")
        assert gate.begun.wait(30)
        waits = Waits(a, second)
        assert at_b.drain("a")["name"] == "a"
        assert waits.answer() == [DRAINING]
        assert at_a.call("titanic.submit", b"{}", "slow", "3") == [DRAINING]
        assert at_a.call("titanic.request", "slow", "3") == [DRAINING]
        assert at_a.call("titanic.wait", b"30", first) == [DRAINING]
        until(lambda: [row["draining"] for row in at_b.nodes()] == [True, False])
        with pytest.raises(broker.RemoteError, match="503 draining"):
            at_a.call("slow", "plain")
        assert not a.drained, "a worker has a request"
        until(lambda: at_b.nodes()[0]["claims"] == 1)  # what no worker had is given back
        gate.go_on.set()
        until(lambda: a.drained)
        assert at_a.reply(first) == [b"1"], "it answers until it ends"
        assert [row["name"] for row in at_b.nodes()] == ["b"]
        with Worker("slow", gate, b.endpoints[0], config=QUICK):
            assert at_b.wait(second, 30) == [b"2"]
    assert a.alive


def test_what_was_gathered_is_stored_before_a_node_is_drained(url: str, tmp_path: Path) -> None:
    with Server(config(tmp_path, store=url, lease=LEASE, gather=("tcp://127.0.0.1:*",))) as server:
        with Scatter() as scatter:
            scatter.connect(server.gathers[0])
            for number in range(100):
                scatter.send(pack([b"nobody", b"%d" % number]))
            until(lambda: server.gathered["stored"] > 0)
            server.drain()
            until(lambda: server.drained)
        with server.store.read() as transaction:
            assert transaction.counts().requests == server.gathered["stored"]
        assert server.gathered["waiting"] == 0


def test_clients_and_workers_with_several_endpoints_notice_nothing(servers: tuple[Server, Server]) -> None:
    endpoints = [server.endpoints[0] for server in servers]
    executed: list[bytes] = []

    def work(frames: list[bytes]) -> list[bytes]:
        executed.append(frames[0])
        return frames

    with Worker("echo", work, endpoints, config=QUICK), ExitStack() as stack:
        clients = [stack.enter_context(Client(endpoints, timeout=30)) for _ in range(6)]  # each at one of the two
        busy = until(lambda: next((server for server in servers if server.workers), None))
        uuids: list[str] = []

        def submit() -> None:
            for client in clients:
                uuids.append(client.submit("echo", str(len(uuids))))

        for _ in range(3):
            submit()
        busy.drain()
        while not busy.drained:
            submit()
        submit()
        assert [clients[0].wait(uuid, 30)[0] for uuid in uuids] == [b"%d" % n for n in range(len(uuids))]
    assert sorted(executed) == sorted(b"%d" % n for n in range(len(uuids))), "each is executed once"


class Waits:
    """A client that waits for a reply in a thread of its own."""

    def __init__(self, server: Server, uuid: str) -> None:
        self._answer: list[bytes] = []
        self._client = client_of(server)
        self._thread = threading.Thread(target=self._run, args=(uuid,))
        self._thread.start()
        until(lambda: len(server.dispatcher.waiters) == 1)

    def _run(self, uuid: str) -> None:
        self._answer = self._client.call("titanic.wait", b"60", uuid)

    def answer(self) -> list[bytes]:
        self._thread.join(30)
        self._client.disconnect()
        return self._answer


def test_a_node_that_is_stopped_goes_the_same_way(servers: tuple[Server, Server]) -> None:
    """Of what workers have, it waits for that with which they do not go to another node."""
    a, b = servers
    with client_of(a) as at_a, client_of(b) as at_b, raw_worker(a.endpoints[0], b"slow") as worker:
        first = at_a.submit("slow", "1")
        token, body = worker.take()
        stopping = threading.Thread(target=a.stop)
        stopping.start()
        until(lambda: a.dispatcher.node.claims.draining)
        assert at_a.call("titanic.submit", b"{}", "slow", "3") == [DRAINING]
        worker.final(token, *body)
        stopping.join(30)
        assert at_b.reply(first) == [b"1"]
        assert [row["name"] for row in at_b.nodes()] == ["b"]


def test_who_cannot_be_drained(servers: tuple[Server, Server], tmp_path: Path, url: str) -> None:
    a, _ = servers
    with client_of(a) as client, Server(config(tmp_path, node_name="b", store=url, lease=LEASE)) as twin:
        until(lambda: len(client.nodes()) == 3)
        with pytest.raises(InvalidRequest, match="there is no node 'c'; known: a, b, b"):
            client.drain("c")
        with pytest.raises(
            InvalidRequest, match=r"2 nodes have the name 'b'; give the incarnation of one: \d+ at tcp://\S+, \d+ at"
        ):
            client.drain("b")
        for options in ({"do": "drain", "node": 7}, {"do": "drain", "nodes": "a"}):
            assert client.call("titanic.admin", json.dumps(options))[0].startswith(b"400 ")
        rows = client.nodes()
        assert not any(row["draining"] for row in rows)
        (incarnation,) = [row["incarnation"] for row in rows if twin.endpoints[0] in row["endpoints"]]
        assert client.drain(str(incarnation))["name"] == "b"
        until(lambda: twin.drained)


def test_a_server_that_has_its_store_to_itself_has_no_nodes(server: Server, client: Client) -> None:
    assert client.nodes() is None
    assert server.snapshot().node is None
    server.drain()
    assert not server.drained
    assert client.submit("nobody", "x")
    with pytest.raises(InvalidRequest, match="this server does not share its store"):
        client.drain()
    assert "node" not in client.stats()


@pytest.mark.parametrize("jobs", [1, 2])
def test_idle_workers_are_spread_again_after_a_restart(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """A node that has come back gets some. The clients stay where they are, and the last worker of a service, too. A
    worker goes with all its jobs."""
    monkeypatch.setattr("broker.io.dealer.shuffled", list)
    monkeypatch.setattr(notifications, "BALANCE_EVERY", 1.0)
    lease = LeaseConfig(lease=30, renew=0.2, margin=0.5)
    with ExitStack() as stack:
        nodes = [stack.enter_context(Server(config(tmp_path, store=url, lease=lease))) for _ in range(3)]
        a, b, c = (server.endpoints[0] for server in nodes)
        client = stack.enter_context(Client([a, b, c], timeout=30))
        node = until(lambda: client.stats()["node"])
        stack.enter_context(Worker("alone", list, [a, b, c], config=QUICK))
        for order in [[a, b, c]] * (4 // jobs) + [[b, c, a]] * (2 // jobs):
            stack.enter_context(Worker("echo", list, order, jobs=jobs, config=QUICK))
        until(lambda: sum(sum((node.workers or {}).values()) for node in nodes) == 7)
        until(lambda: sorted(sum((node.workers or {}).values()) for node in nodes) == [2, 2, 3])
        assert (nodes[0].workers or {}).get(b"alone") == 1
        assert until(lambda: client.stats()["node"])["incarnation"] == node["incarnation"]
