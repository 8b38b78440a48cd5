"""What the log says of refusals, and that none is left out unsaid."""

from __future__ import annotations

import pytest
from support.secured import user

from broker.access.authorization import Guard
from broker.access.users import Access
from broker.io.admission import AccessLog

ALICE, BOB = user("alice"), user("bob")


@pytest.fixture
def guard() -> Guard:
    return Guard(Access([ALICE, BOB]))


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [*caplog.messages]
    caplog.clear()
    return found


def test_what_is_left_out_is_told_when_the_second_is_over(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog(guard)
    assert log.next_deadline() is None
    for now, service in ((5.0, b"one"), (5.2, b"two"), (5.9, b"three")):
        guard.refused(ALICE, "call", service, "peer")
        log.flush(now)
    assert texts(caplog) == ["refused: user 'alice', call 'one', from peer; 1 so far"]
    assert log.next_deadline() == 6.0
    log.flush(6.0)
    assert log.next_deadline() is None
    (last,) = caplog.records
    assert (last.__dict__["user"], last.__dict__["action"], last.__dict__["service"]) == ("alice", "call", "three")
    assert texts(caplog) == ["refused: user 'alice', call 'three', from peer; 3 so far (the last of 2 more within 1 s)"]
    guard.refused(ALICE, "call", b"one", "peer")
    log.flush(6.1)
    assert texts(caplog) == ["refused: user 'alice', call 'one', from peer; 4 so far"]
    log.flush(7.1)
    assert texts(caplog) == [], "there was no other"


def test_one_user_s_refusals_do_not_hide_another_s(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    """However many there are in a round."""
    log = AccessLog(guard)
    for _ in range(1000):
        guard.refused(ALICE, "call", b"x", "here")
    guard.refused(BOB, "work", b"y", "there")
    log.flush(1.0)
    assert texts(caplog) == [
        "refused: user 'alice', call 'x', from here; 1000 so far",
        "refused: user 'bob', work 'y', from there; 1 so far",
    ]
    log.flush(2.0)
    assert texts(caplog) == [
        "refused: user 'alice', call 'x', from here; 1000 so far (the last of 999 more within 1 s)"
    ]


def test_the_end_tells_all_of_it(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog(guard)
    for _ in range(3):
        guard.refused(ALICE, "call", b"x", "here")
    log.close()
    assert [text.rpartition("(")[2] for text in texts(caplog)][1:] == ["the last of 2 more within 1 s)"]
