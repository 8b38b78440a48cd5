"""Nodes end, are killed, and stand still, while workers work: these return with their requests, to the same node or to
another."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.access_files import ALICE, AccessFiles
from support.kept_jobs import Handler, Keeper
from support.node_settings import node_config
from support.ports import free_port
from support.postgres import needs_postgres, shared_server
from support.processes import SUPPORT, Process
from support.raw_mdp import raw_worker
from support.relay import relay
from support.torture import LONG, figures, tally
from support.waiting import until

from broker import BrokerConfig, Worker, WorkerConfig, credentials
from titanic import Client, Server, UnknownRequest
from titanic.settings import ServiceLimits
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import check

pytestmark = needs_postgres

QUICK = WorkerConfig(heartbeat_interval=0.5, liveness=10, reconnect_first=0.05, reconnect_most=0.1)
LEASE = 4.0


class Nodes:
    """Up to three nodes, each at an endpoint of its own, and a look at their store."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self.url, self.folder, self.stack = url, folder, stack
        self.endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(3)]
        self.look = stack.enter_context(PostgresStore.open(url))

    def broker(self, number: int) -> Process:
        """A broker in its own process, for a node that is `attached`."""
        output = self.folder / f"broker{number}.log"
        arguments = "broker", self.endpoints[number]
        return self.stack.enter_context(Process(SUPPORT / "server_process.py", *arguments, output=output))

    def process(self, number: int, lease: float = LEASE, *, attached: bool = False) -> Process:
        """A node in its own process; it runs when this returns."""
        arguments = [self.endpoints[number], self.url, str(lease), *["attach"] * attached]
        output = self.folder / f"node{number}.log"
        node = self.stack.enter_context(Process(SUPPORT / "node_process.py", *arguments, output=output))
        with self.client(number) as client:
            client.stats()
        return node

    def here(self, number: int, lease: float = LEASE, **settings: Any) -> Server:
        """A node in this process."""
        config = node_config(self.url, lease, bind=(self.endpoints[number],), **settings)
        return self.stack.enter_context(Server(config))

    def client(self, *numbers: int) -> Client:
        return Client([self.endpoints[number] for number in numbers], timeout=60)

    def worker(self, work: Handler, *numbers: int, jobs: int = 1) -> Worker:
        return self.worker_at(work, *[self.endpoints[number] for number in numbers], jobs=jobs)

    def worker_at(self, work: Handler, *endpoints: str, jobs: int = 1) -> Worker:
        worker = self.stack.enter_context(Worker("echo", work, endpoints, jobs=jobs, config=QUICK))
        self.stack.callback(work.go.set)
        return worker

    def fetch(self, text: str) -> list[Any]:
        with self.look.read() as transaction:
            return [one for (one,) in transaction.fetch(text)]

    def living(self) -> set[int]:
        return {*self.fetch("SELECT incarnation FROM node WHERE lease_until > '-infinity'")}

    def kept(self) -> int:
        return len(self.fetch("SELECT 1 FROM ready WHERE kept AND incarnation IS NOT NULL"))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    database = shared_server().new_store()
    with ExitStack() as stack:
        nodes = Nodes(shared_server().url(database), tmp_path, stack)
        yield nodes
        assert check(nodes.look) == []
    shared_server().drop_database(database)


def end(node: Process, how: str) -> None:
    if how == "kill":
        node.kill()
    else:
        assert node.terminate() == 0


def replies(client: Client, uuids: Sequence[str]) -> None:
    """Each has the right reply, after one attempt."""
    for number, uuid in enumerate(uuids):
        assert client.wait(uuid, 60) == [b"part", b"done:%d" % number]
        assert client.show(uuid)["attempts"] == 1


def once(work: Handler, count: int) -> None:
    assert sorted(work.begun) == sorted((b"%d" % number, 1, 1) for number in range(count))
    assert not work.cancelled


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_worker_returns_to_its_node(nodes: Nodes, how: str) -> None:
    """The node is started again at once, and has another incarnation."""
    work, count = Handler(), 5
    node = nodes.process(0)
    worker = nodes.worker(work, 0, jobs=count)
    with nodes.client(0) as client:
        uuids = [client.submit("echo", b"%d" % number) for number in range(count)]
        until(lambda: len(work.begun) == count)
        end(node, how)
        until(lambda: not worker.registered)
        nodes.process(0)
        other = Handler()
        nodes.worker(other, 0, jobs=count)
        until(lambda: worker.registered)
        work.go.set()
        replies(client, uuids)
    once(work, count)
    assert not other.begun


