"""Which children there are, as the core decides it: with a clock that is moved."""

from __future__ import annotations

from typing import Any

from support.each import each

from titanic.pool.core import MAX_EXTRA, Kill, LeaveChild, PoolConfig, PoolCore, Say, Start
from titanic.util.text import duration


class Play:
    """Children are numbers."""

    def __init__(self, **config: Any) -> None:
        self.now = 1000.0
        self.core = PoolCore(PoolConfig(**config))
        self.sent: list[LeaveChild | Kill] = []
        self.log: list[str] = []
        self.go()

    def go(self) -> None:
        self.core.tick(self.now)
        for action in self.core.take_actions():
            if isinstance(action, (LeaveChild, Kill)):
                self.sent.append(action)
            elif isinstance(action, Say):
                self.log.append(action.text)
            else:
                assert isinstance(action, Start)

    def say(self, number: int, **message: Any) -> None:
        self.core.said(number, message, self.now)
        self.go()

    def gone(self, number: int, how: str = "ended with exit code 0") -> None:
        self.core.gone(number, how, self.now)
        self.go()

    def later_by(self, seconds: float) -> None:
        """Move the clock."""
        end = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.go()
            if (following := self.core.next_deadline()) is not None:
                assert following > self.now, "it would spin"
        self.now = end

    @property
    def there(self) -> list[int]:
        return list(self.core.children)


def working(processes: int = 2, **config: Any) -> Play:
    play = Play(processes=processes, **config)
    for number in play.there:
        play.say(number, ready=True)
    return play


def test_as_many_as_there_are_to_be() -> None:
    play = working(3)
    assert play.there == [1, 2, 3]
    assert play.core.ready == 3
    assert not play.core.ended


def test_one_that_had_a_request_and_dies_young_is_replaced_at_once() -> None:
    """A request may be the cause, and the next one is not to wait for that."""
    play = working(1)
    for number in range(1, 9):
        play.say(number, ready=True, begun=True)
        play.gone(number, "was ended by signal 9")
        assert play.there == [number + 1]
        assert play.log[-1] == f"process {number} was ended by signal 9; replacing it"


def test_one_that_dies_is_replaced_at_once_and_one_that_dies_young_after_a_pause() -> None:
    play = working()
    play.later_by(20)
    play.gone(1, "was ended by signal 9")
    assert play.there == [2, 3]
    assert play.log == ["process 1 was ended by signal 9; replacing it"]
    for number, pause in [(3, 0.5), (4, 1.0), (5, 2.0), (6, 4.0)]:
        play.say(number, ready=True)
        play.gone(number, "ended with exit code 1")
        assert play.there == [2]
        assert play.log[-1].endswith(f"replacing it in {duration(pause)}")
        play.later_by(pause - 0.01)
        assert play.there == [2]
        play.later_by(0.02)
        assert play.there == [2, number + 1]
    play.later_by(20)
    play.gone(7)
    assert play.there == [2, 8]
    assert play.core.died == 6


def test_one_that_leaves_after_its_requests_is_replaced_before_it_has_ended() -> None:
    play = working()
    play.say(1, leaving="has started 100 requests")
    assert play.there == [1, 2, 3]
    assert play.sent == [LeaveChild(1)]
    play.later_by(10_000)  # its job may take any time
    play.say(3, ready=True)
    play.gone(1)
    assert play.there == [2, 3]
    assert play.log == ["process 1 has started 100 requests; replacing it"]
    assert play.core.died == 0


def test_too_much_memory() -> None:
    play = working(memory=100 << 20)
    play.say(1, memory=99 << 20)
    assert play.sent == []
    play.say(1, memory=(100 << 20) + 1)
    play.say(1, memory=200 << 20)
    assert play.sent == [LeaveChild(1)]
    assert play.there == [1, 2, 3]


def test_one_whose_job_exceeds_its_limit_by_far_is_killed() -> None:
    play = working(grace=5.0)
    play.say(1, stuck="still runs x")
    play.say(1, stuck="still runs x")
    assert play.there == [1, 2, 3]
    assert play.sent == [Kill(1, False)]
    play.gone(1, "was ended by signal 9")
    assert play.there == [2, 3]
    assert play.log == ["process 1 still runs x; killing it"]
    assert play.core.died == 1


