"""A first look at speed: four figures, each measured against real processes on this machine.

    accept        requests stored and acknowledged per second, 1,000 in flight
    accept-one    the same, one at a time
    life          submitted, stored, executed, reply fetched, closed: per second
    echo          plain requests through the broker to 10 workers and back, 1,000 in flight

Each request has a 100-byte body. Every acknowledgement is synced to disk first. The machine's own limit, synced
small writes per second, is measured in the same run (`disk`): absolute figures of different machines do not compare.
Each figure is taken after a warm-up a tenth as long.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker import Pipeline, Worker
from titanic.children import Children, uninterrupted
from titanic.client import Client
from titanic.errors import TitanicError

BODY = b"x" * 100
WORKERS = 10
PATIENCE = 30.0
"""Seconds to wait for one answer."""


class Result(NamedTuple):
    """One figure."""

    name: str
    what: str
    per_second: float


def run(requests: int, folder: Path | None, progress: Callable[[str], None]) -> list[Result]:
    """Measure everything with about `requests` requests each; `folder` is where the store goes."""
    work = Path(tempfile.mkdtemp(prefix="titanic-bench-", dir=folder))
    children = Children()
    try:
        progress("disk")
        results = [Result("disk", "synced writes of 4 KiB, one after another", _disk(work))]
        endpoint = _start(children, work)
        with Client(endpoint, timeout=PATIENCE) as client:
            for name, what, measure, share in (
                ("accept", "stored and acknowledged, 1,000 in flight", _accept, 1),
                ("accept-one", "stored and acknowledged, one at a time", _accept_one, 10),
                ("life", f"submit to close, {WORKERS} workers", _live, 4),
                ("echo", f"plain requests, {WORKERS} workers, 1,000 in flight", _echo, 1),
            ):
                progress(name)
                results.append(Result(name, what, _rate(max(10, requests // share), client, measure)))
        return results
    finally:
        with uninterrupted():
            children.end()
            shutil.rmtree(work, ignore_errors=True)


def echo(endpoint: str) -> None:
    """What the workers' process runs."""
    Worker("echo", lambda body: body, endpoint, jobs=WORKERS).run()


def _start(children: Children, work: Path) -> str:
    """Start the server and the workers; where they are, once they answer."""
    endpoint = f"ipc://{work}/broker"
    serve = ["serve", "--bind", endpoint, "--store", str(work / "store"), "--capacity", "64GiB"]
    children.start(work / "serve.log", "-m", "titanic", *serve)
    children.start(work / "work.log", "-c", "import sys, titanic.bench as b; b.echo(sys.argv[1])", endpoint)
    with Client(endpoint, timeout=0.5, retries=int(PATIENCE / 0.5)) as client:
        client.call("echo", b"are you there")
    return endpoint


def _accept(client: Client, count: int) -> None:
    client.submit_many("absent", [BODY] * count)


def _accept_one(client: Client, count: int) -> None:
    for _ in range(count):
        client.submit("absent", BODY)


def _live(client: Client, count: int) -> None:
    uuids = client.submit_many("echo", [BODY] * count)
    for _, reply in client.replies(uuids, timeout=PATIENCE + count / 10):
        if reply != [BODY]:
            raise TitanicError("a reply was wrong", repr(reply))
    client.close_many(uuids)


def _echo(client: Client, count: int) -> None:
    with Pipeline(client.endpoint, timeout=PATIENCE) as pipeline:
        if any(reply != [BODY] for reply in pipeline.map("echo", [BODY] * count)):
            raise TitanicError("a reply was wrong")


def _rate(count: int, client: Client, work: Callable[[Client, int], None]) -> float:
    work(client, count // 10)
    start = time.perf_counter()
    work(client, count)
    return count / (time.perf_counter() - start)


def _disk(folder: Path) -> float:
    """Appends with fdatasync per second."""
    count = 500
    file = os.open(folder / "probe", os.O_CREAT | os.O_WRONLY)
    try:
        start = time.perf_counter()
        for _ in range(count):
            os.write(file, b"x" * 4096)
            os.fdatasync(file)
        return count / (time.perf_counter() - start)
    finally:
        os.close(file)
