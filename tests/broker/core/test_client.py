"""A client's side of MDP, against raw frames: retries, correlation, giving up."""

from __future__ import annotations

from typing import Any

import pytest
from support.each import each
from support.transcript import SessionTranscript

from broker.config import ClientConfig
from broker.core.client import ClientSession, EventKind, ReplyEvent
from broker.core.mdp import is_sent_away


class Asking(SessionTranscript):
    """A client's session."""

    def __init__(self, *, correlated: bool = False, **config: Any) -> None:
        super().__init__(ClientSession(ClientConfig(**config), correlated=correlated))

    def asks(self, *body: bytes, **how: Any) -> int:
        return self.session.request(b"echo", list(body), self.now, **how)

    def sent(self, *, connection: int) -> dict[bytes, bytes]:
        """The requests of a correlated session that went out just now: correlation frame by body."""
        self.output += self.session.take_output()
        requests = {}
        for number, frames in self.output:
            assert number == connection
            assert frames is not None
            assert frames[1:5] == [b"", b"MDPC02", b"\1", b"echo"]
            requests[frames[5]] = frames[0]
        self.output.clear()
        return requests

    def learned(self, *news: tuple[int, EventKind, list[bytes]]) -> None:
        assert self.session.take_events() == [ReplyEvent(*one) for one in news]


FINAL, PARTIAL, GAVE_UP = EventKind.FINAL, EventKind.PARTIAL, EventKind.GAVE_UP


# -- which version the broker speaks ---------------------------------------------------------------------------

WHO = (b"", b"MDPC01", b"mmi.broker", b"mmi.broker")
ANY = (b"", b"MDPC01", b"mmi.service", b"mmi.service")


def undecided(**how: Any) -> Asking:
    return Asking(version=None, **how)


def questions(asking: Asking) -> None:
    asking.said(*WHO)
    asking.said(*ANY)
    asking.said_nothing()


@pytest.mark.parametrize(
    ("answer", "request_", "reply"),
    [
        (b'{"software": "titanic"}', (b"MDPC02", b"\1"), (b"MDPC02", b"\3")),
        (b"501", (b"", b"MDPC01"), (b"", b"MDPC01")),
    ],
)
def test_a_request_waits_until_the_broker_has_said_what_it_speaks(
    answer: bytes, request_: tuple[bytes, ...], reply: tuple[bytes, ...]
) -> None:
    asking = undecided()
    ticket = asking.session.request(b"mmi.service", [b"echo"], asking.now)
    questions(asking)
    asking.told(b"", b"MDPC01", b"mmi.broker", answer)
    asking.said(*request_, b"mmi.service", b"echo")
    asking.told(b"", b"MDPC01", b"mmi.service", b"404")  # the other question's
    asking.learned()
    asking.told(*reply, b"mmi.service", b"200")
    asking.learned((ticket, FINAL, [b"200"]))
    assert asking.session.sent_again == 0
    asking.asks(b"next")
    asking.said(*request_, b"echo", b"next")
    asking.later(2.5)
    asking.closed(1)
    questions(asking)  # it may be another one by now


def test_a_later_version_is_spoken_on_the_second_silent_connection() -> None:
    """A broker of 0.1 that was stopped completes no new connection."""
    asking = undecided(timeout=None)
    asking.asks(b"hello")
    questions(asking)
    asking.later(2.5)
    asking.closed(1)
    questions(asking)
    assert asking.session.careful
    asking.session.link(False, asking.now)
    asking.later(100)
    asking.said_nothing()
    asking.session.link(True, asking.now)
    asking.later(2.4)
    asking.said_nothing()
    asking.later(0.1)
    asking.said(b"MDPC02", b"\1", b"echo", b"hello")


def test_where_0_1_was_ever_answered_nothing_else_is_spoken() -> None:
    asking = undecided(timeout=None)
    asking.asks(b"hello")
    questions(asking)
    asking.told(b"", b"MDPC01", b"mmi.service", b"404")
    asking.said(b"", b"MDPC01", b"echo", b"hello")
    asking.session.lost(asking.now)
    asking.closed(1)
    for number in range(2, 10):
        questions(asking)
        asking.session.link(True, asking.now)
        asking.later(2.5)
        asking.closed(number)


