"""Workers of several services and slots, by titanic/PROTOCOL.md alone: raw frames, and a program for Node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest
import zmq
from support.made_programs import in_node, needs, shared_folder
from support.waiting import PATIENCE

from broker import Broker, Client, Pipeline, Worker

pytestmark = pytest.mark.usefixtures("greeted")


@pytest.fixture
def endpoint() -> Iterator[str]:
    broker = Broker()
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with broker:
        yield endpoint


def answer(client: Pipeline) -> tuple[int, list[bytes]]:
    """The next reply, and its ticket."""
    reply = client.receive()
    assert reply is not None
    assert reply.error is None, reply.error
    return reply.ticket, reply.body


def test_raw_frames(endpoint: str) -> None:
    with Pipeline(endpoint, timeout=PATIENCE) as client, closing(zmq.Context.instance().socket(zmq.DEALER)) as socket:
        socket.linger, socket.rcvtimeo = 0, int(PATIENCE * 1000)
        socket.connect(endpoint)

        def given(service: bytes, body: bytes) -> bytes:
            while (frames := socket.recv_multipart()) == [b"MDPW02", b"\5"]:
                pass
            assert frames == [b"MDPW02", b"\11", frames[2], b"", service, body]
            return frames[2]

        words = [b"titanic:1", b"titanic:slots=3", b"titanic:service=1:slow"]
        socket.send_multipart([b"MDPW02", b"\1", b"quick", *words])
        assert socket.recv_multipart() == [b"MDPW02", b"\5"]
        first = client.send("slow", b"1")
        second = client.send("slow", b"2")
        third = client.send("quick", b"3")
        fourth = client.send("quick", b"4")
        one, three, four = given(b"slow", b"1"), given(b"quick", b"3"), given(b"quick", b"4")
        fifth = client.send("quick", b"5")
        socket.send_multipart([b"MDPW02", b"\12", b"2", three])  # not begun
        socket.send_multipart([b"MDPW02", b"\4", four, b"", b"four"])
        assert answer(client) == (fourth, [b"four"])
        three = given(b"quick", b"3")
        socket.send_multipart([b"MDPW02", b"\4", one, b"", b"one"])
        assert answer(client) == (first, [b"one"])
        two = given(b"slow", b"2")
        socket.send_multipart([b"MDPW02", b"\12", b"3"])
        five = given(b"quick", b"5")
        for token, ticket, reply in ((five, fifth, b"five"), (three, third, b"three"), (two, second, b"two")):
            socket.send_multipart([b"MDPW02", b"\4", token, b"", reply])
            assert answer(client) == (ticket, [reply])


@needs("npm", package="npm")
def test_a_worker_in_node(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    command = [*in_node(shared_folder(tmp_path_factory), "worker.cjs"), endpoint, "3", "upper", "1:other"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker,
        Pipeline(endpoint, timeout=PATIENCE) as client,
        Client(endpoint, timeout=PATIENCE) as asking,
    ):
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "registered\n"
            assert json.loads(asking.call("mmi.workers", b"")[0]) == {"upper": 3, "other": 1}
            waits = client.send("upper", b"wait")
            quick = client.send("other", b"quick")
            assert answer(client) == (quick, [b"other", b"QUICK"])
            goes = client.send("upper", b"go")
            assert dict([answer(client), answer(client)]) == {waits: [b"upper", b"WAIT"], goes: [b"upper", b"GO"]}

            last = client.send("upper", b"wait")
            assert [worker.stdout.readline() for _ in range(2)] == ["waits\n"] * 2  # the first one, and this one
            worker.terminate()
            assert answer(client) == (last, [b"upper", b"WAIT"])
            assert worker.wait(PATIENCE) == 0
            left = client.send("upper", b"left")
            with Worker("upper", lambda frames: [b"another", *frames], endpoint):
                assert answer(client) == (left, [b"another", b"left"])
        finally:
            worker.kill()