def test_one_that_leaves_is_killed_for_its_job_all_the_same() -> None:
    play = working()
    play.say(1, leaving="has started 100 requests")
    play.say(1, stuck="still runs x")
    assert play.sent == [LeaveChild(1), Kill(1, False)]


def test_one_more_for_requests_that_run_alone() -> None:
    play = working(1)
    play.core.want_extra(1)
    play.go()
    assert [(child.number, child.extra) for child in play.core.children.values()] == [(1, False), (2, True)]
    play.core.want_extra(0)
    play.say(1, begun=True)
    play.gone(1)
    assert [child.extra for child in play.core.children.values()] == [True, False]
    play.say(2, done=True)
    assert play.sent == [LeaveChild(2)]
    play.gone(2)
    assert play.there == [3]
    play.core.want_extra(50)
    play.go()
    assert len(play.there) == 1 + MAX_EXTRA
    play.core.stop(play.now)
    play.go()
    assert len(play.sent) == 2 + MAX_EXTRA


def test_one_that_is_not_ready_yet_may_take_its_time() -> None:
    play = Play(processes=1)
    play.later_by(1000)
    assert play.sent == []


def test_stopping() -> None:
    play = working(grace=60.0)
    play.core.stop(play.now)
    play.go()
    assert play.sent == [LeaveChild(1), LeaveChild(2)]
    play.gone(1)
    play.later_by(59)
    assert not play.core.ended
    play.gone(2)
    assert play.core.ended
    assert play.core.killed == 0


def test_who_is_not_done_within_the_grace_is_killed() -> None:
    play = working(1, grace=60.0)
    play.core.stop(play.now)
    play.later_by(61)
    assert play.sent == [LeaveChild(1), Kill(1, True)]
    play.gone(1)
    assert play.core.ended
    assert play.core.killed == 1


def test_stopping_at_once() -> None:
    play = working(1)
    play.core.stop(play.now)
    play.core.stop_at_once(play.now)
    play.go()
    assert play.sent == [LeaveChild(1), Kill(1, True)]
    play.gone(1)
    assert (play.core.ended, play.core.killed) == (True, 0)


def test_an_app_that_cannot_be_imported_is_the_end() -> None:
    play = Play(processes=2)
    play.say(1, fault="cannot import shop")
    play.gone(1, "ended with exit code 2")
    assert play.sent == [LeaveChild(2)]
    play.gone(2, "was ended by signal 15")
    assert play.core.ended
    assert play.core.fault == "cannot import shop"
    assert play.log == []


def test_one_that_cannot_be_imported_any_more_is_tried_again() -> None:
    play = working(1)
    play.later_by(20)
    play.gone(1)
    play.say(2, fault="cannot import shop")
    play.gone(2)
    assert play.there == []
    assert play.log[-1] == "cannot import shop; trying again in 500 ms"
    play.later_by(0.5)
    assert play.there == [3]


def test_sources_that_change() -> None:
    play = working(wait_for_sources=True)
    play.core.changed("shop.py", play.now)
    play.go()
    assert play.sent == [LeaveChild(1), LeaveChild(2)]
    assert play.there == [1, 2, 3, 4]
    play.say(3, fault="a typing error")
    play.say(4, fault="a typing error")
    for number in (1, 2, 3, 4):
        play.gone(number)
    play.later_by(1000)
    assert play.there == []
    assert not play.core.ended
    play.core.changed("shop.py", play.now)
    play.go()
    assert play.there == [5, 6]
    play.core.stop(play.now)
    play.core.changed("shop.py", play.now)
    play.go()
    assert play.there == [5, 6]


@each("message", [{}, {"ready": False}, {"memory": 5}, {"unknown": 1}])
def test_what_says_nothing_new(message: dict[str, Any]) -> None:
    play = working()
    play.say(1, **message)
    play.say(99, **message)
    assert (play.there, play.sent, play.log) == ([1, 2], [], [])
