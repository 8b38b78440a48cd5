"""Which sockets have input: asked of the kernel, and never missed."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from support.waiting import until

from broker.io.loop import Poller

Socket = zmq.Socket[bytes]


Pair = Callable[[], tuple[Socket, Socket]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Makes two connected sockets."""
    context: zmq.Context[Socket] = zmq.Context()
    sockets: list[Socket] = []

    def make() -> tuple[Socket, Socket]:
        here, there = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        sockets.extend((here, there))
        there.connect(f"tcp://127.0.0.1:{here.bind_to_random_port('tcp://127.0.0.1')}")
        return here, there

    yield make
    for socket in sockets:
        socket.close(linger=0)
    context.term()


@pytest.fixture
def poller() -> Iterator[Poller[str]]:
    poller: Poller[str] = Poller()
    yield poller
    poller.close()


def add(poller: Poller[str], owner: str, socket: Socket) -> None:
    """The first look tells that the socket can be written to."""
    until(lambda: socket.EVENTS & zmq.POLLOUT)
    poller.set(owner, [socket])
    assert poller.has_input(owner)
    assert not poller.has_input(owner)


def comes(poller: Poller[str], owner: str) -> bool:
    """Whether the poller tells of a message, at last: it may tell of other things, too."""
    return until(lambda: poller.has_input(owner) or (owner in poller.wait(0.1) and poller.has_input(owner)))


def test_it_tells_of_what_comes_to_a_socket_that_had_nothing(pair: Pair, poller: Poller[str]) -> None:
    here, there = pair()
    add(poller, "a", here)
    for number in range(100):
        assert not poller.has_input("a")
        there.send(b"%d" % number)
        assert comes(poller, "a")
        assert here.recv(zmq.DONTWAIT) == b"%d" % number


def test_what_a_send_has_taken_in_is_seen_by_looking(pair: Pair, poller: Poller[str]) -> None:
    """The trap: after that the file is not readable."""
    here, there = pair()
    add(poller, "a", here)
    there.send(b"x")
    until(lambda: "a" in poller.wait(0.1))
    here.send(b"y")
    until(lambda: poller.has_input("a"))
    assert poller.wait(0) == []
    assert poller.has_input("a")


def test_it_tells_when_a_connection_comes_and_goes(poller: Poller[str], tmp_path: Path) -> None:
    """Of a socket that can be written to only while there is one."""
    context: zmq.Context[Socket] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as here, context.socket(zmq.ROUTER) as there:
        here.linger = there.linger = 0
        here.immediate = True
        here.connect(f"ipc://{tmp_path}/there")
        poller.set("a", [here])
        assert not poller.has_input("a")
        there.bind(f"ipc://{tmp_path}/there")
        assert comes(poller, "a")
        here.send(b"x", zmq.DONTWAIT)
        assert not poller.has_input("a")
        there.close()
        assert comes(poller, "a")
        with pytest.raises(zmq.Again):
            here.send(b"x", zmq.DONTWAIT)


def test_it_tells_of_a_loss_when_it_never_saw_the_connection_without_a_message(
    poller: Poller[str], tmp_path: Path
) -> None:
    context: zmq.Context[Socket] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as here, context.socket(zmq.ROUTER) as there:
        here.linger = there.linger = 0
        here.immediate = True
        there.bind(f"ipc://{tmp_path}/there")
        here.connect(f"ipc://{tmp_path}/there")
        until(lambda: here.EVENTS & zmq.POLLOUT)
        here.send(b"x", zmq.DONTWAIT)
        there.send_multipart([there.recv_multipart()[0], b"y"])
        until(lambda: here.EVENTS & zmq.POLLIN)
        poller.set("a", [here])
        assert poller.has_input("a")
        assert here.recv(zmq.DONTWAIT) == b"y"
        there.close()
        until(lambda: not here.EVENTS)
        assert poller.has_input("a"), "it is gone"
        assert not poller.has_input("a")


def test_one_that_was_taken_away_for_a_time_misses_nothing(pair: Pair, poller: Poller[str]) -> None:
    here, there = pair()
    poller.set("a", [here])
    poller.set("a", [])
    there.send(b"x")
    until(lambda: here.EVENTS & zmq.POLLIN)
    assert not poller.has_input("a")
    poller.set("a", [here])
    assert poller.has_input("a")


def test_the_number_of_a_closed_socket_may_be_anothers_by_now(pair: Pair, poller: Poller[str]) -> None:
    old, other = pair()
    poller.set("a", [old])
    number = old.FD
    other.close(linger=0)  # first: it would connect again, and its new connection could have the number
    old.close(linger=0)
    until(lambda: not Path(f"/proc/self/fd/{number}").exists())
    new, there = pair()
    others = []
    while number not in (new.FD, there.FD):  # the kernel gives out the lowest that is free
        assert len(others) < 100
        others.append(new)
        new, there = pair()
    if number == there.FD:
        new, there = there, new
    add(poller, "b", new)
    poller.set("a", [])
    there.send(b"x")
    assert comes(poller, "b")


def test_files_have_no_owner(poller: Poller[str]) -> None:
    read, write = os.pipe()
    poller.watch(read, None, None, selectors.EVENT_READ)
    assert poller.wait(0) == []
    os.write(write, b"x")
    assert poller.wait(None) == [None]
    os.close(read)
    os.close(write)
