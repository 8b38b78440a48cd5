"""A running request that is closed is told so, and says how far it is: with the broker inside and elsewhere."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.raw_mdp import raw_client, raw_worker
from support.serving import QUICK, with_broker
from support.waiting import until

from broker import Worker
from broker.core.mdp import KNOWN_WORDS
from titanic import Cancelled, Client, Progress, RequestFailed, Server, current
from titanic.dispatch.transport import LocalTransport

PROTOCOL = Path(__file__).parents[3] / "titanic" / "PROTOCOL.md"


@pytest.fixture(params=["integrated", "stand-alone"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with with_broker(tmp_path, request.param, max_attempts=3, presence_most=0.1) as server:
        yield server


class Slow:
    """A handler that works until it is told to end, or until nobody wants its reply."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.cancelled: list[str] = []

    def __call__(self, frames: list[bytes]) -> str:
        request = current()
        request.progress(3, 10, "pages")
        self.begun.set()
        while not self.go_on.wait(0.01):
            try:
                request.check()
            except Cancelled:
                self.cancelled.append(request.uuid)
                raise
        return "done"


def working(server: Server, handler: Callable[[list[bytes]], Any]) -> Worker:
    return Worker("echo", handler, server.endpoints[0], config=QUICK)


def test_a_handler_learns_that_its_request_was_closed(server: Server, client: Client) -> None:
    slow = Slow()
    with working(server, slow):
        uuid = client.submit("echo", "x")
        assert slow.begun.wait(30)
        client.close(uuid)
        until(lambda: slow.cancelled == [uuid])
        slow.go_on.set()
        assert client.wait(client.submit("echo", "y"), 30) == [b"done"]
    assert server.dispatcher.stats()["running"] == 0


def test_an_attempt_beyond_its_limit_is_cancelled(server: Server, client: Client) -> None:
    slow = Slow()
    with working(server, slow):
        uuid = client.submit("echo", "x", limit=0.1, max_attempts=1)
        with pytest.raises(RequestFailed, match="no reply within its limit"):
            client.wait(uuid, 30)
        assert slow.cancelled == [uuid], "the attempt has failed when its worker ended it"
        slow.go_on.set()
        assert client.wait(client.submit("echo", "y"), 30) == [b"done"]


def test_how_far_it_is_can_be_seen(server: Server, client: Client) -> None:
    slow, heard = Slow(), []
    expected: Progress = {"done": 3, "of": 10, "text": "pages"}

    def told(progress: Progress) -> None:
        heard.append(progress)
        slow.go_on.set()

    with working(server, slow):
        uuid = client.submit("echo", "x")
        until(lambda: client.show(uuid).get("progress") == expected)
        (row,) = client.list(state="running")[0]
        assert row["progress"] == expected
        assert client.wait(uuid, 30, on_progress=told) == [b"done"]
        assert heard == [expected]
        assert not {"progress", "running_since", "worker"} & client.show(uuid).keys()
        assert row["submitted_at"] <= row["running_since"] <= client.clock() * 1e6
        here = isinstance(server.dispatcher.transport, LocalTransport)
        assert row.get("worker") == (f"{socket.gethostname()[:24]}:{os.getpid()}" if here else None)


def test_of_another_attempt_the_progress_begins_anew(server: Server, client: Client) -> None:
    seen = []

    def stumble(frames: list[bytes]) -> str:
        if not seen:
            current().progress(9)
            until(lambda: "progress" in client_of_its_own.show(uuid))
        seen.append(client_of_its_own.show(uuid).get("progress"))
        if len(seen) == 1:
            raise RuntimeError("no")
        return "done"

    with Client(server.endpoints[0], timeout=30) as client_of_its_own, working(server, stumble):
        uuid = client.submit("echo", "x", delay=0.2)
        assert client.wait(uuid, 30) == [b"done"]
    assert seen == [{"done": 9, "of": None, "text": ""}, None]


def test_a_worker_that_does_not_know_it_gets_no_such_word(server: Server, client: Client) -> None:
    with raw_worker(server.endpoints[0], b"echo") as worker:
        uuid = client.submit("echo", "x")
        token, _ = worker.take()
        client.close(uuid)
        worker.final(token, b"late")
        client.submit("echo", "y")
        frames = worker.socket.recv_multipart()
        while frames == [b"MDPW02", b"\5"]:
            frames = worker.socket.recv_multipart()
        assert (frames[1], frames[-1]) == (b"\2", b"y")


def test_what_a_raw_worker_says_and_hears(server: Server, client: Client) -> None:
    """The words themselves, as PROTOCOL.md has them."""
    with raw_client(server.endpoints[0]) as broker:
        words = json.loads(broker.ask(b"mmi.broker", b"")[0])["knows"]
    assert words == [word.decode() for word in KNOWN_WORDS]
    text = PROTOCOL.read_text()
    assert [word for word in words if f"`{word}`" not in text and f"`{word}=" not in text] == []
    with raw_worker(server.endpoints[0], b"other") as worker:
        worker.leave()
        worker.socket.send_multipart([b"MDPW02", b"\1", b"echo", b"titanic:1"])
        uuid = client.submit("echo", "x")
        token, _ = worker.take()

        def tell(said: bytes) -> Progress | None:
            worker.socket.send_multipart([b"MDPW02", b"\10", token, b"", said])
            return client.show(uuid).get("progress")

        assert [tell(said) for said in (b"x" * 2000, b"nonsense", b'{"done": true}')] == [None] * 3
        until(lambda: tell(b'{"done": 1, "more": 2}'))
        assert client.show(uuid).get("progress") == {"done": 1, "of": None, "text": ""}
        client.close(uuid)
        frames = worker.socket.recv_multipart()
        while frames == [b"MDPW02", b"\5"]:
            frames = worker.socket.recv_multipart()
        assert frames == [b"MDPW02", b"\7", token, b""]
        worker.final(token, b"late")
        until(lambda: client.stats()["running"] == 0)
