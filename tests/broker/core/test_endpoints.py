"""Several endpoints: which server is chosen, and clients and workers whose broker goes away."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq
from support.each import each
from support.ports import free_port
from support.processes import line, script
from support.waiting import again, until

from broker import Broker, Client, Pipeline, TimedOut, UsageError, Worker, WorkerConfig
from broker.core.endpoints import Health, Servers, named

pytestmark = pytest.mark.usefixtures("greeted")

NOBODY = "tcp://127.0.0.1:9"
QUICK = WorkerConfig(heartbeat_interval=0.05, liveness=20, reconnect_first=0.01, reconnect_most=0.05)


# -- the choice ----------------------------------------------------------------------------------------------


def test_the_first_one_first() -> None:
    servers = Servers(["a", "b", "a"])
    assert (servers.names, str(servers), len(servers)) == (("a", "b"), "a or b", 2)
    assert servers.choose() == servers.choose() == "a"
    assert servers.live() is None
    assert Servers("abc").names == ("abc",)


def test_it_stays_with_the_one_that_answers() -> None:
    servers = Servers(["a", "b", "c"])
    servers.failed("a")
    assert servers.choose() == "b"
    servers.answered("b")
    servers.answered("a")
    assert servers.live() == "b", "though the first one is there again"
    servers.failed("b")
    assert servers.live() == "a"


def test_of_dead_ones_the_one_that_failed_longest_ago() -> None:
    servers = Servers(["a", "b", "c"])
    order = []
    for _ in range(7):
        order.append(servers.choose())
        servers.failed(order[-1])
    assert "".join(order) == "abcabca"


def test_all_that_failed_are_tried_again() -> None:
    servers = Servers(["a", "b", "c"], order=["c", "a", "b"])
    assert servers.names == ("a", "b", "c")
    order = []
    for _ in range(7):
        order.append(servers.choose())
        assert servers.has_other(order[-1]) is (len(order) % 3 > 0)
        servers.failed(order[-1])
        if len(order) % 3 == 0:
            servers.forgive()
    assert "".join(order) == "cabcabc"
    servers.answered("b")
    servers.forgive()
    assert servers.live() == "b"


def test_several_in_one_text() -> None:
    assert named("tcp://a:1") == ("tcp://a:1",)
    assert named("tcp://a:1,ipc:///b,tcp://a:1") == ("tcp://a:1", "ipc:///b")
    assert named("a:1, b:2 ,[::1]:3") == ("a:1", "b:2", "[::1]:3")
    assert named(["tcp://a:1,b:2", "tcp://c:3"]) == ("tcp://a:1", "b:2", "tcp://c:3")
    assert named("ipc:///tmp/a,b.sock,ipc:///tmp/c") == ("ipc:///tmp/a,b.sock", "ipc:///tmp/c")


@each("seed", range(20))
def test_whoever_lives_is_chosen(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"s{number}" for number in range(5)]
    servers, health = Servers(names), dict.fromkeys(names, Health.UNTRIED)
    for _ in range(500):
        name = chance.choice(names)
        health[name] = chance.choice((Health.LIVE, Health.DEAD))
        (servers.answered if health[name] is Health.LIVE else servers.failed)(name)
        assert health[servers.choose()] == min(health.values())
        assert (servers.live() is None) == (Health.LIVE not in health.values())


def test_no_server_at_all() -> None:
    with pytest.raises(UsageError, match="no endpoint given"):
        Servers([])
    with pytest.raises(UsageError, match="no endpoint given"):
        Client([])


# -- clients and workers -------------------------------------------------------------------------------------


def broker() -> tuple[Broker, str]:
    """One to be started, perhaps again, at its endpoint."""
    one = Broker()
    return one, one.bind(f"tcp://127.0.0.1:{free_port()}")


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints are tried in the order in which they are given, and not at random."""
    monkeypatch.setattr("broker.io.dealer.shuffled", list)


@pytest.fixture
def pair() -> Iterator[tuple[str, str]]:
    """Two brokers, each with a worker that says which one it works for."""
    (one, first), (two, second) = broker(), broker()
    with one, two, Worker("who", lambda _: [b"first"], first), Worker("who", lambda _: [b"second"], second):
        yield first, second


