"""When the store will be full, at the rate of the last hour."""

from __future__ import annotations

from titanic.services.ask import FillRate


def test_nothing_is_said_before_ten_minutes_then_the_present_rate_counts() -> None:
    rate, room, now = FillRate(), 1000, 0.0
    while now < 600:
        assert rate.full_in(now, lambda room=room: room) is None  # type: ignore[misc]
        now, room = now + 60, room - 10
    assert rate.full_in(now, lambda: room) == 900 / 100 * 600
    assert rate.full_in(now + 30, lambda: 0) == 900 / 100 * 600 - 30, "it is looked at once a minute"


def test_what_does_not_fill_is_never_full() -> None:
    rate = FillRate()
    for minute in range(90):
        assert rate.full_in(minute * 60.0, lambda: 1000) is None
    assert rate.full_in(5400.0, lambda: 1200) is None


def test_only_the_last_hour_counts() -> None:
    rate = FillRate()
    for minute in range(30):
        rate.full_in(minute * 60.0, lambda minute=minute: 10_000 - minute * 100)  # type: ignore[misc]
    assert rate.full_in(1800.0, lambda: 7000) is not None
    for minute in range(31, 95):
        found = rate.full_in(minute * 60.0, lambda: 7000)
    assert found is None
