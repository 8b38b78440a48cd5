"""What is said of a broker that comes, goes and stays away."""

from __future__ import annotations

import logging

import pytest

from broker.io.curve import KeyProbe
from broker.worker_log import PAUSE_MOST, WorkerLog


class World:
    """A presence, the number of connections that the broker answered, and a clock."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self.caplog = caplog
        self.connected = 0
        self.now = 1000.0
        self.presence = WorkerLog(logging.getLogger("test"), "upper", "there", 2.5, self)

    def registered(self) -> bool:
        return self.connected > 0

    def registered_at(self) -> str:
        return "there"

    def key_probe(self, when: float) -> KeyProbe:
        return KeyProbe()

    def run(self, seconds: float) -> list[str]:
        """What is said while so many seconds pass, as a loop would have it."""
        until = self.now + seconds
        self.presence.flush(self.now)
        while (deadline := self.presence.next_deadline()) is not None and deadline <= until:
            self.now = deadline
            self.presence.tick(self.now)
            self.presence.flush(self.now)
        self.now = until
        said = [record.message for record in self.caplog.records]
        self.caplog.clear()
        return said


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    return World(caplog)


def test_nobody_is_there(world: World) -> None:
    assert world.run(4.9) == []
    assert world.run(0.2) == ["no answer from there for 5 s; is a broker there? still trying"]
    assert len(world.run(3600)) <= 6 + 3600 / PAUSE_MOST
    assert world.run(PAUSE_MOST) != [], "it does not fall silent"


def test_it_comes_goes_and_comes_back(world: World) -> None:
    world.connected = 3
    assert world.run(100) == ["upper is registered at there"]
    world.connected = 1
    assert world.run(100) == [], "one of several connections is no news"
    world.connected = 0
    assert world.run(1) == ["lost the broker at there; reconnecting"]
    world.connected = 3
    assert world.run(100) == ["upper is registered at there"]
    world.connected = 0
    assert world.run(6)[1:] == ["no answer from there for 5 s; is a broker there? still trying"]


def test_a_worker_that_leaves_has_not_lost_its_broker(world: World) -> None:
    world.connected = 1
    world.run(1)
    world.presence.leave()
    world.connected = 0
    assert world.run(100) == []


def test_it_begins_by_itself(world: World) -> None:
    """Nothing else may ever wake its loop."""
    assert world.presence.next_deadline() == 0.0
    world.presence.flush(world.now)
    assert world.presence.next_deadline() == world.now + 5.0


def test_it_is_there_and_does_not_want_us(world: World) -> None:
    refusal = (
        "the broker at there refuses workers of upper: the name is reserved, there are too many workers or services, or"
        ' the access file there does not permit them (work = ["upper"]); still trying'
    )
    world.run(1)
    world.presence.refused(world.now)
    assert world.run(1) == [refusal]
    said = []
    for _ in range(3600):
        world.presence.refused(world.now)
        said += world.run(1)
    assert said == [refusal] * len(said)
    assert len(said) <= 6 + 3600 / PAUSE_MOST
    world.connected = 1
    world.run(1)
    world.connected = 0
    world.run(1)
    world.presence.refused(world.now)
    assert world.run(1) == [refusal]
