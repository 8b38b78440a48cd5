"""What others cost a broker, and an echo beside them: idle connections, slow readers, a peer with large messages.

    PYTHONPATH=tests .venv/bin/python -m benchmarks.crowd --tree ../before --tree .

For each tree a broker and a worker of it are started, and a client of this tree sends one request after another. Memory
is the broker's (Pss), *idle CPU* what it uses while nobody sends anything.
"""

from __future__ import annotations

import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

import click
from benchmarks.peers.servers import free_port, running
from benchmarks.processor import processor_seconds
from support.zmtp_peer import message, null

from broker import Client, RemoteError
from titanic.bench.stage import memory_bytes

WORKER = "import sys; from broker import Worker; Worker(sys.argv[1], lambda body: body, sys.argv[2]).run()"
ECHOES = 2000
LARGE = 64 << 20


class Crowd:
    """A broker of a tree, and the echo through it."""

    def __init__(self, tree: Path, folder: Path, stack: ExitStack) -> None:
        self.port = free_port()
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        environment = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tree.resolve())}
        command = sys.executable, "-m", "titanic", "broker", "--bind", self.endpoint
        self.broker = stack.enter_context(running(*command, log=folder / "broker", **environment))
        for service in ("echo", "large"):
            worker = sys.executable, "-c", WORKER, service, self.endpoint
            stack.enter_context(running(*worker, log=folder / service, **environment))
        self.client = stack.enter_context(Client(self.endpoint, timeout=120))
        for service in ("echo", "large"):
            self.client.call(service, b"x")

    def memory(self) -> float:
        """MiB."""
        return (memory_bytes(self.broker.pid) or 0) / (1 << 20)

    def echo(self) -> str:
        """Percentiles of a lone echo, in milliseconds."""
        found = []
        for _ in range(ECHOES):
            begin = time.perf_counter()
            self.client.call("echo", b"x")
            found.append((time.perf_counter() - begin) * 1e3)
        cuts = quantiles(found, n=100)
        return f"{cuts[49]:.2f} | {cuts[98]:.2f} | {max(found):.1f}"

    def connect(self) -> socket.socket:
        """A connection that has shaken hands."""
        peer = socket.socket()
        peer.settimeout(60)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is not read waits at the broker
        peer.connect(("127.0.0.1", self.port))
        peer.sendall(null())
        got = b""
        while len(got) < 64 + 2 or len(got) < 66 + got[65]:
            got += peer.recv(1000)
        return peer

    def idle_cpu(self) -> float:
        """The part of a processor that is used while nobody sends anything."""
        before = processor_seconds(self.broker.pid)
        time.sleep(5)
        return (processor_seconds(self.broker.pid) - before) / 5


@contextmanager
def idle(crowd: Crowd, count: int) -> Iterator[None]:
    """Connections that send nothing."""
    peers = [crowd.connect() for _ in range(count)]
    try:
        yield
    finally:
        for peer in peers:
            peer.close()


@contextmanager
def slow_readers(crowd: Crowd, count: int) -> Iterator[None]:
    """Connections that ask eighty times, and read no answer."""
    question = message(b"MDPC02", b"\1", b"echo", b"x" * 250) * 80
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(crowd.connect()).sendall(question)
        while True:
            try:
                crowd.client.call("echo", b"x")
                break
            except RemoteError:  # many wait for the worker
                time.sleep(0.1)
        yield


@contextmanager
def large_messages(crowd: Crowd, count: int) -> Iterator[None]:
    """One client that has 64 MiB echoed again and again."""
    over = threading.Event()

    def send() -> None:
        with Client(crowd.endpoint, timeout=120) as client:
            while not over.is_set():
                client.call("large", bytes(LARGE))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@click.command()
@click.option("--tree", "trees", type=click.Path(exists=True, file_okay=False, path_type=Path), multiple=True)
@click.option("--idle", "idle_count", default=10_000, show_default=True)
@click.option("--slow", "slow_count", default=1000, show_default=True)
def main(trees: tuple[Path, ...], idle_count: int, slow_count: int) -> None:
    """What idle connections, slow readers and large messages cost a broker and an echo beside them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("| tree | beside | memory, MiB more | idle CPU | echo p50, ms | p99 | most |\n|---|---|--:|--:|--:|--:|--:|")
    kinds = (
        ("nothing", idle, 0),
        (f"{idle_count:,} idle connections", idle, idle_count),
        (f"{slow_count:,} slow readers", slow_readers, slow_count),
        ("64 MiB messages", large_messages, 1),
    )
    for tree in trees or (Path(),):
        for name, kind, count in kinds:
            with TemporaryDirectory(prefix="crowd-") as folder, ExitStack() as stack:
                crowd = Crowd(tree, Path(folder), stack)
                before = crowd.memory()
                with kind(crowd, count):
                    busy = kind is large_messages
                    cpu = "" if busy else f"{crowd.idle_cpu():.1%}"
                    echo = crowd.echo()
                    more = crowd.memory() - before
                print(f"| {tree} | {name} | {more:,.0f} | {cpu} | {echo} |", flush=True)


if __name__ == "__main__":
    main()
