"""Sessions and refusals, with a clock that the test moves."""

from __future__ import annotations

import pytest

from titanic.web.visitors.grants import IDLE, LONGEST, Kind, Sessions
from titanic.web.visitors.refusals import BURST, EVERY, MOST, Refusals


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(most=5, most_of_user=2)


def test_a_session_is_found_by_its_number_alone(sessions: Sessions) -> None:
    number = sessions.begin("ann", "proof", 0.0)
    other = sessions.begin("ann", "proof", 0.0)
    grant = sessions.find(number, 1.0)
    assert grant is not None
    assert (grant.user, grant.kind, grant.proof) == ("ann", Kind.SESSION, "proof")
    assert number not in repr(vars(sessions))
    assert grant.csrf not in repr(grant)
    second = sessions.find(other, 1.0)
    assert second is not None
    assert second.csrf != grant.csrf
    for wrong in ("", number[:-1], number + "x", "\udcff"):
        assert sessions.find(wrong, 1.0) is None


def test_sessions_end(sessions: Sessions) -> None:
    number = sessions.begin("ann", "", 0.0)
    assert sessions.find(number, IDLE) is not None
    assert sessions.find(number, 2 * IDLE) is not None
    assert sessions.find(number, 3 * IDLE + 1) is None
    number, now = sessions.begin("ann", "", 0.0), 0.0
    while now < LONGEST:
        assert sessions.find(number, now) is not None
        now += IDLE / 2
    assert sessions.find(number, LONGEST + 1) is None
    number = sessions.begin("ann", "", 0.0)
    sessions.end(number)
    assert sessions.find(number, 0.0) is None


def test_sessions_are_bounded_and_the_one_ends_that_nobody_uses(sessions: Sessions) -> None:
    first, second = (sessions.begin("ann", "", at) for at in (0.0, 1.0))
    assert sessions.find(first, 2.0)
    sessions.begin("ann", "", 3.0)
    assert sessions.find(first, 4.0)
    assert sessions.find(second, 4.0) is None
    for user in ("b", "c", "d", "e", "f"):
        sessions.begin(user, "", 5.0)
    assert len(sessions) == 5
    sessions.sweep(5.0 + IDLE + 1)
    assert len(sessions) == 0


def test_refusals_fill_a_bucket() -> None:
    refusals = Refusals()
    for _ in range(BURST):
        assert refusals.wait("10.0.0.1", 0.0) == 0
        refusals.note("10.0.0.1", 0.0)
    assert refusals.wait("10.0.0.1", 0.0) == EVERY
    assert refusals.wait("10.0.0.2", 0.0) == 0
    assert refusals.wait("10.0.0.1", EVERY) == 0
    for _ in range(BURST):
        refusals.note("2001:db8::1", 0.0)
    assert refusals.wait("2001:db8::ffff", 0.0) > 0
    assert refusals.wait("2001:db8:0:1::1", 0.0) == 0
    for number in range(MOST + 10):
        refusals.note(f"x{number}", 0.0)
    assert len(refusals._filled) == MOST
