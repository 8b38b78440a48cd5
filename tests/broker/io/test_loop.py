"""The loop and signals: a program that waits for nothing else has to hear them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from broker import Channel, Loop

PROGRAM = """
import signal, threading
from broker.io.loop import Loop

loop = Loop()
signal.signal(signal.SIGUSR1, lambda *_: loop.stop())

def elsewhere():
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # the thread that polls is not interrupted by this

before = signal.set_wakeup_fd(-1)
loop.call(lambda: threading.Timer(0.1, elsewhere).start())
loop.run()
assert signal.set_wakeup_fd(-1) == before, "left as it was"
print("ended")
"""


def test_a_signal_that_does_not_interrupt_the_poll_is_heard() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ended\n", done.stderr


class Talker(Channel):
    """A channel with a thread that calls the loop until it is to end."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._talk)
        self._thread.start()
        loop.add(self)

    def _talk(self) -> None:
        while not self._end.is_set():
            self._loop.call(lambda: None)

    def close(self) -> None:
        self._end.set()
        self._thread.join()


def test_a_loop_that_never_ran_is_closed_while_a_channels_thread_calls_it() -> None:
    for _ in range(50):
        loop = Loop()
        Talker(loop)
        loop.stop()
        loop.run()  # returns at once


def test_a_call_that_fails_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    loop, done = Loop(), []

    def fail() -> None:
        raise ValueError("of some other part")

    loop.call(fail)
    loop.call(done.append, "next")
    loop.call(loop.stop)
    loop.run()
    assert done == ["next"]
    assert "of some other part" in caplog.text
