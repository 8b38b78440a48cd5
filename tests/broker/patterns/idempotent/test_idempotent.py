"""Idempotent services: duplicates are answered and not executed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.waiting import until

from broker import Broker, Client, Pipeline, RemoteError, UsageError, Worker
from broker.core.mdp import Frames, read_error
from broker.patterns import (
    Freelance,
    FreelanceConfig,
    Idempotent,
    LazyPirate,
    Replies,
    Server,
    Shotgun,
    Stamps,
    freelance_server,
)
from broker.patterns.idempotent.core import Stamp, open_stamp


def stamp(number: int, client: bytes = b"C") -> Stamp:
    return Stamp(client, b"%d" % number)


# -- the store -----------------------------------------------------------------------------------------------


def test_the_oldest_replies_go_when_there_are_too_many() -> None:
    replies = Replies(most=3)
    for number in range(5):
        replies.put(stamp(number), [[b"x"]], 0.0)
    assert [replies.get(stamp(number), 0.0) for number in range(5)] == [None, None, [[b"x"]], [[b"x"]], [[b"x"]]]
    assert (len(replies), replies.bytes) == (3, 9)


def test_the_oldest_replies_go_when_they_are_too_large() -> None:
    replies = Replies(most_bytes=100)
    for number in range(5):
        replies.put(stamp(number), [[b"x" * 20], [b"y" * 10]], 0.0)
    assert len(replies) == 3
    replies.put(stamp(9), [[b"x" * 1000]], 0.0)
    assert (len(replies), replies.bytes) == (0, 0)


def test_replies_are_kept_for_a_while() -> None:
    replies = Replies(keep=60)
    replies.put(stamp(1), [[b"old"]], 0.0)
    replies.put(stamp(1), [[b"new"]], 30.0)
    assert replies.bytes == 5
    assert replies.get(stamp(1), 89.9) == [[b"new"]]
    assert replies.get(stamp(1), 1e6) is None
    assert replies.bytes == 0


def test_stamps() -> None:
    stamps = Stamps("me", first=7)
    assert [stamps("a", b"b"), stamps("c")] == [[b"me", b"7", b"a", b"b"], [b"me", b"8", b"c"]]
    assert Stamps().client != Stamps().client
    assert open_stamp([b"me", b"7", b"a"]) == (Stamp(b"me", b"7"), [b"a"])
    for wrong in ([], [b"me"], [b"me", b"7"], [b"", b"7", b"a"], [b"me", b"", b"a"]):
        assert open_stamp(wrong) is None
    with pytest.raises(UsageError):
        stamps()
    for settings in ({"most": 0}, {"keep": 0}):
        with pytest.raises(UsageError):
            Replies(**settings)  # type: ignore[arg-type]


# -- the wrapper ---------------------------------------------------------------------------------------------


class Account:
    """A handler that must not be called twice."""

    def __init__(self) -> None:
        self.balance = 0
        self.lock = threading.Lock()

    def pay(self, frames: Frames) -> bytes:
        with self.lock:
            self.balance += int(frames[0])
            return b"%d" % self.balance


def run(handler: Callable[[Frames], Any], *frames: bytes) -> list[Any]:
    """Every part of a reply, as a worker would send them."""
    parts, running = [], handler(list(frames))
    while True:
        try:
            parts.append(next(running))
        except StopIteration as end:
            return [*parts, end.value]


def test_a_duplicate_is_answered_and_not_executed() -> None:
    account = Account()
    pay = Idempotent(account.pay)
    assert run(pay, b"C", b"1", b"100") == [[b"100"]]
    assert run(pay, b"C", b"1", b"100") == [[b"100"]]
    assert run(pay, b"C", b"2", b"100") == [[b"200"]]
    assert run(pay, b"D", b"1", b"100") == [[b"300"]]
    assert (account.balance, pay.duplicates) == (300, 1)


def test_parts_are_kept_too() -> None:
    calls: list[Frames] = []

    def stream(frames: Frames) -> Iterator[Any]:
        calls.append(frames)
        yield "one"
        yield [b"two", b"three"]
        return b"end"

    handler = Idempotent(stream)
    expected = [[b"one"], [b"two", b"three"], [b"end"]]
    assert run(handler, b"C", b"1", b"x") == run(handler, b"C", b"1", b"x") == expected
    assert calls == [[b"x"]]


def test_what_failed_is_executed_again() -> None:
    tries = iter([ValueError("oh no"), RemoteError(409, "not now"), None])

    def fragile(frames: Frames) -> Frames:
        if (error := next(tries)) is not None:
            raise error
        return frames

    handler = Idempotent(fragile)
    with pytest.raises(ValueError, match="oh no"):
        run(handler, b"C", b"1", b"x")
    with pytest.raises(RemoteError, match="409"):
        run(handler, b"C", b"1", b"x")
    assert run(handler, b"C", b"1", b"x") == [[b"x"]]


def test_without_a_stamp_it_is_refused() -> None:
    with pytest.raises(RemoteError, match="400"):
        run(Idempotent(Account().pay), b"100")


class Hanging:
    """A handler that hangs."""

    def __init__(self) -> None:
        self.calls: list[Frames] = []
        self.go_on = threading.Event()

    def __call__(self, frames: Frames) -> Iterator[Any]:
        self.calls.append(frames)
        yield b"begun"
        self.go_on.wait(60)
        yield b"more"
        return b"done"


REPLY = [[b"begun"], [b"more"], [b"done"]]


def test_a_duplicate_of_what_is_running_waits_for_its_reply() -> None:
    hanging = Hanging()
    handler = Idempotent(hanging, patience=60)
    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(run, handler, b"C", b"1", b"x") for _ in range(3)]
        until(lambda: handler.duplicates == 2)
        hanging.go_on.set()
        assert [one.result() for one in asking] == [REPLY] * 3
    assert len(hanging.calls) == 1


def test_who_asked_before_leaves_and_the_last_gets_the_reply() -> None:
    hanging = Hanging()
    handler = Idempotent(hanging, patience=0.01)
    with ThreadPoolExecutor(5) as pool:
        asking = []
        for number in range(5):
            asking.append(pool.submit(run, handler, b"C", b"1", b"x"))
            until(lambda number=number: handler.duplicates == number)  # type: ignore[misc]
        for one in asking[:-1]:
            with pytest.raises(RemoteError, match="409 the same request was sent again"):
                one.result(60)
        hanging.go_on.set()
        assert asking[-1].result(60) == REPLY
    assert len(hanging.calls) == 1
    assert run(handler, b"C", b"1", b"x") == REPLY


def test_what_fails_while_others_wait_for_it() -> None:
    begun = threading.Event()

    def fail(frames: Frames) -> Iterator[Any]:
        yield b"begun"
        begun.wait(60)
        raise ValueError("oh no")

    handler = Idempotent(fail, patience=60)
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(run, handler, b"C", b"1", b"x") for _ in range(2)]
        until(lambda: handler.duplicates == 1)
        begun.set()
        for one in asking:
            with pytest.raises(ValueError, match="oh no"):
                one.result(60)


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_request_that_hangs_has_one_job_however_often_it_is_asked_again(pipelined: bool) -> None:
    hanging, account = Hanging(), Account()
    broker = Broker()
    endpoint = broker.bind("tcp://127.0.0.1:*")
    work = Idempotent(lambda frames: hanging(frames) if frames == [b"hang"] else account.pay(frames), patience=0.05)

    def ask() -> Frames:
        if not pipelined:
            with Client(endpoint, timeout=0.1, retries=500) as client:
                return [frame for part in client.stream("pay", "C", "1", "hang") for frame in part]
        with Pipeline(endpoint, timeout=0.1, retries=500) as pipeline:
            pipeline.send("pay", "C", "1", "hang")
            return [frame for _ in REPLY for frame in pipeline.receive(60).body]  # type: ignore[union-attr]

    with broker, Worker("pay", work, endpoint, jobs=2), ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        until(lambda: work.duplicates > 5)
        with Client(endpoint, timeout=60, retries=0) as other:
            for number in range(10):
                assert other.call("pay", "D", str(number), "1") == [b"%d" % (number + 1)]
        hanging.go_on.set()
        assert asking.result(60) == [b"begun", b"more", b"done"]
    assert len(hanging.calls) == 1


def test_clients_that_ask_again_and_again(tmp_path: Any) -> None:
    """A worker that answers too late for its client's patience, which asks again through the broker."""
    account = Account()
    slow_once = threading.Event()

    def pay(frames: Frames) -> bytes:
        if not slow_once.is_set():
            until(slow_once.is_set)
        return account.pay(frames)

    handler = Idempotent(pay)
    broker = Broker()
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with broker, Worker("pay", handler, endpoint, jobs=4), Client(endpoint, timeout=0.2, retries=100) as client:
        impatient = threading.Thread(target=lambda: (until(lambda: handler.duplicates >= 3), slow_once.set()))
        impatient.start()
        stamps = Stamps()
        assert client.call("pay", *stamps("100")) == [b"100"]
        impatient.join()
        with Pipeline(endpoint) as pipeline:
            frames = stamps("1")
            for _ in range(50):
                pipeline.send("pay", *frames)
            assert {pipeline.receive(60).body[0] for _ in range(50)} == {b"101"}  # type: ignore[union-attr]
    assert account.balance == 101
    assert handler.duplicates >= 3 + 49


