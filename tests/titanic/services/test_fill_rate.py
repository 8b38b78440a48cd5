"""When the store will be full, at the rate of the last hour."""

from __future__ import annotations

from titanic.services.ask import FillRate


class Left:
    """A store with so much room."""

    def __init__(self, room: int) -> None:
        self._room = room

    def room_left(self) -> int:
        return self._room


def test_nothing_is_said_before_ten_minutes_then_the_present_rate_counts() -> None:
    rate, room, now = FillRate(), 1000, 0.0
    while now < 600:
        assert rate.full_in(now, Left(room)) is None
        now, room = now + 60, room - 10
    assert rate.full_in(now, Left(room)) == 900 / 100 * 600
    assert rate.full_in(now + 30, Left(0)) == 900 / 100 * 600 - 30, "it is looked at once a minute"


def test_what_does_not_fill_is_never_full() -> None:
    rate = FillRate()
    for minute in range(90):
        assert rate.full_in(minute * 60.0, Left(1000)) is None
    assert rate.full_in(5400.0, Left(1200)) is None


def test_only_the_last_hour_counts() -> None:
    rate = FillRate()
    for minute in range(30):
        rate.full_in(minute * 60.0, Left(10_000 - minute * 100))
    assert rate.full_in(1800.0, Left(7000)) is not None
    for minute in range(31, 95):
        found = rate.full_in(minute * 60.0, Left(7000))
    assert found is None
