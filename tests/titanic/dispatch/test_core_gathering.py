"""Outcomes gather for a moment, so that they share a commit; but not when somebody waits for them."""

from __future__ import annotations

import pytest
from support.dispatch_play import Play, names

from titanic.dispatch.outcomes import ENOUGH, GATHER


def running(count: int) -> tuple[Play, list[str]]:
    play = Play()
    play.wanted = ()
    play.submit("echo", *names("r", 2 * count))
    play.workers("echo", count)
    play.go()
    return play, play.sent[:]


def test_they_gather_while_others_are_in_flight() -> None:
    play, sent = running(5)
    for name in sent[:3]:
        play.reply(name, b"done")
        play.later_by(GATHER / 10)
    assert play.ended == {}
    play.later_by(GATHER)
    assert sorted(play.ended) == sent[:3]
    assert play.batches == [3]


def test_a_moment_is_short_however_many_follow() -> None:
    play, _ = running(5)
    for number in range(9):
        play.reply(play.sent[number], b"done")
        play.later_by(GATHER / 3)
    assert play.batches == [3, 3, 3]


def test_enough_of_them_wait_for_no_more() -> None:
    play, sent = running(ENOUGH + 1)
    for name in sent[:ENOUGH]:
        play.reply(name, b"done")
    assert play.batches == [ENOUGH]


def test_the_last_one_in_flight_does_not_wait() -> None:
    play, sent = running(1)
    play.queue.clear()
    play.reply(sent[0], b"done")
    assert play.batches == [1]


def test_what_somebody_waits_for_does_not_wait_and_takes_the_others_along() -> None:
    play, sent = running(5)
    play.wanted = {sent[1].encode()}
    play.reply(sent[0], b"done")
    assert play.batches == []
    play.reply(sent[1], b"done")
    assert play.batches == [2]


def test_nothing_waits_when_the_server_is_to_stop() -> None:
    play, sent = running(5)
    play.core.stopping = True
    play.reply(sent[0], b"done")
    assert play.batches == [1]


@pytest.mark.parametrize("ending", ["fails", "times out"])
def test_whatever_became_of_them(ending: str) -> None:
    play, sent = running(5)
    if ending == "fails":
        play.fail(sent[0])
    else:
        play.times_out(sent[0])
    assert play.postponed == []
    play.later_by(GATHER)
    assert [one.uuid for one in play.postponed] == [sent[0].encode()]
    assert play.batches[0] == 1
