"""Titanic apart from its broker finds out which broker that is: whenever it comes, and again when it is another one."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from support.processes import SUPPORT, Process, worker_process
from support.serving import config, serving
from support.torture import LONG, SEED, figures
from support.waiting import until

from broker import Broker
from titanic import Client, Server
from titanic.dispatch.transport import SocketTransport
from titanic.dispatch.transport_foreign import ForeignTransport

TOGETHER = 5


def meet(path: Path, lead: float) -> bool:
    """Start a broker, and a queue `lead` seconds before it; whether the queue has recognised it."""
    path.mkdir()
    endpoint = f"ipc://{path}/b"
    broker = Broker()
    server = Server(config(path, broker=endpoint, lanes=1))
    begin = time.monotonic()
    starts = [(max(0.0, -lead), server.start), (max(0.0, lead), lambda: broker.bind(endpoint) and broker.start())]
    try:
        for after, start in sorted(starts, key=lambda one: one[0]):
            Event().wait(begin + after - time.monotonic())
            start()
        until(lambda: server.dispatcher.transport)
        return isinstance(server.dispatcher.transport, SocketTransport)
    finally:
        server.stop()
        broker.stop()


@pytest.mark.torture(short=True)
def test_this_projects_broker_is_recognised_whenever_it_comes(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    leads = [
        chance.choice([0.0, chance.uniform(-0.1, 0.1), chance.uniform(0.0, 2.0)]) for _ in range(100 if LONG else 10)
    ]
    with ThreadPoolExecutor(TOGETHER) as pool:
        met = list(pool.map(lambda number: meet(tmp_path / f"{number}", leads[number]), range(len(leads))))
    figures.append(f"{sum(met)} of {len(met)} brokers recognised, whichever of the two was started first")
    assert met == [True] * len(leads)


def start_broker(endpoint: str, path: Path, *, ours: bool) -> Process:
    arguments = (
        ("-m", "titanic", "broker", "--bind", endpoint)
        if ours
        else (SUPPORT / "rfc7_broker.py", endpoint, "2", "strict")
    )
    return Process(*arguments, output=path / "broker.out")


@pytest.mark.torture(short=True)
def test_a_broker_of_another_kind_takes_its_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each is used as it can be, and what is lost with the other one is said. What is on its way goes on."""
    caplog.set_level("INFO")
    endpoint, log = f"ipc://{tmp_path}/broker.ipc", tmp_path / "executed"
    uuids = []
    with serving(tmp_path, broker=endpoint) as server:
        for turn, ours in enumerate([True, False] * (5 if LONG else 1)):
            caplog.clear()
            with (
                start_broker(endpoint, tmp_path, ours=ours) as broker,
                Client(endpoint, timeout=1, retries=60, version="0.2" if ours else "0.1") as client,
            ):
                uuids += client.submit_many("echo", [b"%d" % (10 * turn + number) for number in range(10)])
                kind = SocketTransport if ours else ForeignTransport
                until(lambda: isinstance(server.dispatcher.transport, kind))  # noqa: B023
                warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
                assert any("is not a titanic broker" in text for text in warnings) is not ours
                with worker_process(endpoint, "echo", log) as worker:
                    assert client.wait(uuids[-1], 60) == [b"done:%d" % (10 * turn + 9)]
                    worker.kill()
                with worker_process(endpoint, "echo", log.with_suffix(".hung"), "hang"):
                    uuids += client.submit_many("echo", [b"left %d" % turn] * 2)
                    until(lambda: server.running)
                assert broker.running
                broker.kill()
        with (
            start_broker(endpoint, tmp_path, ours=True),
            Client(endpoint, timeout=1, retries=60) as client,
            worker_process(endpoint, "echo", log),
        ):
            assert len(dict(client.replies(uuids, 60))) == len(uuids)
        assert server.alive
