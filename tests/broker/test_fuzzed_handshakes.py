"""Handshakes that are none, at a server with access control: nobody gets in, nobody else notices, nothing is left."""

from __future__ import annotations

import select
import signal
import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from support.access_files import AccessFiles
from support.cli_titanic import serving
from support.good_traffic import good_traffic
from support.handshakes import Handshakes, Malformed, address, record, without_keys
from support.secured import keyed, new_pair
from support.torture import LONG, SEED, figures, tally
from support.waiting import until

from broker.io.curve import credentials
from titanic import Client
from titanic.bench.stage import cpu_seconds, memory_bytes

HANDSHAKES = 250_000 if LONG else 1000
WARM = HANDSHAKES // 5
ROUNDS = 200 if LONG else 3
IN_A_ROUND = 500
STRANGERS = 3000 if LONG else 100
AT_ONCE = 50
MOST_GROWTH = 16 << 20
"""Bytes of memory that a server may have more, after four times as many handshakes as it had before."""


@pytest.mark.torture(short=True)
@pytest.mark.parametrize("seed", range(SEED, SEED + 4) if LONG else [SEED])
def test_malformed_handshakes(tmp_path: Path, seed: int) -> None:
    files = AccessFiles(tmp_path / "access")
    with serving(tmp_path, *files.options) as (server, endpoint), good_traffic(endpoint, files) as good:
        pid = server.process.pid
        message = [b"MDPC02", b"\1", b"mmi.service", b"echo"]
        recorded = record(endpoint, credentials(files.secret("alice"), files.server_key), message)
        before = until(lambda: descriptors(pid))
        handshakes = Handshakes(endpoint, iter(Malformed(recorded, seed)))
        handshakes.run(WARM)
        calls, memory, cpu, start = good.calls, memory_bytes(pid) or 0, cpu_seconds(pid) or 0.0, time.monotonic()
        handshakes.run(HANDSHAKES - WARM)
        seconds, used = time.monotonic() - start, (cpu_seconds(pid) or 0.0) - cpu
        beside = good.calls - calls
        handshakes.close()
        assert handshakes.let_in == []
        # Fewer on a busy machine: the oldest unanswered ones end when there are too many.
        assert handshakes.welcomed > HANDSHAKES / 100, "hardly any came as far as to an INITIATE"
        assert beside > 0
        until(lambda: descriptors(pid) <= before)
        assert (memory_bytes(pid) or 0) < memory + MOST_GROWTH
        good.go_on()
        assert "Traceback" not in server.log.read_text()
    tally["malformed handshakes"] += HANDSHAKES
    figures.append(
        f"malformed handshakes: {(HANDSHAKES - WARM) / seconds:,.0f} a second beside {beside / seconds:,.0f} calls, the"
        f" slowest of which took {good.slowest * 1000:.0f} ms; with them {used / (HANDSHAKES - WARM) * 1e6:.0f} µs of"
        " the server's processor time each"
    )


@pytest.mark.torture(short=True)
def test_clients_without_keys_as_fast_as_they_can(tmp_path: Path) -> None:
    """Connections that are there go on, and new ones are made."""
    files = AccessFiles(tmp_path / "access")
    with serving(tmp_path, *files.options) as (server, endpoint), good_traffic(endpoint, files) as good:
        handshakes = Handshakes(endpoint, without_keys())
        calls, cpu, start = good.calls, cpu_seconds(server.process.pid) or 0.0, time.monotonic()
        slowest = 0.0
        for _ in range(ROUNDS):
            handshakes.run(IN_A_ROUND)
            began = time.monotonic()
            with Client(endpoint, timeout=60, retries=0, key=files.secret("alice"), server_key=files.server_key) as new:
                assert new.call("echo", b"new") == [b"new"]
            slowest = max(slowest, time.monotonic() - began)
        seconds, used = time.monotonic() - start, (cpu_seconds(server.process.pid) or 0.0) - cpu
        beside = good.calls - calls
        handshakes.close()
        assert handshakes.let_in == []
        assert beside > 0
    tally["malformed handshakes"] += ROUNDS * IN_A_ROUND
    figures.append(
        f"clients without keys: {ROUNDS * IN_A_ROUND / seconds:,.0f} a second beside {beside / seconds:,.0f} calls, the"
        f" slowest of which took {good.slowest * 1000:.0f} ms; new clients with a key took {slowest * 1000:.0f} ms"
        f" at most; with them {used / (ROUNDS * IN_A_ROUND) * 1e6:.0f} µs of the server's processor time each"
    )


def test_many_who_connect_at_once_are_in_a_queue(tmp_path: Path) -> None:
    """Nobody is dropped and has to try again a second later, which happens when the queue is full."""
    files = AccessFiles(tmp_path / "access")
    many = min(900, int(Path("/proc/sys/net/core/somaxconn").read_text()))
    with serving(tmp_path, *files.options) as (server, endpoint), ExitStack() as stack:
        server.send(signal.SIGSTOP)  # it accepts nobody
        stack.callback(server.send, signal.SIGCONT)
        clients = select.poll()
        for _ in range(many):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address(endpoint))
            clients.register(client, select.POLLOUT)
        until(lambda: len(clients.poll(0)) == many, 10, every=0.1)


@pytest.mark.torture(short=True)
def test_keys_that_nobody_has(tmp_path: Path) -> None:
    files = AccessFiles(tmp_path / "access")
    with serving(tmp_path, *files.options) as (_, endpoint), good_traffic(endpoint, files):
        curve = credentials(files.secret("alice"), files.server_key)
        for _ in range(STRANGERS // AT_ONCE):
            with ExitStack() as stack:
                for doubt in [refused(stack, endpoint, curve.server) for _ in range(AT_ONCE)]:
                    assert doubt.poll(60_000)
                    event, value = struct.unpack("=HI", doubt.recv_multipart()[0])
                    assert (event, value) == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)


def refused(stack: ExitStack, endpoint: str, server: bytes) -> zmq.Socket[bytes]:
    """Connect with a new key; the monitor, which tells how the handshake ends."""
    socket = stack.enter_context(zmq.Context.instance().socket(zmq.DEALER))
    socket.linger, socket.reconnect_ivl = 0, -1
    keyed(socket, new_pair(), server)
    failed = (
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    )
    monitor = stack.enter_context(socket.get_monitor_socket(failed | zmq.EVENT_HANDSHAKE_SUCCEEDED))
    stack.callback(socket.disable_monitor)
    socket.connect(endpoint)
    return monitor


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
