"""Several brokers: one that is killed, stopped, slow, or sends its clients and workers away."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from support.ports import free_port
from support.processes import SUPPORT, Process
from support.waiting import until

from broker import Broker, BrokerConfig, Client, Pipeline, Worker, WorkerConfig, unreachable
from broker.io.dealer import Dealer, Pulse

pytestmark = pytest.mark.usefixtures("greeted")

NOBODY = "tcp://127.0.0.1:9"
NEVER = WorkerConfig(heartbeat_interval=20, reconnect_first=1000, reconnect_most=1000)
"""A worker that would not come back within a test if it had to wait."""
QUICK = WorkerConfig(heartbeat_interval=0.05, liveness=20, reconnect_first=0.01, reconnect_most=0.05)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints are tried in the order in which they are given, and not at random."""
    monkeypatch.setattr("broker.io.dealer.shuffled", list)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that stands still is noticed in two seconds. This one may stand still for one: after two beats it knows
    nothing, and a busy machine would let it learn nothing for ever."""
    monkeypatch.setattr("broker.io.dealer.BEAT", 0.5)
    monkeypatch.setattr("broker.io.dealer.SILENCE", 2.0)
    monkeypatch.setattr("broker.client.LONGEST_POLL", 50)


@contextmanager
def broker(config: BrokerConfig | None = None) -> Iterator[str]:
    one = Broker(config)
    endpoint = one.bind("tcp://127.0.0.1:*")
    with one:
        yield endpoint


@contextmanager
def process(tmp_path: Path) -> Iterator[tuple[Process, str]]:
    """A broker in a process of its own."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with Process(SUPPORT / "server_process.py", "broker", endpoint, output=tmp_path / "broker.log") as one:
        until(lambda: not unreachable([endpoint]))
        yield one, endpoint


def test_many_spread() -> None:
    names = [f"tcp://127.0.0.1:{port}" for port in (1, 2, 3)]
    context = zmq.Context.instance()
    assert {Dealer(context, names, spread=True).server for _ in range(200)} == {*names}
    assert {Dealer(context, names).server for _ in range(20)} == {names[0]}
    assert Dealer(context, names, spread=True).servers.names == tuple(names)
    with Client(",".join(names), timeout=0.01, retries=0) as client:
        assert client.endpoint == " or ".join(names)


# -- clients -------------------------------------------------------------------------------------------------


def test_a_client_whose_broker_is_killed(tmp_path: Path, in_order: None) -> None:
    with (
        broker() as second,
        process(tmp_path) as (one, first),
        Worker("echo", lambda frames: frames, second),
        Client([first, second], timeout=60, retries=0) as client,
    ):
        assert not client.present("echo")
        one.kill()
        assert client.call("echo", b"x") == [b"x"]


def test_a_client_whose_broker_stands_still(tmp_path: Path, in_order: None, soon: None) -> None:
    """Before it connects, and while it waits."""
    with (
        broker() as second,
        process(tmp_path) as (one, first),
        Worker("echo", lambda frames: frames, second),
    ):
        with Client([first, second], timeout=60, retries=0) as client, Pipeline([first, second], timeout=60) as many:
            assert [client.present("echo"), *many.map("mmi.service", [b"echo"])] == [False, [b"404"]]
            os.kill(one.pid, signal.SIGSTOP)
            began = time.monotonic()
            assert list(many.map("echo", [b"x", b"y"])) == [[b"x"], [b"y"]]
            assert client.call("echo", b"x") == [b"x"]
        with Client([first, second], timeout=60, retries=0) as client:
            assert client.call("echo", b"x") == [b"x"]
        assert time.monotonic() - began < 60, "it is left before the time-out of a try"


def test_the_next_broker_says_whether_it_is_foreign(tmp_path: Path, in_order: None, soon: None) -> None:
    """When the first one is not there, or stands still."""
    with broker() as second, process(tmp_path) as (one, first):
        os.kill(one.pid, signal.SIGSTOP)
        for name in (NOBODY, first):
            with Client([name, second], timeout=60) as client:
                assert client.is_foreign(30) is False, name


def test_a_program_that_only_takes_long_is_not_left(in_order: None, soon: None) -> None:
    done: list[bytes] = []
    clock = threading.Event()

    def slow(frames: list[bytes]) -> list[bytes]:
        clock.wait(5)  # more than twice as long as a program may stand still
        done.append(frames[0])
        return frames

    with (
        broker() as first,
        broker() as second,
        Worker("slow", slow, first),
        Worker("slow", slow, second),
        Client([first, second], timeout=60) as client,
    ):
        assert client.call("slow", b"x") == [b"x"]
        assert done == [b"x"]


def test_all_are_gone_and_one_comes_back(in_order: None) -> None:
    first, second = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with Client([first, second, NOBODY], timeout=60, retries=0) as client:
        found: list[bool] = []
        asking = threading.Thread(target=lambda: found.append(client.present("echo")))
        asking.start()
        until(lambda: client._round_at is not None)
        one = Broker()

        def bound() -> bool:
            return one.bind(second) == second

        until(bound)
        with one:
            asking.join(30)
        assert found == [False]


