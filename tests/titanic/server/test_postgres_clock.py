"""Nodes go by the database's clock, not by their own: one whose clock is wrong does no harm to the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.postgres import needs_postgres, shared_server
from support.serving import config
from support.waiting import until

from titanic import Client, Server
from titanic.store import NewRequest, open_store
from titanic.store.postgres.database_session import ASK_EVERY, DatabaseClock
from titanic.util import clock

pytestmark = needs_postgres

HOUR = 3600.0


@pytest.fixture
def wrong_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the wall clock of this process, as Titanic sees it."""

    class Wall:
        CLOCK_BOOTTIME = time.CLOCK_BOOTTIME
        clock_gettime = staticmethod(time.clock_gettime)
        ahead = 0.0

        def time_ns(self) -> int:
            return time.time_ns() + int(self.ahead * 1e9)

    wall = Wall()
    monkeypatch.setattr(clock, "time", wall)

    def set_(seconds: float) -> None:
        wall.ahead = seconds

    return set_


@pytest.mark.parametrize("hours", [-10, 10])
def test_a_key_counts_at_all_nodes_also_when_one_has_a_wrong_clock(
    tmp_path: Path, wrong_by: Callable[[float], None], hours: float
) -> None:
    url = shared_server().url(shared_server().new_database())
    given = []
    for ahead in (hours * HOUR, 0.0, hours * HOUR):
        wrong_by(ahead)
        with Server(config(tmp_path, store=url)) as node, Client(node.endpoints[0], timeout=30) as client:
            given.append(client.submit("absent", b"x", key="once", key_for=HOUR))
    assert len({*given}) == 1


def test_what_another_node_has_just_given_is_not_from_the_future(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each knows the database's time a little differently."""
    url = shared_server().url(shared_server().new_database())
    with open_store(url) as store:
        theirs = store.now_us() + 500_000
        request = NewRequest(b"absent", [b"x"], not_before=theirs + 3_600_000_000)
        with store.write() as transaction:
            transaction.accept([request], theirs)
        with Server(config(tmp_path, store=url)) as node:
            until(lambda: node.writer.clock_jumps.unchecked is None)
    assert "was ahead" not in caplog.text


def test_a_store_has_the_time_of_its_database(wrong_by: Callable[[float], None]) -> None:
    wrong_by(10 * HOUR)
    with open_store(shared_server().url(shared_server().new_database())) as store:
        assert abs(store.now_us() / 1e6 - time.time()) < 60
        wrong_by(-10 * HOUR)
        assert abs(store.now_us() / 1e6 - time.time()) < 60


def test_the_clock_is_what_was_told_last_and_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("titanic.store.postgres.database_session.elapsed", lambda: now)
    told = DatabaseClock()
    assert told.is_due
    told.heard(1_000_000_000, 100.0)
    assert told.now_us() == 1_000_000_000
    now = 101.0
    assert told.now_us() == 1_001_000_000
    told.heard(1_000_900_000, 100.6)  # as far as can be told in so long a time, that is the same
    assert told.now_us() == 1_001_000_000
    told.heard(5_000_000_000, 99.0)  # nobody knows when that was
    assert told.now_us() == 1_001_000_000
    told.heard(5_000_000_000, 101.0)
    assert told.now_us() == 5_000_000_000
    assert not told.is_due
    now += ASK_EVERY
    assert told.is_due
