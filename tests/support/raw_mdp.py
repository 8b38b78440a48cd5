"""Peers that speak MDP with frames written straight from the RFCs, without any code of the project."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import zmq


class RawClient:
    """An MDP 0.2 client on a DEALER socket."""

    def __init__(self, endpoint: str) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(endpoint)

    def send(self, service: bytes, *body: bytes) -> None:
        self.socket.send_multipart([b"MDPC02", b"\x01", service, *body])

    def receive(self, timeout: float = 30.0) -> list[bytes]:
        """The body of the next FINAL."""
        assert self.socket.poll(int(timeout * 1000)), "no reply"
        frames = self.socket.recv_multipart()
        assert frames[:2] == [b"MDPC02", b"\x03"], frames
        return frames[3:]

    def ask(self, service: bytes, *body: bytes) -> list[bytes]:
        self.send(service, *body)
        return self.receive()

    def submit(self, service: bytes, *body: bytes) -> bytes:
        status, uuid = self.ask(b"titanic.request", service, *body)
        assert status == b"200"
        return uuid


class RawWorker:
    """An MDP 0.2 worker that does only what it is told, and sends no heartbeats."""

    def __init__(self, endpoint: str, service: bytes, *words: bytes) -> None:
        """`words`: more of READY."""
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(endpoint)
        self.socket.send_multipart([b"MDPW02", b"\x01", service, *words])
        self.token = b""

    def take(self, timeout: float = 30.0) -> tuple[bytes, list[bytes]]:
        """The next request: its client frame and its body."""
        while True:
            assert self.socket.poll(int(timeout * 1000)), "no request"
            frames = self.socket.recv_multipart()
            if frames[1] == b"\x02":
                assert frames[3] == b""
                return frames[2], frames[4:]

    def look(self) -> list[bytes]:
        """The body of a request, if one has come; its client frame is in `token` then."""
        while self.socket.poll(0):
            frames = self.socket.recv_multipart()
            if frames[1] == b"\x02":
                self.token = frames[2]
                return frames[4:]
        return []

    def has_request(self) -> bool:
        return bool(self.look())

    def partial(self, client: bytes, *body: bytes) -> None:
        self.socket.send_multipart([b"MDPW02", b"\x03", client, b"", *body])

    def final(self, client: bytes, *body: bytes) -> None:
        self.socket.send_multipart([b"MDPW02", b"\x04", client, b"", *body])

    def leave(self) -> None:
        self.socket.send_multipart([b"MDPW02", b"\x06"])


@contextmanager
def raw_client(endpoint: str) -> Iterator[RawClient]:
    client = RawClient(endpoint)
    try:
        yield client
    finally:
        client.socket.close(0)


@contextmanager
def raw_worker(endpoint: str, service: bytes, *words: bytes) -> Iterator[RawWorker]:
    worker = RawWorker(endpoint, service, *words)
    try:
        yield worker
    finally:
        worker.socket.close(0)
