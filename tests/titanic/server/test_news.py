"""Several nodes on one database: what is accepted at one is executed at another and waited for at a third.

Most tests run twice: with news between the nodes, while nobody looks by himself, and without any.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.nodes import Nodes, cluster, deafen, heard_of_each_other, look_often
from support.postgres import needs_postgres, shared_server
from support.raw_mdp import raw_client
from support.serving import QUICK, brokering, config
from support.waiting import until

from broker import RemoteError, Worker
from titanic import Client, Refused, RequestFailed, Server, UnknownRequest, current
from titanic.cluster import notifications
from titanic.cluster.cluster_dispatcher import ClusterDispatcher
from titanic.services.ask import CloseDoubt
from titanic.settings import ServiceLimits
from titanic.store import LeaseConfig, NodeFacts, Notification
from titanic.store.postgres.store import PostgresStore

pytestmark = needs_postgres


@pytest.fixture(params=["news", "deaf"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    (deafen if request.param == "deaf" else look_often)(monkeypatch)
    with cluster(tmp_path, 3) as nodes:
        if request.param == "news":
            heard_of_each_other(nodes)
            monkeypatch.setattr(notifications, "POLL_INTERVAL", 600.0)
        yield nodes


class Gated:
    """A worker that does nothing before it may: its heartbeats go on meanwhile."""

    def __init__(self, endpoint: str, service: str) -> None:
        self.begun: list[bytes] = []
        self._gate = threading.Semaphore(0)
        self.worker = Worker(service, self._work, endpoint, config=QUICK)

    def _work(self, frames: list[bytes]) -> list[bytes]:
        self.begun += frames
        assert self._gate.acquire(timeout=60)
        return [b"done"]

    def has_begun(self, *bodies: bytes) -> None:
        until(lambda: self.begun == [*bodies])

    def go_on(self) -> None:
        """What it has begun is done."""
        self._gate.release()

    def __enter__(self) -> Gated:
        self.worker.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for _ in range(10):
            self.go_on()
        self.worker.__exit__(*error)


def echo(frames: list[bytes]) -> list[bytes]:
    return frames


def test_accepted_at_one_executed_at_another_waited_for_at_a_third(nodes: Nodes) -> None:
    a, _, c = nodes.clients
    with Worker("echo", echo, nodes[1].endpoints[0], config=QUICK):
        for number in range(3):
            uuid = a.submit("echo", f"{number}")
            assert c.wait(uuid, 30) == [b"%d" % number]
            assert a.reply(uuid) == [b"%d" % number]
            c.close(uuid)
            with pytest.raises(UnknownRequest):
                a.reply(uuid)


def test_who_waits_hears_of_failures_of_what_expires_and_of_what_is_closed(nodes: Nodes) -> None:
    a, b, c = nodes.clients

    def fail(frames: list[bytes]) -> list[bytes]:
        raise RemoteError(500, "no")

    with raw_client(nodes[2].endpoints[0]) as waiting, Worker("bad", fail, nodes[1].endpoints[0], config=QUICK):
        with pytest.raises(RequestFailed):
            c.wait(a.submit("bad", "x", max_attempts=2), 30)
        with pytest.raises(RequestFailed):
            c.wait(a.submit("nobody", "x", ttl=0.2), 30)
        uuid = a.submit("nobody", "x")
        waiting.send(b"titanic.wait", b"30", uuid.encode())
        until(lambda: len(nodes[2].dispatcher.waiters) == 1)
        b.close(uuid)
        assert waiting.receive()[0][:3] == b"400"


def test_what_is_not_done_in_time_is_pending_whoever_runs_it(nodes: Nodes) -> None:
    a, _, c = nodes.clients
    with Gated(nodes[1].endpoints[0], "slow") as worker, raw_client(nodes[2].endpoints[0]) as waiting:
        uuid = a.submit("slow", "x")
        worker.has_begun(b"x")
        for name in (b"titanic.reply", b"titanic.wait"):
            assert waiting.ask(name, *([b"0.01"] if name == b"titanic.wait" else []), uuid.encode()) == [b"300"]
        for client in nodes.clients:
            assert client.show(uuid)["state"] == "running"
            assert [row["uuid"] for row in client.list(state="running")[0]] == [uuid]
            assert [row["uuid"] for row in client.list(service="slow", state="running")[0]] == [uuid]
            assert client.list(service="other", state="running")[0] == client.list(state="waiting")[0] == []
        assert c.purge(state="waiting") == 0, "a worker has it"
        worker.go_on()
        assert c.wait(uuid, 30) == [b"done"]
        assert c.list(state="running")[0] == []


def test_a_close_waits_until_the_node_that_runs_it_knows(nodes: Nodes) -> None:
    """A request that a worker of another node has: closed, and no other worker gets it when that one dies."""
    a, _, c = nodes.clients
    with Gated(nodes[1].endpoints[0], "slow") as worker:
        uuid = a.submit("slow", "x")
        worker.has_begun(b"x")
        a.close(uuid)
        assert bytes.fromhex(uuid) in nodes[1].dispatcher.core.flights
        assert nodes[1].dispatcher.core.flights[bytes.fromhex(uuid)].closed, "it was known before the answer"
        c.close(uuid)
        worker.go_on()
        until(lambda: not nodes[1].dispatcher.core.flights)
        with pytest.raises(UnknownRequest):
            c.reply(uuid)
    assert recalls(nodes) == []


def test_what_waits_at_the_broker_of_another_node_is_taken_back_before_close_is_answered(nodes: Nodes) -> None:
    a = nodes.clients[0]
    core = nodes[1].dispatcher.core
    with Gated(nodes[1].endpoints[0], "one") as worker:
        first = a.submit("one", "first")
        worker.has_begun(b"first")
        second = a.submit("one", "second")  # first: a node claims ahead while it finds what it asks for
        nodes[1].front.loop.call(send_ahead, nodes[1])
        until(lambda: bytes.fromhex(second) in core.flights)
        a.close(second)
        assert bytes.fromhex(second) not in core.flights
        worker.go_on()
        assert a.wait(first, 30) == [b"done"]
        third = a.submit("one", "third")
        worker.has_begun(b"first", b"third")
        worker.go_on()
        assert a.wait(third, 30) == [b"done"]
    assert recalls(nodes) == []


def send_ahead(node: Server, count: int = 1) -> None:
    """The service is so quick that requests are sent ahead of its workers."""
    backlog = node.dispatcher.core.backlogs[b"one"]
    backlog.ahead = count
    node.dispatcher.core.backlogs.place(backlog)


def test_what_nobody_has_begun_and_is_closed_anywhere_nobody_begins(nodes: Nodes) -> None:
    """All workers are busy. What waits in the database, at nodes and at their brokers is closed, all over the place."""
    chance = random.Random(7)
    with ExitStack() as stack:
        workers = [stack.enter_context(Gated(server.endpoints[0], "one")) for server in nodes.servers]
        uuids = [chance.choice(nodes.clients).submit("one", f"{number}") for number in range(24)]
        until(lambda: all(worker.begun for worker in workers))
        for server in nodes.servers:
            server.front.loop.call(send_ahead, server, 4)
        until(lambda: sum(len(server.dispatcher.core.flights) for server in nodes.servers) > 3)
        begun = {int(worker.begun[0]) for worker in workers}
        left = [uuid for number, uuid in enumerate(uuids) if number not in begun]
        chance.shuffle(left)
        while left:
            some, left = left[:5], left[5:]
            chance.choice(nodes.clients).close(*some)
        for worker in workers:
            for _ in range(30):
                worker.go_on()
        for number in begun:
            assert chance.choice(nodes.clients).wait(uuids[number], 30) == [b"done"]
        last = nodes.clients[0].submit("one", "last")
        assert nodes.clients[1].wait(last, 30) == [b"done"]
        assert sorted(body for worker in workers for body in worker.begun) == sorted(
            [*(b"%d" % n for n in begun), b"last"]
        )
    until(lambda: not recalls(nodes))


def recalls(nodes: Nodes) -> list[object]:
    with nodes[0].store.read() as transaction:
        return transaction.fetch("SELECT * FROM titanic.recall")


def test_what_another_node_has_claimed_and_not_sent_is_closed_as_well(nodes: Nodes) -> None:
    """Its claim is in the database, and it has no worker for it."""
    a, b, _ = nodes.clients
    uuid = a.submit("absent", "x")
    claim(nodes, 1, uuid)
    a.close(uuid)
    with pytest.raises(UnknownRequest):
        b.reply(uuid)
    assert recalls(nodes) == []


def claim(nodes: Nodes, number: int, uuid: str) -> None:
    """The node has claimed it, and its dispatcher does not know."""
    incarnation = nodes[number].dispatcher.node.claims.lease.incarnation
    with nodes[0].store.write() as transaction:
        claimed = "UPDATE ready SET incarnation = %s WHERE uuid = %s::uuid RETURNING 1"
        assert transaction.fetch(claimed, incarnation, uuid) == [(1,)]


class Closing:
    """Waits until requests are withdrawn."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.withdrawn = self.counts.append