@pytest.mark.parametrize(
    ("ends", "how"), [("while nothing is decided", "kill"), ("afterwards", "stop"), ("afterwards", "kill")]
)
def test_a_worker_goes_to_another_node(nodes: Nodes, how: str, ends: str) -> None:
    """If its node is killed, the other one takes over when the lease has lapsed. A reply is stored before that."""
    work, other, count = Handler(), Handler(), 5
    node = nodes.process(0)
    nodes.worker(work, 0, 1, jobs=count)
    with nodes.client(0) as client:
        uuids = [client.submit("echo", b"%d" % number) for number in range(count)]
        until(lambda: len(work.begun) == count)
    two = nodes.here(1)
    end(node, how)
    with nodes.client(1) as client:
        until(lambda: two.broker.counters()["workers_busy"] == count)  # type: ignore[union-attr]
        nodes.worker(other, 1, jobs=count)
        if ends == "afterwards":
            until(lambda: resumed(two) == count)
            assert all(client.show(uuid)["state"] == "running" for uuid in uuids)
        work.go.set()
        replies(client, uuids)
    once(work, count)
    assert not other.begun


def resumed(node: Server) -> int:
    return int(node.broker.counters()["resumed"])  # type: ignore[union-attr]


def test_what_a_killed_node_has_given_out_waits_for_its_worker(nodes: Nodes) -> None:
    """After the lease other workers get only what no worker has."""
    work, other = Handler(), Handler()
    other.go.set()
    node = nodes.process(0, 2.0)
    with relay(nodes.endpoints[0]) as line:
        nodes.worker_at(work, line.endpoint)
        with nodes.client(0) as client:
            uuids = [client.submit("echo", b"0"), client.submit("echo", b"1")]
            until(lambda: work.begun)
        two = nodes.here(1, 2.0)
        until(lambda: len(nodes.living()) == 2)
        node.kill()
        line.down()
        nodes.worker(other, 1)
        with nodes.client(1) as client:
            assert client.wait(uuids[1], 60) == [b"part", b"done:1"]
            until(lambda: len(nodes.living()) == 1)
            assert client.show(uuids[0])["state"] == "running"
            waits = "for its worker to come to another node; unless it does, another one gets the request in "
            until(lambda: waits in client.show(uuids[0], why=True)["why"]["text"])  # from its next renewal on
            why = client.show(uuids[0], why=True)["why"]
            assert why["until"] == pytest.approx((client.clock() + 30) * 1e6, abs=30e6)
            assert why["kind"] == "return"
            client.wait(client.submit("echo", b"2"), 60)  # claimed after the lease
            nodes.process(0, 2.0)
            line.up()
            work.go.set()
            assert client.wait(uuids[0], 60) == [b"part", b"done:0"]
            assert client.show(uuids[0])["attempts"] == 1
        assert resumed(two) == 0
    assert (work.begun, other.begun) == ([(b"0", 1, 1)], [(b"1", 1, 1), (b"2", 1, 1)])


def test_a_limit_counts_what_a_worker_brings_back(nodes: Nodes) -> None:
    work, other = Handler(), Handler()
    other.go.set()
    one, _ = (nodes.here(number, limits={b"echo": ServiceLimits(running=1)}) for number in range(2))
    nodes.worker(work, 0)
    with nodes.client(1) as client:
        uuids = [client.submit("echo", b"%d" % number) for number in range(2)]
        until(lambda: work.begun)
        free = nodes.worker(other, 1)
        until(lambda: free.registered)
        one.stop()
        one = nodes.here(0)
        until(lambda: resumed(one) == 1)
        assert not other.begun
        work.go.set()
        replies(client, uuids)
    assert sorted(work.begun + other.begun) == [(b"0", 1, 1), (b"1", 1, 1)]


def test_what_was_not_claimed_for_a_worker_waits_for_it_too(nodes: Nodes) -> None:
    """Another one had it first, which keeps nothing."""
    work, other = Handler(), Handler()
    other.go.set()
    node = nodes.process(0, 2.0)
    with relay(nodes.endpoints[0]) as line, nodes.client(0) as client:
        with raw_worker(nodes.endpoints[0], b"echo") as first:
            uuid = client.submit("echo", b"0")
            first.take()
            worker = nodes.worker_at(work, line.endpoint)
            until(lambda: worker.registered)
            first.leave()
            until(lambda: work.begun)
        until(nodes.kept)
        two = nodes.here(1, 2.0)
        node.kill()
        line.down()
        nodes.worker(other, 1)
        assert two.node is not None
        until(lambda: nodes.living() == {two.node.incarnation()})
        with nodes.client(1) as there:
            there.wait(there.submit("echo", b"1"), 60)  # claimed after the lease
        nodes.process(0, 2.0)
        line.up()
        work.go.set()
        assert client.wait(uuid, 60) == [b"part", b"done:0"]
    assert (work.begun, other.begun) == ([(b"0", 1, 2)], [(b"1", 1, 1)])