def test_around_a_server_without_a_broker() -> None:
    account = Account()
    server = Server(Idempotent(account.pay))
    with server, LazyPirate(server.bind("tcp://127.0.0.1:*")) as client:
        frames = Stamps("me")("5")
        assert [client.call(*frames) for _ in range(3)] == [[b"5"]] * 3
        with pytest.raises(RemoteError, match="400"):
            client.call("5")


@pytest.mark.parametrize("model", [1, 2, 3])
def test_freelance_clients_get_the_reply_that_takes_several_tries(model: int, tmp_path: Path) -> None:
    """Models 2 and 3 send the same number at each try: what an abandoned try is told would be taken for the reply."""
    hanging = Hanging()
    handler = Idempotent(hanging, patience=0.01)
    endpoint = f"ipc://{tmp_path}/server"
    config = FreelanceConfig(timeout=0.1, retries=500)
    with freelance_server(handler, endpoint, model=model, jobs=4):
        client: Any = (
            LazyPirate(endpoint, timeout=0.1, retries=500)
            if model == 1
            else (Shotgun if model == 2 else Freelance)(endpoint, config)
        )
        with client, ThreadPoolExecutor(1) as pool:
            asking = pool.submit(client.call, *Stamps("shop")("100"))
            until(lambda: handler.duplicates > 5 or asking.done())
            hanging.go_on.set()
            assert asking.result(60) == [b"begun", b"more", b"done"]
    assert len(hanging.calls) == 1


