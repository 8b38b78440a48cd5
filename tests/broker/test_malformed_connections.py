"""Connections that break ZMTP at a real broker, while a worker and a client beside them notice nothing."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from support.handshakes import address
from support.secured import SERVER, access, curve_of, new_pair, secured_broker, user
from support.torture import part
from support.waiting import PATIENCE, until
from support.zmtp_peer import (
    CurveClient,
    command,
    commands,
    greeting,
    hello_2,
    message,
    null,
    ready,
)
from zmq.utils import z85

from broker import Broker, BrokerConfig, Client, Worker

ALICE = new_pair()
ASK = [b"MDPC02", b"\1", b"echo", b"x"]
ANSWER = [b"MDPC02", b"\3", b"echo", b"x"]
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with which closing resets the connection."""


class Place:
    """A broker, its worker, and a client that asks all the time."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.broker = broker
        self.asked = 0
        self.fault: BaseException | None = None
        self._client = client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        try:
            while not self._over.is_set():
                body = b"%d" % self.asked
                assert self._client.call("echo", body) == [body]
                self.asked += 1
        except BaseException as error:
            self.fault = error

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def is_well(self) -> None:
        """The client was answered a few times more, and nobody else is connected."""
        enough = self.asked + 3
        until(lambda: self.fault is not None or self.asked >= enough)
        assert self.fault is None
        until(lambda: len(self.broker._connections) == 2)

    def connect(self) -> socket.socket:
        return socket.create_connection(address(self.broker.core.about.endpoints[0]), timeout=PATIENCE)


@contextmanager
def good(broker: Broker, worker_at: str, **key: Any) -> Iterator[Place]:
    endpoint = broker.core.about.endpoints[0]
    with ExitStack() as stack:
        worker = stack.enter_context(Worker("echo", lambda frames: frames, worker_at))
        until(lambda: worker.registered)
        connection = worker.sessions[0].connection
        client = stack.enter_context(Client(endpoint, timeout=PATIENCE, retries=0, **key))
        place = Place(broker, client)
        stack.callback(place.close)
        place.is_well()
        yield place
        place.is_well()
        assert worker.sessions[0].connection == connection, "the worker had to connect again"


@pytest.fixture(scope="module")
def plain() -> Iterator[Place]:
    broker = Broker(BrokerConfig(max_body=1000, liveness=60))
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with broker, good(broker, endpoint) as place:
        yield place


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    ipc = f"ipc://{tmp_path_factory.mktemp('worker')}/socket"
    users = access({user("alice", call=["*"]): ALICE}, {ipc: user("bob", work=["*"])})
    with (
        secured_broker(users, ["tcp://127.0.0.1:*", ipc]) as broker,
        good(broker, ipc, key=curve_of(ALICE)) as place,
    ):
        yield place


@pytest.fixture(autouse=True)
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def heard(peer: socket.socket, size: int) -> bytes:
    """The next bytes, so many."""
    got = b""
    while len(got) < size:
        data = peer.recv(size - len(got))
        assert data, f"it ended after {got!r}"
        got += data
    return got


def heard_until_the_end(peer: socket.socket) -> bytes:
    """What comes until the broker ends the connection."""
    got = b""
    with suppress(ConnectionError):
        while data := peer.recv(1 << 16):
            got += data
    return got


# -- without keys --------------------------------------------------------------------------------------------

ENDED = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "PLAIN": greeting(b"PLAIN"),
    "a message before READY": greeting() + message(*ASK),
    "a SUB": greeting() + ready(b"SUB"),
    "2.0, a command": hello_2() + command(b"PING", b"\0\0"),
    "a frame of 2^63": null() + message(*ASK) + b"\x02" + (1 << 63).to_bytes(8, "big"),
}
"""One for each kind of end: zmtp/test_connection.py has more."""


@pytest.mark.parametrize("what", ENDED)
def test_it_is_ended(plain: Place, what: str) -> None:
    with plain.connect() as peer:
        with suppress(ConnectionError):
            peer.sendall(ENDED[what])
        heard_until_the_end(peer)
    plain.is_well()


@pytest.mark.parametrize("what", ["http", "a message before READY", "a frame of 2^63"])
def test_what_comes_after_the_end_is_not_read(plain: Place, what: str) -> None:
    before = plain.broker.core.stats["malformed"]
    with plain.connect() as peer, suppress(ConnectionError):
        peer.sendall(ENDED[what])
        for _ in range(50):
            peer.sendall(null() + message(b"malformed") * 2000)
        peer.shutdown(socket.SHUT_WR)
        heard_until_the_end(peer)
    plain.is_well()
    assert plain.broker.core.stats["malformed"] == before


def test_one_byte_at_a_time(plain: Place) -> None:
    with plain.connect() as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in null() + message(*ASK):
            peer.sendall(bytes((byte,)))
        got = b""
        while not got.endswith(message(*ANSWER)):
            data = peer.recv(1 << 16)
            assert data
            got += data
    plain.is_well()


def break_off(place: Place, said: bytes, *, reset: bool) -> None:
    """Say so much, and vanish."""
    with place.connect() as peer:
        if reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        peer.sendall(said)


@pytest.mark.parametrize(("start", "reset"), [(null(), False), (hello_2(), True)], ids=["closed", "2.0, reset"])
def test_it_breaks_off_at_each_byte(plain: Place, start: bytes, reset: bool) -> None:
    said = start + message(*ASK)
    for size in range(len(said) + 1):
        break_off(plain, said[:size], reset=reset)
    plain.is_well()


# -- with keys -----------------------------------------------------------------------------------------------


class Known(CurveClient):
    """Alice, who does it by hand."""

    def __init__(self) -> None:
        super().__init__(z85.decode(SERVER.public))
        self.public, self.secret = z85.decode(ALICE.public), z85.decode(ALICE.secret)


def welcomed(peer: socket.socket, client: CurveClient) -> None:
    peer.sendall(greeting(b"CURVE") + client.hello())
    got = heard(peer, 64 + 170)
    ((_, body),) = commands(got[64:])
    client.welcome(body[8:])


def opened(peer: socket.socket, client: CurveClient) -> None:
    welcomed(peer, client)
    peer.sendall(client.initiate())
    flags, size = heard(peer, 2)
    assert flags == 4
    assert heard(peer, size)[:6] == b"\x05READY"


def sealed(client: CurveClient, frames: list[bytes]) -> bytes:
    return b"".join(client.seal(body, int(at < len(frames) - 1)) for at, body in enumerate(frames))


WRONG: dict[str, Callable[[CurveClient], bytes]] = {
    "HELLO to another server": lambda client: greeting(b"CURVE") + CurveClient(client.public).hello(),
    "another's INITIATE": lambda client: client.initiate(vouch=bytes(96)),
    "a message in clear": lambda client: message(*ASK),
}
"""At each step: zmtp/test_connection.py has more."""


@pytest.mark.parametrize("what", WRONG)
def test_it_is_ended_with_keys(secured: Place, what: str) -> None:
    with secured.connect() as peer:
        client = Known()
        if "INITIATE" in what:
            welcomed(peer, client)
        elif "message" in what:
            opened(peer, client)
        peer.sendall(WRONG[what](client))
        assert b"\x05READY" not in heard_until_the_end(peer)
    secured.is_well()


@pytest.mark.torture(short=True)
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_it_breaks_off_at_each_byte_with_keys(secured: Place, reset: bool) -> None:
    client = Known()
    start = greeting(b"CURVE") + client.hello()
    for size in part([*range(len(start) + 1)], 100):
        break_off(secured, start[:size], reset=reset)
    for size in part([*range(480)], 60):
        with secured.connect() as peer:
            if reset:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client = Known()
            welcomed(peer, client)
            peer.sendall((client.initiate() + sealed(client, ASK))[:size])
    secured.is_well()


def test_one_byte_at_a_time_with_keys(secured: Place) -> None:
    with secured.connect() as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Known()
        for byte in greeting(b"CURVE") + client.hello():
            peer.sendall(bytes((byte,)))
        client.welcome(commands(heard(peer, 234)[64:])[0][1][8:])
        for byte in client.initiate() + sealed(client, ASK):
            peer.sendall(bytes((byte,)))
        got: list[bytes] = []
        while len(got) < 1 + len(ANSWER):
            _, size = heard(peer, 2)
            got.append(heard(peer, size))
        assert [client.open(body)[1:] for body in got[1:]] == ANSWER
    secured.is_well()
