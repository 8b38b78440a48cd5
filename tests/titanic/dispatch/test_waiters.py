"""titanic.wait: who is answered when, without sockets and waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker import Access, Reach, User
from titanic.dispatch import waiters
from titanic.dispatch.waiters import Waiters, read
from titanic.protocol import tsp

UUID = bytes(range(16))
OTHER = bytes(16)


class Ask:
    def __init__(self, seconds: bytes = b"5", uuid: bytes = UUID, user: User | None = None) -> None:
        self.peer = None
        self.user = user
        self.body = [seconds, uuid.hex().encode()]


class Hall:
    """Waiters, a store that is looked at when it is told to, and what was answered."""

    def __init__(self) -> None:
        self.answers: dict[Any, list[bytes]] = {}
        self.looks: list[Any] = []
        self.running: set[bytes] = set()
        self.deaf: set[Any] = set()
        self.waiters = self.new()

    def new(self, **settings: int) -> Waiters:
        return Waiters(self, **settings)

    def is_running(self, uuid: bytes) -> bool:
        return uuid in self.running

    def congested(self, ask: Any) -> bool:
        return ask in self.deaf

    def send_answers(self, answers: Sequence[tuple[Any, list[bytes]]]) -> None:
        assert answers
        for ask, frames in answers:
            assert ask not in self.answers, "answered twice"
            self.answers[ask] = frames

    def read_replies(self, asks: Sequence[Any]) -> None:
        self.looks += asks

    def store_says(self, *frames: bytes) -> None:
        looks, self.looks = self.looks, []
        self.waiters.found([(ask, list(frames)) for ask in looks])


@pytest.fixture
def hall() -> Hall:
    return Hall()


def test_what_is_there_already_is_answered_at_once(hall: Hall) -> None:
    ask = Ask()
    hall.waiters.add([ask], 0)
    assert hall.looks == [ask]
    hall.store_says(b"200", b"x")
    assert hall.answers == {ask: [b"200", b"x"]}
    assert len(hall.waiters) == 0
    assert hall.waiters.next_deadline() is None


def test_what_a_worker_has_is_not_looked_up_and_a_small_reply_is_passed_on(hall: Hall) -> None:
    hall.running.add(UUID)
    ask, other, deaf = Ask(), Ask(uuid=OTHER), Ask()
    hall.deaf.add(deaf)
    hall.waiters.add([ask, other, deaf], 0)
    assert hall.looks == [other]
    hall.store_says(b"300")
    hall.waiters.succeeded(UUID, [b"x", b"y"])
    assert hall.answers == {ask: [b"200", b"x", b"y"]}
    assert hall.looks == [deaf], "the reader knows when it may read for those"
    assert hall.waiters.replies_given == 1
    hall.store_says(b"200", b"x", b"y")
    assert len(hall.waiters) == 1


def test_what_a_worker_has_is_pending_when_the_time_is_over(hall: Hall) -> None:
    hall.running.add(UUID)
    ask = Ask(b"5")
    hall.waiters.add([ask], 0)
    assert hall.waiters.next_deadline() == 5
    hall.waiters.tick(5)
    assert hall.answers == {ask: [b"300"]}


def test_a_look_that_comes_back_after_the_reply_was_passed_on_says_nothing_more(hall: Hall) -> None:
    ask = Ask()
    hall.waiters.add([ask], 0)
    hall.waiters.succeeded(UUID, [b"x"])
    hall.store_says(b"200", b"x")
    assert hall.answers == {ask: [b"200", b"x"]}


def test_what_comes_later(hall: Hall) -> None:
    ask, other = Ask(), Ask(uuid=OTHER)
    hall.waiters.add([ask, other], 0)
    hall.store_says(b"300")
    hall.waiters.wake([UUID, b"?" * 16])
    assert hall.looks == [ask]
    hall.store_says(b"400 unknown")
    assert hall.answers == {ask: [b"400 unknown"]}
    assert len(hall.waiters) == 1


def test_a_wake_between_the_registration_and_the_look_is_not_lost(hall: Hall) -> None:
    ask = Ask()
    hall.waiters.add([ask], 0)
    hall.waiters.wake([UUID])
    assert hall.looks == [ask, ask]
    hall.store_says(b"200", b"x")
    assert hall.answers == {ask: [b"200", b"x"]}


def test_the_time_is_over(hall: Hall) -> None:
    soon, late = Ask(b"1"), Ask(b"2.5")
    hall.waiters.add([late, soon], 10)
    hall.store_says(b"300")
    assert hall.waiters.next_deadline() == 11
    hall.waiters.tick(11)
    assert hall.answers == {soon: [tsp.PENDING]}
    assert hall.waiters.next_deadline() == 12.5
    hall.waiters.wake([UUID])
    hall.waiters.tick(12.5)
    hall.store_says(b"200")
    assert hall.answers[late] == [tsp.PENDING]


def test_a_wait_of_0_seconds_gets_an_answer(hall: Hall) -> None:
    ask = Ask(b"0")
    hall.waiters.add([ask], 10)
    hall.waiters.tick(10)
    assert hall.answers == {}
    hall.store_says(b"300")
    hall.waiters.tick(10)
    assert hall.answers == {ask: [tsp.PENDING]}
    ended = Ask(b"0")
    hall.waiters.add([ended], 20)
    hall.waiters.tick(25)
    hall.store_says(b"200", b"x")
    assert hall.answers[ended] == [b"200", b"x"]


def test_nobody_waits_longer_than_allowed(hall: Hall) -> None:
    hall.waiters.add([Ask(b"1e9")], 0)
    hall.store_says(b"300")
    assert hall.waiters.next_deadline() == waiters.MOST_SECONDS


def test_10000_wait_for_one(hall: Hall) -> None:
    asks = [Ask() for _ in range(10_000)]
    hall.waiters.add(asks, 0)
    hall.store_says(b"300")
    hall.waiters.wake([UUID])
    hall.store_says(b"200", b"x")
    assert len(hall.answers) == 10_000
    assert len(hall.waiters) == 0


def test_more_than_can_wait_are_refused(hall: Hall) -> None:
    asks = [Ask() for _ in range(waiters.MOST_WAITERS + 1)]
    hall.waiters.add(asks, 0)
    assert hall.answers[asks[-1]][0].startswith(b"500 busy: ")
    assert hall.looks == asks[:-1]


def test_those_who_are_forgotten_are_not_answered(hall: Hall) -> None:
    looked_for, waiting_, other = Ask(), Ask(), Ask()
    hall.waiters.add([waiting_, other], 0)
    hall.store_says(b"300")
    hall.waiters.add([looked_for], 0)
    for ask in (looked_for, waiting_, waiting_, Ask()):
        hall.waiters.forget(ask)
    hall.store_says(b"300")
    hall.waiters.wake([UUID])
    hall.store_says(b"200", b"x")
    assert hall.answers == {other: [b"200", b"x"]}
    assert len(hall.waiters) == 0
    assert hall.waiters.next_deadline() is None


def test_all_are_answered_at_the_end(hall: Hall) -> None:
    before = [Ask(), Ask(uuid=OTHER)]
    hall.waiters.add(before, 0)
    hall.store_says(b"300")
    hall.waiters.dismiss()
    assert hall.answers == {ask: [tsp.PENDING] for ask in before}
    assert hall.waiters.dismissed


def test_at_the_end_too_the_store_is_looked_at_for_each(hall: Hall) -> None:
    before, after, pending = Ask(), Ask(), Ask(uuid=OTHER)
    hall.waiters.add([before], 0)
    hall.waiters.dismiss()
    assert hall.answers == {}
    assert not hall.waiters.dismissed
    hall.waiters.add([after], 0)
    hall.store_says(b"400 unknown")
    hall.waiters.add([pending], 0)
    hall.store_says(b"300")
    assert hall.answers == {before: [b"400 unknown"], after: [b"400 unknown"], pending: [tsp.PENDING]}
    assert hall.waiters.dismissed


@pytest.mark.parametrize(
    "body",
    [
        [],
        [b"5"],
        [UUID.hex().encode()],
        [b"-1", UUID.hex().encode()],
        [b"nan", UUID.hex().encode()],
        [b"inf", UUID.hex().encode()],
        [b"x", UUID.hex().encode()],
        [b"", UUID.hex().encode()],
        [b"\xff", UUID.hex().encode()],
        [b"5", b"x"],
        [b"5", UUID.hex().encode(), b""],
    ],
)
def test_what_is_no_wait(hall: Hall, body: list[bytes]) -> None:
    assert read(body) is None
    ask = Ask()
    ask.body = body
    hall.waiters.add([ask], 0)
    assert hall.answers == {ask: waiters.BAD_WAIT}
    assert hall.looks == []


def test_when_there_is_no_more_room_those_are_sent_away_that_have_waited_for_longest(hall: Hall) -> None:
    hall.waiters = hall.new(most=2)
    asks = [Ask(uuid=bytes([number]) * 16) for number in range(5)]
    hall.waiters.add(asks[:3], 0)
    assert hall.answers == {}, "the store was not looked at for anyone yet"
    hall.store_says(b"300")
    assert hall.answers == {asks[0]: [b"300"]}
    hall.waiters.add(asks[3:], 1)
    assert hall.answers == {key: [b"300"] for key in asks[:3]}
    hall.store_says(b"200", b"x")
    assert hall.answers == {key: [b"300"] for key in asks[:3]} | {key: [b"200", b"x"] for key in asks[3:]}
    assert len(hall.waiters) == 0
    assert hall.waiters.next_deadline() is None


# -- with access control: nobody is told before the reader has found that he may read the request -------------------

USER = User("shop", read=Reach.OWN)


def test_a_user_is_looked_for_also_when_a_worker_has_the_request(hall: Hall) -> None:
    hall.running.add(UUID)
    ask, other, unchecked = Ask(user=USER), Ask(user=USER), Ask()
    hall.waiters.add([ask, other, unchecked], 0)
    assert hall.looks == [ask, other]
    looks, hall.looks = hall.looks, []
    hall.waiters.found([(looks[0], [tsp.PENDING]), (looks[1], tsp.UNKNOWN)])
    assert hall.answers == {other: tsp.UNKNOWN}
    hall.waiters.succeeded(UUID, [b"x"])
    assert hall.answers == {ask: [b"200", b"x"], other: tsp.UNKNOWN, unchecked: [b"200", b"x"]}
    assert len(hall.waiters) == 0


def test_a_reply_that_comes_before_the_first_look_is_not_passed_on(hall: Hall) -> None:
    """The request was unknown when the ask came, or its worker was quick."""
    his, others, unchecked = Ask(user=USER), Ask(user=User("other", read=Reach.OWN)), Ask()
    hall.waiters.add([his, others, unchecked], 0)
    hall.waiters.succeeded(UUID, [b"x"])
    assert hall.answers == {unchecked: [b"200", b"x"]}
    assert hall.waiters.replies_given == 1
    assert set(hall.looks) == {his, others, unchecked}
    hall.looks.remove(unchecked)
    looks, hall.looks = hall.looks, []
    hall.waiters.found([(ask, [b"200", b"x"] if ask is his else tsp.UNKNOWN) for ask in looks])
    assert hall.answers == {unchecked: [b"200", b"x"], his: [b"200", b"x"], others: tsp.UNKNOWN}
    assert len(hall.waiters) == 0


def test_only_users_wait_and_none_is_looked_for_yet(hall: Hall) -> None:
    ask = Ask(user=USER)
    hall.waiters.add([ask], 0)
    hall.waiters.succeeded(UUID, [b"x"])
    assert hall.answers == {}
    hall.store_says(*tsp.UNKNOWN)
    assert hall.answers == {ask: tsp.UNKNOWN}


@pytest.mark.parametrize("happens", ["time", "room", "end"])
def test_pending_is_an_answer_too_and_waits_for_the_look(hall: Hall, happens: str) -> None:
    """An unknown UUID and somebody else's must not be told apart by it."""
    hall.waiters = hall.new(most=1)
    hall.running.add(UUID)
    ask = Ask(b"1", user=USER)
    hall.waiters.add([ask, Ask(b"1", OTHER, user=USER)] if happens == "room" else [ask], 0)
    if happens == "end":
        hall.waiters.dismiss()
    hall.waiters.tick(5)
    assert hall.answers == {}
    hall.store_says(*tsp.UNKNOWN)
    assert hall.answers[ask] == tsp.UNKNOWN