def test_two_ways_to_one_server_are_one_question(tmp_path: Path) -> None:
    """Model 2 asks at both endpoints, and neither connection is told that the other one has asked too."""
    hanging = Hanging()
    handler = Idempotent(hanging, patience=0.01)
    endpoints = [f"ipc://{tmp_path}/{name}" for name in "ab"]
    server = Server(handler, way="numbered", jobs=4)
    for endpoint in endpoints:
        server.bind(endpoint)
    with server, Shotgun(endpoints, FreelanceConfig(timeout=60)) as client, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.call, *Stamps()("100"))
        until(lambda: server.core.superseded == 1 or asking.done())
        hanging.go_on.set()
        assert asking.result(60) == [b"begun", b"more", b"done"]


def test_a_plain_client_is_told_that_another_one_has_asked_but_not_that_it_has_itself() -> None:
    """A DEALER that asks again on its connection, and another one."""
    hanging = Hanging()
    handler = Idempotent(hanging, patience=0.01)
    server = Server(handler, jobs=4)
    endpoint = server.bind("tcp://127.0.0.1:*")
    one, two = (zmq.Context.instance().socket(zmq.DEALER) for _ in range(2))
    with server:
        for socket in (one, two):
            socket.linger, socket.rcvtimeo = 0, 30_000
            socket.connect(endpoint)
        request = [b"", *Stamps("me")("x")]
        for asked in range(3):
            one.send_multipart(request)
            until(lambda asked=asked: handler.duplicates == asked)  # type: ignore[misc]
        until(lambda: server.core.superseded == 2)
        two.send_multipart(request)
        error = read_error(one.recv_multipart()[1:])
        assert error is not None
        text = "the same request was sent again; the reply goes to its latest sender"
        assert (error.status, error.text) == (409, text)
        hanging.go_on.set()
        assert two.recv_multipart() == [b"", b"begun", b"more", b"done"]
        assert not one.poll(0)
    one.close()
    two.close()