FAREWELL = [b"503 draining: this node takes nothing more"]


@contextmanager
def draining() -> Iterator[tuple[str, list[int]]]:
    """A broker whose queue sends everybody away; how often it did."""
    one, asked = Broker(), []
    endpoint = one.bind("tcp://127.0.0.1:*")

    def send_away(batch: list) -> None:  # type: ignore[type-arg]
        asked.append(len(batch))
        one.reply([(request, FAREWELL) for request in batch])

    one.integrate(b"titanic.stats", send_away)
    with one:
        yield endpoint, asked


def test_a_client_that_is_sent_away(in_order: None) -> None:
    with (
        draining() as (first, asked),
        broker() as second,
        Worker("titanic.stats", lambda frames: frames, second),
        Client([first, second], timeout=60) as client,
        Pipeline([first, second], timeout=60) as many,
    ):
        assert client.call("titanic.stats", b"x") == client.call("titanic.stats", b"x") == [b"x"]
        assert asked == [1], "it stays with the other"
        assert list(many.map("titanic.stats", [b"x", b"y", b"z"])) == [[b"x"], [b"y"], [b"z"]]


def test_nobody_else_takes_it() -> None:
    """Then what the last one says is the answer, when the time is over."""
    with draining() as (first, _), draining() as (second, _):
        with Client(first) as client:
            assert client.call("titanic.stats", b"x") == FAREWELL
        with Client([first, second], timeout=2, retries=0) as client:

            def asked_in_turn() -> bool:
                """Whether each was asked again, for which there is no time if this machine stands still."""
                before = client.sent_again
                assert client.call("titanic.stats", b"x") == FAREWELL
                return client.sent_again >= before + 2

            until(asked_in_turn)


def test_what_a_worker_says_sends_nobody_away(in_order: None) -> None:
    with (
        broker() as first,
        broker() as second,
        Worker("plain", lambda frames: FAREWELL, first),
        Client([first, second], timeout=60) as client,
    ):
        assert client.call("plain", b"x") == FAREWELL
        assert client.sent_again == 0


# -- workers -------------------------------------------------------------------------------------------------


def test_a_worker_whose_broker_is_killed(tmp_path: Path, in_order: None) -> None:
    with (
        broker() as second,
        process(tmp_path) as (one, first),
        Worker("echo", lambda frames: frames, [first, NOBODY, second], jobs=2, config=NEVER) as worker,
    ):
        with Client(first, timeout=60) as client:
            assert client.call("echo", b"x") == [b"x"]
        one.kill()
        with Client(second, timeout=60) as client:
            assert client.call("echo", b"x") == [b"x"]
        until(lambda: worker.registered == 2)


def test_a_worker_that_is_sent_away(in_order: None, caplog: pytest.LogCaptureFixture) -> None:
    full = BrokerConfig(max_workers=0)
    with (
        broker(full) as first,
        broker() as second,
        caplog.at_level(logging.INFO, "broker.worker"),
        Worker("echo", lambda frames: frames, [first, second], config=NEVER),
        Client(second, timeout=60) as client,
    ):
        assert client.call("echo", b"x") == [b"x"]
    assert [record.getMessage() for record in caplog.records] == [f"echo is registered at {second}"]


def test_a_broker_that_drains(in_order: None) -> None:
    """Its workers go elsewhere, each when it is free, and so do clients of their services."""
    begun, go_on = threading.Event(), threading.Event()

    def hang(frames: list[bytes]) -> list[bytes]:
        begun.set()
        go_on.wait(60)
        return frames

    one = Broker()
    first = one.bind("tcp://127.0.0.1:*")
    with (
        one,
        broker() as second,
        Worker("echo", lambda frames: frames, [first, second], config=NEVER) as echo,
        Worker("hang", hang, [first, second], config=NEVER) as hung,
        Pipeline([first, second], timeout=60, retries=0) as many,
        Client([first, second], timeout=60, retries=0) as client,
    ):
        assert client.call("echo", b"x") == [b"x"]
        many.send("hang", b"x")
        assert begun.wait(60)
        one.wind_down()
        assert client.call("echo", b"x") == [b"x"]
        until(lambda: (echo.registered, hung.registered) == (1, 1))
        with Client(second) as other:
            until(lambda: other.present("echo"))  # it may not have been sent away yet
            assert not other.present("hang")
            go_on.set()
            assert (reply := many.receive(60)) is not None
            assert reply.body == [b"x"]
            until(lambda: other.present("hang"))


def test_a_worker_whom_all_send_away_tries_all_again(in_order: None, caplog: pytest.LogCaptureFixture) -> None:
    full = BrokerConfig(max_workers=0)
    with broker(full) as first, broker(full) as second, Worker("echo", list, [first, second], config=QUICK) as worker:
        until(lambda: "refuses workers of echo" in caplog.text)
        (session,) = worker.sessions
        until(lambda: session.connection >= 6)
        assert worker.registered == 0


