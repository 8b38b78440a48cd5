"""Peers that do not read what they are sent: it does not fill the memory, and nobody else waits for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.raw_mdp import RawClient, raw_client, raw_worker
from support.waiting import until

from broker import Broker, BrokerConfig, Client
from broker.core.requests import Request

PART = bytes(1 << 20)
ROOM = 32 << 20


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker(BrokerConfig(send_queue_bytes=ROOM))
    broker.bind("tcp://127.0.0.1:*")
    yield broker
    broker.stop()


@pytest.fixture
def stuffed(broker: Broker) -> Iterator[RawClient]:
    """A client that takes in very little until it reads."""
    with raw_client("tcp://127.0.0.1:9") as client:  # nobody: the options count for the next connection
        client.socket.rcvhwm = 1
        client.socket.rcvbuf = 4096
        client.socket.disconnect("tcp://127.0.0.1:9")
        client.socket.connect(broker.core.about.endpoints[0])
        yield client


def test_parts_for_who_does_not_read_are_dropped_and_others_get_theirs(broker: Broker, stuffed: RawClient) -> None:
    endpoint = broker.core.about.endpoints[0]
    with broker, raw_worker(endpoint, b"parts") as worker, Client(endpoint) as client:
        until(lambda: client.present("parts"))
        stuffed.send(b"parts", b"go")
        sender, _ = worker.take()
        for _ in range(100):
            worker.partial(sender, PART)
        until(lambda: broker.core.stats["unroutable"] > 50)
        assert broker._connections.queued.total <= ROOM
        worker.final(sender, b"end")
        assert client.present("parts")


def test_an_integrated_service_is_told_who_does_not_read(broker: Broker, stuffed: RawClient) -> None:
    asked: list[Request] = []
    broker.integrate(b"big", asked.extend)
    with broker:
        stuffed.send(b"big", b"x")
        until(lambda: asked)
        (request,) = asked
        assert not broker.congested(request)
        broker.reply([(request, [PART] * 28)])
        until(lambda: broker.congested(request))
        assert stuffed.receive() == [PART] * 28
        until(lambda: not broker.congested(request))


def test_large_messages_arrive_as_they_were_sent(broker: Broker) -> None:
    endpoint = broker.core.about.endpoints[0]
    broker.integrate(b"echo", lambda batch: broker.reply([(request, request.body) for request in batch]))
    bodies = [[b"x" * 20_000], [b"", b"x" * 17_000, b""], [b"y"] * 1000, [bytes(3 << 20), b"end"], [b"z" * 16_384]]
    with broker, Client(endpoint) as client:
        for body in bodies:
            assert client.call("echo", *body) == body
