"""What users were refused: counted and logged, bounded in both."""

from __future__ import annotations

import logging
import threading

import pytest

from broker import NOBODY, User
from titanic.logs import LINES, WINDOW
from titanic.server import snapshot
from titanic.services import ownership
from titanic.services.ownership import Refusals

SHOP = User("shop")


def test_each_user_and_action_is_counted() -> None:
    refusals = Refusals()
    for user, action in ((SHOP, b"titanic.reply"), (SHOP, b"titanic.reply"), (NOBODY, b"titanic.list")):
        refusals.add(user, action, "no")
    assert refusals.counts == {("shop", "titanic.reply"): 2, ("", "titanic.list"): 1}


def test_threads_lose_no_count() -> None:
    refusals = Refusals()
    threads = [
        threading.Thread(target=lambda: [refusals.add(SHOP, b"titanic.reply", "no") for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals.counts == {("shop", "titanic.reply"): 2000}


def test_the_log_has_the_first_lines_of_each_kind_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    caplog.set_level(logging.WARNING)
    for _ in range(LINES + 5):
        refusals.add(SHOP, b"titanic.reply", "no")
    refusals.add(NOBODY, b"titanic.reply", "no")
    assert len(caplog.records) == LINES + 1
    now[0] = WINDOW
    refusals.add(SHOP, b"titanic.list", "no")
    texts = [line.getMessage() for line in caplog.records[LINES + 1 :]]
    assert texts == ["user 'shop' was refused titanic.reply 5 more times within 60 s", "titanic.list: no"]


def test_the_count_is_told_also_when_nothing_follows(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    caplog.set_level(logging.WARNING)

    def add_and_look() -> None:
        for _ in range(LINES + 5):
            refusals.add(SHOP, b"titanic.reply", "no")
        caplog.clear()

    told = "user 'shop' was refused titanic.reply 5 more times within 60 s"
    add_and_look()
    refusals.tick(WINDOW - 1)
    assert not caplog.messages
    refusals.tick(WINDOW)
    assert caplog.messages == [told]
    now[0] = WINDOW
    add_and_look()
    refusals.finish()
    assert caplog.messages == [told]


def test_users_without_end_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "MOST_COUNTED", 3)
    refusals = Refusals()
    for number in range(10):
        refusals.add(User(f"user{number}"), b"titanic.list", "no")
    assert len(refusals.counts) == 4
    assert refusals.counts[ownership.OTHERS] == 7


def test_the_figures_of_broker_and_services_are_one() -> None:
    mine = {("shop", "titanic.submit"): 2, ("", "connect"): 5}
    theirs = {("shop", "titanic.submit"): 1, ("web", "call"): 1}
    assert snapshot.refusals(mine) == {("shop", "titanic.submit"): 2, ("(unknown)", "connect"): 5}
    together = {("shop", "titanic.submit"): 3, ("(unknown)", "connect"): 5, ("web", "call"): 1}
    assert snapshot.refusals(mine, theirs) == together
    assert snapshot.refusals({}, {}) == {}


def test_no_figure_decreases_when_another_user_is_refused_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MOST_REFUSALS", 2)
    refusals, before = Refusals(), dict[tuple[str, str], int]()
    for number in [0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 0]:
        refusals.add(User(f"user{number}"), b"titanic.list", "no")
        now = snapshot.refusals(refusals.counts)
        assert all(now[key] >= count for key, count in before.items()), (before, now)
        before = now
    assert before == {("user0", "titanic.list"): 3, ("user1", "titanic.list"): 2, ("(others)", ""): 10}
