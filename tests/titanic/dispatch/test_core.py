"""Whom the dispatcher asks for, and what it sends when: without threads, sockets and waiting."""

from __future__ import annotations

import pytest
from support.dispatch_play import Play, at_work, names

from titanic.dispatch import backlogs

# -- presence -------------------------------------------------------------------------------------------------


def test_an_absent_service_is_asked_for_with_growing_pauses() -> None:
    play = Play(presence_first=0.1, presence_most=1.0)
    play.submit("echo", "a")
    play.go()
    pauses = []
    for _ in range(7):
        deadline = play.core.next_deadline()
        assert deadline is not None
        pauses.append(round(deadline - play.now, 3))
        play.later_by(deadline - play.now)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert play.asked == ["echo"] * 8
    assert play.sent == []


def test_absent_services_cost_one_question_a_second_together() -> None:
    play = Play(presence_first=0.1, presence_most=1.0)
    play.core.backlogs.connected(0, surveys=True)
    for name in names("s", 100):
        play.submit(name, f"{name}-request")
    play.later_by(10)
    assert len(play.asked) == 100, "more than once for each"
    before = play.surveys
    play.later_by(10)
    assert play.surveys - before == 10
    play.workers("s000007", 1)
    play.later_by(1)
    assert play.sent == ["s000007-request"]
    assert len([name for name in play.asked if name != "s000007"]) == 99


def test_a_service_that_has_just_become_absent_is_soon_asked_for_again() -> None:
    play = Play(presence_first=0.1, presence_most=1.0)
    play.core.backlogs.connected(0, surveys=True)
    play.submit("old", "a")
    play.later_by(10)
    play.submit("new", "b")
    play.go()
    play.workers("new", 1)
    play.later_by(0.1)
    assert play.sent == ["b"]


def test_absent_services_of_a_shared_store_are_forgotten_until_they_have_workers() -> None:
    play = Play(presence_first=0.1, presence_most=1.0)
    play.core.backlogs.shared = True
    play.core.backlogs.connected(0, surveys=True)
    play.submit("gone", "a")
    play.go()
    play.later_by(0.5)
    assert b"gone" in play.core.backlogs, "surveys are still frequent"
    play.later_by(10)
    assert play.core.backlogs == {}
    asked = len(play.asked)
    play.workers("gone", 1)
    play.later_by(1)
    assert play.sent == ["a"]
    assert len(play.asked) == asked, "the answer about all says how many"


def test_a_question_for_all_is_not_asked_twice_before_the_answer() -> None:
    play = Play()
    play.core.backlogs.connected(0, surveys=True)
    play.submit("echo", "a")
    play.go()
    play.answers_presence = False
    play.later_by(100)
    assert play.surveys == 1
    assert play.core.next_deadline() is None
    play.core.surveyed({b"echo": 1}, play.now)
    play.go()
    assert play.sent == ["a"]


def test_a_broker_that_has_to_be_asked_for_each_is_not_asked_too_much() -> None:
    play = Play(presence_first=0.1, presence_most=0.5)
    for name in names("s", 400):
        play.submit(name, f"{name}-request")
    play.later_by(3)
    before = len(play.asked)
    play.later_by(6)
    assert len(play.asked) - before < 6 * 1.5 * backlogs.QUESTIONS


def test_a_service_that_comes_is_used_at_the_next_question() -> None:
    play = Play()
    play.submit("echo", "a", "b")
    play.go()
    play.workers("echo", 2)
    play.go()
    assert play.sent == []
    play.later_by(0.05)
    assert play.sent == ["a", "b"]


def test_nothing_is_asked_twice_before_the_answer() -> None:
    play = Play()
    play.answers_presence = False
    play.submit("echo", "a")
    play.go()
    play.submit("echo", "b")
    play.later_by(100)
    assert play.asked == ["echo"]
    assert play.core.next_deadline() is None


def test_an_answer_about_a_service_that_nobody_asked_for_is_ignored() -> None:
    play = Play()
    play.core.present(b"other", 5, play.now)
    play.go()
    assert play.core.backlogs == {}


def test_more_workers_are_found_while_the_service_is_busy() -> None:
    play = at_work(*names("r", 10), presence_first=0.1)
    play.workers("echo", 3)
    play.later_by(1)
    assert play.sent == names("r", 3)


