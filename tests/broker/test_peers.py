"""How many are connected to a broker: as mmi.stats has it, and whoever runs one."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

from support.running import until

from broker import Broker, Client, Worker
from broker.peers import Peers


def test_all_that_connect_are_counted_until_they_leave(tmp_path: Path) -> None:
    broker = Broker()
    tcp, ipc = broker.bind("tcp://127.0.0.1:*"), broker.bind(f"ipc://{tmp_path}/socket")
    with broker:
        with (
            Client(tcp) as client,
            Worker("echo", lambda frames: frames, ipc),
            Worker("echo", lambda frames: frames, tcp),
        ):
            until(lambda: json.loads(client.call("mmi.stats", b"")[0])["peers"] == 3)
            with socket.create_connection(("127.0.0.1", int(tcp.rpartition(":")[2]))):
                until(lambda: broker.counters()["peers"] == 4)
            until(lambda: broker.counters()["peers"] == 3)
        until(lambda: broker.counters()["peers"] == 0)


def test_a_crowd_is_counted() -> None:
    """Many that come and go while the broker does other things hold nobody up, and all are counted in the end."""
    broker = Broker()
    port = int(broker.bind("tcp://127.0.0.1:*").rpartition(":")[2])
    with broker:
        busy, free = threading.Event(), threading.Event()
        broker.loop.call(lambda: (busy.set(), free.wait(60)))
        busy.wait(60)
        for _ in range(3000):
            socket.create_connection(("127.0.0.1", port)).close()
        with socket.create_connection(("127.0.0.1", port)):
            free.set()
            until(lambda: broker.counters()["peers"] == 1)


def test_a_broker_that_never_ran_is_closed() -> None:
    broker = Broker()
    broker.bind("tcp://127.0.0.1:*")
    broker.stop()
    assert broker._peers.sockets() == []
    assert isinstance(broker._peers, Peers)
