"""`Client.show(why=True)` names the reason for a request's state, and nothing that is not the client's."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.access_files import AccessFiles
from support.node_settings import node_config
from support.nodes import cluster
from support.ports import free_port
from support.postgres import needs_postgres, shared_server
from support.processes import SUPPORT, Process
from support.relay import relay
from support.serving import QUICK, brokering, serving, with_broker
from support.waiting import until

from broker import BrokerConfig, RemoteError, Worker
from titanic import Client, Server, UnknownRequest
from titanic.protocol.documents import WhyInfo
from titanic.settings import ServiceLimits
from titanic.store.postgres.store import PostgresStore

LATER = 3600.0

LIMITS = {b"one": ServiceLimits(running=1), b"slow": ServiceLimits(rate=0.001)}

SUBMITS = 'submit = ["*"]\nread = "own"\n'
USERS = (
    f'[users.alice]\nkeys = ["alice.key"]\nwork = ["*"]\nclose = true\n{SUBMITS}'
    f'[users.bob]\nkeys = ["bob.key"]\n{SUBMITS}'
    '[users.queue]\nkeys = ["queue.key"]\nread = "all"\nadmin = true\n'
)


class Place:
    """A server of a kind, its client, and workers."""

    def __init__(self, kind: str, server: Server, stack: ExitStack) -> None:
        self.kind, self.server, self._stack = kind, server, stack
        self.endpoint = server.endpoints[0]
        self.client = stack.enter_context(Client(self.endpoint, timeout=60))
        self.go = threading.Event()

    def work(self, service: str, jobs: int = 1) -> Worker:
        """A worker that waits with each request until `go`; it fails what is `fail`."""

        def handle(frames: list[bytes]) -> bytes:
            if frames[0] == b"fail":
                raise RemoteError(500, "as you wish")
            assert self.go.wait(900)
            return frames[0]

        worker = self._stack.enter_context(Worker(service, handle, self.endpoint, jobs=jobs, config=QUICK))
        self._stack.callback(self.go.set)
        until(lambda: worker.registered == jobs)
        return worker

    def why(self, uuid: str, kind: str) -> WhyInfo:
        """The reason, once it is this one."""
        return until(lambda: found if (found := self.client.show(uuid, why=True)["why"])["kind"] == kind else None)

    def running(self, service: str, *bodies: str) -> list[str]:
        """Submit requests, which workers have when this returns."""
        uuids = [self.client.submit(service, body) for body in bodies]
        for uuid in uuids:
            self.why(uuid, "running")
        return uuids


@contextmanager
def placed(kind: str, folder: Path, **settings: Any) -> Iterator[Server]:
    if kind == "postgres":
        with cluster(folder, 1, **settings) as nodes:
            yield nodes[0]
        return
    with with_broker(folder, kind, **settings) as server:
        yield server


@pytest.fixture(params=["integrated", "stand-alone", pytest.param("postgres", marks=needs_postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    settings: dict[str, Any] = {"limits": LIMITS, "retry_first": LATER, "retry_most": LATER, "presence_most": 0.1}
    with placed(request.param, tmp_path, **settings) as server, ExitStack() as stack:
        yield Place(request.param, server, stack)


def test_no_worker_has_ever_come(place: Place) -> None:
    found = place.why(place.client.submit("mail", "a"), "no-worker")
    assert "no worker of mail has registered since the server started" in found["text"]
    assert "titanic work mail" in found["next"]
    assert found["workers"] == 0


def test_the_last_worker_has_left(place: Place) -> None:
    place.go.set()
    with place.work("mail"):
        place.client.wait(place.client.submit("mail", "a"), 60)
    uuid = place.client.submit("mail", "b")

    def left() -> bool:
        return "left" in place.client.show(uuid, why=True)["why"]["text"]

    until(left)
    found = place.why(uuid, "no-worker")
    assert "the last one" in found["text"]
    if place.kind != "stand-alone":  # which does not say who it was
        assert ":" in found["text"]


def test_workers_are_busy_and_others_come_before(place: Place) -> None:
    place.work("mail", jobs=2)
    running = place.running("mail", "a", "b")
    next_, behind, urgent = (place.client.submit("mail", "c", priority=p) for p in (4, 4, 9))
    found = place.why(urgent, "busy")
    assert found["workers"] == found["running"] == 2
    assert "all 2 workers of mail are busy" in found["text"]
    found = place.why(next_, "behind")
    assert (found["ahead"], found["workers"]) == (1, 2)
    found = place.why(behind, "behind")
    assert found["ahead"] == 2
    assert "behind 2 others" in found["text"]
    assert "seconds" not in found  # none has ended yet
    for uuid in (next_, behind, urgent, *running):
        place.client.close(uuid)


def test_the_service_is_paused(place: Place) -> None:
    place.client.set_service("mail", paused=True)
    found = place.why(place.client.submit("mail", "a"), "paused")
    assert re.fullmatch(r"service mail is paused \(.* ago\)", found["text"])
    assert found["next"] == "titanic resume mail"


def test_the_limit_of_running_ones_is_reached(place: Place) -> None:
    place.work("one", jobs=2)
    (running,) = place.running("one", "a")
    found = place.why(place.client.submit("one", "b"), "limit")
    assert (found["limit"], found["running"], found["requests"]) == (1, 1, [running])
    assert f"running=1 of service one is reached: {running}" in found["text"]


def test_the_rate_is_reached(place: Place) -> None:
    place.work("slow", jobs=3)
    place.running("slow", "a")
    next_, other = place.client.submit("slow", "b"), place.client.submit("slow", "c")
    first, second = place.why(next_, "rate"), place.why(other, "rate")
    now = place.client.clock() * 1e6
    assert now < first["until"] < now + 1001e6
    assert second["until"] - first["until"] == pytest.approx(1000e6, abs=60e6)
    assert second["ahead"] == 1


def test_it_was_submitted_for_later(place: Place) -> None:
    uuid = place.client.submit("mail", "a", delay=LATER)
    found = place.why(uuid, "delayed")
    assert found["until"] == place.client.show(uuid)["due"]
    assert "in 60 min" in found["text"]


def test_it_is_tried_again(place: Place) -> None:
    place.work("mail")
    uuid = place.client.submit("mail", "fail")
    found = place.why(uuid, "retry")
    assert "attempt 1 failed; the next attempt starts in" in found["text"]
    assert "as you wish" in found["text"]
    assert found["until"] == pytest.approx(place.client.show(uuid)["due"], abs=2)


def test_it_has_ended(place: Place) -> None:
    place.go.set()
    place.work("mail")
    uuid = place.client.submit("mail", "a")
    place.client.wait(uuid, 60)
    assert place.why(uuid, "done")["next"] == f"titanic reply {uuid}"
    uuid = place.client.submit("mail", "fail", max_attempts=1)
    found = place.why(uuid, "failed")
    assert "as you wish" in found["text"]
    assert found["next"] == f"titanic retry {uuid}"
    uuid = place.client.submit("none", "a", ttl=0.01)
    assert "it expired" in place.why(uuid, "expired")["text"]


@pytest.mark.parametrize("kind", ["integrated", pytest.param("postgres", marks=needs_postgres)])
def test_its_worker_is_awaited(kind: str, tmp_path: Path) -> None:
    wire = BrokerConfig(liveness=60, worker_return=LATER)
    with placed(kind, tmp_path, wire=wire) as server, ExitStack() as stack:
        place = Place(kind, server, stack)
        line = stack.enter_context(relay(place.endpoint))
        place.endpoint = line.endpoint
        place.work("mail")
        (uuid,) = place.running("mail", "a")
        line.down()
        found = place.why(uuid, "return")
        assert found["until"] == pytest.approx((place.client.clock() + LATER) * 1e6, abs=120e6)
        line.up()
        place.go.set()
        assert place.client.wait(uuid, 60) == [b"a"]


@needs_postgres
def test_its_node_has_died(tmp_path: Path) -> None:
    postgres = shared_server()
    name = postgres.new_store()
    url, endpoint = postgres.url(name), f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        stack.callback(postgres.drop_database, name)
        store = stack.enter_context(PostgresStore.open(url))
        server = stack.enter_context(Server(node_config(url, 100.0)))
        arguments = endpoint, url, "100"
        node = stack.enter_context(Process(SUPPORT / "node_process.py", *arguments, output=tmp_path / "node.log"))
        script, log = SUPPORT / "worker_process.py", tmp_path / "work.log"
        stack.enter_context(Process(script, endpoint, "mail", log, "await", output=tmp_path / "worker.log"))
        here = stack.enter_context(Client(server.endpoints[0], timeout=60))
        with Client(endpoint, timeout=60) as there:
            uuid = there.submit("mail", "a")
            until(lambda: there.show(uuid, why=True)["why"]["kind"] == "running")
        assert "has it, for its workers" in here.show(uuid, why=True)["why"]["text"]
        node.kill()
        with store.write() as transaction:  # its last renewal was 70 s ago
            lapsed = "UPDATE node SET lease_until = clock_timestamp() + interval '30 s' WHERE endpoints[1] = %s"
            transaction.fetch(lapsed, endpoint)
        found = here.show(uuid, why=True)["why"]
        assert found["kind"] == "lease"
        assert 0 < found["seconds"] <= 30
        assert found["until"] == pytest.approx((here.clock() + found["seconds"]) * 1e6, abs=60e6)
        assert "has not renewed its lease for 7" in found["text"]


def test_strangers_read_nothing_of_others(tmp_path: Path) -> None:
    files = AccessFiles(tmp_path / "access", USERS)

    def at(name: str) -> dict[str, Any]:
        return {"key": files.secret(name), "server_key": files.server_key}

    go = threading.Event()
    with serving(tmp_path, access=files.path, key=files.key, limits=LIMITS) as server, ExitStack() as stack:
        endpoint = server.endpoints[0]
        alice, bob, reads_all = (
            stack.enter_context(Client(endpoint, timeout=60, **at(name))) for name in ("alice", "bob", "queue")
        )
        with (
            Worker("one", lambda frames: [b"%d" % go.wait(900)], endpoint, jobs=2, config=QUICK, **at("alice")),
            ExitStack() as works,
        ):
            works.callback(go.set)
            hers = alice.submit("one", "a")
            until(lambda: alice.show(hers, why=True)["why"]["kind"] == "running")
            his = bob.submit("one", "b")
            with pytest.raises(UnknownRequest):
                bob.show(hers, why=True)
            until(lambda: bob.show(his, why=True)["why"]["kind"] == "limit")
            found = bob.show(his, why=True)["why"]
            assert "requests" not in found
            assert hers not in found["text"]
            assert found["running"] == 1  # a number is no secret
            assert reads_all.show(his, why=True)["why"]["requests"] == [hers]
        until(lambda: not server.workers)
        uuid = bob.submit("one", "c")
        until(lambda: "left" in bob.show(uuid, why=True)["why"]["text"])
        assert ":" not in bob.show(uuid, why=True)["why"]["text"]
        assert ":" in reads_all.show(uuid, why=True)["why"]["text"]
        reads_all.set_service("one", paused=True)
        assert bob.show(uuid, why=True)["why"]["text"] == "service one is paused"
        assert "(by queue, " in reads_all.show(uuid, why=True)["why"]["text"]


def test_servers_of_earlier_versions_say_nothing() -> None:
    row = b'{"requests": [{"uuid": "%032x", "state": "waiting"}], "next": null}' % 1

    def lists(frames: list[bytes]) -> list[bytes]:
        return [b"400 unknown option 'why'; known: uuid"] if b"why" in frames[0] else [b"200", row]

    with (
        brokering() as endpoint,
        Worker("titanic.list", lists, endpoint, config=QUICK) as worker,
        Client(endpoint, timeout=60) as client,
    ):
        until(lambda: worker.registered)
        assert client.show(f"{1:032x}", why=True) == {"uuid": f"{1:032x}", "state": "waiting"}
