"""What disk, store and sockets do on this machine without Titanic: its limits."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from titanic.bench.stage import home
from titanic.store import Durability, NewRequest, open_store, remove_store
from titanic.util.processes import Children

GROUP = 100
_BODY = [b"x" * 100]


def disk(folder: Path, count: int) -> float:
    """Appends of 4 KiB with fdatasync, one after another, per second."""
    file, name = tempfile.mkstemp(dir=folder)
    try:
        start = time.perf_counter()
        for _ in range(count):
            os.write(file, b"x" * 4096)
            os.fdatasync(file)
        return count / (time.perf_counter() - start)
    finally:
        os.close(file)
        Path(name).unlink()


def store(folder: Path, count: int, url: str | None = None) -> float:
    """Requests put into a store in this process, GROUP of them in each synced commit, per second."""
    with _place(folder, url) as place, open_store(place, capacity=8 << 30) as store:
        requests = [NewRequest(b"absent", _BODY)] * GROUP
        start = time.perf_counter()
        for _ in range(max(1, count // GROUP)):
            with store.write() as transaction:
                transaction.accept(requests, time.time_ns() // 1000)
        return max(1, count // GROUP) * GROUP / (time.perf_counter() - start)


def commit(folder: Path, count: int, durability: Durability = "synced", url: str | None = None) -> float:
    """Requests put into a store in this process, each in a commit of its own, per second."""
    with (
        _place(home(folder, durability), url) as place,
        open_store(place, capacity=8 << 30, durability=durability) as store,
    ):
        start = time.perf_counter()
        for _ in range(count):
            with store.write() as transaction:
                transaction.accept([NewRequest(b"absent", _BODY)], time.time_ns() // 1000)
        return count / (time.perf_counter() - start)


@contextmanager
def _place(folder: Path | None, url: str | None) -> Iterator[str]:
    """Where a store is meanwhile: in a folder, or in a database."""
    if url is None:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            yield str(Path(place) / "store")
        return
    try:
        yield url
    finally:
        remove_store(url)


def wire_one(folder: Path, count: int) -> float:
    """As `wire`, one message in flight."""
    return wire(folder, count, 1)


def wire(folder: Path, count: int, window: int = 100) -> float:
    """Messages of five frames from a DEALER to a ROUTER in another process and back, `window` in flight, per second.

    With pyzmq's own methods, as most programs use them.
    """
    children = Children()
    with tempfile.TemporaryDirectory(prefix="w", dir=folder) as place, zmq.Context() as context:
        endpoint = f"ipc://{place}/b"
        code = "import sys; from titanic.bench import machine; machine.send_back(sys.argv[1])"
        children.start(Path(place) / "log", "-c", code, endpoint)
        try:
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger = 0
                dealer.connect(endpoint)
                _there_and_back(dealer, 1, 1)
                start = time.perf_counter()
                _there_and_back(dealer, count, window)
                return count / (time.perf_counter() - start)
        finally:
            children.end()


def _there_and_back(dealer: zmq.Socket[bytes], count: int, window: int) -> None:
    message = [b"", b"MDPC02", b"\2", b"echo", *_BODY]
    for number in range(count + window):
        if number < count:
            dealer.send_multipart(message)
        if number >= window:
            dealer.recv_multipart()


def send_back(endpoint: str) -> None:
    """Answer every message with itself: the program of the process that `wire` starts."""
    router: zmq.Socket[bytes] = zmq.Context().socket(zmq.ROUTER)
    router.bind(endpoint)
    while True:
        router.send_multipart(router.recv_multipart())
