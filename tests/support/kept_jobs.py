"""Jobs that go on while their worker has no server, and raw workers that keep what they get."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Self

import zmq

from broker import Curve
from titanic import current


class Handler:
    """Notes what it is given, and waits until it may go on, or so many seconds."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.begun: list[tuple[bytes, int, int]] = []
        """Body, attempt and delivery."""
        self.cancelled = 0
        self.fails = 0
        """How many of the next ones fail."""
        self.go = threading.Event()
        self._seconds = seconds

    def __call__(self, frames: list[bytes]) -> Iterator[bytes]:
        request = current()
        self.begun.append((frames[0], request.attempt, request.delivery))
        yield b"part"
        assert self.go.wait(self._seconds or 900) or self._seconds
        self.cancelled += request.cancelled
        self.fails -= 1
        assert self.fails < 0
        yield b"done:" + frames[0]


class Keeper:
    """A raw worker that keeps its requests. It sends no heartbeats."""

    def __init__(self, endpoint: str, *frames: bytes, curve: Curve | None = None) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        if curve is not None:
            curve.apply(self.socket)
        self.socket.linger = 0
        self.socket.rcvtimeo = 30_000
        self.socket.connect(endpoint)
        self.says(*frames)

    def says(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def hears(self, command: bytes) -> list[bytes]:
        """The next message of this kind, without its head."""
        while (frames := self.socket.recv_multipart())[1] != command:
            pass
        return frames[2:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
