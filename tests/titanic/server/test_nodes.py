"""Servers that share a database: who dispatches what, and who takes it over when one is killed or stands still."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import zmq
from support.node_settings import node_config
from support.ports import free_port
from support.postgres import PostgresServer, needs_postgres, shared_server, spare_server
from support.processes import SUPPORT, Process
from support.raw_mdp import raw_client, raw_worker
from support.serving import QUICK, brokering
from support.store_facts import accept_all
from support.waiting import until

from broker import BrokerConfig, Handler, MultiWorker, RemoteError, Worker
from broker.core.mdp import error_body
from titanic import Client, Server
from titanic.dispatch.core import MAINTENANCE
from titanic.errors import OutcomeUnknown, Refused, StoreTooNew, StoreTooOld
from titanic.settings import ServiceLimits
from titanic.store import NewRequest, Outcome, State, Status
from titanic.store.postgres import connection_pool
from titanic.store.postgres import nodes as postgres_nodes
from titanic.store.postgres.schema import FORMAT
from titanic.store.postgres.store import PostgresStore, PostgresWriteTransaction
from titanic.store.postgres.tools import check
from titanic.util.clock import elapsed, wall_us

pytestmark = needs_postgres

LONG = 1000.0
"""A lease that does not end within a test."""


class Cluster:
    """Nodes in this process or in their own, workers, and a look at the store that they share."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.stack = ExitStack()
        self.look = self.stack.enter_context(PostgresStore.open(url))
        self.nodes: list[Server] = []
        """Those in this process."""
        self.executed: Counter[tuple[str, bytes]] = Counter()
        """How often which worker has begun a request with which body."""

    def node(self, lease: float = LONG, **settings: Any) -> Server:
        server = self.stack.enter_context(Server(node_config(self.url, lease, **settings)))
        self.nodes.append(server)
        until(lambda: can_dispatch(server))
        return server

    def process(self, lease: float, *ahead: str) -> tuple[Process, str]:
        """Another one, and where it is reached."""
        endpoint = f"tcp://127.0.0.1:{free_port()}"
        known = self.incarnations()
        arguments = endpoint, self.url, str(lease), *ahead
        process = Process(SUPPORT / "node_process.py", *arguments, output=self.folder / "node.log")
        self.stack.enter_context(process)
        until(lambda: self.incarnations() - known)
        return process, endpoint

    def incarnations(self) -> set[int]:
        with self.look.read() as transaction:
            return {n for (n,) in transaction.fetch("SELECT incarnation FROM node WHERE lease_until > '-infinity'")}

    def claimed(self) -> int:
        """How many requests are claimed."""
        with self.look.read() as transaction:
            ((count,),) = transaction.fetch("SELECT count(*) FROM ready WHERE incarnation IS NOT NULL")
        return int(count)

    def worker(self, where: Server | str, service: str, work: Callable[[bytes], Any], name: str = "") -> Worker:
        endpoint = where if isinstance(where, str) else where.endpoints[0]

        def handle(frames: list[bytes]) -> Any:
            self.executed[name, frames[0]] += 1
            return work(frames[0])

        return self.stack.enter_context(Worker(service, handle, endpoint, config=QUICK))

    def submit(self, at: Server, service: str, *bodies: bytes, **options: Any) -> list[str]:
        with Client(at.endpoints[0], timeout=30) as client:
            return [client.submit(service, body, **options) for body in bodies]

    def outcome(self, uuid: str) -> Outcome | None:
        with self.look.read() as transaction:
            found = transaction.reply(bytes.fromhex(uuid))
            return found if isinstance(found, Outcome) else None

    def replies(self, uuids: list[str]) -> list[bytes]:
        """Of all of them, when they are there."""
        try:
            outcomes = [until(lambda uuid=uuid: self.outcome(uuid)) for uuid in uuids]
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.described()}") from None
        assert {outcome.status for outcome in outcomes} == {Status.DONE}
        return [outcome.frames[0] for outcome in outcomes]

    def described(self) -> str:
        """What waits, who has claimed it, and which sessions do something."""
        with self.look.read() as transaction:
            rows = transaction.fetch(
                "SELECT q.incarnation, n.lease_until::text, n.abandoned, q.kept, count(*), min(q.uuid::text)"
                " FROM ready AS q LEFT JOIN node AS n ON n.incarnation = q.incarnation GROUP BY 1, 2, 3, 4"
            )
            delayed = transaction.fetch("SELECT count(*), min(uuid::text) FROM later")
            sessions = transaction.fetch(
                "SELECT pid, state, wait_event, state_change::text, left(query, 80) FROM pg_stat_activity"
                " WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()"
            )
        known = [
            (node.claims.lease.state, node.claims.lease.incarnation, node.claims.holds, server.dispatcher.core.backlogs)
            for server in self.nodes
            if (node := server.dispatcher.node) is not None
        ]
        return f"ready {rows}, later {delayed}, sessions {sessions}, nodes {known}"

    def times(self, body: bytes) -> int:
        return sum(count for (_, one), count in self.executed.items() if one == body)


