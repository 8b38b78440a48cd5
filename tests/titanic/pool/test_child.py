"""What a child does with what its parent sends, on real sockets."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.each import each
from support.waiting import until

from broker import DELIVERY
from titanic.pool.child import PROGRESS_INTERVAL, JobRunner, Reports, _prepare
from titanic.pool.child_messages import (
    BeginJob,
    CancelJob,
    ChildBeat,
    JobFinal,
    JobPart,
    JobProgress,
    MessageReader,
    ToParent,
    encode,
)
from titanic.pool.core import ChildConfig
from titanic.tasks import Tasks


class Parent:
    """The parent's end."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.heard: list[ToParent] = []
        self._reader: MessageReader[ToParent] = MessageReader(ToParent)  # type: ignore[arg-type]

    def begin(self, number: int, *body: bytes, service: bytes = b"echo") -> None:
        self.connection.sendall(encode(BeginJob(number, b"%016x" % number, service, False, list(body))))

    def hear(self, kind: type[Any]) -> Any:
        """The next message of a kind; beats in between are kept."""
        while True:
            for message in self.heard:
                if isinstance(message, kind):
                    self.heard.remove(message)
                    return message
            data = self.connection.recv(65_536)
            assert data, "the child has ended"
            self.heard += self._reader.feed(data)


@contextmanager
def child(**handlers: Any) -> Iterator[Parent]:
    ours, theirs = socket.socketpair()
    with ours, theirs, Path(os.devnull).open("wb") as nowhere:
        each = {name.encode(): one for name, one in handlers.items()}
        runner = JobRunner(each, ChildConfig("x", 2), theirs, Reports(nowhere.fileno()))
        thread = threading.Thread(target=runner.run, daemon=True)
        thread.start()
        yield Parent(ours)
        ours.shutdown(socket.SHUT_WR)
        thread.join(60)
        assert not thread.is_alive(), "it ends when its parent closes its side"


def refund(order: int) -> int:
    return order


@each(
    "endpoint, given, used",
    [
        ("ipc://a", (), ("ipc://a",)),
        (["ipc://a", "ipc://b"], (), ("ipc://a", "ipc://b")),
        ("ipc://a", ("ipc://b", "ipc://c"), ("ipc://b", "ipc://c")),
    ],
)
def test_its_broker_is_where_it_was_told_or_where_the_app_says(endpoint: Any, given: Any, used: Any) -> None:
    app = Tasks(endpoint, name="shop")
    app.task(refund)
    declaration, *_ = _prepare(app, ChildConfig("shop:app", endpoint=given))
    assert declaration.endpoint == used


def test_replies_parts_and_errors() -> None:
    def parts(frames: list[bytes]) -> Any:
        yield b"1"
        return b"2"

    def fails(frames: list[bytes]) -> bytes:
        raise ValueError("no")

    with child(echo=lambda frames: frames, parts=parts, fails=fails) as parent:
        parent.begin(1, b"a", b"b")
        assert parent.hear(JobFinal) == JobFinal(1, [b"a", b"b"])
        parent.begin(2, b"x", service=b"parts")
        assert parent.hear(JobPart) == JobPart(2, [b"1"])
        assert parent.hear(JobFinal) == JobFinal(2, [b"2"])
        parent.begin(3, b"x", service=b"fails")
        assert parent.hear(JobFinal) == JobFinal(3, [b"MDPE01", b"500 ValueError: no"])


def test_progress_and_cancellation() -> None:
    begun, took = threading.Event(), list[float]()

    def slow(frames: list[bytes]) -> bytes:
        delivery = DELIVERY.get()
        assert delivery is not None
        began = time.monotonic()
        for number in range(1000):
            delivery.progress(b"%d" % number)
        took.append(time.monotonic() - began)
        begun.set()
        until(lambda: delivery.is_cancelled)
        return b"cancelled"

    with child(echo=slow) as parent:
        parent.begin(1, b"x")
        assert begun.wait(60)
        heard = [parent.hear(JobProgress)]
        while heard[-1] != JobProgress(1, b"999"):
            heard.append(parent.hear(JobProgress))
        assert len(heard) <= 2 + took[0] / PROGRESS_INTERVAL, "of messages in quick succession only the last is sent"
        parent.connection.sendall(encode(CancelJob(1)) + encode(CancelJob(7)))
        assert parent.hear(JobFinal) == JobFinal(1, [b"cancelled"])


def test_its_signs_of_life_do_not_depend_on_its_requests() -> None:
    with child(echo=lambda frames: frames) as parent:
        for number in range(200):
            parent.begin(number, b"x")
            parent.hear(JobFinal)
        assert 1 <= sum(isinstance(message, ChildBeat) for message in parent.heard) <= 20
