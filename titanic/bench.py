"""A first look at speed: four figures, each measured against real processes on this machine.

    accept ×1000   requests stored and acknowledged per second, 1,000 in flight
    accept ×1      the same, one at a time
    whole life     submitted, stored, executed, reply fetched, closed: per second
    MDP echo       plain requests through the broker to 10 workers and back, 1,000 in flight

Each request has a 100-byte body. Every acknowledgement is synced to disk first. The machine's own limit, synced
small writes per second, is measured in the same run: absolute figures of different machines do not compare.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from broker import Pipeline, Worker
from titanic.client import Client
from titanic.errors import TitanicError

BODY = b"x" * 100
WORKERS = 10


class Result(NamedTuple):
    """One figure."""

    name: str
    what: str
    per_second: float


def run(requests: int, folder: Path | None, progress: Callable[[str], None]) -> list[Result]:
    """Measure everything with about `requests` requests each; `folder` is where the store goes."""
    work = Path(tempfile.mkdtemp(prefix="titanic-bench-", dir=folder))
    try:
        progress("disk")
        results = [Result("disk", "synced 4 KiB writes", _disk(work))]
        with _server(work) as endpoint, _workers(endpoint), Client(endpoint, timeout=30) as client:
            for name, what, measure in (
                ("accept ×1000", "stored and acknowledged, 1,000 in flight", _accept_many),
                ("accept ×1", "stored and acknowledged, one at a time", _accept_one),
                ("whole life", f"submit to close, {WORKERS} workers", _whole_life),
                ("MDP echo", f"plain requests, {WORKERS} workers, 1,000 in flight", _echo),
            ):
                progress(name)
                results.append(Result(name, what, measure(client, requests)))
        return results
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _accept_many(client: Client, requests: int) -> float:
    return _rate(requests, lambda: client.submit_many("absent", [BODY] * requests))


def _accept_one(client: Client, requests: int) -> float:
    count = max(1, requests // 10)
    return _rate(count, lambda: [client.submit("absent", BODY) for _ in range(count)])


def _whole_life(client: Client, requests: int) -> float:
    count = max(1, requests // 4)

    def live() -> None:
        uuids = client.submit_many("echo", [BODY] * count)
        replies = dict(client.replies(uuids, timeout=120))
        if any(reply != [BODY] for reply in replies.values()):
            raise TitanicError("a reply was wrong")
        client.close_many(uuids)

    return _rate(count, live)


def _echo(client: Client, requests: int) -> float:
    with Pipeline(client.endpoint, timeout=30) as pipeline:
        return _rate(requests, lambda: [None for _ in pipeline.map("echo", [BODY] * requests)])


def _disk(folder: Path) -> float:
    """Appends with fdatasync per second."""
    count = 500
    file = os.open(folder / "probe", os.O_CREAT | os.O_WRONLY)

    def write() -> None:
        for _ in range(count):
            os.write(file, b"x" * 4096)
            os.fdatasync(file)

    try:
        return _rate(count, write)
    finally:
        os.close(file)


def _rate(count: int, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


@contextmanager
def _server(work: Path) -> Iterator[str]:
    """`titanic serve` in a process of its own."""
    endpoint = f"ipc://{work}/broker"
    log = (work / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "titanic", "serve", "--bind", endpoint, "--store", str(work / "store")],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    try:
        with Client(endpoint, timeout=0.5, retries=40) as client:
            client.stats()
        yield endpoint
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        log.close()


@contextmanager
def _workers(endpoint: str) -> Iterator[None]:
    """Echo workers in a process of their own."""
    process = multiprocessing.get_context("spawn").Process(target=_echo_worker, args=(endpoint,), daemon=True)
    process.start()
    try:
        with Client(endpoint, timeout=30) as client:
            client.call("echo", b"are you there")
        yield
    finally:
        process.terminate()
        process.join()


def _echo_worker(endpoint: str) -> None:
    Worker("echo", lambda body: body, endpoint, jobs=WORKERS).run()