# -- everywhere ----------------------------------------------------------------------------------------------


def test_a_worker_at_all_brokers_does_one_thing_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.worker_base.PATIENCE", 60.0)  # on a busy machine what is short takes long
    busy, most = 0, 0
    lock = threading.Lock()

    def work(frames: list[bytes]) -> list[bytes]:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        with lock:
            busy -= 1
        return frames

    bodies = [b"%d" % number for number in range(300)]
    with (
        broker() as first,
        broker() as second,
        Worker("echo", work, [first, second], everywhere=True, config=QUICK) as worker,
        Pipeline(first, timeout=60) as one,
        Pipeline(second, timeout=60) as two,
    ):
        until(lambda: worker.registered == 2)
        for pipeline in (one, two):
            for body in bodies:
                pipeline.send("echo", body)
        for pipeline in (one, two):
            replies = [pipeline.receive(60) for _ in bodies]
            assert sorted(reply.body[0] for reply in replies if reply) == sorted(bodies)
        until(lambda: worker.registered == 2)
        assert all(session.connection == 1 for session in worker.sessions), "short work sends it nowhere"
    assert most == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_long_work_keeps_nobody_waiting(jobs: int, caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def hang(frames: list[bytes]) -> list[bytes]:
        begun.release()
        go_on.wait(60)
        return [b"hung"]

    with (
        broker() as first,
        broker() as second,
        Worker("work", hang, [first, second], jobs=jobs, everywhere=True, config=QUICK) as worker,
        Pipeline(first, timeout=60) as one,
        Pipeline(second, timeout=60) as two,
        caplog.at_level(logging.INFO, "broker.worker"),
    ):
        until(lambda: worker.registered == 2 * jobs)
        for _ in range(jobs):
            one.send("work", b"x")
            assert begun.acquire(timeout=60)
        for _ in range(jobs):
            two.send("work", b"x")  # waits at the worker, or there is none by now
        with Worker("work", lambda frames: [b"other"], second):
            assert [reply.body for _ in range(jobs) if (reply := two.receive(60))] == [[b"other"]] * jobs
            until(lambda: worker.registered == jobs)
        go_on.set()
        assert [reply.body for _ in range(jobs) if (reply := one.receive(60))] == [[b"hung"]] * jobs
        until(lambda: worker.registered == 2 * jobs)
        two.send("work", b"x")
        assert (reply := two.receive(60)) is not None
        assert reply.body == [b"hung"]
    assert "lost the broker" not in caplog.text


def test_it_ends_while_something_waits() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang(frames: list[bytes]) -> list[bytes]:
        begun.set()
        go_on.wait(60)
        return [b"done"]

    with broker() as first, broker() as second, Pipeline(first, timeout=60) as one, Pipeline(second, timeout=60) as two:
        worker = Worker("work", hang, f"{first},{second}", everywhere=True, config=QUICK).start()
        until(lambda: worker.registered == 2)
        one.send("work", b"x")
        two.send("work", b"x")
        assert begun.wait(60)
        ending = threading.Thread(target=worker.stop)
        ending.start()
        until(lambda: any(session.stopped for session in worker.sessions))
        go_on.set()
        ending.join(60)
        with Worker("work", lambda frames: [b"other"], [first, second], everywhere=True):
            assert sorted(reply.body[0] for one in (one, two) if (reply := one.receive(60))) == [b"done", b"other"]


def test_a_broker_is_lost_while_its_request_waits(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    bodies: list[bytes] = []

    def hang(frames: list[bytes]) -> list[bytes]:
        bodies.append(frames[0])
        begun.set()
        go_on.wait(60)
        return frames

    with (
        broker() as first,
        process(tmp_path) as (two, second),
        Pipeline(first, timeout=60) as one,
        Worker("work", hang, [first, second], everywhere=True, config=QUICK) as worker,
    ):
        until(lambda: worker.registered == 2)
        one.send("work", b"one")
        assert begun.wait(60)
        with Pipeline(second, timeout=60) as lost:
            lost.send("work", b"two")
            two.kill()
        until(lambda: worker.registered == 1)
        go_on.set()
        assert (reply := one.receive(60)) is not None
        assert reply.body == [b"one"]
        one.send("work", b"three")
        assert one.receive(60) is not None
        assert bodies == [b"one", b"three"]


# -- the transport -------------------------------------------------------------------------------------------


def test_a_pulse_is_felt_while_one_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = Pulse(-1)
    silence: list[float | None] = [None]
    monkeypatch.setattr(pulse, "_look", lambda at: silence[0])
    assert pulse.beats(100.0)
    silence[0] = 50.0
    assert pulse.beats(101.0)
    assert pulse.beats(102.0)
    assert pulse.beats(102.4), "too soon to look"
    assert not pulse.beats(103.0)
    assert pulse.beats(106.0), "nobody looked for 3 s: it stood still itself"
    silence[0] = 0.1
    assert all(pulse.beats(106.0 + second) for second in range(1, 10))
