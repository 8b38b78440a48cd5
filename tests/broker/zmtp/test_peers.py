"""Peers that are not ours, over TCP: libzmq and pyomq, with and without keys, of all types and sizes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import pyomq
import pytest
import zmq
from support.each import each
from support.waiting import PATIENCE, until
from support.zmtp_peer import hello_2, message
from zmq.utils import z85

from broker.zmtp import Connection, ConnectionFailed, Event, Failure, PeerReady, Ping
from broker.zmtp.encryption import CurveServer, CurveSession

SIZES = (0, 1, 255, 256, 8191, 8192, 100_000, 3 << 20)


class EchoServer:
    """Accepts connections, one after the other, and sends back what comes."""

    def __init__(self, keys: CurveServer | None, refusal: bytes | None = None) -> None:
        self.events: list[Event] = []
        self._keys = keys
        self._refusal = refusal
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                with connected:
                    self._serve(connected)

    def _serve(self, connected: socket.socket) -> None:
        connection = Connection(curve=self._keys and CurveSession(self._keys))
        connected.sendall(b"".join(connection.take_output()))
        with suppress(ConnectionError):
            while data := connected.recv(1 << 16):
                events = connection.receive(data)
                for event in events:
                    match event:
                        case PeerReady() if self._refusal is not None:
                            connection.refuse(self._refusal)
                        case PeerReady():
                            connection.accept()
                            if event.socket_type == b"ROUTER":
                                connection.send([b"hello"])
                            events += connection.receive(b"")
                        case list():
                            connection.send(event)
                connected.sendall(b"".join(connection.take_output()))
                self.events += [event for event in events if not isinstance(event, list)]
                if any(isinstance(event, ConnectionFailed) for event in events):
                    return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextmanager
def echoing(keys: CurveServer | None = None, refusal: bytes | None = None) -> Iterator[EchoServer]:
    server = EchoServer(keys, refusal)
    try:
        yield server
    finally:
        server.close()


def server_keys() -> tuple[bytes, CurveServer]:
    public, secret = zmq.curve_keypair()
    return public, CurveServer(z85.decode(public), z85.decode(secret))


@contextmanager
def connected(library: ModuleType, kind: int, port: int, server: bytes | None, **options: Any) -> Iterator[Any]:
    context = library.Context()
    peer = context.socket(kind)
    try:
        peer.linger = 0
        for name, value in options.items():
            setattr(peer, name, value)
        if server is not None:
            peer.curve_publickey, peer.curve_secretkey = zmq.curve_keypair()
            peer.curve_serverkey = server
        peer.connect(f"tcp://127.0.0.1:{port}")
        yield peer
    finally:
        peer.close()
        context.term()


@each(
    ("library", "kind", "secure", "identity"),
    [
        *((zmq, "DEALER", False, b"me"), (zmq, "REQ", False, b""), (zmq, "ROUTER", True, b"me")),
        *((zmq, "DEALER", True, b""), (zmq, "REQ", True, b"me"), (zmq, "ROUTER", False, b"")),
        *((pyomq, "DEALER", True, b"me"), (pyomq, "REQ", False, b"me"), (pyomq, "ROUTER", True, b"")),
    ],
)
def test_messages_of_all_sizes(library: ModuleType, kind: str, secure: bool, identity: bytes) -> None:
    public, keys = server_keys()
    options: dict[str, Any] = {"rcvtimeo": int(PATIENCE * 1000)}
    if identity:
        options["identity"] = identity
    with (
        echoing(keys if secure else None) as server,
        connected(library, getattr(library, kind), server.port, public if secure else None, **options) as peer,
    ):
        route = [] if kind != "ROUTER" else peer.recv_multipart()[:1]  # it can answer only
        for size in SIZES:
            frames = [*route, b"first", bytes([size % 251]) * size, b""]
            peer.send_multipart(frames)
            assert peer.recv_multipart() == frames
        until(lambda: bool(server.events))
    ready = server.events[0]
    assert isinstance(ready, PeerReady)
    assert (ready.socket_type, ready.identity, bool(ready.key)) == (kind.encode(), identity, secure)


def test_libzmq_learns_why_it_is_refused() -> None:
    public, keys = server_keys()
    with echoing(keys, b"400") as server, connected(zmq, zmq.DEALER, server.port, None) as peer:
        until(lambda: bool(server.events))
        assert server.events[0] == ConnectionFailed(Failure.MECHANISM, "the peer uses 'NULL', this end CURVE")
    with echoing(keys, b"400") as server, zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.curve_publickey, peer.curve_secretkey = zmq.curve_keypair()
        peer.curve_serverkey = public
        with peer.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH) as monitor:
            peer.connect(f"tcp://127.0.0.1:{server.port}")
            assert monitor.poll(PATIENCE * 1000)
            assert monitor.recv_multipart()[0][2:] == (400).to_bytes(4, "little")
            peer.disable_monitor()


@pytest.mark.parametrize("secure", [False, True], ids=["null", "curve"])
def test_heartbeats_of_libzmq_are_answered(secure: bool) -> None:
    """It would end the connection otherwise, and make another."""
    public, keys = server_keys()
    options = {"heartbeat_ivl": 20, "heartbeat_timeout": 1500, "heartbeat_ttl": 5000}
    with (
        echoing(keys if secure else None) as server,
        connected(zmq, zmq.DEALER, server.port, public if secure else None, **options),
    ):
        until(lambda: server.events.count(Ping(5.0)) > 100)  # at least 2 s
        assert sum(isinstance(event, PeerReady) for event in server.events) == 1


def test_a_device_of_version_2() -> None:
    """By hand; tests/interop/test_zmtp_peers.py has a library that speaks it alone."""
    with echoing() as server, socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as peer:
        peer.sendall(hello_2(3, b"old") + message(b"", b"x" * 300))
        expected = b"\xff" + bytes(8) + b"\x7f\x03" + b"\x06\x00\x00" + message(b"", b"x" * 300)
        got = b""
        while len(got) < len(expected):
            got += peer.recv(1000)
    assert got == expected