def test_one_user_cannot_keep_others_from_waiting(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "MOST_OF_USER", 2)
    his = [Ask(user=USER) for _ in range(3)]
    theirs, unchecked = Ask(user=User("other", read=Reach.OWN)), Ask()
    hall.waiters.add([*his, theirs, unchecked], 0)
    assert hall.answers == {his[2]: [b"500 busy: 2 clients of this user are already waiting"]}
    hall.waiters.forget(his[0])
    again = Ask(user=USER)
    hall.waiters.add([again], 0)
    assert again not in hall.answers
    hall.store_says(*tsp.UNKNOWN)
    assert len(hall.waiters) == 0
    hall.waiters.add(more := [Ask(user=USER), Ask(user=USER)], 0)
    assert not any(ask in hall.answers for ask in more)


def test_who_may_do_something_else_now_asks_again(hall: Hall) -> None:
    """What was looked up is how it was before."""
    same, less, gone = User("same", read=Reach.OWN), User("less", read=Reach.OWN), User("gone", read=Reach.OWN)
    asks = [Ask(user=user) for user in (same, less, gone, None)]
    hall.waiters.add(asks, 0)
    hall.store_says(b"300")
    late = Ask(user=less)
    hall.waiters.add([late], 0)
    hall.waiters.review(Access([User("same", read=Reach.OWN), User("less")]))
    assert hall.answers == {ask: [b"300"] for ask in (asks[1], asks[2], late)}
    hall.store_says(b"200", b"x")
    hall.waiters.succeeded(UUID, [b"x"])
    assert hall.answers.keys() == {*asks, late}
    assert hall.answers[late] == [b"300"]
    assert len(hall.waiters) == 0


def test_nothing_is_kept_of_asks_that_are_gone(hall: Hall) -> None:
    one, two = (Ask(uuid=UUID, user=User("ann", read=Reach.ALL)) for _ in range(2))
    hall.waiters.add([one, two], 0)
    hall.waiters.forget(one)
    assert (hall.waiters.awaited(), hall.waiters._of_users) == ([UUID], {b"ann": 1})
    hall.waiters.forget(two)
    assert (hall.waiters.awaited(), hall.waiters._of_users) == ([], {})