def test_a_client_leaves_a_broker_that_is_not_there_at_once(pair: tuple[str, str], in_order: None) -> None:
    with Client([NOBODY, *pair], timeout=60, retries=0) as client:
        assert [client.call("who", b"x") for _ in range(3)] == [[b"first"]] * 3


def test_a_client_stays_where_it_is_answered(pair: tuple[str, str], in_order: None) -> None:
    with Client(pair, timeout=60) as client:
        for _ in range(3):
            for _ in client.stream("who", b"x"):
                break
            assert client.call("who", b"x") == [b"first"]


def test_a_client_goes_on_with_the_next_broker(in_order: None) -> None:
    (one, first), (two, second) = broker(), broker()
    with two, Worker("who", lambda _: [b"second"], second), Client([first, second], timeout=60, retries=0) as client:
        with one, Worker("who", lambda _: [b"first"], first):
            assert client.call("who", b"x") == [b"first"]
        assert client.call("who", b"x") == [b"second"]


def test_a_pipeline_takes_what_is_unanswered_to_the_next_broker(in_order: None) -> None:
    (one, first), (two, second) = broker(), broker()
    begun, go_on = threading.Event(), threading.Event()

    def hang(_: list[bytes]) -> list[bytes]:
        begun.set()
        go_on.wait(60)
        return [b"late"]

    bodies = [b"%d" % number for number in range(100)]
    with two, Pipeline([first, second], timeout=60, retries=0) as pipeline:
        with Worker("echo", lambda frames: frames, second), one, Worker("echo", hang, first) as hung:
            tickets = [pipeline.send("echo", body) for body in bodies]
            assert begun.wait(60)
            one.stop()
            replies = [pipeline.receive(60) for _ in bodies]
            go_on.set()
            hung.abandon()
        assert {reply.ticket: reply.body for reply in replies if reply} == {
            ticket: [body] for ticket, body in zip(tickets, bodies, strict=True)
        }


def test_nobody_anywhere() -> None:
    with (
        Client([NOBODY, "tcp://127.0.0.1:10"], timeout=0.1, retries=1) as client,
        pytest.raises(TimedOut, match=r"no answer from tcp://127.0.0.1:9 or tcp://127.0.0.1:10;"),
    ):
        client.call("x", b"y")


@pytest.mark.parametrize("there", [0, 1])
def test_a_worker_finds_the_broker_that_is_there(there: int) -> None:
    one, endpoint = broker()
    endpoints = [NOBODY, NOBODY[:-1] + "10"]
    endpoints[there] = endpoint
    with one, Worker("echo", lambda frames: frames, endpoints, config=QUICK), Client(endpoint, timeout=60) as client:
        assert client.call("echo", b"x") == [b"x"]


def test_a_worker_follows_when_its_broker_goes_away(in_order: None) -> None:
    (one, first), (two, second) = broker(), broker()
    with ExitStack() as stack:
        for either in (one, two):
            stack.callback(either.start().stop)
        worker = stack.enter_context(Worker("echo", lambda frames: frames, [first, second], jobs=2, config=QUICK))
        until(lambda: worker.registered == 2)
        if not one.workers():  # this machine stood still, and the first one seemed not to be there
            (one, first), (two, second) = (two, second), (one, first)
        with Client(first, timeout=60) as client:
            assert client.call("echo", b"x") == [b"x"]
        one.stop()
        with Client(second, timeout=60) as client:
            assert client.call("echo", b"x") == [b"x"]
            until(lambda: worker.registered == 2)
        two.stop()
        one = Broker()
        again(one.bind, first)
        with one, Client(first, timeout=60) as client:
            assert client.call("echo", b"x") == [b"x"]


def test_a_worker_tries_each_version_with_each_broker() -> None:
    """With two versions and two brokers, taking the next of both each time would never try half of the pairs."""
    silent = zmq.Context.instance().socket(zmq.ROUTER)
    nowhere = f"tcp://127.0.0.1:{silent.bind_to_random_port('tcp://127.0.0.1')}"
    config = WorkerConfig(heartbeat_interval=0.1, liveness=5, reconnect_first=0.01, reconnect_most=0.05)
    with script("rfc7_broker.py", "tcp://127.0.0.1:*", "0.1") as process:
        old = line(process)
        with (
            Worker("echo", lambda frames: frames, [old, nowhere], config=config),
            Client(old, timeout=1, retries=60, version="0.1") as client,
        ):
            assert client.call("echo", b"x") == [b"x"]
    silent.close(0)
