"""The order in which the dispatcher's thread does things."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from titanic import ServerConfig
from titanic.dispatch.actions import Send
from titanic.dispatch.dispatcher import Dispatcher
from titanic.services.waiting import Waiters
from titanic.store import MIN_CAPACITY, Store
from titanic.writer import Writer


class Courier:
    """One that writes down what it is told."""

    most_ahead = 0
    surveys = False

    def __init__(self) -> None:
        self.told: list[str] = []

    def send(self, sends: Sequence[Send], now: float) -> None: ...

    def recall(self, uuid: bytes, now: float) -> None:
        self.told.append(f"recall {uuid.decode()}")

    def ask(self, names: Sequence[bytes], now: float) -> None: ...

    def survey(self, now: float) -> None: ...

    def push(self, now: float) -> None: ...

    def deliver(self, now: float) -> None:
        self.told.append("deliver")


def test_what_was_closed_is_not_wanted_any_more_before_a_broker_is_found_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delivering finds that out, and then all that is wanted is sent to the next broker."""
    with Store.open(tmp_path / "store", capacity=MIN_CAPACITY) as store:
        dispatcher, courier = Dispatcher(ServerConfig(), store, Writer(store)), Courier()
        dispatcher.use(courier)
        dispatcher.serve(Waiters(lambda _: None, lambda _: None))
        monkeypatch.setattr(dispatcher.core, "_recalls", [b"closed"])
        dispatcher.flush(0.0)
        dispatcher.loop.stop()
    assert courier.told == ["recall closed", "deliver"]
