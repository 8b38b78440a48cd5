"""The loop and signals: a program that waits for nothing else has to hear them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq

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


class Relay(Channel):
    """Hands on what it is told, in its turn, to another one: three times in all."""

    def __init__(self, loop: Loop, told: list[str], *, rests: bool) -> None:
        self.rests = rests
        self.to = self
        self._loop = loop
        self._told = told
        self._words: list[str] = []
        loop.add(self)

    def tell(self, word: str) -> None:
        self._words.append(word)
        if self.rests:
            self._loop.touch(self)

    def flush(self, now: float) -> None:
        words, self._words = self._words, []
        for word in words:
            self._told.append(word)
            if len(self._told) < 3:
                self._loop.call(self.to.tell, f"{word} on")


class Inlet(Channel):
    """Ends the loop when something comes by its socket."""

    def __init__(self, loop: Loop, told: list[str], context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._loop = loop
        self._told = told
        self.socket, self.outer = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self.socket.bind("inproc://inlet")
        self.outer.connect("inproc://inlet")
        loop.add(self)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [self.socket]

    def drain(self, now: float) -> bool:
        if self.socket.poll(0):  # or else it can be written to now
            self._told.append(self.socket.recv().decode())
            self._loop.stop()
        return False

    def close(self) -> None:
        self.socket.close()
        self.outer.close()


def test_what_channels_tell_each_other_does_not_wait_for_a_poll() -> None:
    with zmq.Context() as context:
        loop, told = Loop(), list[str]()
        resting, restless = Relay(loop, told, rests=True), Relay(loop, told, rests=False)
        resting.to, restless.to = restless, resting
        inlet = Inlet(loop, told, context)
        loop.call(resting.tell, "so")
        loop.call(inlet.outer.send, b"from outside")
        loop.run()
    assert told == ["so", "so on", "so on on", "from outside"]


def test_a_channel_that_another_one_removes_in_its_turn_is_served_no_more() -> None:
    loop, told = Loop(), list[str]()
    closed: list[str] = []

    class Removing(Channel):
        def flush(self, now: float) -> None:
            if other in loop._channels:
                loop.remove(other)
                loop.call(loop.stop)

    class Other(Relay):
        def close(self) -> None:
            closed.append("closed")

    loop.add(Removing())
    other = Other(loop, told, rests=False)
    other.tell("never")
    loop.run()
    assert told == []
    assert closed == ["closed"]