def test_a_worker_that_does_not_come_in_time(nodes: Nodes) -> None:
    work, other = Handler(), Handler()
    other.go.set()
    node = nodes.process(0, 2.0)
    nodes.worker(work, 0)
    with nodes.client(0) as client:
        uuid = client.submit("echo", b"0")
        until(lambda: work.begun)
    nodes.here(1, 2.0, wire=BrokerConfig(heartbeat_interval=0.5, liveness=60, worker_return=1.0))
    node.kill()
    nodes.worker(other, 1)
    with nodes.client(1) as client:
        assert client.wait(uuid, 60) == [b"part", b"done:0"]
        work.go.set()
        back = nodes.here(0, 2.0)  # the worker would wait long to get rid of its reply
        until(lambda: back.broker.counters()["not_resumed"] == 1)  # type: ignore[union-attr]
        assert client.reply(uuid) == [b"part", b"done:0"]
    assert len(other.begun) == 1


@pytest.mark.timeout(600)
def test_a_node_that_stood_still_gives_nothing_to_a_second_worker(nodes: Nodes) -> None:
    """Its worker has gone to another node, with the request, when it goes on."""
    work, other = Handler(), Handler()
    node = nodes.process(0, 2.0)
    nodes.worker(work, 0, 1)
    with nodes.client(0) as client:
        uuid = client.submit("echo", b"0")
        until(lambda: work.begun)
    two = nodes.here(1, 2.0)
    until(lambda: len(nodes.living()) == 2)
    node.signal(signal.SIGSTOP)
    until(lambda: resumed(two) == 1)
    assert two.node is not None
    assert nodes.living() == {two.node.incarnation()}
    node.signal(signal.SIGCONT)
    nodes.worker(other, 0)
    until(lambda: len(nodes.living()) == 2)
    with nodes.client(0, 1) as client:
        first = client.submit("echo", b"1")
        until(lambda: other.begun)  # the other node dispatches again
        other.go.set()
        client.wait(first, 60)
        assert client.show(uuid)["state"] == "running"
        work.go.set()
        assert client.wait(uuid, 60) == [b"part", b"done:0"]
        assert client.show(uuid)["attempts"] == 1
    assert (work.begun, other.begun) == ([(b"0", 1, 1)], [(b"1", 1, 1)])


def test_a_connection_to_a_living_node_is_lost(nodes: Nodes) -> None:
    """The worker returns to it, although there is another node."""
    work = Handler()
    one = nodes.here(0)
    with relay(nodes.endpoints[0]) as line:
        worker = nodes.worker_at(work, line.endpoint, nodes.endpoints[1])
        with nodes.client(0) as client:
            uuid = client.submit("echo", b"0")
            until(lambda: work.begun)
            nodes.here(1)
            line.reset()
            until(lambda: resumed(one) == 1)
            until(lambda: worker.registered)
            work.go.set()
            replies(client, [uuid])
    once(work, 1)


@pytest.mark.parametrize("ends", ["with a reply", "with an error"])
def test_a_worker_cannot_reach_its_living_node(nodes: Nodes, ends: str) -> None:
    """It goes on at another one, and its node waits until it has ended; a reply counts, an error is its death."""
    work, other, patience = Handler(), Handler(), 8.0
    wire = BrokerConfig(heartbeat_interval=0.5, liveness=60, worker_return=patience)
    one = nodes.here(0, 2.0, wire=wire)
    with relay(nodes.endpoints[0]) as line, nodes.client(0) as client:
        nodes.worker_at(work, line.endpoint, nodes.endpoints[1])
        uuid = client.submit("echo", b"0", max_attempts=2)
        until(lambda: work.begun)
        two = nodes.here(1, 2.0, wire=BrokerConfig(heartbeat_interval=0.5, liveness=60, worker_return=0.5))
        until(lambda: two.node is not None and two.node.others())
        line.down()
        until(lambda: two.broker.counters()["workers_busy"])  # type: ignore[union-attr]
        nodes.worker(other, 0)
        waited = time.monotonic() + patience + 2
        until(lambda: time.monotonic() > waited)
        assert one.running == 1
        assert not other.begun
        work.fails = ends == "with an error"
        work.go.set()
        other.go.set()
        assert client.wait(uuid, 60) == [b"part", b"done:0"]
        assert client.show(uuid)["attempts"] == (2 if ends == "with an error" else 1)
    again = [(b"0", 2, 2)] if ends == "with an error" else []
    assert [*work.begun, *other.begun] == [(b"0", 1, 1), *again]


