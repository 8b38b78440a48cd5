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
    SIGNATURE,
    CurveClient,
    command,
    commands,
    frame,
    greeting,
    hello_2,
    message,
    null,
    properties,
    ready,
)
from zmq.utils import z85

from broker import Broker, BrokerConfig, Client, Worker
from broker.io.sockets import MOST_FRAMES

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

HUGE = (1 << 63).to_bytes(8, "big")

ENDED = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a wrong signature": b"\xff" + bytes(9) + greeting()[10:],
    "1.0": b"\x01\x00" + message(*ASK),
    "1.0 with a long size": b"\xff" + bytes(7) + b"\x01\x00",
    "revision 0": SIGNATURE + b"\x00\x05" + bytes(60),
    "PLAIN": greeting(b"PLAIN"),
    "CURVE": greeting(b"CURVE"),
    "GSSAPI": greeting(b"GSSAPI"),
    "a greeting that goes on": greeting() + bytes(100),
    "a message before READY": greeting() + message(*ASK),
    "a PING before READY": greeting() + command(b"PING", b"\0\0"),
    "READY over the limit": greeting() + ready(X=bytes(10_000)),
    "READY of 2^63 bytes": greeting() + b"\x06" + HUGE,
    "READY cut": greeting() + command(b"READY", properties(Socket_Type=b"DEALER")[:-1]),
    "no name": greeting() + frame(b"", 4),
    "identity of 256": null(Identity=b"x" * 256),
    "identity of zero": null(Identity=b"\0x"),
    "a SUB": greeting() + ready(b"SUB"),
    "ERROR": greeting() + command(b"ERROR", b"\x02no"),
    "2.0, a SUB": hello_2(2),
    "2.0, identity of zero": hello_2(5, b"\0x"),
    "2.0, a frame of 2^63": hello_2() + b"\x02" + HUGE,
    "2.0, a command": hello_2() + command(b"PING", b"\0\0"),
    "a frame of 2^63": null() + message(*ASK) + b"\x02" + HUGE,
    "a frame of 2^64 - 1, with more": null() + b"\x03" + b"\xff" * 8,
    "a command over the limit": null() + command(b"x", bytes(9000)),
    "a command of 2^63": null() + b"\x06" + HUGE,
    "reserved flags": null() + b"\x08\x00",
    "a command with more": null() + frame(b"\x04PING\0\0", 5),
    "a PING without a time": null() + command(b"PING", b"\0"),
    "ERROR after the handshake": null() + command(b"ERROR"),
    "frames without an end": null() + frame(b"", 1) * (66 * MOST_FRAMES),
}


@pytest.mark.parametrize("what", ENDED)
def test_it_is_ended(plain: Place, what: str) -> None:
    with plain.connect() as peer:
        with suppress(ConnectionError):
            peer.sendall(ENDED[what])
        heard_until_the_end(peer)
    plain.is_well()


@pytest.mark.parametrize("what", ["a wrong signature", "a message before READY", "a frame of 2^63"])
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


GOOD = {
    "null": (null() + message(*ASK), message(*ANSWER)),
    "3.0": (null(version=b"\3\0") + message(*ASK), message(*ANSWER)),
    "2.0": (hello_2() + message(*ASK), message(*ANSWER)),
    "unknown commands": (
        null() + command(b"x") + command(b"READY") + frame(ASK[0], 1) + command(b"SUBSCRIBE", b"a") + message(*ASK[1:]),
        message(*ANSWER),
    ),
    "PING": (null() + command(b"PING", b"\0\1context"), command(b"PONG", b"context")),
}


@pytest.mark.parametrize("what", GOOD)
def test_one_byte_at_a_time(plain: Place, what: str) -> None:
    said, answer = GOOD[what]
    with plain.connect() as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(said)):
            peer.sendall(said[at : at + 1])
        got = b""
        while not got.endswith(answer):
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


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("what", ["null", "2.0"])
def test_it_breaks_off_at_each_byte(plain: Place, what: str, reset: bool) -> None:
    said, _ = GOOD[what]
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


def nonce_of(number: int) -> bytes:
    return number.to_bytes(8, "big")


def zero_transient(client: CurveClient) -> bytes:
    client.transient = bytes(32)
    return client.hello()