def test_a_request_is_killed_by_two_before_its_node_is_known(nodes: Nodes) -> None:
    """Its node has settled the first close before the second one has asked which node that is."""
    dispatcher, uuid, closings = nodes[0].dispatcher, bytes(16), [Closing(), Closing()]
    assert isinstance(dispatcher, ClusterDispatcher)
    doubts = [CloseDoubt([uuid], one, alive) for one, alive in zip(closings, ([uuid, uuid], []), strict=True)]

    def hear() -> None:
        assert dispatcher.cluster is not None
        dispatcher.cluster.closed(doubts)
        dispatcher.cluster.heard(Notification(certain={uuid}))

    dispatcher.call(hear)
    until(lambda: [one.counts for one in closings] == [[1], [1]])
    assert [doubt.alive for doubt in doubts] == [[], []]


def test_a_purge_waits_like_a_close(nodes: Nodes) -> None:
    a = nodes.clients[0]
    uuid = a.submit("absent", "x")
    claim(nodes, 1, uuid)
    answer = a.call("titanic.admin", b'{"do": "purge", "uuids": ["%b"]}' % uuid.encode())
    assert answer == [b"200", b'{"done": 1, "next": null}']
    assert recalls(nodes) == []


def test_keys_hold_at_all_nodes(nodes: Nodes) -> None:
    executed: list[list[bytes]] = []

    def work(frames: list[bytes]) -> list[bytes]:
        executed.append(frames)
        return frames

    a, b, c = nodes.clients
    uuid = a.submit("echo", "x", key="order 7")
    assert b.submit("echo", "x", key="order 7") == uuid
    with Worker("echo", work, nodes[2].endpoints[0], config=QUICK):
        assert b.wait(uuid, 30) == [b"x"]
        assert c.submit("echo", "x", key="order 7") == uuid
    b.close(uuid)
    assert c.submit("echo", "x", key="order 7") == uuid
    assert executed == [[b"x"]]


