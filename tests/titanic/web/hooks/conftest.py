"""A receiver of webhooks, and what delivers them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.web_hooks import Hooks, Receiver

from titanic import Server
from titanic.web.hooks import delivery


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
    thread.start()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
    thread.join()


@pytest.fixture
def hooks(server: Server, monkeypatch: pytest.MonkeyPatch) -> Hooks:
    monkeypatch.setattr(delivery, "RETRIES", {"max_attempts": 3, "retry_first": 0.01, "retry_most": 0.01})
    monkeypatch.setattr(delivery, "BUSY_PAUSE", 0.02)
    return Hooks(server.endpoints[0])
