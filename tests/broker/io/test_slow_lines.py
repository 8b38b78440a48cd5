"""A message that takes longer than four heartbeats: who is sending is alive, who has stopped in the middle is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
import zmq
from support.relay import relay
from support.waiting import until

from broker import Broker, BrokerConfig, Client, Pipeline, Worker, WorkerConfig
from broker.io.dealer import LEAST, TcpInflow, _figures

pytestmark = pytest.mark.usefixtures("greeted")

QUICK = WorkerConfig(heartbeat_interval=0.1, liveness=20, reconnect_first=0.05, reconnect_most=0.1)
LARGE = bytes(5_000_000)
"""It takes longer than both sides are patient."""
RATE = 1_000_000
"""Bytes a second."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker(BrokerConfig(heartbeat_interval=0.1, liveness=20, worker_return=0))
    broker.bind("tcp://127.0.0.1:*")
    with broker:
        yield broker


def impatient(broker: Broker, worker: Worker) -> bool:
    """Whether both sides have heard how short the other's intervals are."""
    here = list(broker.core.workers.values())
    there = worker.sessions
    return (
        bool(here)
        and all(one.heartbeat.patience < 3 for one in here)
        and all(one.heartbeat.patience < 3 for one in there)
    )


@pytest.mark.parametrize("large", ["request", "reply"])
def test_who_is_sending_is_alive(broker: Broker, large: str) -> None:
    done: list[int] = []

    def work(frames: list[bytes]) -> bytes:
        done.append(len(frames[0]))
        return LARGE if large == "reply" else b"x"

    (endpoint,) = broker.core.about.endpoints
    with (
        relay(endpoint, RATE) as line,
        Worker("work", work, line.endpoint, config=QUICK) as worker,
        Client(endpoint, timeout=30, retries=0) as client,
    ):
        until(lambda: impatient(broker, worker))
        assert client.call("work", LARGE if large == "request" else b"x") == [LARGE if large == "reply" else b"x"]
        assert len(done) == 1
        assert worker.sessions[0].connection == 1
        assert (broker.core.stats["workers_expired"], broker.core.stats["redelivered"]) == (0, 0)


@pytest.mark.parametrize("words", [[], [b"one"], [b"one", b"", b"two"]])
@pytest.mark.parametrize("prefix", [[b"MDPW02"], [b"", b"MDPW01"]])
def test_a_new_workers_connection_is_watched(broker: Broker, prefix: list[bytes], words: list[bytes]) -> None:
    """Whatever its READY holds."""
    (endpoint,) = broker.core.about.endpoints
    with zmq.Context.instance().socket(zmq.DEALER) as worker:
        worker.linger = 0
        worker.connect(endpoint)
        worker.send_multipart([*prefix, b"\1", b"work", *words])
        (known,) = until(lambda: list(broker.core.workers.values()))
        until(lambda: known.inflow)


@pytest.mark.parametrize("large", ["request", "reply"])
def test_who_has_stopped_in_the_middle_is_not(broker: Broker, large: str) -> None:
    """Another worker gets the request."""
    (endpoint,) = broker.core.about.endpoints
    request = LARGE if large == "request" else b"x"
    began = Event()

    def work(frames: list[bytes]) -> bytes:
        began.set()
        return LARGE

    with (
        relay(endpoint, RATE / 10) as line,
        Worker("work", work, line.endpoint, config=QUICK) as far,
        Pipeline(endpoint) as client,
    ):
        until(lambda: impatient(broker, far))
        client.send("work", request, timeout=30, retries=0)
        until(began.is_set if large == "reply" else lambda: broker.counters()["workers_busy"])
        with Worker("work", lambda frames: b"near", endpoint, config=QUICK):
            line.stall()
            reply = client.receive()
        assert reply is not None
        assert reply.body == [b"near"]
        assert broker.core.stats["workers_expired"] >= 1  # more if this process stood still


# -- what the system knows of a connection --------------------------------------------------------------------------


@pytest.fixture
def router() -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context.instance().socket(zmq.ROUTER) as router:
        router.linger = 0
        yield router


def first_frame(router: zmq.Socket[bytes], peer: zmq.Socket[bytes], endpoint: str) -> zmq.Frame:
    router.bind(endpoint)
    peer.linger = 0
    peer.connect(router.getsockopt_string(zmq.LAST_ENDPOINT))
    peer.send(b"hello")
    frame: zmq.Frame = router.recv_multipart(copy=False)[0]
    return frame


def test_bytes_that_come_in_are_counted(router: zmq.Socket[bytes]) -> None:
    with zmq.Context.instance().socket(zmq.DEALER) as peer:
        inflow = TcpInflow(first_frame(router, peer, "tcp://127.0.0.1:*"))
        assert inflow.goes_on(0.0, 60.0), "something has just come in"
        assert not inflow.goes_on(60.0, 60.0), "nothing since then"
        peer.send(bytes(LEAST))
        assert router.poll(30_000)
        assert not inflow.goes_on(120.0, 60.0), "as little as heartbeats are"
        for _ in range(60):
            peer.send(bytes(2 * LEAST))
        until(lambda: inflow._look(_figures)[1] > 60 * 2 * LEAST)
        assert inflow.goes_on(180.0, 60.0)
        assert inflow.goes_on(10_000.0, 60.0), "asked about another message"
        assert not inflow.goes_on(10_000.1, 0.0), "the last byte came too long ago"


def test_nothing_comes_in_on_a_connection_that_is_gone(router: zmq.Socket[bytes]) -> None:
    peer = zmq.Context.instance().socket(zmq.DEALER)
    inflow = TcpInflow(first_frame(router, peer, "tcp://127.0.0.1:*"))
    peer.close(0)
    until(lambda: not inflow.goes_on(0.0, 60.0))
    with zmq.Context.instance().socket(zmq.DEALER) as other:  # which may get the number of the first
        other.connect(router.getsockopt_string(zmq.LAST_ENDPOINT))
        other.send(b"hello")
        assert router.poll(30_000)
        assert not inflow.goes_on(0.0, 60.0)


@pytest.mark.parametrize("kind", ["ipc", "inproc"])
def test_of_other_connections_nothing_is_known(router: zmq.Socket[bytes], tmp_path: Path, kind: str) -> None:
    with zmq.Context.instance().socket(zmq.DEALER) as peer:
        assert not TcpInflow(first_frame(router, peer, f"{kind}://{tmp_path}/slow")).goes_on(0.0, 60.0)
