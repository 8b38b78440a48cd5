"""What becomes of a request when its worker streams, fails, dies or pretends: with the broker here, and with ours
elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from support.each import each
from support.raw_mdp import RawWorker, raw_client, raw_worker
from support.relay import relay
from support.serving import QUICK, brokering, serving
from support.waiting import until

from broker import BrokerConfig, RemoteError, Worker
from broker.core.mdp import Peer
from broker.io.connections import Connections
from broker.io.sockets import MOST_BODY_FRAMES, MOST_FRAMES
from titanic import Client, RequestFailed, Server, UnknownRequest

WIRE = {"heartbeat_interval": 0.5, "liveness": 12, "request_expiry": 1.0, "max_body": 1 << 20, "worker_return": 0.0}
"""Most workers here send no heartbeats: they are dead after half a minute."""


@pytest.fixture(params=["integrated", "apart"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with ExitStack() as stack:
        if request.param == "integrated":
            yield stack.enter_context(serving(tmp_path, wire=BrokerConfig(**WIRE)))
        else:
            endpoint = stack.enter_context(brokering(**WIRE))
            yield stack.enter_context(serving(tmp_path, broker=endpoint))


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


@pytest.mark.parametrize("said", [[], [b""], [b"bad"], [b"500x no", b"detail"], [b"titanic:fatal"]], ids=repr)
def test_an_error_of_a_wrong_form_is_a_failed_attempt(
    client: Client, said: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with worker_at(client) as worker:
        uuid = client.submit("echo", "x", max_attempts=2)
        token, _ = worker.take()
        worker.final(token, b"MDPE01", *said)
        token, _ = worker.take()
        worker.partial(token, b"part one")
        worker.final(token, b"MDPE01", *said)
        with pytest.raises(RequestFailed, match=r"malformed error reply: '.*' is not a status and a text") as caught:
            client.wait(uuid, 30)
    assert caught.value.detail == said[1:]
    assert client.show(uuid)["attempts"] == 2
    assert f"the worker of {uuid} sent a malformed error reply" in caplog.text


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
        until(lambda: client.stats()["dispatch"]["returned"])
    assert client.reply(uuid) is None
    with worker_at(client) as second:
        token, _ = second.take()
        second.final(token, b"whole")
        assert client.wait(uuid, 30) == [b"whole"]


def test_a_worker_that_is_not_waited_for_is_as_good_as_dead(client: Client) -> None:
    """Another worker gets the request, and what the first one still replies is dropped."""
    begun, release, bodies = threading.Event(), threading.Event(), []

    def slow(frames: list[bytes]) -> bytes:
        bodies.append(frames[0])
        begun.set()
        assert release.wait(30)
        return b"first"

    with relay(client.endpoint) as way, Worker("echo", slow, way.endpoint, config=QUICK) as first:
        uuid = client.submit("echo", "x")
        assert begun.wait(30)
        way.reset()
        with worker_at(client) as second:  # one of another process: the next attempt runs alone in its process
            token, _ = second.take()
            second.final(token, b"second")
            assert client.wait(uuid, 30) == [b"second"]
        release.set()
        until(lambda: first.registered == 1)
        assert client.wait(client.submit("echo", "y"), 30) == [b"first"]
        assert client.reply(uuid) == [b"second"]
    assert bodies == [b"x", b"y"]


@each("status", [400, 413, 499, 503, 504])
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


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the broker sends: that of a request to a worker, and the answer to a close."""
    sent: list[str] = []
    send = Connections.send

    def note(connections: Connections, peer: Peer, frames: list[bytes]) -> None:
        if frames[4:] == [b"stored"]:
            sent.append("handed over")
        elif b"titanic.close" in frames and frames[-1] == b"200":
            sent.append("closed")
        send(connections, peer, frames)

    monkeypatch.setattr(Connections, "send", note)
    return sent


def test_what_is_closed_while_it_waits_in_the_broker_is_handed_to_no_worker(client: Client, sent: list[str]) -> None:
    with worker_at(client) as worker, raw_client(client.endpoint) as raw:
        raw.send(b"echo", b"plain")
        token, _ = worker.take()
        uuid = client.submit("echo", "stored")
        until(lambda: client.stats()["running"] == 1)
        client.close(uuid)
        worker.final(token, b"")
        raw.receive()
        client.submit("echo", "last")  # it goes the same way, behind whatever is still to come
        body: list[bytes] = []
        while body != [b"last"]:
            token, body = worker.take()
            worker.final(token, b"")
    assert sent == ["closed"]


