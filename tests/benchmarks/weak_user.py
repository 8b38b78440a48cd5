"""What a user with one weak key can do to the others: it opens all that it can, and the others' waiting is measured.

The server is a real one with access control. Alice asks at a fixed rate, and each answer is timed from when the
question was due, so a stall counts for all that it holds up. Quiet spans and spans with the attack take turns; the
attack is a process of its own with little claim to the processor, as it would be on another machine. It opens
connections, with and without a handshake, registers workers, has calls wait for a service without workers, stores
requests, and waits for their replies, as much of each as the server takes. With `--hellos` the attacker has no key: it
opens connections and sends HELLO, which the server has to decrypt, 10,000 times a second or as often as it can.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

import click
import zmq
from support.access_files import AccessFiles
from support.cli_titanic import serving
from support.handshakes import address
from support.zmtp_peer import CurveClient, greeting
from zmq.utils import z85

from broker import Worker, credentials
from titanic import Client

MAY = """submit = ["{0}.*"]
work = ["{0}.*"]
call = ["{0}.*"]
read = "own"
close = true
"""
USER = '[users.{0}]\nkeys = ["{0}.key"]\n' + MAY
RATE = 50.0
"""Questions of alice a second; each tenth is a request that is stored, executed, fetched and closed."""
SPAN = 60.0
"""Seconds of quiet, and of attack, in turns."""
FILES = 4096
"""File descriptors of the server, so that they can run out."""
HELLO_RATE = 10_000
HELLOS = "hellos"
"""The file with the number of HELLOs that were sent in a span."""
EACH = 0.01
"""Seconds between two things that bob opens."""


@click.command()
@click.option("--minutes", type=float, default=15.0, show_default=True)
@click.option("--hellos", is_flag=True, help="Attack by HELLOs of CURVE, without a key.")
def main(minutes: float, hellos: bool) -> None:
    """Measure alice's answers with and without the attack. Exit code 1: their p99 is more than doubled."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    found: dict[str, list[float]] = {"quiet": [], "attacked": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="weak-user-")))
        files = AccessFiles(folder / "access", USER.format("alice") + USER.format("bob"))
        server, endpoint = stack.enter_context(serving(folder, *files.options))
        keys = {"key": files.secret("alice"), "server_key": files.server_key}
        for service in ("alice.echo", "alice.job"):
            curve = credentials(files.secret("alice"), files.server_key)
            worker = Worker(service, lambda frames: frames, endpoint, key=curve)
            threading.Thread(target=worker.run, daemon=True).start()
            stack.callback(worker.stop)
        client = stack.enter_context(Client(endpoint, timeout=60, **keys))
        kind = "--hello" if hellos else "--attack"
        attack = [sys.executable, "-m", "benchmarks.weak_user", kind, endpoint, str(files.folder)]
        for turn in range(max(2, int(minutes * 60 / SPAN))):
            span = ("quiet", "attacked")[turn % 2]
            bob = subprocess.Popen(["nice", *attack]) if span == "attacked" else None
            found[span] += ask(client, SPAN)
            if bob is not None:
                bob.kill()
                bob.wait()
        if hellos:
            begun = int((files.folder / HELLOS).read_text())
            click.echo(f"{begun / SPAN:,.0f} HELLOs a second in the last span of the attack")
        with suppress(OSError):
            click.echo(f"server: {len([*Path(f'/proc/{server.process.pid}/fd').iterdir()])} files open of {FILES}")
        click.echo(f"refused: {server.log.read_text().count('refused: user')} lines of the log")
    click.echo("| | answers | p50, ms | p99, ms | slowest, ms |\n|--|--:|--:|--:|--:|")
    p99 = {}
    for kind, times in found.items():
        cut = quantiles(times, n=100)
        p99[kind] = cut[98]
        row = f"{1000 * cut[49]:.2f} | {1000 * cut[98]:.2f} | {1000 * max(times):.1f}"
        click.echo(f"| {kind} | {len(times)} | {row} |")
    ratio = p99["attacked"] / p99["quiet"]
    click.echo(f"p99 is {ratio:.2f} × that without the attack")
    sys.exit(ratio > 2)


def ask(client: Client, seconds: float) -> list[float]:
    """Alice's answers for so long: seconds since each was due."""
    times: list[float] = []
    due = begun = time.monotonic()
    while due < begun + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        if len(times) % 10:
            assert client.call("alice.echo", b"x") == [b"x"]
        else:
            uuid = client.submit("alice.job", b"y")
            assert client.wait(uuid, timeout=60) == [b"y"]
            client.close(uuid)
        times.append(time.monotonic() - due)
        due += 1 / RATE
    return times


def attack(endpoint: str, folder: Path) -> None:
    """Bob opens what he can, without an end. What is refused or ended he opens again."""
    curve = credentials(folder / "bob.key_secret", folder / "server.key")
    assert curve is not None
    context = zmq.Context.instance()
    context.max_sockets = 16_000
    opened: list[zmq.Socket[bytes] | socket.socket] = []
    for number in range(1 << 30):
        time.sleep(EACH)
        with suppress(OSError, zmq.ZMQError):
            if number % 4 == 0:
                opened.append(socket.create_connection(address(endpoint), timeout=5))
            dealer = context.socket(zmq.DEALER)
            dealer.linger, dealer.reconnect_ivl, dealer.sndhwm = 0, 100, 0
            curve.apply(dealer)
            dealer.connect(endpoint)
            opened.append(dealer)
            if number % 3 == 0:
                dealer.send_multipart([b"MDPW02", b"\1", b"bob.%d" % number])
            elif number % 3 == 1:
                for _ in range(10):
                    dealer.send_multipart([b"MDPC02", b"\1", b"bob.nobody", bytes(1000)])
            else:
                dealer.send_multipart([b"MDPC02", b"\1", b"titanic.request", b"bob.nobody", bytes(10_000)])
                dealer.send_multipart([b"MDPC02", b"\1", b"titanic.wait", b"600", b"0" * 32])
        if len(opened) > 3000:
            for one in opened[:10]:
                one.close()
            del opened[:10]


def say_hello(endpoint: str, folder: Path) -> None:
    """Somebody without a key opens connections and sends the same HELLO on each."""
    curve = credentials(folder / "bob.key_secret", folder / "server.key")
    assert curve is not None
    hello = greeting(b"CURVE") + CurveClient(z85.decode(curve.server)).hello()
    opened: deque[socket.socket] = deque()
    begin = time.monotonic()
    for number in range(1, 1 << 30):
        with suppress(OSError):
            opened.append(socket.create_connection(address(endpoint), timeout=5))
            opened[-1].sendall(hello)
        if len(opened) > 1000:
            opened.popleft().close()
        if number % 1000 == 0:
            (folder / HELLOS).write_text(f"{number}")
            time.sleep(max(0.0, begin + number / HELLO_RATE - time.monotonic()))


if __name__ == "__main__":
    if sys.argv[1:2] in (["--attack"], ["--hello"]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        (attack if sys.argv[1] == "--attack" else say_hello)(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