def test_requests_are_given_up_before_the_version_is_known() -> None:
    """What has been found out so far holds for the next one."""
    asking = undecided()
    ticket = asking.asks(b"hello", timeout=1, retries=1)
    questions(asking)
    asking.later(1)
    asking.later(1)
    asking.said_nothing()
    asking.learned((ticket, GAVE_UP, [], False))
    asking.asks(b"hello")
    asking.said_nothing()
    asking.later(0.5)
    asking.closed(1)
    questions(asking)


def test_marks_are_for_a_broker_of_this_project() -> None:
    """The Guide's in Python ends at one."""
    asking = undecided(correlated=True)
    asking.asks(b"hello")
    questions(asking)
    asking.told(b"", b"MDPC01", b"mmi.broker", b"501")
    asking.said_nothing()
    assert asking.session.drops_marks


# -- on the wire ---------------------------------------------------------------------------------------------


def test_version_02() -> None:
    asking = Asking()
    ticket = asking.asks(b"hello", b"world")
    asking.said(b"MDPC02", b"\1", b"echo", b"hello", b"world")
    asking.told(b"MDPC02", b"\2", b"echo", b"part")
    asking.told(b"MDPC02", b"\3", b"echo", b"end")
    asking.learned((ticket, PARTIAL, [b"part"]), (ticket, FINAL, [b"end"]))
    assert len(asking.session) == 0
    assert asking.session.next_deadline() is None


def test_version_01() -> None:
    asking = Asking(version="0.1")
    ticket = asking.asks(b"hello")
    asking.said(b"", b"MDPC01", b"echo", b"hello")
    asking.told(b"", b"MDPC01", b"echo", b"a", b"b")
    asking.learned((ticket, FINAL, [b"a", b"b"]))


def test_majortomo() -> None:
    asking = Asking(version="majortomo")
    ticket = asking.asks(b"hello")
    asking.said(b"", b"MDPC02", b"\2", b"echo", b"hello")
    asking.told(b"", b"MDPC02", b"\3", b"part")
    asking.told(b"", b"MDPC02", b"\4", b"end")
    asking.learned((ticket, PARTIAL, [b"part"]), (ticket, FINAL, [b"end"]))


@pytest.mark.parametrize("version", ["0.1", "0.2", "majortomo"])
def test_correlation_is_an_address_frame_that_comes_back(version: str) -> None:
    asking = Asking(version=version, correlated=True)
    first, second = asking.asks(b"1"), asking.asks(b"2")
    replies = []
    for _ in range(2):
        _, frames = asking.next()
        assert frames is not None
        assert frames[1] == b""
        head = {"0.1": [b"MDPC01", b"echo"], "0.2": [b"MDPC02", b"\3", b"echo"], "majortomo": [b"MDPC02", b"\4"]}
        replies.append([frames[0], b"", *head[version], b"re:" + frames[-1]])
    asking.told(*replies[1])
    asking.told(*replies[0])
    asking.learned((second, FINAL, [b"re:2"]), (first, FINAL, [b"re:1"]))


@each(
    "frames",
    [
        [],
        [b""],
        [b"MDPC02"],
        [b"MDPC02", b"\3"],
        [b"MDPC02", b"\1", b"echo", b"x"],
        [b"MDPC02", b"\4", b"echo", b"x"],
        [b"MDPC02", b"\3", b"other service", b"x"],
        [b"", b"MDPC01", b"echo", b"x"],
        [b"MDPW02", b"\5"],
        [b"garbage"] * 20,
    ],
)
def test_what_is_no_reply_is_counted_and_dropped(frames: list[bytes]) -> None:
    asking = Asking()
    ticket = asking.asks(b"q")
    asking.told(*frames)
    asking.learned()
    assert asking.session.unmatched == 1
    asking.told(b"MDPC02", b"\3", b"echo", b"a")
    asking.learned((ticket, FINAL, [b"a"]))
    asking.told(b"MDPC02", b"\3", b"echo", b"nobody asked")
    asking.learned()
    assert asking.session.unmatched == 2


# -- one at a time -------------------------------------------------------------------------------------------


