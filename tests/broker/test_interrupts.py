"""Ctrl-C while a worker runs in the main thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from support.waiting import until

from broker import Client, Worker


@pytest.fixture(autouse=True)
def as_python_starts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def call(address: str, replies: list[list[bytes]]) -> threading.Thread:
    def ask() -> None:
        with Client(address, timeout=30) as client:
            replies.append(client.call("echo", "x"))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_the_request_in_hand_is_finished_and_run_returns(address: str) -> None:
    replies: list[list[bytes]] = []

    def work(frames: list[bytes]) -> list[bytes]:
        interrupt()
        return frames

    worker = Worker("echo", work, address)
    client = call(address, replies)
    worker.run()
    client.join(30)
    assert replies == [[b"x"]]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with Client(address, timeout=30) as another:
        until(lambda: not another.present("echo"))  # it said good-bye


def test_the_second_ends_it_at_once(address: str) -> None:
    asked, over = threading.Event(), threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        asked.set()
        over.wait(30)
        return frames

    worker = Worker("echo", work, address)

    def interrupt_twice() -> None:
        asked.wait(30)
        interrupt()
        while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            threading.Event().wait(0.001)
        interrupt()

    replies: list[list[bytes]] = []
    client = call(address, replies)
    threading.Thread(target=interrupt_twice).start()
    with pytest.raises(KeyboardInterrupt):
        worker.run()
    over.set()
    with Worker("echo", lambda frames: frames, address):  # what it had goes to another
        client.join(30)
    assert replies == [[b"x"]]


def test_a_handler_of_the_program_is_left_alone(address: str) -> None:
    numbers: list[int] = []
    worker = Worker("echo", lambda frames: frames, address)

    def stop(number: int, _: object) -> None:
        numbers.append(number)
        worker.stop()

    signal.signal(signal.SIGINT, stop)
    threading.Timer(0, interrupt).start()
    worker.run()
    assert numbers == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is stop