@pytest.mark.parametrize("closed", ["before", "while nothing is decided"])
def test_closed_meanwhile(nodes: Nodes, closed: str) -> None:
    uuid, token, _ = token_of(nodes)
    two = nodes.here(1)
    with nodes.client(1) as client:
        if closed == "before":
            client.close(uuid)
        with Keeper(nodes.endpoints[1], *ready(b"k", token)) as worker:
            if closed != "before":
                until(lambda: two.broker.counters()["workers_busy"])  # type: ignore[union-attr]
                client.close(uuid)
            assert worker.hears(b"\7") == [token, b""]
            worker.says(b"MDPW02", b"\4", token, b"", b"late")
            until(lambda: not two.broker.counters()["workers_busy"])  # type: ignore[union-attr]
        with pytest.raises(UnknownRequest):
            client.reply(uuid)
    assert not two.dispatcher.core.flights


def ready(keeper: bytes, *held: bytes, service: bytes = b"echo") -> list[bytes]:
    words = [b"titanic:1", b"titanic:slots=1", b"titanic:process=elsewhere:1", b"titanic:keeper=" + keeper]
    return [b"MDPW02", b"\1", service, *words, *(b"titanic:held=" + token for token in held)]


def token_of(nodes: Nodes) -> tuple[str, bytes, Process]:
    """A raw worker gets a request, and its node is stopped."""
    node = nodes.process(0)
    with nodes.client(0) as client:
        uuid = client.submit("echo", b"1")
        with Keeper(nodes.endpoints[0], *ready(b"k")) as worker:
            token = worker.hears(b"\x09")[0]
            assert node.terminate() == 0
    return uuid, token, node


def test_a_reply_that_its_node_has_lost(nodes: Nodes) -> None:
    """The worker sends it again, to another node."""
    uuid, token, _ = token_of(nodes)
    nodes.here(1)
    with nodes.client(1) as client, Keeper(nodes.endpoints[1], *ready(b"k"), b"titanic:ended=" + token) as worker:
        assert worker.hears(b"\x09") == [token, b"", b"echo", b"1"]
        worker.says(b"MDPW02", b"\4", token, b"", b"true")
        assert client.wait(uuid, 60) == [b"true"]
        assert client.show(uuid)["attempts"] == 1


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("who", ["broker", "queue"])
def test_a_separate_broker_and_its_queue_restart_alone(nodes: Nodes, who: str, how: str) -> None:
    """Their worker goes on; another node, which has a free one, gets nothing of what it has."""
    work, other, count = Handler(), Handler(), 3
    other.go.set()
    broker, node = nodes.broker(0), nodes.process(0, attached=True)
    worker = nodes.worker(work, 0, jobs=count)
    nodes.here(1)
    with nodes.client(0) as client:
        uuids = [client.submit("echo", b"%d" % number) for number in range(count)]
        until(lambda: len(work.begun) == count)
        free = nodes.worker(other, 1, jobs=count)
        until(lambda: free.registered)
        if who == "broker":
            end(broker, how)
            until(lambda: not worker.registered)
            nodes.broker(0)
        else:
            before = nodes.living()
            end(node, how)
            nodes.process(0, attached=True)
            until(lambda: not before <= nodes.living())
        until(lambda: json.loads(client.call("mmi.stats", b"")[0])["resumed"] == count)
        assert all(client.show(uuid)["state"] == "running" for uuid in uuids)
        work.go.set()
        replies(client, uuids)
    once(work, count)
    assert not other.begun


STRANGERS: dict[str, Callable[[bytes, bytes], list[bytes]]] = {
    "another worker": lambda service, token: ready(b"x", token, service=service),
    "another service": lambda service, token: ready(service, token, service=b"other"),
    "another secret": lambda service, token: ready(service, token[:16] + b"0" * 32 + token[48:], service=service),
    "another attempt": lambda service, token: ready(
        service, token.replace(b'"attempt":1', b'"attempt":2'), service=service
    ),
}


