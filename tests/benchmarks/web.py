"""What a request by HTTP costs: submitted to `titanic web`, beside an empty POST of Starlette, in turns.

    python -m benchmarks.web
    python -m benchmarks.web --requests 5000 --rounds 3 --connections 64

Both run in uvicorn with httptools and uvloop, and are asked over connections that stay open, each with one request in
flight. The client is in here; it does hardly more than count bytes. Beside the rate stands the processor time of each
process for a request: on a machine with few cores the client and the server take theirs from the gateway.
"""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import cast

import click
import uvloop
from benchmarks.processor import processor_seconds
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATIENCE = 60.0
BODY = b"x" * 100
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)\r\n")


async def empty(request: Request) -> Response:
    """What Starlette does at least."""
    return Response(status_code=202)


app = Starlette(routes=[Route("/", empty, methods=["POST"])])


@dataclass
class Side:
    """What is asked."""

    name: str
    port: int
    path: str
    pids: dict[str, int]
    rates: list[float] = field(default_factory=list)
    costs: dict[str, list[float]] = field(default_factory=dict)

    def head(self) -> bytes:
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/octet-stream\r\n"
            f"Content-Length: {len(BODY)}\r\n\r\n"
        ).encode()


class Connection(asyncio.Protocol):
    """Sends a request, and the next when the answer is there."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._next()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return
        length = LENGTH.search(head + b"\r\n")
        if len(body) < (int(length[1]) if length else 0):
            return
        assert head.startswith(b"HTTP/1.1 202 "), self._answer
        self._answer = b""
        self._load.answered()
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        self._load.lost(error)

    def _next(self) -> None:
        if self._load.begin():
            self._transport.write(self._load.request)
        else:
            self._transport.close()


class Load:
    """So many requests over so many connections."""

    def __init__(self, side: Side, requests: int) -> None:
        self.request = side.head() + BODY
        self._side = side
        self._left = self._unanswered = requests
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, connections: int) -> None:
        """Returns when all are answered."""
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            await loop.create_connection(self._connection, "127.0.0.1", self._side.port)
        await self._done

    def begin(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def answered(self) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._done.set_result(None)

    def lost(self, error: Exception | None) -> None:
        if self._left >= 0 and not self._done.done():
            self._done.set_exception(error or ConnectionError("the connection was closed"))

    def _connection(self) -> Connection:
        return Connection(self)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def running(*command: str, port: int) -> Iterator[int]:
    """A process that listens at a port."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{' '.join(command)} does not listen") from None
                time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE)


async def load(side: Side, requests: int, connections: int) -> None:
    await Load(side, requests).run(connections)


def measure(side: Side, requests: int, connections: int) -> None:
    """A round."""

    uvloop.run(load(side, connections * 5, connections))  # so that all are warm
    before = {name: processor_seconds(pid) for name, pid in side.pids.items()}
    began, own = time.perf_counter(), time.process_time()
    uvloop.run(load(side, requests, connections))
    side.rates.append(requests / (time.perf_counter() - began))
    spent = {name: processor_seconds(pid) - before[name] for name, pid in side.pids.items()}
    for name, seconds in {**spent, "client": time.process_time() - own}.items():
        side.costs.setdefault(name, []).append(seconds / requests * 1e6)


@click.command()
@click.option("--requests", default=20_000, show_default=True, help="Requests of a round.")
@click.option("--rounds", default=5, show_default=True, help="Rounds of each, in turns.")
@click.option("--connections", default=64, show_default=True, help="Connections, with one request in flight each.")
def main(requests: int, rounds: int, connections: int) -> None:
    """HTTP submit beside Starlette's own empty POST."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="titanic-web-")))
        zmq, http, plain = free_port(), free_port(), free_port()
        endpoint = f"tcp://127.0.0.1:{zmq}"
        serve = ["titanic", "serve", "--store", str(folder / "store"), "--bind", endpoint, "--capacity", "4GiB"]
        server = stack.enter_context(running(*serve, port=zmq))
        web = ["titanic", "web", "--bind", f"127.0.0.1:{http}", "--endpoint", endpoint]
        gateway = stack.enter_context(running(*web, port=http))
        uvicorn = ["uvicorn", "--port", str(plain), "--no-access-log", "--log-level", "warning", "benchmarks.web:app"]
        starlette = stack.enter_context(running(*uvicorn, port=plain))
        sides = [
            Side("Starlette, empty", plain, "/", {"gateway": starlette}),
            Side("titanic web", http, "/v1/services/absent/requests", {"gateway": gateway, "server": server}),
        ]
        for _ in range(rounds):
            for side in sides:
                measure(side, requests, connections)
    for side in sides:
        costs = ", ".join(f"{name} {median(values):.0f}" for name, values in side.costs.items())
        click.echo(f"{side.name:18} {median(side.rates):8,.0f} a second   CPU, µs a request: {costs}")
    ratios = [ours / other for other, ours in zip(sides[0].rates, sides[1].rates, strict=True)]
    click.echo(f"{'':18} {median(ratios):8.2f} ×          goal: ≥ 0.5")


if __name__ == "__main__":
    main()
