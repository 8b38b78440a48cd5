"""A Titanic in this process, with settings that suit a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker import WorkerConfig
from titanic import Server, ServerConfig
from titanic.store.lmdb.tools import check

QUICK = WorkerConfig(heartbeat_interval=0.5, reconnect_first=0.05, reconnect_most=0.2)
"""Workers that come back soon."""


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
