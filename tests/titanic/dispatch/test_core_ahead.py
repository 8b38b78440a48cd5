"""How many requests are sent ahead of the workers: none to a slow service, some milliseconds' work to a fast one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.dispatch_play import Play, names

from titanic.dispatch.backlogs import AHEAD, OVERTAKE
from titanic.protocol.submit_options import DEFAULT_PRIORITY
from titanic.settings import ServiceLimits

WORKERS = 2


def started(most_ahead: int = 100, **config: object) -> Play:
    play = Play(**config)
    play.core.backlogs.most_ahead = most_ahead
    play.submit("echo", *names("r", 1000))
    play.workers("echo", WORKERS)
    play.go()
    assert in_flight(play) == WORKERS
    return play


def in_flight(play: Play) -> int:
    return len(play.sent) - len(play.ended)


def work(play: Play, count: int, seconds: float) -> None:
    """So many replies, the oldest requests first, with so much time between two."""
    for _ in range(count):
        play.reply(play.sent[len(play.ended)], b"done")
        play.later_by(seconds)


@pytest.mark.parametrize("seconds", [0.001, 0.002, 0.005])
def test_a_fast_service_is_given_what_it_does_in_some_milliseconds(seconds: float) -> None:
    play = started()
    work(play, 300, seconds)
    most = AHEAD / seconds
    assert 0.75 * most - 1 <= in_flight(play) - WORKERS <= most + 1
    assert play.sent == names("r", 1000)[: len(play.sent)]


def test_it_is_given_many_at_a_time() -> None:
    play = started()
    work(play, 300, 0.001)
    fetches, sent = play.fetches, len(play.sent)
    work(play, 99, 0.001)
    assert len(play.sent) - sent == pytest.approx(99, abs=3)
    assert play.fetches - fetches == 99 // 3


def test_a_slow_service_is_given_nothing_ahead() -> None:
    play = started()
    work(play, 50, 0.02)
    assert in_flight(play) == WORKERS


def test_it_becomes_slow_again() -> None:
    play = started()
    work(play, 300, 0.001)
    assert in_flight(play) > WORKERS
    work(play, 30, 0.1)
    assert in_flight(play) == WORKERS


def test_there_is_a_most() -> None:
    play = started(most_ahead=3)
    work(play, 700, 0.0001)
    assert in_flight(play) == WORKERS + 3


def test_a_limit_of_what_may_run_is_kept() -> None:
    play = started(limits={b"echo": ServiceLimits(running=WORKERS)})
    work(play, 300, 0.001)
    assert in_flight(play) == WORKERS


@pytest.mark.parametrize(("limits", "shared", "ahead"), [({}, False, WORKERS), ({}, True, 0), ({b"echo": 1}, False, 0)])
def test_of_workers_with_other_services_one_for_each_slot_is_ahead(
    limits: dict[bytes, int], shared: bool, ahead: int
) -> None:
    """The broker decides which service a free slot goes to. Nodes leave to others what would wait."""
    play = Play(limits={name: ServiceLimits(rate=1000) for name in limits})
    play.core.backlogs.most_ahead, play.core.backlogs.shared = 100, shared
    play.core.backlogs.joint = {b"echo"}
    play.submit("echo", *names("r", 100))
    play.workers("echo", WORKERS)
    play.go()
    assert in_flight(play) == WORKERS + ahead
    work(play, 20, 0.05)
    assert in_flight(play) == WORKERS + ahead


def test_a_more_urgent_one_overtakes_all_that_may_wait_for_a_slot() -> None:
    """Perhaps none of them runs: the slots may be of other services."""
    play = Play()
    play.core.backlogs.joint = {b"echo"}
    play.submit("echo", *names("r", 100))
    play.workers("echo", WORKERS)
    play.go()
    play.queued |= {name.encode() for name in play.sent[1:]}  # the first one runs
    play.later_by(OVERTAKE)
    play.submit("echo", "urgent", priority=DEFAULT_PRIORITY + 1)
    play.later_by(OVERTAKE)
    assert play.sent[2 * WORKERS :] == ["urgent", *names("r", 3)[1:]]


def test_nothing_is_sent_ahead_when_the_workers_are_gone() -> None:
    play = started()
    work(play, 300, 0.001)
    play.workers("echo", 0)
    sent = len(play.sent)
    play.later_by(10)
    work(play, 5, 0.001)
    assert len(play.sent) == sent


def stuck_with_some_ahead() -> tuple[Play, list[str]]:
    """A fast service that has become slow, and what it was given ahead: no worker has that yet."""
    play = started()
    work(play, 300, 0.001)
    ahead = play.sent[len(play.ended) + WORKERS :]
    assert len(ahead) > WORKERS
    play.queued |= {name.encode() for name in ahead}
    return play, ahead


def test_a_limit_takes_back_what_is_ahead() -> None:
    play, ahead = stuck_with_some_ahead()
    with_limit = replace(play.core._config, limits={b"echo": ServiceLimits(running=1)})
    play.core.reconfigure(with_limit)
    play.later_by(1)
    assert not play.queued
    assert play.core.counts["returned"] == len(ahead)
    assert len(play.running) == WORKERS  # the limit ends none
    for left in range(WORKERS, 1, -1):
        play.reply(next(iter(play.running)).decode(), b"")
        assert len(play.running) == left - 1
    play.reply(next(iter(play.running)).decode(), b"")
    assert len(play.running) == 1
    play.core.reconfigure(replace(with_limit, limits={}))
    play.later_by(1)
    assert len(play.running) == WORKERS


def test_a_more_urgent_one_overtakes_what_is_ahead_and_does_not_move() -> None:
    play, ahead = stuck_with_some_ahead()
    play.submit("echo", "urgent", priority=9)
    play.later_by(OVERTAKE / 2)
    assert "urgent" not in play.sent
    sent = len(play.sent)
    play.later_by(OVERTAKE)
    assert not play.queued
    assert play.sent[sent : sent + len(ahead)] == ["urgent", *ahead[:-1]]
    assert play.core.counts["returned"] == len(ahead)


def test_what_moves_is_left_alone() -> None:
    play, ahead = stuck_with_some_ahead()
    play.queued.clear()  # all of it is with workers by the time that it is looked at
    play.submit("echo", "urgent", priority=9)
    work(play, len(ahead) + WORKERS, 0.001)
    play.later_by(2 * OVERTAKE)
    assert play.core.counts["returned"] == 0
    assert "urgent" in play.sent


@pytest.mark.parametrize("priority", [0, DEFAULT_PRIORITY])
def test_what_is_not_more_urgent_overtakes_nothing(priority: int) -> None:
    play, _ = stuck_with_some_ahead()
    play.submit("echo", "another", priority=priority)
    play.later_by(5 * OVERTAKE)
    assert play.core.counts["returned"] == 0


def test_how_urgent_something_was_that_has_ended_does_not_matter() -> None:
    """Nobody has to look whether what comes is more urgent than that."""
    play = Play()
    play.core.backlogs.most_ahead = 100
    play.workers("echo", 1)
    play.submit("echo", "not urgent", priority=0)
    play.go()
    play.submit("echo", *names("r", 1000))
    work(play, 300, 0.001)
    assert in_flight(play) > 1
    deadline = play.core.next_deadline()
    play.submit("echo", "another")
    assert play.core.next_deadline() == deadline
