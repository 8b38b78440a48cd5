"""The ticks of a schedule: where clocks change, and wherever one begins to count."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from titanic.errors import InvalidSchedule
from titanic.schedules.schedule import CronTicks, EveryTicks, cron_ticks, zone_of

BERLIN = "Europe/Berlin"


def local(ticks: list[int], tz: str) -> list[str]:
    """Local times with what they are ahead of UTC, in hours."""
    zone = ZoneInfo(tz)
    times = [datetime.fromtimestamp(tick, zone) for tick in ticks]
    return [f"{time:%d %H:%M} {(time.utcoffset() or timedelta()) / timedelta(hours=1):+g}" for time in times]


def between(ticks: CronTicks, begin: datetime, end: datetime) -> list[int]:
    found = []
    tick = ticks.after(begin.timestamp())
    while tick < end.timestamp():
        found.append(tick)
        tick = ticks.after(tick)
    return found


def on(ticks: CronTicks, year: int, month: int, day: int, days: int = 1) -> list[int]:
    begin = datetime(year, month, day, tzinfo=ticks.zone)
    return between(ticks, begin - timedelta(seconds=1), begin + timedelta(days=days))


def test_a_fixed_time_in_an_hour_that_is_left_out_comes_when_it_is_over() -> None:
    assert local(on(cron_ticks("30 2 * * *", BERLIN), 2026, 3, 28, 3), BERLIN) == [
        "28 02:30 +1",
        "29 03:00 +2",
        "30 02:30 +2",
    ]


def test_a_fixed_time_in_an_hour_that_comes_twice_comes_the_first_time() -> None:
    assert local(on(cron_ticks("30 2 * * *", BERLIN), 2026, 10, 24, 3), BERLIN) == [
        "24 02:30 +2",
        "25 02:30 +2",
        "26 02:30 +1",
    ]


def test_with_a_wildcard_ticks_follow_the_time_that_passes() -> None:
    half_hours = cron_ticks("*/30 * * * *", BERLIN)
    assert len(on(half_hours, 2026, 3, 29)) == 46
    assert len(on(half_hours, 2026, 10, 25)) == 50
    assert {b - a for a, b in zip(on(half_hours, 2026, 10, 25), on(half_hours, 2026, 10, 25)[1:], strict=False)} == {
        1800
    }
    assert local(on(cron_ticks("30 * * * *", BERLIN), 2026, 3, 29), BERLIN)[1:3] == ["29 01:30 +1", "29 03:30 +2"]


EXPRESSIONS = [
    "30 2 * * *",
    "0,30 1-3 * * *",
    "0 0 * * *",
    "*/20 * * * *",
    "*/10 2 * * *",
    "30 * * * 0",
    "*/30 * * * SUN",
    "0 3 L * *",
    "*/20 * * * * *",
]
CHANGES = [
    (BERLIN, (2026, 3, 29)),
    (BERLIN, (2026, 10, 25)),
    ("America/New_York", (2026, 3, 8)),
    ("America/New_York", (2026, 11, 1)),
    ("Australia/Lord_Howe", (2026, 4, 5)),  # half an hour
    ("Australia/Lord_Howe", (2026, 10, 4)),
    ("Africa/Cairo", (2026, 4, 24)),  # at midnight, a Friday
    ("Africa/Cairo", (2026, 10, 30)),
    ("America/Santiago", (2026, 4, 5)),
    ("America/Santiago", (2026, 9, 6)),  # at midnight, a Sunday
    ("Pacific/Apia", (2011, 12, 30)),  # a day that is left out
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize(("tz", "day"), CHANGES)
def test_wherever_one_begins_the_ticks_are_the_same(expression: str, tz: str, day: tuple[int, int, int]) -> None:
    if (expression, tz) == ("*/10 2 * * *", "Australia/Lord_Howe"):
        return  # clocks that change by half an hour: ticks depend on where cronsim begins, see `titanic cron --help`
    ticks = cron_ticks(expression, tz)
    change = int(datetime(*day, 2, tzinfo=zone_of(tz)).timestamp())
    begin, end = change - 30 * 3600, change + 12 * 3600
    before = 100 if "L" in expression else 9 if expression[-1] in "0N" else 3
    if ticks.shortest == 1:
        begin, end, before = change - 10_000, change + 6000, 0
    expected = [ticks.after(begin - before * 86_400)]
    while expected[-1] <= end:
        expected.append(ticks.after(expected[-1]))
    for time in [*range(begin, end, (end - begin) // 8), *expected[-30:-1:5]]:
        at = bisect_right(expected, time)
        assert ticks.after(time) == expected[at], time
        assert at < 3 or ticks.last(time, 3) == expected[at - 3 : at], time


def test_six_fields_begin_with_seconds() -> None:
    ticks = cron_ticks("*/10 * * * * *", "UTC")
    assert between(ticks, datetime(2026, 3, 1, tzinfo=ticks.zone), datetime(2026, 3, 1, 0, 1, tzinfo=ticks.zone)) == [
        datetime(2026, 3, 1, 0, 0, second, tzinfo=ticks.zone).timestamp() for second in range(10, 60, 10)
    ]


def test_every_is_counted_from_1970() -> None:
    ticks = EveryTicks(3600)
    assert (ticks.after(0), ticks.after(3599.9), ticks.after(3600)) == (3600, 3600, 7200)
    assert ticks.last(7200.5, 2) == [3600, 7200]
    assert ticks.last(3600, 9) == [0, 3600]


def test_a_cron_expression_has_no_ticks_before_1970() -> None:
    """The search for its last ticks would go back beyond the year 1."""
    ticks = cron_ticks("30 2 29 2 *", BERLIN)
    now = datetime(2026, 11, 30, tzinfo=ticks.zone).timestamp()
    assert [datetime.fromtimestamp(tick, ticks.zone).year for tick in ticks.last(now, 998)] == [*range(1972, 2026, 4)]


@pytest.mark.parametrize(
    "expression", ["", "* * * *", "60 * * * *", "* * * * * * *", "0 0 30 2 *", "@daily", "x", "*/0 * * * *"]
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(InvalidSchedule, match="cron is"):
        cron_ticks(expression, "UTC")


@pytest.mark.parametrize("tz", ["", "Europe", "Mars/Base", "/etc/passwd", "../etc", "Europe/Berlin\0"])
def test_what_is_no_time_zone_is_refused(tz: str) -> None:
    with pytest.raises(InvalidSchedule, match="no time zone"):
        cron_ticks("* * * * *", tz)