def can_dispatch(server: Server) -> bool:
    node = server.dispatcher.node
    return node is not None and node.claims.may_dispatch(elapsed())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    database = shared_server().new_store()
    cluster = Cluster(shared_server().url(database), tmp_path)
    with cluster.stack:
        yield cluster
        assert check(cluster.look) == []
    shared_server().drop_database(database)


def echo(body: bytes) -> bytes:
    return body


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# -- who dispatches what --------------------------------------------------------------------------------------


def test_requests_are_dispatched_by_the_node_that_has_their_workers(cluster: Cluster) -> None:
    here, there = cluster.node(), cluster.node()
    cluster.worker(there, "there", echo, "there")
    cluster.worker(here, "here", echo, "here")
    uuids = cluster.submit(here, "there", *numbered(20))
    assert cluster.replies(uuids) == numbered(20)
    assert here.dispatcher.core.counts["dispatched"] == 0
    until(lambda: b"there" not in here.dispatcher.core.backlogs)
    assert cluster.replies(cluster.submit(there, "here", b"x")) == [b"x"]
    assert cluster.executed == Counter({("there", body): 1 for body in numbered(20)} | {("here", b"x"): 1})


def test_what_waits_is_dispatched_when_a_worker_comes_to_any_node(cluster: Cluster) -> None:
    one, two, _ = cluster.node(), cluster.node(), cluster.node()
    uuids = cluster.submit(one, "late", b"1", b"2")
    until(lambda: b"late" not in one.dispatcher.core.backlogs)
    cluster.worker(two, "late", echo)
    assert cluster.replies(uuids) == [b"1", b"2"]


def test_each_node_takes_what_its_idle_workers_can_begin_and_the_next_goes_to_who_is_ready(cluster: Cluster) -> None:
    one, two = cluster.node(), cluster.node()
    gates = {"one": threading.Event(), "two": threading.Event()}

    def work(name: str) -> Callable[[bytes], bytes]:
        return lambda body: gates[name].wait(60) and body

    for name, node in (("one", one), ("two", two)):
        for _ in range(2):
            cluster.worker(node, "x", work(name), name)
    uuids = cluster.submit(one, "x", *numbered(8))
    until(lambda: len(cluster.executed) == 4)
    assert Counter(name for name, _ in cluster.executed) == {"one": 2, "two": 2}
    gates["two"].set()
    until(lambda: sum(name == "two" for name, _ in cluster.executed) == 6)
    gates["one"].set()
    assert sorted(cluster.replies(uuids)) == numbered(8)
    assert len(cluster.executed) == cluster.executed.total() == 8


def test_a_failure_is_tried_again_at_any_node(cluster: Cluster) -> None:
    one, two = cluster.node(max_attempts=10_000), cluster.node()

    def fail(body: bytes) -> bytes:
        raise RemoteError(500, "no")

    cluster.worker(one, "x", fail, "one")
    (uuid,) = cluster.submit(one, "x", b"x")
    until(lambda: cluster.executed["one", b"x"] > 1)
    cluster.worker(two, "x", echo, "two")
    assert cluster.replies([uuid]) == [b"x"]
    assert cluster.executed["two", b"x"] == 1


def test_a_failure_is_tried_again_at_another_node_when_the_worker_has_left(cluster: Cluster) -> None:
    one, two = cluster.node(max_attempts=10_000), cluster.node()

    def fail(frames: list[bytes]) -> bytes:
        raise RemoteError(500, "no")

    with Worker("x", fail, one.endpoints[0], config=QUICK), Client(one.endpoints[0], timeout=30) as client:
        (uuid,) = cluster.submit(one, "x", b"x")
        until(lambda: client.show(uuid)["attempts"] > 1)
    cluster.worker(two, "x", echo)
    assert cluster.replies([uuid]) == [b"x"]