def test_each_retry_has_a_new_connection() -> None:
    asking = Asking(timeout=2, retries=2)
    ticket = asking.asks(b"q")
    for number in (1, 2, 3):
        assert asking.session.connection == number
        asking.said(b"MDPC02", b"\1", b"echo", b"q")
        asking.learned()
        asking.later(2)
        asking.closed(number)
    asking.learned((ticket, GAVE_UP, []))
    assert asking.now == 106
    asking.said_nothing()
    assert len(asking.session) == 0


def test_a_late_reply_is_not_taken_for_anothers() -> None:
    asking = Asking(timeout=2, retries=0)
    asking.asks(b"1")
    asking.later(2)
    asking.session.take_events()
    ticket = asking.asks(b"2")
    asking.told(b"MDPC02", b"\3", b"echo", b"re:1", connection=1)
    asking.learned()
    asking.told(b"MDPC02", b"\3", b"echo", b"re:2")
    asking.learned((ticket, FINAL, [b"re:2"]))


def test_only_one_at_a_time_without_correlation() -> None:
    asking = Asking()
    asking.asks(b"1")
    with pytest.raises(RuntimeError):
        asking.asks(b"2")


def test_parts_push_the_deadline_and_are_told_once() -> None:
    asking = Asking(timeout=2, retries=1)
    ticket = asking.asks(b"q")
    for part in (b"1", b"2", b"3"):
        asking.later(1.5)
        asking.told(b"MDPC02", b"\2", b"echo", part)
        asking.learned((ticket, PARTIAL, [part]))
    asking.later(2)
    assert asking.session.connection == 2
    for part in (b"1", b"2", b"3"):
        asking.told(b"MDPC02", b"\2", b"echo", part)
    asking.learned()
    asking.told(b"MDPC02", b"\2", b"echo", b"4")
    asking.told(b"MDPC02", b"\3", b"echo", b"5")
    asking.learned((ticket, PARTIAL, [b"4"]), (ticket, FINAL, [b"5"]))


def test_cancelling() -> None:
    asking = Asking()
    ticket = asking.asks(b"1")
    asking.said(b"MDPC02", b"\1", b"echo", b"1")
    asking.told(b"MDPC02", b"\2", b"echo", b"part")
    asking.session.cancel(ticket)
    asking.session.cancel(ticket)
    asking.closed(1)
    asking.said_nothing()
    asking.learned()
    assert asking.session.next_deadline() is None
    ticket = asking.asks(b"2")
    asking.told(b"MDPC02", b"\3", b"echo", b"re:1", connection=1)
    asking.told(b"MDPC02", b"\3", b"echo", b"re:2")
    asking.learned((ticket, FINAL, [b"re:2"]))


def test_without_timeout_it_waits_for_ever() -> None:
    asking = Asking(timeout=None)
    asking.asks(b"q")
    assert asking.session.next_deadline() is None


def test_a_lost_connection_sends_again_at_once() -> None:
    asking = Asking(timeout=None)
    ticket = asking.asks(b"q")
    asking.said(b"MDPC02", b"\1", b"echo", b"q")
    asking.session.lost(asking.now)
    asking.closed(1)
    asking.said(b"MDPC02", b"\1", b"echo", b"q")
    asking.told(b"MDPC02", b"\3", b"echo", b"a")
    asking.learned((ticket, FINAL, [b"a"]))


# -- many at a time ------------------------------------------------------------------------------------------


def test_a_silent_connection_is_given_up_with_all_that_is_on_it() -> None:
    asking = Asking(correlated=True, timeout=2)
    asking.asks(b"1")
    asking.later(1)
    asking.asks(b"2")
    old = asking.sent(connection=1)
    asking.later(1)
    asking.closed(1)
    new = asking.sent(connection=2)
    assert new.keys() == {b"1", b"2"}
    assert set(new.values()).isdisjoint(old.values())


