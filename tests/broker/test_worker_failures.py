"""A worker's handlers, threads and sockets fail: there is always an answer, and it goes on."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import script
from support.shortages import no_more_threads
from support.waiting import until

from broker import Broker, Client, RemoteError, Worker
from broker.core.mdp import Frames
from broker.handlers import HandlerThreads

# -- exceptions that fail themselves ---------------------------------------------------------------------------


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class NumberAsText(Exception):
    def __str__(self) -> str:
        return self.args[0]  # type: ignore[no-any-return]


class NoMemoryForText(Exception):
    def __str__(self) -> str:
        raise MemoryError


class _Nameless(type):
    @property
    def __name__(cls) -> str:
        raise SystemExit(1)


class NoName(Exception, metaclass=_Nameless):
    pass


FAILURES: dict[str, tuple[Callable[[], BaseException], str]] = {
    "no text": (NoText, "NoText"),
    "a number as text": (lambda: NumberAsText(404), "NumberAsText"),
    "no memory for text": (NoMemoryForText, "NoMemoryForText"),
    "no memory": (MemoryError, "MemoryError: "),
    "no name": (NoName, "the handler failed"),
    "much text": (lambda: ValueError("x" * 10_000_000), "ValueError: " + "x" * (4096 - 12)),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_there_is_a_reply_whatever_is_raised(address: str, failure: str) -> None:
    make, text = FAILURES[failure]

    def handle(frames: Frames) -> Frames:
        if frames == [b"fail"]:
            raise make()
        return frames

    with Worker("odd", handle, address), Client(address, timeout=60) as client:
        for _ in range(2):
            with pytest.raises(RemoteError) as caught:
                client.call("odd", b"fail")
            assert (caught.value.status, caught.value.text) == (500, text)
        assert client.call("odd", b"fine") == [b"fine"]


def test_a_log_that_fails_is_no_reason_to_keep_the_reply(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit("no log")

    def fail(frames: Frames) -> bytes:
        raise ValueError("no such thing")

    monkeypatch.setattr(logging.getLogger("broker.worker"), "handlers", [Broken(logging.WARNING)])
    with Worker("fails", fail, address), Client(address, timeout=60) as client:
        for _ in range(2):
            with pytest.raises(RemoteError, match="ValueError: no such thing"):
                client.call("fails", b"x")


# -- threads ---------------------------------------------------------------------------------------------------


def test_a_thread_survives_what_it_calls() -> None:
    handlers, seen, done = HandlerThreads(1), [], threading.Event()

    def fail() -> None:
        seen.append(threading.get_ident())
        raise SystemExit("a bug in this program")

    def work() -> None:
        seen.append(threading.get_ident())
        done.set()

    handlers.call(fail)
    handlers.done()
    handlers.call(work)
    assert done.wait(60)
    assert seen[0] == seen[1]
    handlers.end()


def test_a_call_waits_for_a_thread_that_is_there_when_no_other_can_be_started() -> None:
    handlers, gate, ran = HandlerThreads(3), threading.Semaphore(0), []

    def work(number: int) -> None:
        gate.acquire()
        ran.append(number)

    with no_more_threads():
        assert not handlers.call(work, 0), "there is none at all"
    assert handlers.call(work, 1)
    with no_more_threads():
        assert handlers.call(work, 2)
    gate.release(2)
    until(lambda: ran == [1, 2])
    handlers.done()
    assert handlers.call(work, 3)
    assert handlers.call(work, 4), "it is tried again"
    until(lambda: handlers.started == 3)
    gate.release(2)
    until(lambda: sorted(ran) == [1, 2, 3, 4])
    handlers.end()


def test_a_worker_without_a_thread_says_so_and_goes_on(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with Worker("echo", lambda frames: frames, address, jobs=2) as worker, Client(address, timeout=60) as client:
        until(lambda: worker.registered == 2)
        with no_more_threads():
            for _ in range(3):
                with pytest.raises(RemoteError, match="500 the worker cannot start a thread"):
                    client.call("echo", b"x")
        assert [record.levelname for record in caplog.records if record.name == "broker.handlers"] == ["WARNING"]
        assert client.call("echo", b"x") == [b"x"]


def test_a_worker_whose_loop_has_failed_is_not_registered(
    address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(now: float) -> None:
        raise ValueError("a bug in this program")

    worker = Worker("echo", lambda frames: frames, address).start()
    until(lambda: worker.registered)
    monkeypatch.setattr(worker._logs[0], "flush", fail)
    worker._loop.call(worker._loop.touch, worker._logs[0])
    until(lambda: not worker.registered)
    worker.stop()
    assert "the worker of echo has ended" in caplog.text


# -- sockets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["start", "run"])
def test_a_worker_without_sockets_comes_back_when_there_are_some(tmp_path: Path, how: str) -> None:
    address = f"ipc://{tmp_path}/broker.ipc"

    def serving() -> Broker:
        broker = Broker()
        broker.bind(address)
        return broker

    first = serving().start()
    with script("starved_worker.py", address, "echo", how) as worker:
        read = reader(worker.stdout.readline)  # type: ignore[union-attr]
        assert read("echo is registered at " + address)
        os.kill(worker.pid, signal.SIGUSR1)
        assert read("no more files")
        first.stop()  # says good-bye: the worker connects again, which needs a new socket
        assert read("lost the broker at")
        assert read(f"cannot connect to {address}: Too many open files")
        with serving(), Client(address, timeout=60) as client:
            os.kill(worker.pid, signal.SIGUSR2)
            assert client.call("echo", b"x") == [b"x"]
            assert read("echo is registered at")


def reader(next_line: Callable[[], str]) -> Callable[[str], bool]:
    """Reads on to a line with this text."""

    def read(text: str) -> bool:
        return any(text in each for each in iter(next_line, ""))

    return read


def test_a_worker_that_got_none_of_its_requests_is_to_blame_for_none() -> None:
    """The first message finds that the connection is gone, and the others would come after it."""
    broker, told = Broker(), list[list[bytes]]()
    queue = broker.connect_local(told.extend)
    words = [b"titanic:1", b"titanic:slots=3"]
    broker.core.receive(b"gone", [b"MDPW02", b"\1", b"echo", *words], time.monotonic())
    broker.core.take_output()
    for body in (b"1", b"2", b"3"):
        broker.receive_local(queue, [[b"{}", body, b"", b"MDPC02", b"\5", b"echo", body]])
    broker.flush(time.monotonic())
    assert not told
    assert len(broker.core.services[b"echo"].waiting) == 3
    broker.stop()