STARTS: dict[str, Callable[[CurveClient], bytes]] = {
    "NULL": lambda client: null() + message(*ASK),
    "2.0": lambda client: hello_2() + message(*ASK),
    "two servers": lambda client: greeting(b"CURVE", as_server=True) + client.hello(),
    "INITIATE first": lambda client: greeting(b"CURVE") + command(b"INITIATE", bytes(300)),
    "a MESSAGE first": lambda client: greeting(b"CURVE") + frame(b"\x07MESSAGE" + bytes(60)),
    "HELLO of zeros": lambda client: greeting(b"CURVE") + command(b"HELLO", bytes(194)),
    "HELLO with a zero key": lambda client: greeting(b"CURVE") + zero_transient(client),
    "HELLO with another version": lambda client: greeting(b"CURVE") + client.hello(version=b"\2\0"),
    "HELLO cut": lambda client: greeting(b"CURVE") + command(b"HELLO", commands(client.hello())[0][1][6:-1]),
    "HELLO that goes on": lambda client: (
        greeting(b"CURVE") + command(b"HELLO", commands(client.hello())[0][1][6:] + b"x")
    ),
    "HELLO to another server": lambda client: greeting(b"CURVE") + CurveClient(client.public).hello(),
    "HELLO twice": lambda client: greeting(b"CURVE") + client.hello() * 2,
}


@pytest.mark.parametrize("what", STARTS)
def test_a_wrong_start_with_keys(secured: Place, what: str) -> None:
    with secured.connect() as peer:
        peer.sendall(STARTS[what](Known()))
        assert b"\x05READY" not in heard_until_the_end(peer)
    secured.is_well()


def with_nonce(client: CurveClient, number: int) -> bytes:
    client.nonce = number
    return client.initiate()


def with_key(client: CurveClient, public: bytes) -> bytes:
    client.public = public
    return client.initiate()


INITIATES: dict[str, Callable[[CurveClient], bytes]] = {
    "another's nonce": lambda client: with_nonce(client, 0),
    "a zero key": lambda client: with_key(client, bytes(32)),
    "a key that it has not": lambda client: with_key(client, z85.decode(SERVER.public)),
    "a key that nobody has": lambda client: with_key(client, CurveClient(client.server).public),
    "a vouch of zeros": lambda client: client.initiate(vouch=bytes(96)),
    "an identity": lambda client: client.initiate(metadata=properties(Socket_Type=b"DEALER", Identity=b"me")),
    "an identity of 256": lambda client: client.initiate(metadata=properties(Socket_Type=b"REQ", Identity=b"x" * 256)),
    "metadata cut": lambda client: client.initiate(metadata=properties(Socket_Type=b"DEALER")[:-1]),
    "cut": lambda client: command(b"INITIATE", client.cookie),
    "a changed bit": lambda client: with_last_bit_changed(client.initiate()),
    "READY": lambda client: ready(),
    "over the limit": lambda client: client.initiate(metadata=properties(Socket_Type=b"DEALER", X=bytes(9000))),
}


@pytest.mark.parametrize("what", INITIATES)
def test_a_wrong_initiate(secured: Place, what: str) -> None:
    with secured.connect() as peer:
        client = Known()
        welcomed(peer, client)
        peer.sendall(INITIATES[what](client))
        assert b"\x05READY" not in heard_until_the_end(peer)
    secured.is_well()


def test_an_initiate_that_is_replayed(secured: Place) -> None:
    """All that a good client said, on other connections, while it is there and when it has gone."""
    with secured.connect() as first:
        client = Known()
        hello = client.hello()
        first.sendall(greeting(b"CURVE") + hello)
        client.welcome(commands(heard(first, 234)[64:])[0][1][8:])
        said = client.initiate() + sealed(client, ASK)
        first.sendall(said)
        for _ in range(2):
            with secured.connect() as second:
                second.sendall(greeting(b"CURVE") + hello + said)
                assert b"\x05READY" not in heard_until_the_end(second)
            first.close()
    secured.is_well()


def with_last_bit_changed(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


MESSAGES: dict[str, Callable[[CurveClient], bytes]] = {
    "in clear": lambda client: message(*ASK),
    "a PING in clear": lambda client: command(b"PING", b"\0\0"),
    "a nonce twice": lambda client: client.seal(b"x", 0, nonce_of(3)) + client.seal(b"x", 0, nonce_of(3)),
    "a nonce of the handshake": lambda client: client.seal(b"x", 0, nonce_of(2)),
    "the last nonce, and the first": lambda client: (
        client.seal(b"x", 0, nonce_of(2**64 - 1)) + client.seal(b"x", 0, nonce_of(0))
    ),
    "a changed bit": lambda client: with_last_bit_changed(client.seal(b"x")),
    "too short": lambda client: frame(b"\x07MESSAGE" + bytes(24)),
    "of 2^63 bytes": lambda client: b"\x02" + HUGE,
    "without a name": lambda client: client.seal(b"", 2),
    "ERROR": lambda client: client.seal(b"\x05ERROR", 2),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_a_wrong_message_with_keys(secured: Place, what: str) -> None:
    with secured.connect() as peer:
        client = Known()
        opened(peer, client)
        peer.sendall(MESSAGES[what](client))
        heard_until_the_end(peer)
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
