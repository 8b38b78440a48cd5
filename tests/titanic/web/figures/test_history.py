"""The last hour, from samples of counters."""

from __future__ import annotations

from titanic.web.figures.history import HOUR, UNKNOWN, Counts, History, Rates, ServiceCounts


def counts(at: float, done: int, *, failed: int = 0, source: str = "", waiting: int = 0) -> Counts:
    return Counts(at, source, done, done, failed, waiting, 0)


def history(*all_counts: Counts) -> History:
    found = History()
    for one in all_counts:
        found.add(one, lambda one=one: {"a": ServiceCounts(one.waiting, one.done, one.failed)})
    return found


def test_rates_are_differences_of_counters() -> None:
    assert history().now() == history(counts(0, 5)).now() == UNKNOWN
    assert history(counts(0, 5), counts(2, 9), counts(4, 25, failed=2)).now() == Rates(5, 5, 0.5)


def test_only_the_last_seconds_are_now() -> None:
    assert history(counts(0, 0), counts(100, 1000), counts(110, 1010)).now().done == 1


def test_a_server_that_starts_again_begins_at_0() -> None:
    assert history(counts(0, 1000), counts(10, 20)).now().done == 2


def test_counters_of_another_process_are_not_compared() -> None:
    assert history(counts(0, 10, source="a"), counts(10, 30, source="b")).now() == UNKNOWN


def test_a_clock_that_is_set_back_begins_anew() -> None:
    found = history(counts(5000, 10), counts(100, 30), counts(110, 40))
    assert found.now().done == 1
    assert found.began == 100


def test_the_hour_in_parts() -> None:
    found = history(counts(10_000 - HOUR, 0), counts(10_000 - HOUR / 2, 1800), counts(10_000, 1800 + 3600))
    assert [rates.done for rates in found.rates(10_000, 4)] == [1, 1, 2, 2]
    assert [rates.done for rates in history(counts(9000, 0), counts(9900, 900)).rates(9900, 4)] == [None, None, None, 1]
    assert found.rates(10_000 + 2 * HOUR, 4) == [UNKNOWN] * 4


def test_levels_are_those_at_the_end_of_each_part() -> None:
    found = history(*(counts(at, 0, waiting=at) for at in range(0, 3601, 10)))
    assert found.levels(3600, 4) == [(890, 0), (1790, 0), (2690, 0), (3600, 0)]


def test_it_is_bounded() -> None:
    found = history(*(counts(at, at, waiting=at) for at in range(0, 20_000, 2)))
    assert len(found.rates(20_000, 10)) == 10
    assert found.began is not None
    assert 20_000 - HOUR - 30 <= found.began <= 20_000 - HOUR
    trend = found.trend("a")
    assert 30 <= len(trend) <= 32
    assert all(at == figures.waiting for at, figures in trend)
    assert {figures for _, figures in found.trend("unknown")} == {ServiceCounts(0, 0, 0)}
