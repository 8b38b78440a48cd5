"""Peers that speak something else, or too much, or vanish: nobody else is harmed."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
import zmq
from support.broker_invariants import check, check_empty
from support.each import each
from support.torture import seeds
from support.waiting import until

from broker import Broker, BrokerConfig, Client, Pipeline, RemoteError, Worker
from broker.config import MIN_MESSAGE
from broker.core.broker import BrokerCore
from broker.core.mdp import MAX_STACK
from broker.io.sockets import MOST_FRAMES
from broker.zmtp.frames import HEAD

pytestmark = pytest.mark.usefixtures("greeted")


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Its only heartbeat within a test is the answer to a READY."""
    broker = Broker(BrokerConfig(max_body=1000, heartbeat_interval=60))
    broker.bind("tcp://127.0.0.1:*")
    with broker, Worker("echo", lambda frames: frames, address(broker)) as worker:
        until(lambda: worker.registered)
        connection = worker.sessions[0].connection
        yield broker
        all_is_well(broker)
        assert worker.sessions[0].connection == connection, "the worker had to connect again"
    check_empty(broker.core)


def address(broker: Broker) -> str:
    return broker.core.about.endpoints[0]


def all_is_well(broker: Broker) -> None:
    with Client(address(broker), timeout=60) as client:
        for number in range(20):
            assert client.call("echo", b"%d" % number) == [b"%d" % number]
    sound = threading.Event()
    broker.loop.call(lambda: (check(broker.core), sound.set()))
    assert sound.wait(60)


def raw(broker: Broker) -> socket.socket:
    url = urlsplit(address(broker))
    assert url.port is not None
    return socket.create_connection(("127.0.0.1", url.port), timeout=60)


@pytest.fixture
def dealer(broker: Broker) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context.instance().socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(address(broker))
        yield dealer


def test_a_web_browser(broker: Broker) -> None:
    with raw(broker) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        all_is_well(broker)


@pytest.mark.parametrize("seed", seeds(3, 10))
def test_noise(broker: Broker, seed: int) -> None:
    noise = random.Random(seed)
    starts = [b"", b"\xff\0\0\0\0\0\0\0\1\x7f", b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + bytes(48)]
    for start in starts:
        with raw(broker) as stranger, suppress(ConnectionError):  # the broker may have hung up already
            stranger.sendall(start)
            stranger.sendall(noise.randbytes(noise.randrange(200)))
    all_is_well(broker)


@pytest.mark.parametrize("kind", [zmq.PUSH, zmq.SUB, zmq.PAIR, zmq.PUB])
def test_other_kinds_of_sockets(broker: Broker, kind: int) -> None:
    with zmq.Context.instance().socket(kind) as other:
        other.linger = 0
        other.connect(address(broker))
        if kind == zmq.SUB:
            other.subscribe(b"")
        else:
            other.send(b"x", zmq.DONTWAIT)
        all_is_well(broker)


def test_zproto(broker: Broker, dealer: zmq.Socket[bytes]) -> None:
    before = broker.core.stats["malformed"]
    dealer.send(b"\xaa\xa4\0\1\4MDPC\2\4echo")
    until(lambda: broker.core.stats["malformed"] > before)


def test_a_bad_worker_does_not_get_the_good_ones_registration(broker: Broker, dealer: zmq.Socket[bytes]) -> None:
    for frames in ([b"MDPW02", b"\1", b"mmi.service"], [b"MDPW02", b"\4", b"x", b"", b"y"]):
        dealer.send_multipart(frames)
        assert dealer.recv_multipart() == [b"MDPW02", b"\6"]


def test_a_worker_of_a_later_version(broker: Broker, dealer: zmq.Socket[bytes]) -> None:
    dealer.send_multipart([b"MDPW02", b"\1", b"echo", b"titanic:1", b"titanic:2", b"", b"more"])
    assert dealer.recv_multipart() == [b"MDPW02", b"\5"]
    until(lambda: all(worker.inflow is not None for worker in broker.core.workers.values()))
    dealer.send_multipart([b"MDPW02", b"\6"])
    until(lambda: broker.workers() == {b"echo": 1})


def test_a_frame_over_the_maximum(broker: Broker, dealer: zmq.Socket[bytes]) -> None:
    with Client(address(broker)) as client, pytest.raises(RemoteError, match="413"):
        client.call("echo", bytes(1500))
    with Client(address(broker)) as client, pytest.raises(RemoteError, match="413"):
        client.call("echo", bytes(MIN_MESSAGE - 1000))
    dealer.send_multipart([b"MDPC02", b"\1", b"echo", bytes(MIN_MESSAGE + 1)])
    all_is_well(broker)


CLIENTS = {
    "0.1": ([b"", b"MDPC01", b"echo"], [b"", b"MDPC01", b"echo"]),
    "0.2": ([b"MDPC02", b"\1", b"echo"], [b"MDPC02", b"\3", b"echo"]),
    "0.2, with a stack": ([b"7", b"", b"MDPC02", b"\1", b"echo"], [b"7", b"", b"MDPC02", b"\3", b"echo"]),
    "a queue": ([b"7", b"", b"MDPC02", b"\5", b"echo"], [b"7", b"", b"MDPC02", b"\7", b"echo"]),
    "majortomo": ([b"", b"MDPC02", b"\2", b"echo"], [b"", b"MDPC02", b"\4"]),
}