@pytest.mark.parametrize("stays", [0, 1])
def test_what_waits_at_a_node_for_a_worker_that_has_left_goes_to_another_node(cluster: Cluster, stays: int) -> None:
    one, two = cluster.node(), cluster.node()
    with ExitStack() as workers:
        raws = [workers.enter_context(raw_worker(one.endpoints[0], b"x")) for _ in range(1 + stays)]
        uuids = cluster.submit(one, "x", *numbered(len(raws)))
        taken = [raw.take() for raw in raws]
        raws[0].leave()
        cluster.worker(two, "x", echo)
        (left,) = taken[0][1]
        assert cluster.replies([uuids[int(left)]]) == [left]
        for raw, (token, body) in zip(raws[1:], taken[1:], strict=True):
            raw.final(token, *body)
        assert sorted(cluster.replies(uuids)) == numbered(len(raws))
    assert cluster.executed == Counter({("", left): 1})


@pytest.mark.parametrize("broker", ["own", "separate"])
@pytest.mark.parametrize("busy", ["with another service", "with a plain request"])
def test_what_waits_at_a_node_behind_a_busy_worker_goes_to_another_node(
    cluster: Cluster, broker: str, busy: str
) -> None:
    """The first node does not count what its worker is busy with as a request of this service."""
    go = threading.Event()
    if broker == "own":
        endpoint = cluster.node().endpoints[0]
    else:
        endpoint = cluster.stack.enter_context(brokering())
        cluster.node(broker=endpoint, lanes=8)
    handlers: dict[str, Handler] = {"x": lambda frames: frames[0], "y": lambda _: go.wait(300) and None}
    both = cluster.stack.enter_context(MultiWorker(handlers, endpoint, config=QUICK))
    cluster.stack.callback(go.set)
    until(lambda: both.registered)
    with Client(endpoint, timeout=30) as client:
        if busy == "with another service":
            slow = client.submit("y", b"")
            until(lambda: client.show(slow)["state"] == "running")
        else:
            plain = cluster.stack.enter_context(raw_client(endpoint))
            plain.send(b"y", b"")
        until(lambda: json.loads(client.call("mmi.stats", b"")[0])["workers_busy"] == 1)
        uuid = client.submit("x", b"1")
        until(lambda: cluster.claimed() == (2 if busy == "with another service" else 1))
    two = cluster.node()
    cluster.worker(two, "x", echo)
    assert cluster.replies([uuid]) == [b"1"]
    assert cluster.executed == Counter({("", b"1"): 1})


@pytest.mark.parametrize("bound", [1, 2])
def test_a_limit_of_running_requests_holds_over_all_nodes(cluster: Cluster, bound: int) -> None:
    limits = {b"x": ServiceLimits(running=bound)}
    nodes = [cluster.node(limits=limits) for _ in range(3)]
    running: list[bytes] = []
    most: list[int] = []

    def work(body: bytes) -> bytes:
        running.append(body)
        most.append(len(running))
        cluster.outcome("00" * 16)  # it takes its time
        running.remove(body)
        return body

    for node in nodes:
        for _ in range(2):
            cluster.worker(node, "x", work, str(nodes.index(node)))
    uuids = cluster.submit(nodes[0], "x", *numbered(30))
    assert sorted(cluster.replies(uuids)) == sorted(numbered(30))
    assert max(most) <= bound
    assert cluster.executed.total() == 30


def test_a_rate_holds_over_all_nodes(cluster: Cluster) -> None:
    nodes = [cluster.node(limits={b"x": ServiceLimits(rate=20)}) for _ in range(3)]
    began: list[float] = []

    def work(body: bytes) -> bytes:
        began.append(elapsed())
        return body

    for node in nodes:
        cluster.worker(node, "x", work, str(nodes.index(node)))
    uuids = cluster.submit(nodes[0], "x", *numbered(16))
    assert sorted(cluster.replies(uuids)) == sorted(numbered(16))
    assert max(began) - min(began) > 10 / 20  # three may begin at once, and not all take equally long to come here


