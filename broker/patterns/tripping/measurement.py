"""Round trips, measured (Guide, chapter 4, "Asynchronous Majordomo Pattern"): waiting for each reply, and not waiting.

    kind          asks with                      is answered by
    req           REQ                            a ROUTER that gives back what comes
    dealer        DEALER                         the same
    client        CLIENT (a draft)               a SERVER that gives back what comes
    majordomo     broker.Client and .Pipeline    a worker of this project, through its broker

What answers runs in a process of its own; for `majordomo` the worker and the broker in one each.
"""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

import zmq

from broker.client import Client
from broker.io import sockets
from broker.io.draft_sockets import DraftSocket
from broker.io.router import Router
from broker.pipeline import Pipeline
from broker.server import Broker
from broker.worker import Worker

BODY = b"hello"
WINDOW = 1000
"""Requests in flight without waiting: more would only fill queues."""

PATIENCE = 60_000
"""Milliseconds after which a reply is not coming any more."""


class Trips(NamedTuple):
    """What was measured: round trips a second."""

    kind: str
    synchronous: float
    asynchronous: float | None
    """None: such sockets cannot."""


def trip(kind: str, synchronous: int, asynchronous: int) -> Trips:
    """Make so many round trips of each sort. Raises MissingDrafts."""
    measure, answerers = KINDS[kind]
    with ExitStack() as stack:
        endpoint = ""
        for role in answerers:
            endpoint = stack.enter_context(_process(role, endpoint))
        return Trips(kind, *measure(endpoint, synchronous, asynchronous))


# -- asking --------------------------------------------------------------------------------------------------

Speeds = tuple[float, float | None]


def _measure(send: Callable[[], object], receive: Callable[[], int], synchronous: int, asynchronous: int) -> Speeds:
    """Wait for each reply, then keep WINDOW requests in flight. `receive` waits for replies and counts them."""
    send()
    receive()
    began = time.perf_counter()
    for _ in range(synchronous):
        send()
        receive()
    speed = synchronous / (time.perf_counter() - began)
    return speed, _measure_window(send, receive, asynchronous) if asynchronous else None


def _measure_window(send: Callable[[], object], receive: Callable[[], int], calls: int) -> float:
    sent = done = 0
    began = time.perf_counter()
    while done < calls:
        for _ in range(min(calls - sent, WINDOW - (sent - done))):
            send()
            sent += 1
        done += receive()
    return calls / (time.perf_counter() - began)


def _ask_socket(kind: int, endpoint: str, synchronous: int, asynchronous: int) -> Speeds:
    context: zmq.Context[sockets.Socket] = zmq.Context.instance()
    with context.socket(kind) as socket:
        socket.linger, socket.rcvtimeo = 0, PATIENCE
        socket.sndhwm = socket.rcvhwm = 0
        sockets.connect(socket, endpoint)
        frames = [BODY] if kind == zmq.REQ else [b"", BODY]

        def receive() -> int:
            socket.poll(PATIENCE)
            count = 0
            while sockets.receive(socket) is not None:
                count += 1
                if kind == zmq.REQ:  # it may not even ask for another one
                    break
            if not count:
                raise TimeoutError("a reply did not arrive")
            return count

        def send() -> None:
            sockets.send(socket, frames)

        return _measure(send, receive, synchronous, 0 if kind == zmq.REQ else asynchronous)


def _ask_client(endpoint: str, synchronous: int, asynchronous: int) -> Speeds:
    socket = DraftSocket("CLIENT")
    socket.connect(endpoint)

    def send() -> None:
        socket.send(BODY)

    def receive() -> int:
        last = time.monotonic() + PATIENCE / 1000
        while socket.receive(None) is None:
            if time.monotonic() > last:
                raise TimeoutError("a reply did not arrive")
        return 1

    speeds = _measure(send, receive, synchronous, asynchronous)
    socket.close(0)
    return speeds


def _ask_majordomo(endpoint: str, synchronous: int, asynchronous: int) -> Speeds:
    with Client(endpoint, timeout=PATIENCE / 1000) as client:
        speed, _ = _measure(lambda: client.call("echo", BODY), lambda: 1, synchronous, 0)
    with Pipeline(endpoint, timeout=PATIENCE / 1000) as pipeline:
        send = functools.partial(pipeline.send, "echo", BODY)
        return speed, _measure_window(send, lambda: len(pipeline.events()), asynchronous)


# -- answering -------------------------------------------------------------------------------------------------


Answerer = Callable[[str, Connection], None]
"""Gets the endpoint of the process before it, and sends its own."""


@contextmanager
def _process(role: Answerer, endpoint: str) -> Iterator[str]:
    """Run a role in a process of its own until the block ends; its endpoint comes back."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=role, args=(endpoint, theirs), daemon=True)
    process.start()
    try:
        theirs.close()
        yield str(ours.recv())
    finally:
        process.kill()
        process.join()
        ours.close()


def _echo_router(_: str, endpoints: Connection) -> None:
    router = Router(zmq.Context.instance())
    endpoints.send(router.bind("tcp://127.0.0.1:*"))
    while True:
        router.socket.poll()
        while (frames := router.receive()) is not None:
            router.send(frames[0], frames[1:])


def _echo_server(_: str, endpoints: Connection) -> None:
    server = DraftSocket("SERVER")
    endpoints.send(server.bind("tcp://127.0.0.1:*"))
    while True:
        if (got := server.receive(None)) is not None:
            server.send(*got)


def _broker(_: str, endpoints: Connection) -> None:
    broker = Broker()
    endpoints.send(broker.bind("tcp://127.0.0.1:*"))
    broker.run()


def _worker(endpoint: str, endpoints: Connection) -> None:
    endpoints.send(endpoint)
    Worker("echo", lambda frames: frames, endpoint, jobs=16).run()


KINDS: dict[str, tuple[Callable[[str, int, int], Speeds], Sequence[Answerer]]] = {
    "req": (functools.partial(_ask_socket, zmq.REQ), [_echo_router]),
    "dealer": (functools.partial(_ask_socket, zmq.DEALER), [_echo_router]),
    "client": (_ask_client, [_echo_server]),
    "majordomo": (_ask_majordomo, [_broker, _worker]),
}
"""What measures, and the processes that answer. Each gets the endpoint of the one before."""
