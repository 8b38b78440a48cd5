"""What a request over HTTP costs: submitted to `titanic web`, beside an empty POST of Starlette, in turns.

    python -m benchmarks.web
    python -m benchmarks.web --seconds 10 --rounds 3 --connections 64

Both run in uvicorn with httptools and uvloop. wrk asks over connections that stay open, each with one request in
flight. Beside the rate stands the processor time of each process for a request: on a machine with few cores the
server, and wrk, take theirs from the gateway.
"""

from __future__ import annotations

import re
import resource
import shutil
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

import click
from benchmarks.processor import processor_seconds
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATIENCE = 60.0
WARM = 1
"""Seconds of load before a round, so that all are warm."""

SCRIPT = """
wrk.method = "POST"
wrk.body = string.rep("x", 100)
wrk.headers["Content-Type"] = "application/octet-stream"
"""


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


def load(side: Side, script: Path, seconds: int, connections: int) -> int:
    """Have a side asked for so long; how many answers there were."""
    url = f"http://127.0.0.1:{side.port}{side.path}"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s", "-s", str(script), url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"(\d+) requests in", said)
    if found is None or "Non-2xx" in said or "Socket errors" in said:
        raise SystemExit(f"{side.name} did not answer each request with success:\n{said}")
    return int(found[1])


def measure(side: Side, script: Path, seconds: int, connections: int) -> None:
    """A round."""
    load(side, script, WARM, connections)
    before = {name: processor_seconds(pid) for name, pid in side.pids.items()}
    began, own = time.perf_counter(), of_children()
    requests = load(side, script, seconds, connections)
    side.rates.append(requests / (time.perf_counter() - began))
    spent = {name: processor_seconds(pid) - before[name] for name, pid in side.pids.items()}
    for name, used in {**spent, "wrk": of_children() - own}.items():
        side.costs.setdefault(name, []).append(used / requests * 1e6)


def of_children() -> float:
    """Seconds of processor time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@click.command()
@click.option("--seconds", default=3, show_default=True, help="Seconds of a round.")
@click.option("--rounds", default=5, show_default=True, help="Rounds of each, in turns.")
@click.option("--connections", default=64, show_default=True, help="Connections, with one request in flight each.")
def main(seconds: int, rounds: int, connections: int) -> None:
    """HTTP submit beside Starlette's own empty POST."""
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed; it asks for the requests. On Debian: apt-get install wrk")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="titanic-web-")))
        script = folder / "post.lua"
        script.write_text(SCRIPT)
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
                measure(side, script, seconds, connections)
    for side in sides:
        costs = ", ".join(f"{name} {median(values):.0f}" for name, values in side.costs.items())
        click.echo(f"{side.name:18} {median(side.rates):8,.0f} a second   CPU, µs a request: {costs}")
    ratios = [ours / other for other, ours in zip(sides[0].rates, sides[1].rates, strict=True)]
    click.echo(f"{'':18} {median(ratios):8.2f} ×          goal: ≥ 0.4")


if __name__ == "__main__":
    main()
