"""A worker for the clients of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.serving import QUICK

from broker import RemoteError, Worker
from titanic import Server


@pytest.fixture
def echo(server: Server) -> Iterator[Worker]:
    def work(frames: list[bytes]) -> list[bytes]:
        if frames[0] == b"fail":
            raise RemoteError(500, "as you wish")
        return frames

    with Worker("echo", work, server.endpoints[0], jobs=2, config=QUICK) as worker:
        yield worker