def test_what_is_closed_while_it_is_dispatched_is_answered_when_a_worker_has_it(
    server: Server, client: Client, sent: list[str]
) -> None:
    """The close waits for the disk, and knows nothing of the worker that comes meanwhile."""
    uuid = client.submit("echo", "stored")
    with raw_client(client.endpoint) as closing:
        with server.store.write():
            closing.send(b"titanic.close", uuid.encode())
            with worker_at(client) as worker:
                token, _ = worker.take()
                closing.socket.poll(100)  # an answer now would be too early
                assert sent == ["handed over"]
                worker.final(token, b"")
        assert closing.receive() == [b"200"]
    assert sent == ["handed over", "closed"]
    with pytest.raises(UnknownRequest):
        client.reply(uuid)


def finished(client: Client, parts: list[list[bytes]], final: list[bytes], service: bytes = b"echo") -> str:
    """Have a worker give this reply; the UUID of its request."""
    with worker_at(client, service) as worker:
        uuid = client.submit(service, "x", max_attempts=1)
        token, _ = worker.take()
        for part in parts:
            worker.partial(token, *part)
        worker.final(token, *final)
        until(lambda: client.show(uuid)["state"] not in ("waiting", "running"))
        worker.leave()
    return uuid


def fetched(client: Client, uuid: str) -> list[bytes] | None:
    """The reply, which is the same however it is asked for."""
    reply = client.reply(uuid)
    assert client.wait(uuid) == reply
    assert dict(client.replies([uuid, uuid])) == {uuid: reply}
    with Client(client.endpoint, timeout=30) as other:
        assert other.call("titanic.reply", uuid) == [b"200", *(reply or [])]
    return reply


MOST = MOST_BODY_FRAMES
TAKEN = MOST_FRAMES - 5
"""Frames of a body that the broker takes from a worker, in one message."""


@pytest.mark.parametrize(
    ("server", "parts", "final"),
    [("integrated", [], MOST), ("apart", [1] * 1000, MOST - 1000)],
    ids=["one message", "many parts"],
    indirect=["server"],
)
def test_the_longest_replies_can_be_fetched(client: Client, parts: list[int], final: int) -> None:
    uuid = finished(client, [[b""] * count for count in parts], [b""] * (final - 1) + [b"end"])
    reply = fetched(client, uuid)
    assert reply is not None
    assert (len(reply), reply[-1]) == (MOST, b"end")


@pytest.mark.parametrize(
    ("server", "parts", "final"),
    [
        ("apart", [], [b""] * (MOST + 1)),
        pytest.param("integrated", [], [b""] * TAKEN, marks=pytest.mark.torture),
        pytest.param("apart", [], [b""] * TAKEN, marks=pytest.mark.torture),
        pytest.param("integrated", [[b""] * MOST], [b"end"], marks=pytest.mark.torture),
        pytest.param("apart", [[b""] * MOST], [b"end"], marks=pytest.mark.torture),
        ("integrated", [[b""] * 60_000] * 5, [b""]),
        ("apart", [], [b"MDPE01", b"500 no", *[b""] * (TAKEN - 2)]),
    ],
    indirect=["server"],
)
def test_longer_ones_fail(client: Client, parts: list[list[bytes]], final: list[bytes]) -> None:
    uuid = finished(client, parts, final)
    with pytest.raises(RequestFailed, match=r"the reply has \d+ frames; at most 99900 can be stored"):
        client.reply(uuid)


def test_of_several_long_replies_each_has_its_answer(client: Client) -> None:
    bodies = {finished(client, [], [b""] * MOST): MOST, finished(client, [], [b""] * (MOST - 3)): MOST - 3}
    first, second = bodies
    with raw_client(client.endpoint) as raw:
        status, summary, *frames = raw.ask(b"titanic.reply", f"{first}\n{second}".encode())
    assert (status, summary, len(frames)) == (b"200", b"200 %d" % MOST, MOST)
    assert {uuid: len(reply) for uuid, reply in client.replies(bodies) if isinstance(reply, list)} == bodies


def test_the_largest_replies_can_be_fetched(server: Server, client: Client) -> None:
    """Apart from its broker, the server has to send it there in one message."""
    apart, part = server.broker is None, bytes(1 << 20)
    most = (2 << 20) - (64 << 10)
    uuid = finished(client, [[part]], [bytes(most - len(part))] if apart else [part[:-1000], part])
    reply = fetched(client, uuid)
    assert reply is not None
    assert sum(map(len, reply)) == (most if apart else (3 << 20) - 1000)
    other = finished(client, [], [b"x"])
    assert len(dict(client.replies([other, uuid]))) == 2
    if apart:
        uuid = finished(client, [[part]], [bytes(most - len(part) + 1)])
        with pytest.raises(RequestFailed, match=f"the reply has {most + 1} bytes; at most {most} can be stored"):
            client.reply(uuid)
