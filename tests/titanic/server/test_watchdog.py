"""The watchdog's question: does every thread that does the work get on with it?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.serving import serving
from support.waiting import until

from broker import Broker
from titanic.client.client import Client
from titanic.errors import TimedOut
from titanic.server.watchdog import Watchdog


def test_it_asks_again_when_all_have_answered() -> None:
    answers: dict[str, list[Callable[[], None]]] = {"a": [], "b": []}
    watchdog = Watchdog({name: asked.append for name, asked in answers.items()})
    assert not watchdog.probe(1.0)
    answers["a"].pop()()
    assert not watchdog.probe(2.0)
    assert watchdog.late(2.5, 1.0) == ["b"]
    assert watchdog.late(2.0, 1.0) == []
    answers["b"].pop()()
    assert watchdog.probe(3.0)
    assert [len(asked) for asked in answers.values()] == [1, 1]
    assert set(watchdog.lags(3.0)) == {"a", "b"}
    assert watchdog.lags(10.0) == {"a": 7.0, "b": 7.0}


def test_every_thread_of_a_server_answers(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert not server.watchdog.probe(0.0)
        until(lambda: server.watchdog.probe(0.0))
        assert set(server.watchdog.lags(0.0)) == {"writer", "reader", "broker"}


def test_a_writer_that_is_stuck_does_not(tmp_path: Path) -> None:
    """It waits for the one place for writers, which somebody else has and does not give back."""
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=0.05) as client:
        with server.store.write():
            with pytest.raises(TimedOut):
                client.submit("s", b"x")
            server.watchdog.probe(0.0)
            until(lambda: server.watchdog.late(1.0, 0.5) == ["writer"])
            assert not server.watchdog.probe(2.0)
        until(lambda: server.watchdog.probe(3.0))


def test_a_loop_that_is_stuck_does_not() -> None:
    free = threading.Event()
    with Broker() as broker:
        watchdog = Watchdog({"broker": broker.loop.call})
        broker.loop.call(_wait, free)
        watchdog.probe(0.0)
        assert watchdog.late(1.0, 0.5) == ["broker"]
        assert not watchdog.probe(2.0)
        free.set()
        until(lambda: watchdog.probe(3.0))


def _wait(event: threading.Event) -> None:
    event.wait()