@pytest.mark.parametrize("sign", ["a reply", "a reply nobody waits for", "noise"])
def test_on_a_live_connection_only_the_late_one_is_sent_again(sign: str) -> None:
    asking = Asking(correlated=True, timeout=2)
    first = asking.asks(b"1")
    asking.later(1)
    asking.asks(b"2")
    other = asking.asks(b"3")
    tags = asking.sent(connection=1)
    if sign == "a reply nobody waits for":
        asking.session.cancel(other)
    asking.told(*([b"noise"] if sign == "noise" else [tags[b"3"], b"", b"MDPC02", b"\3", b"echo", b"re:3"]))
    asking.later(1)
    assert asking.sent(connection=1).keys() == {b"1"}
    asking.told(tags[b"1"], b"", b"MDPC02", b"\3", b"echo", b"re:1")
    assert ReplyEvent(first, FINAL, [b"re:1"]) in asking.session.take_events()


def test_giving_up_takes_retries_plus_one_timeouts_however_many_are_in_flight() -> None:
    asking = Asking(correlated=True, timeout=2, retries=3)
    began, ended = {}, {}
    for _ in range(300):
        began[asking.asks(b"q")] = asking.now
        asking.later(0.05)
        ended.update(dict.fromkeys((event.ticket for event in asking.session.take_events()), asking.now))
    while len(asking.session):
        asking.later(0.05)
        ended.update(dict.fromkeys((event.ticket for event in asking.session.take_events()), asking.now))
    waits = [ended[ticket] - began[ticket] for ticket in began]
    assert min(waits) >= 8
    assert max(waits) <= 8 + 2 + 0.1
    assert asking.session.connection < 30  # one for each round, not one for each request


def test_a_short_timeout_does_not_make_a_long_one_endless() -> None:
    asking = Asking(correlated=True, retries=1)
    patient = asking.asks(b"patient", timeout=10)
    began = asking.now
    while not any(event.ticket == patient for event in asking.session.take_events()):
        asking.asks(b"hasty", timeout=0.5, retries=0)
        asking.asks(b"hasty", timeout=0.5, retries=1)
        asking.later(0.3)
        assert asking.now < began + 25
    assert asking.now >= began + 20


def test_what_waits_for_ever_is_not_sent_twice_because_of_an_impatient_one() -> None:
    asking = Asking(correlated=True, timeout=None)
    asking.asks(b"job")
    asking.asks(b"question", timeout=1, retries=5)
    asking.sent(connection=1)
    asking.later(3.5)
    assert asking.sent(connection=1).keys() == {b"question"}
    asking.session.lost(asking.now)
    asking.closed(1)
    assert asking.sent(connection=2).keys() == {b"job", b"question"}


def test_losing_the_connection_again_and_again_does_not_make_it_endless() -> None:
    asking = Asking(correlated=True, timeout=2, retries=1)
    ticket = asking.asks(b"q")
    for _ in range(8):
        asking.session.lost(asking.now)
        asking.later(0.51)
    asking.learned((ticket, GAVE_UP, []))


def sent_again(asking: Asking) -> tuple[int, bytes, bytes]:
    """A request that was sent twice on one connection, because it was late: its ticket and both its tags."""
    ticket = asking.asks(b"q")
    asking.asks(b"other")
    tags = asking.sent(connection=1)
    asking.later(1)
    asking.told(tags[b"other"], b"", b"MDPC02", b"\3", b"echo", b"x")
    asking.session.take_events()
    asking.later(1)
    return ticket, tags[b"q"], asking.sent(connection=1)[b"q"]


def test_the_reply_to_an_earlier_try_has_all_its_parts() -> None:
    """The first worker was just slow: none of its parts may be missing before its FINAL."""
    asking = Asking(correlated=True, timeout=2)
    ticket, first, _ = sent_again(asking)
    for part in (b"1", b"2"):
        asking.told(first, b"", b"MDPC02", b"\2", b"echo", part)
    asking.told(first, b"", b"MDPC02", b"\3", b"echo", b"3")
    asking.learned((ticket, PARTIAL, [b"1"]), (ticket, PARTIAL, [b"2"]), (ticket, FINAL, [b"3"]))