def test_delays_retries_and_what_is_given_back_come_to_the_node_with_the_worker(nodes: Nodes) -> None:
    tried = threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        if not tried.is_set():
            tried.set()
            raise RemoteError(500, "no")
        return frames

    a, b, c = nodes.clients
    with Worker("echo", work, nodes[1].endpoints[0], config=QUICK):
        assert c.wait(a.submit("echo", "later", delay=0.1), 30) == [b"later"]
        tried.clear()
        with pytest.raises(RequestFailed):
            c.wait(uuid := a.submit("echo", "again", max_attempts=1), 30)
        assert c.retry(uuid) == 1
        assert a.wait(uuid, 30) == [b"again"]
        assert b.reply(uuid) == [b"again"]


def test_news_come_from_a_node_that_has_just_come(tmp_path: Path) -> None:
    """Who was alone says nothing, and hears of the new one at once; what was there before is found by a look."""
    with cluster(tmp_path, 1) as nodes:
        uuid = nodes.clients[0].submit("echo", "before")
        assert nodes[0].store.notifications.sent == 0
        nodes.add()
        with Worker("echo", echo, nodes[1].endpoints[0], config=QUICK):
            assert nodes.clients[0].wait(uuid, 30) == [b"before"]
        heard_of_each_other(nodes)
        assert nodes[1].store.notifications.sent > 0


def test_limits_of_what_waits_count_what_all_nodes_have_accepted(tmp_path: Path) -> None:
    with cluster(tmp_path, 2, limits={b"x": ServiceLimits(waiting=3)}) as nodes:
        a, b = nodes.clients
        uuids = [a.submit("x", "1"), b.submit("x", "2"), a.submit("x", "3")]
        for client in (a, b):
            with pytest.raises(Refused, match="3 requests are waiting for x"):
                client.submit("x", "4")
        b.close(uuids[0])
        a.submit("x", "4")


def test_a_node_whose_connection_for_news_is_cut_hears_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.store.postgres.connection_pool.AGAIN", 0.05)
    look_often(monkeypatch)
    with cluster(tmp_path, 2) as nodes, Worker("echo", echo, nodes[1].endpoints[0], config=QUICK):
        heard_of_each_other(nodes)
        monkeypatch.setattr(notifications, "POLL_INTERVAL", 600.0)
        for _ in range(3):
            shared_server().cut_connections(nodes.url.partition("?")[0].rpartition("/")[2])
            for client in nodes.clients:
                uuid = until(lambda client=client: submitted(client))
                assert nodes.clients[0].wait(uuid, 30) == [b"x"]


def submitted(client: Client) -> str | None:
    try:
        return client.submit("echo", "x")
    except Refused:
        return None