def test_a_limit_of_running_requests_counts_what_is_closed_until_its_worker_is_done(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [cluster.node(limits={b"x": ServiceLimits(running=1)}) for _ in range(2)]
    one, two = nodes
    claims: list[object] = []
    claim = PostgresWriteTransaction.claim

    def claimed(transaction: PostgresWriteTransaction, *args: Any) -> Any:
        claims.append(found := claim(transaction, *args))
        return found

    monkeypatch.setattr(PostgresWriteTransaction, "claim", claimed)
    with raw_worker(one.endpoints[0], b"x") as worker, Client(two.endpoints[0], timeout=30) as client:
        closed, waits = cluster.submit(two, "x", b"closed", b"waits")
        token, body = worker.take()
        assert body == [b"closed"]
        client.close(closed)
        cluster.worker(two, "x", echo)
        for _ in range(2):
            del claims[:]
            until(lambda: claims)
        assert not cluster.executed, "the limit is one, and a worker has that"
        worker.final(token, b"late")
        worker.leave()
        assert cluster.replies([waits]) == [b"waits"]
    until(lambda: not any(node.dispatcher.node.held for node in nodes if node.dispatcher.node))


# -- who goes away --------------------------------------------------------------------------------------------


def test_a_rolling_stop_executes_everything_once_and_waits_for_no_lease(cluster: Cluster) -> None:
    """Leases are long: what a node has claimed is free at once when it stops. It waits for its workers: these know no
    other node with which they could go on."""
    wire = BrokerConfig(heartbeat_interval=0.5, liveness=60, worker_return=0.0)
    nodes = [cluster.node(grace=30.0, wire=wire) for _ in range(3)]
    for name, node in enumerate(nodes):
        cluster.worker(node, "x", echo, str(name))
    uuids = []
    for stopped in (0, 1):
        uuids += cluster.submit(nodes[2], "x", *[b"%d %d" % (stopped, number) for number in range(40)])
        nodes[stopped].stop()
        uuids += cluster.submit(nodes[2], "x", *[b"%d after %d" % (stopped, number) for number in range(10)])
    assert len(set(cluster.replies(uuids))) == 100
    assert set(cluster.executed.values()) == {1}
    assert len(cluster.incarnations()) == 1


def test_what_a_node_has_delayed_goes_on_when_it_has_ended(cluster: Cluster) -> None:
    one, two = cluster.node(), cluster.node()
    cluster.worker(two, "x", echo)
    begun, timers = two.dispatcher.maintenance.clock_jumps, two.dispatcher.core.timers
    until(lambda: begun.unchecked is None and timers.get(MAINTENANCE) is None)  # it knows that nothing is due
    (uuid,) = cluster.submit(one, "x", b"x", delay=2.0)
    one.stop()
    assert cluster.replies([uuid]) == [b"x"]


def test_what_a_node_gives_up_at_its_end_is_taken_over_at_once(cluster: Cluster) -> None:
    one, two = cluster.node(grace=0.0), cluster.node()
    with raw_worker(one.endpoints[0], b"x") as worker:
        (uuid,) = cluster.submit(one, "x", b"x")
        worker.take()
        one.stop()
    cluster.worker(two, "x", echo)
    assert cluster.replies([uuid]) == [b"x"]


def test_a_killed_node_is_taken_over_after_its_lease(cluster: Cluster) -> None:
    process, endpoint = cluster.process(3.0)
    two = cluster.node(3.0)
    with raw_worker(endpoint, b"x") as worker:
        (uuid,) = cluster.submit(two, "x", b"x")
        worker.take()
        process.kill()
        cluster.worker(two, "x", echo)
        assert cluster.replies([uuid]) == [b"x"]
    assert len(cluster.incarnations()) == 1


def test_who_stood_still_for_longer_than_its_lease(cluster: Cluster) -> None:
    """Others have taken over what it had dispatched. Its late replies count, its failures do not; and it goes on."""
    process, endpoint = cluster.process(4.0)
    two = cluster.node(4.0)
    assert two.dispatcher.node is not None
    with ExitStack() as workers:
        slow = {body: workers.enter_context(raw_worker(endpoint, b"x")) for body in (b"done", b"failed")}
        uuids = cluster.submit(two, "x", b"done", b"failed")
        uuid = dict(zip((b"done", b"failed"), uuids, strict=True))
        held = {}
        for worker in slow.values():
            token, body = worker.take()
            held[body[0]] = worker, token
        before = cluster.incarnations() - {two.dispatcher.node.claims.lease.incarnation}
        process.signal(signal.SIGSTOP)
        others = [workers.enter_context(raw_worker(two.endpoints[0], b"x")) for _ in range(2)]
        taken = {}
        for other in others:
            token, body = other.take()
            taken[body[0]] = other, token
        assert taken.keys() == {b"done", b"failed"}
        worker, token = held[b"done"]
        worker.final(token, b"late")
        worker, token = held[b"failed"]
        worker.final(token, *error_body(500, "no"))
        process.signal(signal.SIGCONT)
        assert cluster.replies([uuid[b"done"]]) == [b"late"]
        other, token = taken[b"done"]
        other.final(token, b"too late")
        until(lambda: not cluster.incarnations() & before)
        (again,) = cluster.submit(two, "y", b"y")
        cluster.worker(endpoint, "y", echo)
        assert cluster.replies([again]) == [b"y"], "it dispatches again"
        with cluster.look.read() as transaction:
            described = transaction.describe(bytes.fromhex(uuid[b"failed"]))
            assert described is not None
            assert (described.state, described.attempts) == (State.WAITING, 0)
        other, token = taken[b"failed"]
        other.final(token, b"done elsewhere")
        assert cluster.replies([uuid[b"failed"]]) == [b"done elsewhere"]
        assert cluster.replies([uuid[b"done"]]) == [b"late"]


def test_who_stood_still_for_longer_than_its_lease_gives_its_workers_nothing_of_what_others_took_over(
    cluster: Cluster,
) -> None:
    """Its broker has requests waiting behind those that its workers have. What these say is read when it goes on."""
    process, endpoint = cluster.process(5.0, "60")
    two = cluster.node(5.0)
    over = threading.Event()

    def ask() -> None:
        """It is in the middle of something when it stands still, and finds more to read when it goes on."""
        with raw_client(endpoint) as client:
            while not over.is_set():
                patience = 0
                try:
                    client.socket.send_multipart([b"MDPC02", b"\x01", b"mmi.service", b"x"], zmq.DONTWAIT)
                except zmq.Again:
                    patience = 10  # others in this process have something to do
                while client.socket.poll(patience):
                    client.socket.recv_multipart()

    with ExitStack() as workers, Client(two.endpoints[0], timeout=30) as client:
        uuids = client.submit_many("x", numbered(1000))
        here = [workers.enter_context(raw_worker(endpoint, b"x")) for _ in range(4)]
        held = {worker: worker.take() for worker in here}
        while cluster.claimed() <= len(here):  # a slow machine gets little in advance
            for worker, (token, body) in held.items():
                worker.final(token, *body)
                held[worker] = worker.take()
        asker = threading.Thread(target=ask)
        asker.start()
        workers.callback(asker.join)
        workers.callback(over.set)
        process.signal(signal.SIGSTOP)
        cluster.worker(two, "x", echo)
        assert len(cluster.replies(uuids)) == len(uuids)
        for worker, (token, body) in held.items():
            worker.final(token, *body)
        process.signal(signal.SIGCONT)
        over.set()
        (again,) = cluster.submit(two, "y", b"y")
        cluster.worker(endpoint, "y", echo)
        assert cluster.replies([again]) == [b"y"], "it dispatches again"
        assert [worker.look() for worker in here] == [[]] * len(here)


def test_who_stands_still_in_the_middle_of_a_claim_holds_up_nobody_for_longer_than_its_lease(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was about to claim is locked, and the database waits for it to commit."""
    lease = 5.0
    monkeypatch.setattr(postgres_nodes, "STALLED", lease)
    process, endpoint = cluster.process(lease, "stop")
    two = cluster.node(lease)
    with raw_worker(endpoint, b"x") as worker:
        uuids = cluster.submit(two, "x", *numbered(3))
        until(lambda: process.stands_still)
        cluster.worker(two, "x", echo)
        assert cluster.replies(uuids) == numbered(3)
        process.signal(signal.SIGCONT)
        cluster.worker(endpoint, "y", echo)
        assert cluster.replies(cluster.submit(two, "y", b"y")) == [b"y"], "it dispatches again"
        assert not worker.look()


def test_a_worker_that_becomes_free_after_the_lease_is_over_gets_nothing_that_waits_at_the_broker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.dispatch.backlogs.AHEAD_REMOTE", 60.0)
    server, go_on = cluster.node(), threading.Event()
    claiming = server.dispatcher.node
    assert claiming is not None
    renew = server.store.renew

    def stuck(*args: Any) -> Any:
        go_on.wait(60)
        return renew(*args)

    with raw_worker(server.endpoints[0], b"x") as worker, Client(server.endpoints[0], timeout=30) as client:
        client.submit_many("x", numbered(300))
        token, body = worker.take()
        while claiming.held < 10:
            worker.final(token, *body)
            token, body = worker.take()
        monkeypatch.setattr(server.store, "renew", stuck)
        monkeypatch.setattr(
            "titanic.cluster.node.elapsed", lambda: elapsed() + 2 * LONG
        )  # as after the machine has slept
        worker.final(token, *body)
        given: list[bytes] = []
        until(lambda: given.extend(worker.look()) or given or not claiming.held)
        assert not given
        go_on.set()
        assert worker.take(), "it has renewed its lease"


def test_who_cannot_renew_its_lease_dispatches_nothing_more_before_others_take_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = cluster.node(4.0), cluster.node(4.0)
    go_on = threading.Event()

    def stuck(*args: Any) -> Any:
        go_on.wait(60)
        return type(one.store).renew(one.store, *args)

    seen: list[bool] = []
    renew = two.store.renew

    def watched(incarnation: int, silent: Any, *more: Any) -> Any:
        if silent:
            seen.append(can_dispatch(one))
        return renew(incarnation, silent, *more)

    monkeypatch.setattr(two.store, "renew", watched)
    monkeypatch.setattr(one.store, "renew", stuck)
    until(lambda: not can_dispatch(one))
    uuids = cluster.submit(one, "only", b"1")
    cluster.worker(one, "only", echo)
    until(lambda: len(cluster.incarnations()) == 1)
    assert seen
    assert not any(seen), "it had stopped before"
    assert not cluster.executed
    go_on.set()
    assert cluster.replies(uuids) == [b"1"], "it has joined anew"


# -- the database goes away -----------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with spare_server() as server:
        yield server


def test_replies_are_kept_while_the_database_is_away_for_longer_than_the_lease(
    own_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "AGAIN", 0.05)
    cluster = Cluster(own_server.url(own_server.new_database()), tmp_path)
    go_on = threading.Event()
    with cluster.stack:
        nodes = [cluster.node(3.0) for _ in range(2)]
        for name, node in enumerate(nodes):
            cluster.worker(node, "x", lambda body: go_on.wait(60) and body, str(name))
        uuids = cluster.submit(nodes[0], "x", b"1", b"2")
        until(lambda: len(cluster.executed) == 2)
        own_server.stop()
        until(lambda: not any(map(can_dispatch, nodes)))
        with pytest.raises(Refused):
            cluster.submit(nodes[0], "x", b"lost")
        go_on.set()
        until(lambda: all(node.dispatcher.core.outcomes.flights for node in nodes))
        own_server.start()
        assert cluster.replies(uuids) == [b"1", b"2"]
        until(lambda: all(map(can_dispatch, nodes)))
        assert cluster.executed.total() == 2
        assert check(cluster.look) == []


def accepted(cluster: Cluster, node: Server) -> list[str]:
    """A request, as soon as the database is there."""
    try:
        return cluster.submit(node, "x", b"1")
    except Refused:
        return []


def test_a_node_alone_keeps_its_clients_and_workers_while_the_database_is_away(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    cluster = Cluster(own_server.url(own_server.new_database()), tmp_path)
    with cluster.stack:
        node = cluster.node(3.0)
        cluster.worker(node, "x", echo)
        own_server.stop()
        until(lambda: not can_dispatch(node) and node.dispatcher.node and node.dispatcher.node._unreached)
        with Client(node.endpoints[0], timeout=30) as client:
            with pytest.raises(Refused, match=r"^not stored: "):
                client.submit("x", "lost")
            assert client.call("x", b"plain") == [b"plain"]
        assert (node.elsewhere, node.workers) == ("", {b"x": 1})
        own_server.start()
        (uuid,) = until(lambda: accepted(cluster, node))
        assert cluster.replies([uuid]) == [b"1"]


def test_plain_requests_go_on_while_no_node_reaches_the_database(own_server: PostgresServer, tmp_path: Path) -> None:
    """All send their workers on, and take in those that come; clients find them."""
    lease = 2.0
    cluster = Cluster(own_server.url(own_server.new_database()), tmp_path)
    with cluster.stack as stack:
        nodes = [cluster.node(lease) for _ in range(2)]
        for node in nodes:
            until(lambda node=node: not node.store.notifications.alone)
        endpoints = [node.endpoints[0] for node in nodes]
        stack.enter_context(Worker("x", list, endpoints, config=QUICK))
        client = stack.enter_context(Client(endpoints, timeout=30))
        own_server.stop()
        until(lambda: all(node.elsewhere for node in nodes))
        end, pause = elapsed() + 3 * lease, threading.Event()
        while elapsed() < end:
            assert client.call("x", b"plain") == [b"plain"]
            pause.wait(0.02)
        own_server.start()
        until(lambda: not any(node.elsewhere for node in nodes))
        assert client.wait(client.submit("x", "1"), 30) == [b"1"]


def test_a_commit_of_which_nobody_was_told_is_found_when_it_was_kept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims are free again, its requests are dispatched, and whoever waits hears of its replies."""
    node = cluster.node(3.0)
    exchange, commits = PostgresWriteTransaction.exchange, Counter[bool]()

    def lossy(self: Any, statements: Any) -> Any:
        found = exchange(self, statements)
        if statements[-1].text == "COMMIT":
            lost = commits[False] >= 2 * commits[True] and commits[True] < 4
            commits[lost] += 1
            if lost:
                self.session.connection.close()
                raise psycopg.OperationalError("the connection broke")
        return found

    cluster.worker(node, "x", echo)
    monkeypatch.setattr(PostgresWriteTransaction, "exchange", lossy)
    for _ in range(2):
        with suppress(OutcomeUnknown), cluster.look.write() as transaction:
            uuids = accept_all(transaction, [NewRequest(b"x", [body]) for body in numbered(10)], wall_us())
        assert sorted(cluster.replies([uuid.hex() for uuid in uuids])) == numbered(10)
    assert commits[True]


# -- operators ------------------------------------------------------------------------------------------------


def test_a_drained_node_finishes_what_workers_have_and_leaves(cluster: Cluster) -> None:
    one, two = cluster.node(4.0), cluster.node(4.0)
    assert one.dispatcher.node is not None
    with raw_worker(one.endpoints[0], b"x") as worker:
        (uuid,) = cluster.submit(one, "x", b"x")
        token, _ = worker.take()
        lease = one.dispatcher.node.claims.lease
        with cluster.look.write() as transaction:
            transaction.fetch("UPDATE node SET draining = true WHERE incarnation = %s", lease.incarnation)
        until(lambda: not can_dispatch(one))
        (later,) = cluster.submit(two, "x", b"later")
        cluster.worker(two, "x", echo)
        assert cluster.replies([later]) == [b"later"]
        assert not one.dispatcher.node.has_left
        worker.final(token, b"done")
        assert cluster.replies([uuid]) == [b"done"]
    until(lambda: one.dispatcher.node and one.dispatcher.node.has_left)
    assert len(cluster.incarnations()) == 1


def test_a_node_ends_when_the_store_is_for_later_versions(cluster: Cluster) -> None:
    node = cluster.node(4.0)
    with cluster.look.write() as transaction:
        transaction.fetch("UPDATE meta SET store_format = %s, oldest = %s", FORMAT + 1, FORMAT + 1)
    until(lambda: node.problem)
    assert isinstance(node.problem, StoreTooNew)
    assert not node.alive
    assert not can_dispatch(node)


def test_a_node_ends_when_an_earlier_store_was_put_in_the_place_of_its_own(cluster: Cluster) -> None:
    node = cluster.node(4.0)
    with cluster.look.write() as transaction:
        transaction.fetch("UPDATE meta SET store_format = %s, oldest = %s", FORMAT - 1, FORMAT - 1)
    until(lambda: node.problem)
    assert isinstance(node.problem, StoreTooOld)
    assert not can_dispatch(node)