def test_fewer_workers_mean_fewer_in_flight() -> None:
    play = at_work(*names("r", 10), workers=3, presence_first=0.1)
    play.workers("echo", 1)
    play.later_by(1)
    for name in names("r", 2):
        play.reply(name, b"")
    assert len(play.running) == 1
    play.reply("r000002", b"")
    assert play.sent == names("r", 4)


def test_a_service_with_nothing_to_do_is_forgotten() -> None:
    play = at_work("a", workers=2)
    assert play.core.backlogs
    play.reply("a", b"A")
    assert play.core.backlogs == {}
    assert play.core.flights == {}
    assert play.core.next_deadline() is None


# -- how many, and whose turn ---------------------------------------------------------------------------------


def test_as_many_are_in_flight_as_there_are_workers() -> None:
    play = at_work(*names("r", 100), workers=7)
    for done in range(93):
        assert len(play.running) == 7
        play.reply(play.sent[done], b"")
    assert play.sent == names("r", 100)


def test_a_worker_gets_the_next_one_while_the_last_reply_is_written() -> None:
    play = at_work("a", "b")
    play.disk = "slow"
    play.reply("a", b"A")
    assert play.sent == ["a", "b"]
    assert play.ended == {}


def test_services_do_not_wait_for_each_other() -> None:
    play = Play()
    for service in ("slow", "quick", "absent"):
        play.submit(service, *names(service, 10))
    play.workers("slow", 1)
    play.workers("quick", 1)
    play.go()
    for name in names("quick", 10):
        play.reply(name, b"")
    assert sorted(play.ended) == names("quick", 10)
    assert play.running == {b"slow000000": b"slow"}


def test_100000_requests_for_an_absent_service_are_never_touched() -> None:
    play = Play()
    play.submit("absent", *names("r", 100_000))
    play.submit("echo", *names("e", 50))
    play.workers("echo", 1)
    play.go()
    for name in names("e", 50):
        play.reply(name, b"")
    assert len(play.ended) == 50
    assert play.fetches <= 2 * 50 + 2
    assert play.asked.count("absent") == 1


def test_a_queue_that_was_read_to_its_end_is_read_again_when_something_has_come() -> None:
    play = at_work("a", "b", workers=3)
    assert (play.fetches, play.asked) == (1, ["echo"])
    play.reply("a", b"")
    play.later_by(60)
    assert (play.fetches, play.asked) == (1, ["echo"])
    play.submit("echo", "c", "d", "e")
    play.go()
    assert play.sent == ["a", "b", "c", "d"]
    play.reply("b", b"")
    assert play.sent == ["a", "b", "c", "d", "e"]


def test_10000_absent_services_cost_a_round_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    for number in range(10_000):
        play.submit(f"absent{number}", f"x{number}")
    play.submit("echo", *names("e", 200))
    play.workers("echo", 1)
    play.go()
    looked_at = 0

    def counted(property_: property) -> property:
        def look(self: object) -> object:
            nonlocal looked_at
            looked_at += 1
            assert property_.fget is not None
            return property_.fget(self)

        return property(look)

    for name in ("free", "fetchable", "vacant"):
        monkeypatch.setattr(backlogs.Backlog, name, counted(getattr(backlogs.Backlog, name)))
    monkeypatch.setattr(play, "check", lambda: None)
    for name in names("e", 200):
        play.reply(name, b"")
        play.core.next_deadline()
    assert len(play.ended) == 200
    assert looked_at < 200 * 100


# -- order ----------------------------------------------------------------------------------------------------


def test_a_retry_comes_before_what_is_younger_and_nothing_is_sent_twice() -> None:
    play = at_work("a", "b", "c", "d", workers=2, retry_first=1.0)
    play.fail("a")
    assert play.sent == ["a", "b", "c"]
    play.later_by(2)
    play.reply("b", b"")
    assert play.sent == ["a", "b", "c", "a"]


def test_a_promotion_during_the_write_of_an_outcome_sends_nothing_twice() -> None:
    play = at_work("a", "b", "c", workers=3)
    play.disk = "slow"
    play.reply("b", b"B")
    play.core.returned([b"echo"])
    play.go()
    assert play.sent == ["a", "b", "c"]
    play.write()
    assert sorted(play.ended) == ["b"]


def test_a_backlog_is_not_forgotten_while_something_is_being_written() -> None:
    play = at_work("a")
    play.disk = "slow"
    play.reply("a", b"A")
    assert b"echo" in play.core.backlogs
    play.submit("echo", "b")
    play.go()
    assert play.sent == ["a", "b"]