def test_strangers_take_and_answer_nothing(nodes: Nodes) -> None:
    held: dict[str, tuple[str, bytes]] = {}
    node = nodes.process(0)
    with nodes.client(0) as client, ExitStack() as workers:
        for who in STRANGERS:
            uuid, service = client.submit(who, b"1"), who.encode()
            worker = workers.enter_context(Keeper(nodes.endpoints[0], *ready(service, service=service)))
            held[who] = uuid, worker.hears(b"\x09")[0]
        assert node.terminate() == 0
    two = nodes.here(1)
    with nodes.client(1) as client:
        for count, (who, (uuid, token)) in enumerate(held.items(), 1):
            said = STRANGERS[who](who.encode(), token)
            told = next(frame for frame in said if frame.startswith(b"titanic:held=")).removeprefix(b"titanic:held=")
            with Keeper(nodes.endpoints[1], *said) as worker:
                assert worker.hears(b"\7") == [told, b""], who
                worker.says(b"MDPW02", b"\4", told, b"", b"false")
                until(lambda count=count: two.broker.counters()["not_resumed"] == count)  # type: ignore[union-attr]
                until(lambda: two.broker.counters()["workers_busy"] == 0)  # type: ignore[union-attr]
                assert client.reply(uuid) is None, who
            with Keeper(nodes.endpoints[1], *ready(who.encode(), token, service=who.encode())) as worker:
                worker.says(b"MDPW02", b"\4", token, b"", b"true")
                assert client.wait(uuid, 60) == [b"true"], who


def test_another_user_takes_nothing(nodes: Nodes) -> None:
    """It knows all that the worker knows, and may work for the service."""
    bob = '[users.bob]\nkeys = ["bob.key"]\nwork = ["*"]\nsubmit = ["*"]\nread = "all"\n'
    files = AccessFiles(nodes.folder / "access", ALICE + bob)
    settings = {"access": files.path, "key": files.key}
    as_alice, as_bob = ({"key": files.secret(name), "server_key": files.server_key} for name in ("alice", "bob"))
    one = nodes.here(0, **settings)
    with Client(nodes.endpoints[0], timeout=60, **as_bob) as client:
        uuid = client.submit("echo", b"0")
    with Keeper(nodes.endpoints[0], *ready(b"k"), curve=credentials(**as_alice)) as worker:
        token = worker.hears(b"\x09")[0]
        one.stop()
    two = nodes.here(1, **settings)
    with Client(nodes.endpoints[1], timeout=60, **as_bob) as client:
        with Keeper(nodes.endpoints[1], *ready(b"k", token), curve=credentials(**as_bob)) as thief:
            assert thief.hears(b"\7") == [token, b""]
            thief.says(b"MDPW02", b"\4", token, b"", b"false")
            until(lambda: two.broker.counters()["workers_busy"] == 0)  # type: ignore[union-attr]
            assert client.reply(uuid) is None
        with Keeper(nodes.endpoints[1], *ready(b"k", token), curve=credentials(**as_alice)) as worker:
            worker.says(b"MDPW02", b"\4", token, b"", b"true")
            assert client.wait(uuid, 60) == [b"true"]


@pytest.mark.torture(short=True)
@pytest.mark.timeout(1800)
def test_rolling_restarts_and_kills(nodes: Nodes) -> None:
    """Three nodes are restarted one after the other, then killed and started one after the other, while jobs run."""
    count, workers, rounds = (50, 5, 3) if LONG else (20, 5, 1)
    work = Handler(60.0 if LONG else 0.0)
    running = [nodes.process(number) for number in range(3)]
    for at in range(workers):
        order = [(at + number) % 3 for number in range(3)]
        nodes.worker(work, *order, jobs=count // workers)
    began, restarts = time.monotonic(), Counter[str]()
    with nodes.client(0, 1, 2) as client:
        uuids = [client.submit("echo", b"%d" % number) for number in range(count)]
        until(lambda: len(work.begun) == count)
        for how in ("stop", "kill") * rounds:
            for number in range(3):
                if LONG and time.monotonic() > began + 50:
                    break  # a reply that is on its way to a node that is killed is lost
                end(running[number], how)
                running[number] = nodes.process(number)
                restarts[how] += 1
        if not LONG:
            work.go.set()
        replies(client, uuids)
        took = time.monotonic() - began
    once(work, count)
    assert restarts["kill"] >= 3
    tally["processes killed"] += restarts["kill"]
    tally["executions compared"] += count
    figures.append(f"{count} jobs over {restarts['stop']} restarts and {restarts['kill']} kills of nodes: {took:.0f} s")
