"""Time to live, priority, limits: what the dispatcher's core makes of them, without waiting."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from support.dispatch_play import Play, at_work, names

from broker import ErrorReply
from titanic.dispatch.attempts import REFUSED_MOST, Finish
from titanic.dispatch.core import Maintain
from titanic.settings import JITTER, ServiceLimits
from titanic.store import Status

# -- priority -------------------------------------------------------------------------------------------------


def test_higher_priorities_go_first_and_within_one_the_oldest() -> None:
    play = Play()
    play.submit("echo", "a", priority=0)
    play.submit("echo", "b", "c", priority=5)
    play.submit("echo", "d", priority=9)
    play.workers("echo", 1)
    play.go()
    for name in "dbca":
        play.reply(name, b"")
    assert play.sent == ["d", "b", "c", "a"]


def test_a_high_one_that_comes_while_low_ones_are_done_is_next() -> None:
    play = Play()
    play.submit("echo", *names("low", 100), priority=0)
    play.workers("echo", 1)
    play.go()
    for turn in range(10):
        play.submit("echo", f"high{turn}", priority=9)
        play.submit("echo", f"other{turn}", priority=0)
        play.reply(play.sent[-1], b"")
        assert play.sent[-1] == f"high{turn}"
        play.reply(play.sent[-1], b"")
        assert play.sent[-1] == f"low{turn + 1:06}"
    play.check()


def test_one_of_the_same_priority_costs_no_look_at_the_front() -> None:
    play = at_work("a", "b")
    cursor = play.core.backlogs[b"echo"].cursor
    assert cursor is not None
    play.submit("echo", "c", priority=4)
    play.submit("echo", "d", priority=0)
    assert play.core.backlogs[b"echo"].cursor == cursor
    play.submit("echo", "e", priority=5)
    assert play.core.backlogs[b"echo"].cursor is None


# -- time to live ---------------------------------------------------------------------------------------------


def test_what_is_too_late_is_not_sent_and_makes_way() -> None:
    play = Play()
    play.submit("echo", "a", "b", expires=2000)
    play.submit("echo", "c", expires=3000)
    play.submit("echo", "d")
    play.now = 2000.0
    play.workers("echo", 1)
    play.go()
    assert play.sent == ["c"]
    assert play.ended["a"][1:5] == (Status.EXPIRED, [], 0, "not done in time, after 0 attempts")
    assert play.core.counts["expired"] == 2
    assert play.core.counts["dispatched"] == 1


def test_what_gets_too_late_between_its_fetch_and_its_sending_is_not_sent() -> None:
    play = Play()
    play.submit("echo", "a", expires=2000)
    play.core.present(b"echo", 1, play.now)
    play.core.fetched(b"echo", [play.row(b"echo", b"a")], play.now, 1_999_000_000)
    assert play.core.take_sends(play.now, 2_000_000_000) == []
    play.go()
    assert play.ended["a"].status is Status.EXPIRED
    assert play.core.counts["dispatched"] == 0


def test_what_runs_does_not_expire() -> None:
    play = Play()
    play.submit("echo", "a", expires=2000)
    play.workers("echo", 1)
    play.go()
    play.now = 2001.0
    play.go()
    play.reply("a", b"A")
    assert play.ended["a"].status is Status.DONE


def test_one_that_is_too_late_for_its_retry_expires() -> None:
    play = Play(retry_first=100.0)
    play.submit("echo", "a", expires=1050)
    play.workers("echo", 1)
    play.go()
    play.fail("a")
    play.later_by(200)
    assert play.sent == ["a"]
    assert play.ended["a"][1:5] == (Status.EXPIRED, [], 1, "not done in time, after 1 attempts")


def test_the_time_of_one_that_was_given_back_counts_again() -> None:
    play = Play()
    play.submit("echo", "a", expires=2000)
    play.workers("echo", 1)
    play.go()
    assert not play.core.take_effects(play.now)
    del play.running[b"a"]
    play.core.refused(b"a", ErrorReply(503, "no worker", []), play.now)
    assert Maintain() in play.core.take_effects(play.now), (
        "nobody would look at the clock before something else happened"
    )


# -- limits ---------------------------------------------------------------------------------------------------


def limited(seconds: float, **more: float | str) -> bytes:
    return json.dumps({"limit": seconds, **more}).encode()


@pytest.mark.parametrize("way", ["reply", "error", "death"])
def test_an_attempt_that_is_left_at_its_limit_ends_with_its_worker_s_word(way: str) -> None:
    play = at_work("a", options=limited(5, on_limit="leave"), max_attempts=2, retry_first=1.0)
    play.later_by(1000)
    assert (play.sent, play.postponed, play.core.reason(b"a")) == (["a"], [], b"")
    if way == "reply":
        play.reply("a", b"late")
        assert play.ended["a"].frames == [b"late"]
    elif way == "error":
        play.fail("a")
        assert len(play.postponed) == 1
    else:
        play.refuse("a", 500)
        assert len(play.postponed) == 1


@pytest.mark.parametrize("way", ["reply", "error", "death", "death of its process"])
def test_an_attempt_that_passes_its_limit_has_failed_when_its_worker_ends_it(way: str) -> None:
    play = at_work("a", options=limited(5), max_attempts=2, retry_first=1.0)
    play.later_by(6)
    assert (play.postponed, play.core.reason(b"a")) == ([], b"limit")
    assert play.sent == ["a"]
    if way == "reply":
        play.reply("a", b"too late")
    elif way == "error":
        play.fail("a")
    else:
        play.refuse("a", 500 if way == "death" else 502)
    (outcome,) = play.postponed
    assert (outcome.reason, outcome.attempts) == ("no reply within its limit of 5 s", 1)
    play.later_by(2)
    assert play.sent == ["a", "a"]
    assert not play.core._suspects
    play.reply("a", b"in time")
    assert play.ended["a"].frames == [b"in time"]
    assert play.core.next_deadline() is None


def test_an_attempt_whose_worker_goes_on_past_its_limit_has_failed_after_a_while() -> None:
    play = at_work("a", options=limited(5), max_attempts=2, retry_first=1.0, limit_grace=3.0)
    play.later_by(7.9)
    assert play.postponed == []
    play.later_by(0.2)
    assert play.postponed[0].reason == "no reply within its limit of 5 s"
    play.core.replied(b"a", [b"too late"], play.now)
    assert play.ended == {}
    play.workers("echo", 2)
    play.later_by(2)
    assert play.sent == ["a", "a"]
    play.reply("a", b"in time")
    assert play.ended["a"].frames == [b"in time"]
    play.lets_go("a")
    assert play.core.next_deadline() is None


def test_the_last_attempt_too() -> None:
    play = at_work("a", options=limited(5), max_attempts=1, limit_grace=3.0)
    play.later_by(9)
    assert play.ended["a"].status is Status.FAILED
    assert play.core.flights == {}


def test_a_worker_that_is_still_at_it_has_no_place_for_the_next() -> None:
    """Behind a worker that hangs, the limits of all the others would pass without anybody having touched them."""
    play = at_work("a", "b", options=limited(5), max_attempts=1)
    play.later_by(100)
    assert play.ended.keys() == {"a"}
    assert play.sent == ["a"]
    play.lets_go("a")
    assert play.sent == ["a", "b"]
    play.reply("b", b"B")
    assert play.ended["b"].frames == [b"B"]
    assert play.core.backlogs == {}


def test_the_limit_counts_from_when_a_worker_begins() -> None:
    """Its worker may have had other requests before."""
    play = at_work("a", options=limited(5), max_attempts=2, retry_first=1.0, limit_grace=0.0)
    play.later_by(4)
    play.core.started(b"a", play.now)
    play.later_by(4.9)
    assert play.postponed == []
    play.later_by(0.2)
    assert play.postponed[0].reason == "no reply within its limit of 5 s"
    play.core.started(b"a", play.now)
    play.core.started(b"unknown", play.now)
    play.lets_go("a")


def test_a_limit_that_passes_before_a_worker_has_it_is_no_attempt() -> None:
    play = at_work("a", options=limited(5), max_attempts=1)
    play.queued.add(b"a")
    play.workers("echo", 0)
    play.later_by(55)
    assert play.sent == ["a"]
    assert play.ended == {}
    play.workers("echo", 1)
    play.later_by(2)
    play.reply("a", b"A")
    assert play.ended["a"][1:4] == (Status.DONE, [b"A"], 1)


def test_what_no_worker_has_when_its_time_is_over_is_taken_back_and_expires() -> None:
    play = Play()
    play.submit("echo", "a", expires=play.now + 5)
    play.workers("echo", 1)
    play.go()
    play.queued.add(b"a")
    play.later_by(4.9)
    assert b"a" in play.running
    play.later_by(0.2)
    assert play.running == {}
    play.later_by(10)
    assert play.ended["a"].status is Status.EXPIRED
    assert play.sent == ["a"]


@pytest.mark.parametrize("ago", [1, 20])
def test_what_a_worker_had_before_a_restart_goes_to_no_other_when_its_time_is_over(ago: int) -> None:
    play = Play()
    play.submit("echo", "a", expires=play.now - ago + 10)
    play.core.resume(b"echo", play.row(b"echo", b"a"), ago, play.now, int((play.now - ago) * 1e6))
    play.running[b"a"] = b"echo"
    play.queued.add(b"a")
    play.workers("echo", 1)
    play.go()
    play.later_by(max(0, 9.9 - ago))
    assert (b"a" in play.running) == (ago < 10)
    play.later_by(0.2)
    assert play.running == {}
    play.later_by(10)
    assert play.ended["a"].status is Status.EXPIRED
    assert play.sent == []


def test_what_a_worker_has_when_its_time_is_over_is_left_to_it() -> None:
    play = Play()
    play.submit("echo", "a", expires=play.now + 5)
    play.workers("echo", 1)
    play.go()
    play.later_by(10)
    play.reply("a", b"A")
    assert play.ended["a"][1:4] == (Status.DONE, [b"A"], 1)


def test_what_is_closed_is_not_looked_at_when_its_limit_passes() -> None:
    play = at_work("a", "b", options=limited(5))
    play.close("a")
    play.later_by(10)
    assert play.sent == ["a"]
    play.reply("a", b"late")
    assert play.sent == ["a", "b"]


@pytest.mark.parametrize("lapse", ["limit", "ttl"])
def test_one_that_the_broker_gave_back_does_not_pause_its_service(lapse: str) -> None:
    play = at_work("runs", workers=4, presence_first=1)
    if lapse == "limit":
        play.options = limited(5)
    play.submit("echo", "waits", expires=0 if lapse == "limit" else play.now + 5)
    play.go()
    play.queued = {b"waits"}  # its worker died, and the others are busy with somebody else's
    play.answers_presence = False  # the next answer takes a while
    play.later_by(5)
    play.options = b""
    play.submit("echo", "x")
    play.go()
    assert play.core.counts["returned"] == 1
    assert "x" in play.sent


def test_a_request_brings_its_own_pauses() -> None:
    play = at_work(
        "a",
        options=json.dumps({"retry_first": 1, "retry_most": 3}).encode(),
        max_attempts=10,
        retry_first=100.0,
        retry_most=100.0,
    )
    for _ in range(4):
        play.fail("a")
        play.later_by(4)
    for outcome, base in zip(play.postponed, [1, 2, 3, 3], strict=True):
        assert outcome.delay == pytest.approx(base, rel=JITTER)


def test_no_more_run_than_the_service_may_and_nobody_asks_without_a_pause() -> None:
    play = at_work(
        *names("r", 10), workers=8, limits={b"echo": ServiceLimits(running=2)}, presence_first=0.1, presence_most=1.0
    )
    assert len(play.running) == 2
    asked = len(play.asked)
    play.later_by(100)
    assert len(play.running) == 2
    assert len(play.asked) - asked < 120
    for done in range(8):
        play.reply(play.sent[done], b"")
        assert len(play.running) == 2


# -- rates ----------------------------------------------------------------------------------------------------

TEN = {b"echo": ServiceLimits(rate=10)}


def reply_to_all(play: Play) -> None:
    for name in [*play.running]:
        play.reply(name.decode(), b"")


def test_requests_of_a_service_with_a_rate_begin_evenly_spread() -> None:
    play = at_work(*names("r", 200), workers=8, limits=TEN)
    begun = [len(play.sent)]
    for _ in range(50):
        play.later_by(0.1)
        reply_to_all(play)
        begun.append(len(play.sent))
    assert begun[0] <= 2
    assert 49 <= begun[-1] <= 52
    assert max(later - earlier for earlier, later in pairwise(begun)) <= 2


def test_a_rate_holds_for_requests_that_come_alone() -> None:
    """Between them nothing is left to be remembered of their service but this."""
    play = at_work("a", workers=8, limits=TEN)
    reply_to_all(play)
    for name in names("r", 30):
        play.submit("echo", name)
        play.later_by(0.01)
        reply_to_all(play)
    assert len(play.sent) <= 6
    play.later_by(10)
    for _ in range(30):
        reply_to_all(play)
        play.later_by(0.2)
    assert len(play.sent) == 31


def test_what_a_rate_holds_back_lacks_no_workers() -> None:
    play = at_work(*names("r", 10), workers=8, limits={b"echo": ServiceLimits(rate=1 / 60)}, presence_first=0.1)
    asked = len(play.asked)
    play.later_by(50)
    assert len(play.sent) == 1
    assert len(play.asked) == asked


def test_a_rate_may_be_set_changed_and_taken_away_at_run_time() -> None:
    play = at_work(*names("r", 400), workers=1)
    for limits, most in ((TEN, 12), ({b"echo": ServiceLimits(rate=20)}, 22), ({}, 101)):
        play.core.reconfigure(replace(play.core._config, limits=limits))
        play.later_by(0.01)
        sent = len(play.sent)
        for _ in range(100):
            reply_to_all(play)
            play.later_by(0.01)
        assert most * 0.7 <= len(play.sent) - sent <= most


# -- a reply without room -------------------------------------------------------------------------------------


def refuse(play: Play) -> None:
    """The store has no room for what it was given."""
    batches, play.unwritten = play.unwritten, []
    for batch in batches:
        play.core.unsettled(batch, play.now, full=True)
    play.go()


def test_a_reply_that_never_fits_is_a_failure_in_the_end() -> None:
    play = at_work("a", "b")
    play.disk = "slow"
    play.reply("a", bytes(1000))
    for _ in range(REFUSED_MOST):
        refuse(play)
        play.later_by(31)
        ((outcome,),) = play.unwritten[:1]
        assert isinstance(outcome, Finish)
        assert outcome.status is Status.DONE
    refuse(play)
    play.disk = "works"
    play.later_by(31)
    assert play.ended["a"][1:5] == (
        Status.FAILED,
        [],
        1,
        "the store had no room for its reply of 1000 bytes",
    )


@pytest.mark.parametrize("times", [1, REFUSED_MOST])
def test_a_reply_that_fits_later_is_kept(times: int) -> None:
    play = at_work("a")
    play.disk = "slow"
    play.reply("a", b"A")
    for _ in range(times):
        refuse(play)
        play.later_by(31)
    play.write()
    assert play.ended["a"].frames == [b"A"]
    assert play.core.flights == {}


def test_many_that_are_too_late_are_met_in_few_looks_and_take_no_place() -> None:
    play = Play()
    play.workers("echo", 1)
    play.submit("echo", "first")
    play.go()
    play.submit("echo", *names("r", 3000), expires=play.now + 5)
    play.submit("echo", "the last")
    play.now += 5
    fetches = play.fetches
    play.reply("first", b"done")
    assert play.fetches - fetches < 30
    assert play.core.counts["expired"] == 3000
    assert play.sent == ["first", "the last"]


def test_what_had_ended_already_does_not_count() -> None:
    play = Play(max_attempts=2)
    play.workers("echo", 3)
    play.submit("echo", "a", "b", "c")
    play.go()
    play.disk = "slow"
    play.reply("a", b"A")
    play.fail("b")
    play.reply("c", b"C")
    (first,), (second,), (third,) = play.unwritten
    play.core.settled([first.uuid, second.uuid, third.uuid], [first, second])
    assert (play.core.counts["succeeded"], play.core.counts["retried"]) == (1, 0)
