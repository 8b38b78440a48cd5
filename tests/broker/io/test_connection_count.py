"""How many are connected to a broker: as mmi.stats has it, and whoever runs one."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from support.broker_invariants import check
from support.waiting import until

from broker import Broker, BrokerConfig, Client, Pipeline, Worker

pytestmark = pytest.mark.usefixtures("greeted")

SILENT = BrokerConfig(heartbeat_interval=60)
"""A broker whose only heartbeat within a test is the answer to a READY."""


def test_all_that_connect_are_counted_until_they_leave(tmp_path: Path) -> None:
    broker = Broker()
    tcp, ipc = broker.bind("tcp://127.0.0.1:*"), broker.bind(f"ipc://{tmp_path}/socket")
    with broker:
        with (
            Client(tcp) as client,
            Worker("echo", lambda frames: frames, ipc),
            Worker("echo", lambda frames: frames, tcp),
        ):
            until(lambda: json.loads(client.call("mmi.stats", b"")[0])["peers"] == 3)
            with socket.create_connection(("127.0.0.1", int(tcp.rpartition(":")[2]))):
                until(lambda: broker.counters()["peers"] == 4)
            until(lambda: broker.counters()["peers"] == 3)
        until(lambda: broker.counters()["peers"] == 0)


def test_a_crowd_is_counted() -> None:
    """Many that come and go while the broker does other things hold nobody up, and all are counted in the end."""
    broker = Broker()
    port = int(broker.bind("tcp://127.0.0.1:*").rpartition(":")[2])
    with broker:
        busy, free = threading.Event(), threading.Event()
        broker.loop.call(lambda: (busy.set(), free.wait(60)))
        busy.wait(60)
        for _ in range(1000):
            socket.create_connection(("127.0.0.1", port)).close()
        with socket.create_connection(("127.0.0.1", port)):
            free.set()
            until(lambda: broker.counters()["peers"] == 1)


def test_a_broker_that_never_ran_is_closed() -> None:
    broker = Broker()
    port = int(broker.bind("tcp://127.0.0.1:*").rpartition(":")[2])
    broker.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


# -- peers that have given themselves a name -----------------------------------------------------------------


@pytest.fixture(params=["tcp", "ipc"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    broker = Broker(SILENT)
    endpoint = broker.bind("tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/socket")
    with broker:
        yield endpoint
        until(lambda: not broker.counters()["peers"])
    check(broker.core)


@contextmanager
def named(endpoint: str, name: bytes, *ready: bytes) -> Iterator[zmq.Socket[bytes]]:
    """A DEALER of that name, which says this first."""
    with zmq.Context.instance().socket(zmq.DEALER) as dealer:
        dealer.routing_id = name
        dealer.reconnect_ivl = -1  # a peer that lost the name would take it again
        dealer.linger = 0
        dealer.rcvtimeo = 60_000
        dealer.connect(endpoint)
        dealer.send_multipart(ready)
        yield dealer


READY = (b"MDPW02", b"\1", b"echo")


def take(worker: zmq.Socket[bytes]) -> bytes:
    """The client frame of the request that comes next; its body is x."""
    head, command, token, empty, body = worker.recv_multipart()
    assert (head, command, empty, body) == (b"MDPW02", b"\2", b"", b"x")
    return token


def test_who_comes_back_under_its_name_is_heard(endpoint: str) -> None:
    """For the broker its former connection is still there, as when a machine vanished. What that had is not lost."""
    with Pipeline(endpoint, timeout=60) as client, named(endpoint, b"W", *READY) as gone:
        assert gone.recv_multipart() == [b"MDPW02", b"\5"]
        client.send("echo", "x")
        first = take(gone)
        with named(endpoint, b"W", *READY) as back:
            assert back.recv_multipart() == [b"MDPW02", b"\5"], "it is registered"
            second = take(back)
            assert second != first
            back.send_multipart([b"MDPW02", b"\4", second, b"", b"y"])
            reply = client.receive()
            assert reply is not None
            assert reply.body == [b"y"]
            assert not gone.poll(0)


@pytest.mark.parametrize("said", [[b"\5"], [b"\4", b"%token", b"", b"y"], [b"\3", b"%token", b"", b"y"]])
def test_a_new_connection_has_to_register(endpoint: str, said: list[bytes]) -> None:
    """A connection broke, and ZeroMQ has made another: a request may have been on its way. It goes to somebody else."""
    with (
        Pipeline(endpoint, timeout=60) as client,
        named(endpoint, b"W", *READY) as before,
    ):
        assert before.recv_multipart() == [b"MDPW02", b"\5"]
        client.send("echo", "x")
        token = take(before)
        frames = [token if frame == b"%token" else frame for frame in said]
        with named(endpoint, b"W", b"MDPW02", *frames) as after, named(endpoint, b"V", *READY) as other:
            assert after.recv_multipart() == [b"MDPW02", b"\6"]
            assert other.recv_multipart() == [b"MDPW02", b"\5"]
            other.send_multipart([b"MDPW02", b"\4", take(other), b"", b"z"])
            reply = client.receive()
            assert reply is not None
            assert reply.body == [b"z"]
            after.send_multipart(READY)
            assert after.recv_multipart() == [b"MDPW02", b"\5"]


def test_a_client_gets_its_answer_on_its_new_connection(endpoint: str) -> None:
    ask = (b"MDPC02", b"\1", b"echo", b"x")
    look = (b"MDPC02", b"\1", b"mmi.service", b"echo")
    with named(endpoint, b"C", *ask) as gone:
        gone.send_multipart(look)
        assert gone.recv_multipart()[3] == b"404"
        with named(endpoint, b"C", *ask) as client:
            client.send_multipart(look)
            assert client.recv_multipart()[3] == b"404"  # now it has the name
            with Worker("echo", lambda frames: frames, endpoint):
                assert [client.recv_multipart() for _ in range(2)] == [[b"MDPC02", b"\3", b"echo", b"x"]] * 2


def test_a_worker_whose_connection_ends_is_missed_at_once(endpoint: str) -> None:
    with Pipeline(endpoint, timeout=60) as client:
        with named(endpoint, b"W", *READY) as worker:
            assert worker.recv_multipart() == [b"MDPW02", b"\5"]
            client.send("echo", "x")
            take(worker)
        with named(endpoint, b"V", *READY) as other:
            assert other.recv_multipart() == [b"MDPW02", b"\5"]
            take(other)


@pytest.mark.parametrize("name", [b"W", b"V"])
def test_a_worker_ends_and_another_comes_while_the_broker_is_busy(name: bytes) -> None:
    """All that happened is read in one go, and the new connection mostly has the file descriptor of the old one."""
    broker = Broker(SILENT)
    endpoint = broker.bind("tcp://127.0.0.1:*")
    busy, free = threading.Event(), threading.Event()
    with broker, Pipeline(endpoint, timeout=60) as client:
        with named(endpoint, b"W", *READY) as worker:
            assert worker.recv_multipart() == [b"MDPW02", b"\5"]
            client.send("echo", "x")
            take(worker)
            broker.loop.call(lambda: (busy.set(), free.wait(60)))
            busy.wait(60)
        with named(endpoint, name, *READY) as other:
            assert not other.poll(200), "it has sent READY, and waits"
            free.set()
            if (said := other.recv_multipart()) == [b"MDPW02", b"\6"]:  # the same name and descriptor: a second READY
                assert name == b"W"
                other.send_multipart(READY)
                said = other.recv_multipart()
            assert said == [b"MDPW02", b"\5"]
            take(other)


def test_a_reply_counts_though_its_worker_has_gone(endpoint: str) -> None:
    with Pipeline(endpoint, timeout=60) as client:
        for number in range(20):
            client.send("echo", "x")
            with named(endpoint, b"W%d" % number, *READY) as worker:
                assert worker.recv_multipart() == [b"MDPW02", b"\5"]
                worker.send_multipart([b"MDPW02", b"\4", take(worker), b"", b"%d" % number])
                worker.close(1000)
            reply = client.receive(60)
            assert reply is not None
            assert reply.body == [b"%d" % number]
