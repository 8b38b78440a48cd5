"""Round trips, measured (Guide, chapter 4, "Asynchronous Majordomo Pattern"): waiting for each reply, and not waiting.

    kind          asks with                      is answered by
    req           REQ                            a ROUTER that gives back what comes
    dealer        DEALER                         the same
    client        CLIENT (a draft)               a SERVER that gives back what comes
    majordomo     broker.Client and .Pipeline    a worker of this project, through its broker

What answers runs in a process of its own; for `majordomo` the worker and the broker in one each.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import zmq

from broker.client import Client
from broker.io import sockets
from broker.io.draft_sockets import DraftSocket
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


class Asker(Protocol):
    """What sends requests, and gets the replies."""

    def send(self) -> None:
        """Send a request."""

    def receive(self) -> int:
        """Wait for replies, and count them."""


def _measure(asker: Asker, synchronous: int, asynchronous: int) -> Speeds:
    """Wait for each reply, then keep WINDOW requests in flight."""
    send, receive = asker.send, asker.receive
    send()
    receive()
    began = time.perf_counter()
    for _ in range(synchronous):
        send()
        receive()
    speed = synchronous / (time.perf_counter() - began)
    return speed, _measure_window(asker, asynchronous) if asynchronous else None


def _measure_window(asker: Asker, calls: int) -> float:
    send, receive, sent, done = asker.send, asker.receive, 0, 0
    began = time.perf_counter()
    while done < calls:
        for _ in range(min(calls - sent, WINDOW - (sent - done))):
            send()
            sent += 1
        done += receive()
    return calls / (time.perf_counter() - began)


class _SocketAsker:
    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._one = socket.type == zmq.REQ
        self._frames = [BODY] if self._one else [b"", BODY]

    def send(self) -> None:
        sockets.send(self._socket, self._frames)

    def receive(self) -> int:
        self._socket.poll(PATIENCE)
        count = 0
        while sockets.receive(self._socket) is not None:
            count += 1
            if self._one:  # it may not even ask for another one
                break
        if not count:
            raise TimeoutError("a reply did not arrive")
        return count


def _ask_socket(kind: int, endpoint: str, synchronous: int, asynchronous: int) -> Speeds:
    context: zmq.Context[sockets.Socket] = zmq.Context.instance()
    with context.socket(kind) as socket:
        socket.linger, socket.rcvtimeo = 0, PATIENCE
        socket.sndhwm = socket.rcvhwm = 0
        sockets.connect(socket, endpoint)
        return _measure(_SocketAsker(socket), synchronous, asynchronous)


def _ask_req(endpoint: str, synchronous: int, asynchronous: int) -> Speeds:
    return _ask_socket(zmq.REQ, endpoint, synchronous, 0)


def _ask_dealer(endpoint: str, synchronous: int, asynchronous: int) -> Speeds:
    return _ask_socket(zmq.DEALER, endpoint, synchronous, asynchronous)


class _DraftAsker:
    def __init__(self, socket: DraftSocket) -> None:
        self._socket = socket

    def send(self) -> None:
        self._socket.send(BODY)

    def receive(self) -> int:
        last = time.monotonic() + PATIENCE / 1000
        while self._socket.receive(None) is None:
            if time.monotonic() > last:
                raise TimeoutError("a reply did not arrive")
        return 1


def _ask_client(endpoint: str, synchronous: int, asynchronous: int) -> Speeds:
    socket = DraftSocket("CLIENT")
    socket.connect(endpoint)
    speeds = _measure(_DraftAsker(socket), synchronous, asynchronous)
    socket.close(0)
    return speeds


class _ClientAsker:
    def __init__(self, client: Client) -> None:
        self._client = client

    def send(self) -> None:
        self._client.call("echo", BODY)

    def receive(self) -> int:
        return 1


class _PipelineAsker:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def send(self) -> None:
        self._pipeline.send("echo", BODY)

    def receive(self) -> int:
        return len(self._pipeline.events())


def _ask_majordomo(endpoint: str, synchronous: int, asynchronous: int) -> Speeds:
    with Client(endpoint, timeout=PATIENCE / 1000) as client:
        speed, _ = _measure(_ClientAsker(client), synchronous, 0)
    with Pipeline(endpoint, timeout=PATIENCE / 1000) as pipeline:
        return speed, _measure_window(_PipelineAsker(pipeline), asynchronous)


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
    router: sockets.Socket = zmq.Context.instance().socket(zmq.ROUTER)
    router.sndhwm = router.rcvhwm = 0  # else it drops replies that the asker is slow to take
    endpoints.send(sockets.bind(router, "tcp://127.0.0.1:*"))
    while True:
        router.poll()
        while (frames := sockets.receive(router)) is not None:
            sockets.send(router, frames)


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
    "req": (_ask_req, [_echo_router]),
    "dealer": (_ask_dealer, [_echo_router]),
    "client": (_ask_client, [_echo_server]),
    "majordomo": (_ask_majordomo, [_broker, _worker]),
}
"""What measures, and the processes that answer. Each gets the endpoint of the one before."""
