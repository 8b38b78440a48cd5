"""An implementation of MDP that is not ours: PyPI's majortomo, its client and its worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from majortomo.broker import Broker as TheirBroker  # type: ignore[import-untyped]
from majortomo.client import Client as TheirClient  # type: ignore[import-untyped]
from majortomo.worker import Worker as TheirWorker  # type: ignore[import-untyped]
from majortomo.worker import WorkerRequestsIterator
from support.waiting import until

from broker import Broker, BrokerConfig, Client, TimedOut, Worker, WorkerConfig
from broker.core.mdp import Frames


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    broker.bind("tcp://127.0.0.1:*")
    with broker:
        yield broker


def address(broker: Broker) -> str:
    return broker.core.about.endpoints[0]


def shout(frames: Frames) -> Iterator[Frames]:
    yield [b"part"]
    return [frame.upper() for frame in frames]


def their_worker(endpoint: str) -> threading.Thread:
    """Runs until the broker sends DISCONNECT."""

    def serve() -> None:
        requests = WorkerRequestsIterator(TheirWorker(endpoint, "shout", heartbeat_interval=0.2))
        for frames in requests:
            requests.send_reply_partial([b"part"])
            requests.send_reply_final([frame.upper() for frame in frames])

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@contextmanager
def their_broker(path: Path) -> Iterator[str]:
    endpoint = f"ipc://{path}/theirs"
    # A busy worker has a minute there, others six seconds between heartbeats.
    theirs = TheirBroker(endpoint, heartbeat_interval=0.1, heartbeat_timeout=6, busy_worker_timeout=60)

    thread = threading.Thread(target=theirs.run)
    thread.start()
    try:
        yield endpoint
    finally:
        theirs.stop()
        thread.join()


def test_our_worker_with_their_broker(tmp_path: Path) -> None:
    config = WorkerConfig(heartbeat_interval=0.1, liveness=60, versions=("majortomo",))
    pause = threading.Event()

    def work(frames: Frames) -> Iterator[Frames]:
        yield [b"part"]
        if frames == [b"slow"]:
            pause.wait(6.5)  # longer than either side tolerates silence when nothing is in hand
        if frames == [b"nothing"]:
            return []
        return [frame.upper() for frame in frames]

    with (
        their_broker(tmp_path) as endpoint,
        Worker("shout", work, endpoint, config=config) as worker,
        TheirClient(endpoint) as client,
        Client(endpoint, timeout=60, version="majortomo") as ours,
    ):
        for body, last in (([b"a", b"b"], [b"A", b"B"]), ([b"slow"], [b"SLOW"]), ([b"nothing"], [b""])):
            client.send("shout", *body)
            assert list(client.recv_all(60)) == [[b"part"], last]
        assert ours.call("shout", b"a") == [b"part", b"A"]
        assert ours.call("shout", b"nothing") == [b"part"]
        until(lambda: worker.registered)
        assert worker.sessions[0].connection == 1, "it never had to come back"
        worker.stop()
        with pytest.raises(TimedOut):
            ours.call("shout", b"a", timeout=0.05, retries=0)


def test_their_client_with_our_worker(broker: Broker) -> None:
    with Worker("shout", shout, address(broker)), TheirClient(address(broker)) as client:
        for _ in range(3):
            client.send("shout", b"a", b"b")
            assert list(client.recv_all(60)) == [[b"part"], [b"A", b"B"]]
        client.send("mmi.service", b"shout")
        assert client.recv_all_as_list(60) == [b"200"]


def test_their_worker_with_our_client() -> None:
    broker = Broker()
    endpoint = broker.bind("tcp://127.0.0.1:*")
    thread = their_worker(endpoint)
    with broker:
        for version, parts in (
            ("0.2", [[b"part"], [b"A", b"B"]]),
            ("majortomo", [[b"part"], [b"A", b"B"]]),
            ("0.1", [[b"part", b"A", b"B"]]),
        ):
            with Client(endpoint, timeout=60, version=version) as client:
                assert list(client.stream("shout", b"a", b"b")) == parts
    thread.join()


def test_their_worker_is_silent_while_it_works() -> None:
    """Longer than any worker of another dialect may be: nobody else gets its request."""
    broker = Broker(BrokerConfig(heartbeat_interval=0.05, liveness=60))
    endpoint = broker.bind("tcp://127.0.0.1:*")
    pause, jobs = threading.Event(), []

    def serve() -> None:
        requests = WorkerRequestsIterator(TheirWorker(endpoint, "slow", heartbeat_interval=0.05))
        for frames in requests:
            jobs.append(frames)
            pause.wait(3.5)
            requests.send_reply_final([b"done"])

    thread = threading.Thread(target=serve)
    thread.start()
    with broker, Client(endpoint, timeout=60) as client:
        assert client.call("slow", b"x") == [b"done"]
    thread.join()
    assert jobs == [[b"x"]]


def test_everybody_on_one_broker() -> None:
    broker = Broker()
    endpoint = broker.bind("tcp://127.0.0.1:*")
    threads = [their_worker(endpoint)]
    flat = [b"part", b"A", b"B"]
    answers: list[Frames] = []

    def ask(version: str) -> None:
        with Client(endpoint, timeout=60, version=version) as client:
            for _ in range(20):
                answers.append(client.call("shout", b"a", b"b"))

    def their_ask() -> None:
        with TheirClient(endpoint) as client:
            for _ in range(20):
                client.send("shout", b"a", b"b")
                answers.append(client.recv_all_as_list(60))

    with (
        broker,
        Worker("shout", shout, endpoint, config=WorkerConfig(versions=("0.1",))) as old,
        Worker("shout", shout, endpoint, config=WorkerConfig(versions=("0.2",))) as new,
    ):
        until(lambda: old.registered and new.registered and len(broker.core.workers) == 3)
        names = {worker.dialect.name for worker in broker.core.workers.values()}
        assert names == {"0.1", "0.2", "majortomo"}
        asking = [threading.Thread(target=ask, args=(version,)) for version in ("0.1", "0.2", "majortomo")]
        asking.append(threading.Thread(target=their_ask))
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
    for thread in threads:
        thread.join()
    assert answers == [flat] * 80
