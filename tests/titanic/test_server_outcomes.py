"""What becomes of a request when its worker streams, fails, dies or pretends: with the broker here, and with ours
elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from support.titanic_eventually import eventually
from support.titanic_raw import RawWorker, raw_worker
from support.titanic_serving import QUICK, serving

from broker import Broker, BrokerConfig, RemoteError, Worker
from titanic import Client, RequestFailed

WIRE = BrokerConfig(heartbeat_interval=0.5, request_expiry=0.2)


@pytest.fixture(params=["integrated", "apart"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    with ExitStack() as stack:
        if request.param == "integrated":
            endpoint = stack.enter_context(serving(tmp_path, wire=WIRE)).endpoints[0]
        else:
            broker = Broker(WIRE)
            endpoint = broker.bind("tcp://127.0.0.1:*")
            stack.enter_context(broker)
            stack.enter_context(serving(tmp_path, broker=endpoint))
        yield stack.enter_context(Client(endpoint, timeout=30))


def worker_at(client: Client, service: bytes = b"echo") -> AbstractContextManager[RawWorker]:
    return raw_worker(client.endpoint, service)


def test_an_error_after_parts_is_a_failed_attempt(client: Client) -> None:
    with worker_at(client) as worker:
        uuid = client.submit("echo", "x")
        token, _ = worker.take()
        worker.partial(token, b"part one")
        worker.final(token, b"MDPE01", b"500 oh no")
        token, _ = worker.take()
        worker.partial(token, b"one")
        worker.final(token, b"two")
        assert client.wait(uuid, 30) == [b"one", b"two"]
    assert client.show(uuid)["attempts"] == 2


def test_and_the_last_one_fails_it_for_good(client: Client) -> None:
    def handler(frames: list[bytes]) -> Iterator[bytes]:
        yield b"part one"
        raise ValueError("boom")

    with Worker("echo", handler, client.endpoint, config=QUICK):
        uuid = client.submit("echo", "x", max_attempts=2)
        with pytest.raises(RequestFailed, match="ValueError: boom"):
            client.wait(uuid, 30)
    assert client.show(uuid)["attempts"] == 2


def test_parts_of_a_worker_that_left_are_not_in_the_reply_of_the_next(client: Client) -> None:
    with worker_at(client) as first:
        uuid = client.submit("echo", "x")
        token, _ = first.take()
        first.partial(token, b"from the dead", b"and more")
        with worker_at(client) as second:
            first.leave()
            token, _ = second.take()
            second.partial(token, b"one")
            second.partial(token, b"two")
            second.final(token, b"three")
            assert client.wait(uuid, 30) == [b"one", b"two", b"three"]


def test_parts_of_a_worker_that_left_and_had_no_successor(client: Client) -> None:
    with worker_at(client) as first:
        uuid = client.submit("echo", "x")
        token, _ = first.take()
        first.partial(token, b"from the dead")
        first.leave()
        eventually(lambda: client.stats()["dispatch"]["returned"])
    assert client.reply(uuid) is None
    with worker_at(client) as second:
        token, _ = second.take()
        second.final(token, b"whole")
        assert client.wait(uuid, 30) == [b"whole"]


@pytest.mark.parametrize("status", [400, 413, 499, 503, 504])
def test_a_worker_cannot_speak_for_the_broker(client: Client, status: int) -> None:
    seen: list[list[bytes]] = []

    def handler(frames: list[bytes]) -> bytes:
        seen.append(frames)
        if len(seen) == 1:
            raise RemoteError(status, "my own word")
        return b"done"

    with Worker("echo", handler, client.endpoint, config=QUICK):
        uuid = client.submit("echo", "x")
        assert client.wait(uuid, 30) == [b"done"]
    assert client.show(uuid)["attempts"] == 2