def test_parts_of_two_tries_are_told_once() -> None:
    asking = Asking(correlated=True, timeout=2)
    ticket, first, second = sent_again(asking)
    for tag, part in ((first, b"1"), (second, b"1"), (first, b"2"), (second, b"2"), (second, b"3"), (first, b"3")):
        asking.told(tag, b"", b"MDPC02", b"\2", b"echo", part)
    asking.told(first, b"", b"MDPC02", b"\3", b"echo", b"4")
    asking.learned(*((ticket, PARTIAL, [part]) for part in (b"1", b"2", b"3")), (ticket, FINAL, [b"4"]))
    asking.told(second, b"", b"MDPC02", b"\3", b"echo", b"4")
    asking.learned()
    assert asking.session.unmatched == 1


def test_the_error_of_an_earlier_try_is_not_the_answer_while_the_present_one_has_none() -> None:
    asking = Asking(correlated=True, timeout=2)
    ticket, first, second = sent_again(asking)
    asking.told(first, b"", b"MDPC02", b"\3", b"echo", b"MDPE01", b"409 asked again")
    asking.learned()
    asking.told(second, b"", b"MDPC02", b"\3", b"echo", b"MDPE01", b"500 oh no")
    asking.learned((ticket, FINAL, [b"MDPE01", b"500 oh no"]))


def test_a_try_that_never_was() -> None:
    asking = Asking(correlated=True)
    asking.asks(b"q")
    tag = asking.sent(connection=1)[b"q"]
    asking.told(tag[:-1] + b"\x09", b"", b"MDPC02", b"\2", b"echo", b"part")
    asking.told(tag[:-1], b"", b"MDPC02", b"\2", b"echo", b"part")
    asking.told(tag, b"x", b"", b"MDPC02", b"\2", b"echo", b"part")
    asking.learned()
    assert asking.session.unmatched == 3


def test_cancelling_one_of_many() -> None:
    asking = Asking(correlated=True)
    first, second = asking.asks(b"1"), asking.asks(b"2")
    tags = asking.sent(connection=1)
    asking.told(tags[b"1"], b"", b"MDPC02", b"\2", b"echo", b"part")
    asking.session.cancel(first)
    asking.told(tags[b"1"], b"", b"MDPC02", b"\3", b"echo", b"x")
    asking.told(tags[b"2"], b"", b"MDPC02", b"\3", b"echo", b"y")
    asking.said_nothing()
    asking.learned((second, FINAL, [b"y"]))


# -- servers that send their clients away --------------------------------------------------------------------


@each(
    ("service", "answer", "away"),
    [
        (b"titanic.submit", [b"503 draining: ask another"], True),
        (b"titanic.submit", [b"500 shutting down: try again in a moment"], True),
        (b"titanic.submit", [b"500 store full"], False),
        (b"titanic.submit", [b"200", b"503 draining"], False),
        (b"titanic.submit", [], False),
        (b"echo", [b"503 draining: ask another"], False),
        (b"echo", [b"MDPE01", b"503 draining: ask another"], True),
        (b"echo", [b"MDPE01", b"503 queue full"], False),
        (b"echo", [b"MDPE01"], False),
    ],
)
def test_who_is_sent_away(service: bytes, answer: list[bytes], away: bool) -> None:
    assert is_sent_away(service, answer) is away


def test_whoever_is_sent_away_asks_another() -> None:
    answer = (b"MDPE01", b"503 draining")
    for several in (False, True):
        asking = Asking(timeout=1.0, retries=1)
        asking.session.has_other_endpoints = several
        ticket = asking.asks(b"q")
        asking.said(b"MDPC02", b"\1", b"echo", b"q")
        asking.told(b"MDPC02", b"\3", b"echo", *answer)
        assert asking.session.sent_away is several
        if not several:
            asking.learned((ticket, FINAL, [*answer]))
            continue
        asking.learned()
        asking.session.lost(asking.now)
        assert not asking.session.sent_away
        assert asking.session.connection == 2


def test_the_farewell_counts_when_the_time_is_over() -> None:
    asking = Asking(timeout=1.0, retries=1)
    asking.session.has_other_endpoints = True
    ticket = asking.asks(b"q")
    asking.told(b"MDPC02", b"\3", b"echo", b"MDPE01", b"503 draining")
    for _ in range(3):
        asking.learned()
        asking.session.lost(asking.now)
        asking.later(0.6)
    asking.later(0.6)
    asking.learned((ticket, FINAL, [b"MDPE01", b"503 draining"]))
