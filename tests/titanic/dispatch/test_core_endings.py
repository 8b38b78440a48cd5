"""How requests end, and how the dispatcher does: replies, failures, closing, broken disks, the last round."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from support.dispatch_play import Play, at_work, names

from broker import TRACEBACK, ErrorReply
from titanic.dispatch.core import LOST, KeepOutcomes, Maintain
from titanic.dispatch.outcomes import MOST_BYTES
from titanic.settings import JITTER
from titanic.store import Status

PACKAGE = Path(__file__).parents[3] / "titanic"

# -- how it ends ----------------------------------------------------------------------------------------------


def test_a_reply_is_kept_with_its_attempts_and_the_time_it_was_sent() -> None:
    play = at_work("a")
    sent_at = play.now
    play.later_by(7)
    play.reply("a", b"one", b"", b"two")
    end = play.ended["a"]
    assert (end.status, end.frames, end.attempts, end.started) == (Status.DONE, [b"one", b"", b"two"], 1, sent_at)


def test_a_reply_without_frames_is_a_reply() -> None:
    play = at_work("a")
    play.reply("a")
    assert play.ended["a"].frames == []


def test_the_documents_name_the_jitter() -> None:
    texts = [path.read_text() for path in PACKAGE.rglob("*") if path.suffix in (".md", ".py")]
    assert {said for text in texts for said in re.findall("± ?([0-9.]+) %", text)} == {f"{JITTER * 100:g}"}


def test_a_failure_is_tried_again_later_and_later() -> None:
    play = at_work("a", max_attempts=6, retry_first=1.0, retry_most=5.0)
    for _ in range(5):
        play.fail("a", 500, "boom", b"line 1")
        play.later_by(6)
    assert play.sent == ["a"] * 6
    delays = [outcome.delay for outcome in play.postponed]
    for delay, base in zip(delays, [1, 2, 4, 5, 5], strict=True):
        assert delay == pytest.approx(base, rel=JITTER)
    assert len({round(delay / base, 6) for delay, base in zip(delays, [1, 2, 4, 5, 5], strict=True)}) == 5
    assert play.postponed[0].reason == "boom\nline 1"
    play.fail("a", 500, "the last", b"trace")
    assert play.ended["a"][1:5] == (Status.FAILED, [b"trace"], 6, "the last")
    assert play.core.counts["retried"] == 5
    assert play.core.counts["failed"] == 1


def test_a_worker_may_say_that_it_has_failed_for_good() -> None:
    play = at_work("a", max_attempts=10)
    play.fail("a", 500, "no such user", b"titanic:fatal", b"line 1")
    assert play.ended["a"][1:5] == (Status.FAILED, [b"line 1"], 1, "no such user")


@pytest.mark.parametrize(("service", "again"), [("echo", 1), ("echo.flow", 0)])
def test_a_flow_that_polls_its_steps_is_not_with_an_earlier_worker(service: str, again: int) -> None:
    play = Play(max_attempts=3)
    play.submit(service, "a")
    play.workers(service, 1)
    play.go()
    play.fail("a", 500, "wait", b"titanic:again=60")
    play.later_by(61)
    assert (play.sent, play.core.again) == (["a", "a"], again)


def test_a_worker_may_say_when_to_try_again() -> None:
    play = at_work("a", max_attempts=3, retry_first=1.0)
    for word, attempts in ((b"titanic:retry=90", 1), (b"titanic:again=60.5", 1), (b"titanic:again=0", 1)):
        play.fail("a", 500, "busy", word, b"detail")
        assert play.postponed[-1][1:4] == (max(0.01, float(word.partition(b"=")[2])), attempts, "busy\ndetail")
        play.later_by(100)
    play.fail("a", 500, "busy", b"titanic:retry=1")
    play.later_by(100)
    assert play.postponed[-1].attempts == 2
    play.fail("a", 500, "busy", b"titanic:retry=1", b"the last")
    assert play.ended["a"][1:5] == (Status.FAILED, [b"the last"], 3, "busy")
    assert play.core.counts["retried"] == 4


def test_what_no_worker_is_ready_for_is_no_attempt_and_fails_after_a_time() -> None:
    play = at_work("a", max_attempts=2, retry_first=1.0, retry_most=300.0, unready_timeout=3600.0)
    begun = play.now
    while "a" not in play.ended:
        play.fail("a", 500, "no argument 'x'", b"titanic:unready", b"detail")
        play.later_by(400)
    assert {(one.attempts, one.reason) for one in play.postponed} == {(0, "no argument 'x'\ndetail")}
    delays = [one.delay for one in play.postponed]
    assert delays[0] == pytest.approx(1, rel=JITTER)
    assert max(delays) <= 300 * (1 + JITTER)
    assert 3600 <= play.ended["a"].started - begun <= 4100
    reason = "no worker was ready for it within 3600 s: no argument 'x'"
    assert play.ended["a"][1:5] == (Status.FAILED, [b"detail"], 0, reason)


def test_without_time_for_that_it_fails_at_once_and_failures_are_tried_again_as_ever() -> None:
    play = at_work("a", "b", max_attempts=2, unready_timeout=0.0)
    play.fail("a", 500, "boom")
    assert play.postponed[-1].attempts == 1
    play.fail("b", 500, "no", b"titanic:unready")
    assert play.ended["b"].status is Status.FAILED


def test_the_pauses_of_what_no_worker_is_ready_for_grow_and_an_attempt_begins_them_anew() -> None:
    play = at_work("a", max_attempts=3, retry_first=1.0, unready_timeout=100.0)
    for _ in range(8):
        play.fail("a", 500, "no", b"titanic:unready")
        play.later_by(play.postponed[-1].delay + 0.001)
    delays = [one.delay for one in play.postponed]
    assert all(1.6 <= later / before <= 2.5 for before, later in pairwise(delays[2:])), delays
    play.fail("a", 500, "boom")
    assert play.postponed[-1].attempts == 1
    play.later_by(200)
    play.fail("a", 500, "no", b"titanic:unready")
    assert play.postponed[-1].delay <= 1 + JITTER
    play.later_by(2)
    play.reply("a", b"done")
    assert play.ended["a"].attempts == 2


@pytest.mark.parametrize(
    "word",
    [
        b"titanic:fatal ",
        b"titanic:unready ",
        b"titanic:retry=",
        b"titanic:retry=-1",
        b"titanic:again=nan",
        b"titanic:again=1e9",
        b"titanic:x",
    ],
)
def test_a_word_that_makes_no_sense_is_detail(word: bytes) -> None:
    play = at_work("a", max_attempts=2, retry_first=1.0)
    play.fail("a", 500, "no", word)
    assert play.postponed[0].attempts == 1
    assert play.postponed[0].delay == pytest.approx(1, rel=JITTER)
    assert play.postponed[0].reason == f"no\n{word.decode()}"


def test_of_a_long_detail_the_end_stays_until_the_next_attempt() -> None:
    play = at_work("a", max_attempts=2)
    play.fail("a", 500, "ValueError: no", "ä".encode() * 3000 + b"\nthe end")
    reason = play.postponed[0].reason
    assert len(reason.encode()) <= 1000
    assert reason.startswith("ValueError: no\n...ä")
    assert reason.endswith("ä\nthe end")


def test_a_traceback_that_finds_no_room_is_not_waited_for() -> None:
    play = at_work("a", max_attempts=1)
    play.core.failed(b"a", ErrorReply(500, "ValueError: no", [TRACEBACK + b"..."]), play.now)
    (keep,) = play.core.take_effects(play.now)
    assert isinstance(keep, KeepOutcomes)
    play.core.unsettled(keep.outcomes, play.now, full=True)
    play.later_by(1)
    assert play.ended["a"][1:5] == (Status.FAILED, [], 1, "ValueError: no")


def test_a_request_may_bring_its_own_number_of_attempts() -> None:
    play = Play(max_attempts=10)
    play.max_attempts = 1
    play.submit("echo", "a")
    play.workers("echo", 1)
    play.go()
    play.fail("a")
    assert play.ended["a"].status is Status.FAILED


@pytest.mark.parametrize("status", [400, 413])
def test_what_the_broker_never_takes_fails_at_once(status: int) -> None:
    play = at_work("a", max_attempts=10)
    play.refuse("a", status, "too large")
    assert play.ended["a"].status is Status.FAILED
    assert play.ended["a"].reason == f"{status} too large"


@pytest.mark.parametrize("status", [400, 413, 499, 503, 504])
def test_a_worker_that_says_what_brokers_say_has_failed(status: int) -> None:
    play = at_work("a", max_attempts=2, retry_first=1)
    play.fail("a", status, "my word", b"more")
    assert (play.postponed[0].attempts, play.postponed[0].reason) == (1, "my word\nmore")
    play.later_by(2)
    play.fail("a", status, "my word", b"more")
    assert play.ended["a"][1:5] == (Status.FAILED, [b"more"], 2, "my word")


def test_a_reply_may_look_like_an_error() -> None:
    """What it is was decided by its FINAL, not by how all of it begins."""
    play = at_work("a")
    play.reply("a", b"MDPE01", b"500 a part")
    assert play.ended["a"][1:3] == (Status.DONE, [b"MDPE01", b"500 a part"])


@pytest.mark.parametrize("status", [503, 504])
def test_what_the_broker_did_not_deliver_goes_back_and_is_no_attempt(status: int) -> None:
    play = at_work("a", max_attempts=1, presence_first=0.1)
    for _ in range(3):
        play.refuse("a", status)
        assert play.running == {}
        play.later_by(1)
        assert play.running == {b"a": b"echo"}
    play.reply("a", b"A")
    assert play.ended["a"].attempts == 1
    assert play.core.counts["returned"] == 3


def test_a_death_that_is_no_attempt_is_a_delivery() -> None:
    play = at_work("a", max_attempts=1)
    for _ in range(2):
        play.refuse("a", LOST)
        play.later_by(1)
    assert [(one.attempts, one.deliveries) for one in play.postponed] == [(0, 1), (0, 2)]
    play.reply("a", b"A")
    assert play.ended["a"].attempts == 1


def test_no_reply_in_time_is_a_failure() -> None:
    play = at_work("a", max_attempts=2, attempt_timeout=30, retry_first=1)
    play.times_out("a")
    assert play.postponed[0].reason == "no reply within 30 s"
    play.later_by(2)
    play.times_out("a")
    assert play.ended["a"].status is Status.FAILED


def test_a_reply_that_comes_twice_counts_once() -> None:
    play = at_work("a")
    play.disk = "slow"
    play.reply("a", b"first")
    play.core.replied(b"a", [b"second"], play.now)
    play.core.timed_out(b"a", play.now)
    play.write()
    play.core.replied(b"a", [b"third"], play.now)
    play.go()
    assert play.ended["a"].frames == [b"first"]
    assert play.core.flights == {}


# -- closed ---------------------------------------------------------------------------------------------------


def test_what_is_closed_before_it_is_sent_is_never_sent() -> None:
    play = at_work("a", "b")
    play.close("b")
    play.reply("a", b"")
    assert play.sent == ["a"]
    assert play.core.backlogs == {}


def test_closed_while_running_keeps_its_place_until_the_reply_which_is_dropped() -> None:
    play = at_work("a", "b")
    play.close("a")
    play.go()
    assert play.sent == ["a"]
    play.reply("a", b"late")
    assert play.sent == ["a", "b"]
    assert play.ended == {}


def test_a_closed_one_is_in_doubt_until_it_is_known_that_no_worker_gets_it() -> None:
    play = at_work("a", "b", "c", workers=2)
    play.queued = {b"b"}  # no worker has it
    play.close("a", "b", "c")
    assert [play.core.in_doubt(name) for name in (b"a", b"b", b"c")] == [True, True, False]
    play.go()
    assert sorted(play.certain) == [b"a", b"b"]
    assert not play.core.in_doubt(b"a")
    play.reply("a", b"late")
    assert play.core.flights == {}


def test_closed_while_its_outcome_is_written() -> None:
    play = at_work("a")
    play.disk = "slow"
    play.reply("a", b"A")
    play.close("a")
    play.write()
    assert play.ended == {}
    assert play.core.flights == {}


# -- the disk -------------------------------------------------------------------------------------------------


def test_an_outcome_that_the_disk_does_not_take_is_kept_and_nothing_is_executed_twice() -> None:
    play = at_work("a", "b", workers=2)
    play.disk = "broken"
    play.reply("a", b"A")
    play.later_by(300)
    assert play.ended == {}
    play.disk = "works"
    play.later_by(30)
    assert play.ended["a"].frames == [b"A"]
    assert play.sent == ["a", "b"]


def test_what_the_disk_does_not_take_is_tried_with_growing_pauses() -> None:
    play = at_work("a")
    play.disk = "broken"
    play.reply("a", b"A")
    pauses = []
    for _ in range(7):
        deadline = play.core.timers.next()
        assert deadline is not None
        pauses.append(deadline - play.now)
        play.later_by(deadline - play.now)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_a_broken_disk_does_not_fill_the_memory_with_outcomes() -> None:
    play = at_work(*names("r", 100), workers=3)
    play.disk = "broken"
    while play.running:  # those that were sent before the disk was known to be broken reply too
        play.reply(next(iter(play.running)).decode(), b"")
        play.later_by(1)
    assert len(play.sent) <= 6
    play.later_by(100)
    assert len(play.core.flights) == len(play.sent) <= 6
    play.disk = "works"
    play.later_by(30)
    assert len(play.ended) == len(play.sent) - 3


def test_one_outcome_that_cannot_be_written_holds_up_no_other() -> None:
    play = at_work("a", "b", workers=2)
    play.disk = "slow"
    play.core.replied(b"a", [b"A"], play.now)
    play.core.replied(b"b", [b"B"], play.now)
    play.running.clear()
    play.go()
    assert [len(batch) for batch in play.unwritten] == [2]
    play.write(fails=True)
    play.later_by(1)
    assert [len(batch) for batch in play.unwritten] == [1, 1]


def test_workers_that_are_faster_than_the_disk_wait_for_it() -> None:
    fifth = bytes(MOST_BYTES // 5 + 1)
    play = at_work(*names("r", 20))
    play.disk = "slow"
    while play.running:
        play.reply(play.sent[-1], fifth)
    assert len(play.sent) == 5
    play.disk = "works"
    play.write()
    assert len(play.sent) == 6


def test_a_damaged_record_fails_and_those_behind_it_get_their_turn() -> None:
    play = Play()
    play.damaged = {b"b"}
    play.submit("echo", "a", "b", "c")
    play.workers("echo", 1)
    play.go()
    play.reply("a", b"")
    play.later_by(1)
    assert play.ended["b"][1:5] == (Status.FAILED, [], 0, "damaged")
    assert play.sent == ["a", "c"]


def test_a_damaged_record_that_cannot_be_ended_yet_is_not_met_over_and_over() -> None:
    play = Play()
    play.disk = "slow"
    play.damaged = {b"a"}
    play.submit("echo", "a", "b")
    play.workers("echo", 1)
    play.go()
    play.later_by(10)
    assert play.fetches < 20
    play.write()
    play.later_by(1)
    assert play.sent == ["b"]


def test_a_store_that_cannot_be_read_is_tried_again_after_a_pause() -> None:
    play = Play(presence_first=0.1)
    play.submit("echo", "a")
    play.core.present(b"echo", 1, play.now)
    assert [fetch.service for fetch in play.core.take_fetches()] == [b"echo"]
    play.core.unreadable(b"echo", play.now)
    assert play.core.take_fetches() == []
    play.workers("echo", 1)
    play.later_by(0.1)
    assert play.sent == ["a"]


# -- the alarm, the end ---------------------------------------------------------------------------------------


def test_the_alarm_rings_once() -> None:
    core = Play().core
    core.set_alarm(10.0)
    assert core.next_deadline() == 10.0
    assert [core.take_effects(now) for now in (9.9, 10.0, 11.0)] == [[], [Maintain()], []]
    core.set_alarm(20.0)
    core.set_alarm(None)
    assert core.next_deadline() is None


def test_while_stopping_nothing_new_is_sent_but_outcomes_are_written() -> None:
    play = Play()
    play.submit("echo", "a", "b")
    play.submit("absent", "x")
    play.workers("echo", 1)
    play.go()
    play.core.set_alarm(play.now)
    play.core.stopping = True
    asked = list(play.asked)
    play.reply("a", b"A")
    play.later_by(10)
    assert play.sent == ["a"]
    assert play.asked == asked
    assert play.ended["a"].frames == [b"A"]
    assert play.core.flights == {}
    assert play.core.next_deadline() is None


def test_while_stopping_an_outcome_that_failed_is_still_tried_again() -> None:
    play = at_work("a")
    play.core.stopping = True
    play.disk = "broken"
    play.reply("a", b"A")
    assert play.core.flights
    play.disk = "works"
    play.later_by(1)
    assert play.ended["a"].frames == [b"A"]


def test_at_the_end_an_outcome_that_failed_is_tried_at_once_and_without_long_pauses() -> None:
    play = at_work("a")
    play.disk = "broken"
    play.reply("a", b"A")
    play.later_by(60)
    play.core.stopping = True
    play.core.outcomes.hurry(play.now)
    before = len(play.batches)
    play.later_by(1)
    assert len(play.batches) - before >= 5


def test_of_what_has_its_outcome_already_no_worker_keeps_anything() -> None:
    """The broker's word that a request can't be taken back may cross its reply."""
    play = at_work("a")
    play.disk = "broken"
    play.reply("a", b"A")
    assert play.core.flights
    assert not play.core.kept(b"a"), "its reply is wanted"
    assert not play.core.kept(b"unknown")
    play.check()


def test_rows_that_come_when_it_is_too_late_are_not_sent() -> None:
    play = Play()
    play.submit("echo", "a")
    play.core.present(b"echo", 1, play.now)
    play.core.stopping = True
    play.core.fetched(b"echo", [play.row(b"echo", b"a")], play.now, 0)
    assert play.core.take_sends(play.now, 0) == []
    play.core.fetched(b"unknown", [], play.now, 0)
    play.check()