def test_a_commit_is_one_notify_at_most_and_none_for_who_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_often(monkeypatch)

    def live(nodes: Nodes) -> list[tuple[int, int]]:
        """A few whole lives, executed at the last node; how many commits and NOTIFYs each node had for them."""
        before = [(server.writer.commits, server.store.notifications.sent) for server in nodes.servers]
        with Worker("echo", echo, nodes.servers[-1].endpoints[0], config=QUICK):
            for number in range(5):
                uuid = nodes.clients[0].submit("echo", f"{number}")
                assert nodes.clients[0].wait(uuid, 30) == [b"%d" % number]
                nodes.clients[0].close(uuid)
        after = [(server.writer.commits, server.store.notifications.sent) for server in nodes.servers]
        return [(c - a, d - b) for (a, b), (c, d) in zip(before, after, strict=True)]

    with cluster(tmp_path, 1) as nodes:
        ((_, sent),) = live(nodes)
        assert sent == 0
        nodes.add()
        heard_of_each_other(nodes)
        for commits, sent in live(nodes):
            assert 0 < sent <= commits + 1, "and the greeting of the new node, which may be late"


def test_a_close_of_what_a_dead_node_has_is_answered_when_its_lease_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_often(monkeypatch)
    monkeypatch.setattr(notifications, "PATIENCE", 0.1)
    lease = LeaseConfig(5.0, 0.4, 0.1)
    with cluster(tmp_path, 1, lease=lease) as nodes:
        silent = PostgresStore.open(nodes.url)
        assert silent.join(7, None, (), NodeFacts("silent", "0"), lease).alive
        uuid = nodes.clients[0].submit("absent", "x")
        with silent.write() as transaction:
            assert transaction.claim(7, {b"absent": 1}, 1 << 20, {}).rows
        with raw_client(nodes[0].endpoints[0]) as closing:
            closing.send(b"titanic.close", uuid.encode())
            until(lambda: recalls(nodes))
            assert not closing.socket.poll(0), "a worker there may be given it"
            assert closing.receive() == [b"200"]
        with nodes[0].store.read() as transaction:
            (lives,) = transaction.fetch(
                "SELECT count(*) FROM node WHERE incarnation = 7 AND lease_until > '-infinity'"
            )
        assert lives == (0,)
        until(lambda: not recalls(nodes))
        silent.close()


def test_nodes_at_brokers_of_their_own_and_no_two_at_one(tmp_path: Path) -> None:
    with (
        brokering(heartbeat_interval=0.5, liveness=60) as here,
        brokering(heartbeat_interval=0.5, liveness=60) as there,
        cluster(tmp_path, 1, broker=here) as nodes,
    ):
        until(lambda: nodes[0].ready)
        other = nodes.add(broker=there)
        until(lambda: other.ready)
        with Worker("echo", echo, there, config=QUICK):
            assert nodes.clients[0].wait(nodes.clients[0].submit("echo", "x"), 30) == [b"x"]
        with Server(config(tmp_path, store=nodes.url, broker=here)) as third:
            problem = str(until(lambda: third.problem))
        assert f"another node of this store serves the broker at {here} already" in problem
        assert "give each node its own broker" in problem


def test_of_two_nodes_that_start_together_at_one_broker_one_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with brokering(heartbeat_interval=0.5, liveness=60) as endpoint, cluster(tmp_path, 1) as nodes:
        first, second = (Server(config(tmp_path, store=nodes.url, broker=endpoint)) for _ in range(2))
        register, looked = second.front.register, threading.Event()

        def late() -> None:
            looked.set()
            until(lambda: first.ready)
            register()

        monkeypatch.setattr(second.front, "register", late)
        with second:
            assert looked.wait(60)
            with first:
                assert "another node of this store" in str(until(lambda: first.problem or second.problem))
                assert (first.alive, second.alive).count(True) == 1


def test_a_worker_of_another_node_is_heard_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far it is can be seen at any node; who closes its request there has it cancelled."""
    cancelled = threading.Event()

    def work(frames: list[bytes]) -> str:
        request = current()
        request.progress(1, 4, frames[0].decode())
        assert request._handle is not None
        request._handle.on_cancel(cancelled.set)
        assert cancelled.wait(60)
        return "done"

    look_often(monkeypatch)
    monkeypatch.setattr(notifications, "PROGRESS_INTERVAL", 0.0)
    with cluster(tmp_path, 2) as nodes:
        heard_of_each_other(nodes)
        a, b = nodes.clients
        with Worker("echo", work, nodes[1].endpoints[0], config=QUICK):
            uuid = a.submit("echo", "closed", key="of its own")
            until(lambda: a.show(uuid).get("progress") and b.show(uuid).get("progress"))
            assert a.show(uuid).get("progress") == {"done": 1, "of": 4, "text": "closed"}
            assert a.list(state="running")[0][0].get("progress") == {"done": 1, "of": 4, "text": "closed"}
            a.close(uuid)
            assert cancelled.wait(30)
            until(lambda: nodes[0].dispatcher.progress([bytes.fromhex(uuid)]) == {})