@pytest.mark.parametrize("dialect", CLIENTS)
@pytest.mark.parametrize("body", [[b""] * MOST_FRAMES, [bytes(MIN_MESSAGE // 4)] * 5], ids=["frames", "bytes"])
def test_who_sends_a_message_that_is_too_large_is_told(
    broker: Broker, dealer: zmq.Socket[bytes], dialect: str, body: list[bytes]
) -> None:
    head, answer = CLIENTS[dialect]
    dealer.rcvtimeo = 60_000
    dealer.send_multipart([*head, *body])
    *begin, mark, text = dealer.recv_multipart()
    assert (begin, mark) == (answer, b"MDPE01")
    assert text == b"413 the request has more than 100000 frames or 2097152 bytes, the maximum of this broker"
    dealer.send_multipart([*head, b"x"])
    assert dealer.recv_multipart()[-1] == b"x"


@pytest.mark.parametrize("command", [b"\3", b"\4"], ids=["PARTIAL", "FINAL"])
def test_a_reply_that_is_too_large_is_an_error(broker: Broker, dealer: zmq.Socket[bytes], command: bytes) -> None:
    """No other worker gets the request: its reply would be too large, too."""
    dealer.send_multipart([b"MDPW02", b"\1", b"large"])
    with Pipeline(address(broker), timeout=60) as client:
        client.send("large", b"x")
        assert dealer.recv_multipart() == [b"MDPW02", b"\5"]
        token = dealer.recv_multipart()[2]
        dealer.send_multipart([b"MDPW02", command, token, b"", *[b""] * MOST_FRAMES])
        reply = client.receive()
    assert reply is not None
    assert isinstance(reply.error, RemoteError)
    assert (reply.error.status, reply.error.text[:24]) == (413, "the reply has more than ")
    until(lambda: not any(name == b"large" for name in broker.workers()))


@each(
    "frames",
    [
        [b"MDPC02", b"\1"],
        [b"MDPC02", b"\7", b"echo", b"x"],
        [b"MDPC01", b"echo", b"x"],
        [b"MDPC02", b"\2", b"echo", b"x"],
        [b"MDPW02", b"\4", b"token", b"", b"x"],
        [b"x"] * HEAD,
        [*[b""] * (MAX_STACK + 1), b"MDPC01", b"echo", b"x"],
        [],
    ],
)
def test_what_is_no_request_has_no_answer_however_large(frames: list[bytes]) -> None:
    core = BrokerCore()
    core.too_large("somebody", frames, "too much", 0.0)
    assert core.take_output() == []


def test_a_client_that_vanishes(broker: Broker) -> None:
    before = broker.core.stats["replies"]
    for _ in range(20):
        with zmq.Context.instance().socket(zmq.DEALER) as dealer:
            dealer.connect(address(broker))
            dealer.send_multipart([b"MDPC02", b"\1", b"echo", b"x"])
    until(lambda: broker.core.stats["replies"] >= before + 20)


def test_a_client_that_does_not_read(broker: Broker, dealer: zmq.Socket[bytes]) -> None:
    dealer.rcvhwm = 1
    before = broker.core.stats["requests"]
    for _ in range(2000):
        dealer.send_multipart([b"MDPC02", b"\1", b"mmi.service", b"echo"])
    all_is_well(broker)
    until(lambda: broker.core.stats["requests"] >= before + 2000)


def test_a_req_socket_is_a_fine_client(broker: Broker) -> None:
    with zmq.Context.instance().socket(zmq.REQ) as client:
        client.connect(address(broker))
        for head in ([b"MDPC01", b"echo"], [b"MDPC02", b"\1", b"echo"]):
            client.send_multipart([*head, b"x"])
            assert client.recv_multipart()[-2:] == [b"echo", b"x"]


class Stumbling:
    """A core that stumbles over one message."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def receive(self, peer: Any, frames: list[bytes], *rest: Any) -> None:
        if frames[-1:] == [b"stumble"]:
            raise OverflowError("too large")
        self._core.receive(peer, frames, *rest)


def test_a_message_that_makes_it_stumble_ends_nothing(
    broker: Broker, dealer: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No message is known that does. Its sender is given up: a request in hand goes to another worker."""
    monkeypatch.setattr(broker, "core", Stumbling(broker.core))
    dealer.send_multipart([b"MDPW02", b"\1", b"slow"])
    with Pipeline(address(broker), timeout=60) as client, Worker("echo", lambda frames: frames, address(broker)):
        client.send("slow", b"x")
        assert dealer.recv_multipart() == [b"MDPW02", b"\5"]
        token = dealer.recv_multipart()[2]
        dealer.send_multipart([b"MDPW02", b"\4", token, b"", b"stumble"])
        with Worker("slow", lambda frames: b"done", address(broker)):
            reply = client.receive()
    assert reply is not None
    assert reply.body == [b"done"]
    assert "a message could not be handled" in caplog.text


def test_nobody_is_harmed_while_a_message_of_many_frames_is_thrown_away(
    broker: Broker, dealer: zmq.Socket[bytes]
) -> None:
    before = broker.core.stats["malformed"]
    dealer.send_multipart([b"MDPC02", b"\1", b"echo", *[b""] * (5 * MOST_FRAMES)])
    until(lambda: broker.core.stats["malformed"] > before)
    all_is_well(broker)
    assert dealer.recv_multipart()[3] == b"MDPE01"
    dealer.send_multipart([b"MDPC02", b"\1", b"echo", b"x"])
    assert dealer.recv_multipart()[-1] == b"x"


def test_answers_for_a_peer_that_has_gone_cost_no_more_the_more_there_are() -> None:
    broker, count = Broker(), 10_000
    for number in range(count):
        broker.core.receive(b"gone", [b"%d" % number, b"", b"MDPC02", b"\1", b"mmi.none", b""], 0.0)
    before = time.thread_time()
    broker.flush(0.0)
    assert broker.core.stats["unroutable"] == count
    assert time.thread_time() - before < 2, "each looked at all the others"
    broker.close()
