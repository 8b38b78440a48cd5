"""A broker and a Titanic in this process, with settings that suit a test, and who speaks to them.

The fixtures take settings from `pytest.mark.settings(max_attempts=3)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.raw_mdp import RawClient, raw_client
from support.waiting import PATIENCE, until

from broker import Broker, BrokerConfig, RemoteError, Worker, WorkerConfig
from titanic import Client, Server, ServerConfig
from titanic.store.lmdb.tools import check

QUICK = WorkerConfig(heartbeat_interval=0.5, liveness=10, reconnect_first=0.05, reconnect_most=0.2)
"""Workers that come back soon, and bear with a broker whose disk is slow."""

PATIENT = BrokerConfig(liveness=60)
"""A broker for workers that send no heartbeats, on a busy machine."""


def config(path: Path, **settings: Any) -> ServerConfig:
    defaults: dict[str, Any] = {
        "store": path / "store",
        "bind": ("tcp://127.0.0.1:*",),
        "capacity": 64 << 20,
        "retry_first": 0.02,
        "retry_most": 0.1,
        "grace": 0.0,
        "lanes": 4,
        "worker": QUICK,
        "wire": PATIENT,
    }
    return ServerConfig(**(defaults | settings))


@contextmanager
def serving(path: Path, **settings: Any) -> Iterator[Server]:
    """A Titanic that runs; at the end its store is sound."""
    server = Server(config(path, **settings))
    try:
        with server:
            yield server
            assert server.alive
    finally:
        with server.store.open(server.store.path, capacity=server.store.capacity) as store:
            problems = check(store)
    assert problems == []


@contextmanager
def brokering(bind: str = "tcp://127.0.0.1:*", **settings: Any) -> Iterator[str]:
    """A broker that runs; where it is reached."""
    broker = Broker(BrokerConfig(**settings) if settings else PATIENT)
    endpoint = broker.bind(bind)
    with broker:
        yield endpoint


@contextmanager
def with_broker(path: Path, kind: str, **settings: Any) -> Iterator[Server]:
    """A Titanic that runs with a broker: `integrated`, or `stand-alone`."""
    if kind == "integrated":
        with serving(path, **settings) as server:
            yield server
        return
    endpoint = f"ipc://{path}/broker.ipc"
    with brokering(endpoint), serving(path, broker=endpoint, **settings) as server:
        yield server


def settings_of(request: pytest.FixtureRequest) -> dict[str, Any]:
    mark = request.node.get_closest_marker("settings")
    return mark.kwargs if mark is not None else {}


@pytest.fixture
def greeted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines wait until their broker has answered before the first `send` returns: what it has not sent by then goes
    out when the test receives something."""
    monkeypatch.setattr("broker.pipeline.GREETING", PATIENCE)


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a broker runs."""
    with brokering(**settings_of(request)) as endpoint:
        yield endpoint


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, **settings_of(request)) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.endpoints[0], timeout=30) as client:
        yield client


@pytest.fixture
def raw(server: Server) -> Iterator[RawClient]:
    with raw_client(server.endpoints[0]) as raw:
        yield raw


@pytest.fixture
def echo(server: Server) -> Iterator[Worker]:
    """A worker for clients, which is registered."""

    def work(frames: list[bytes]) -> list[bytes]:
        if frames[0] == b"fail":
            raise RemoteError(500, "as you wish")
        return frames

    with Worker("echo", work, server.endpoints[0], jobs=2, config=QUICK) as worker:
        until(lambda: worker.registered == 2)
        yield worker
