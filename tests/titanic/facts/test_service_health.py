"""When a service counts as failing, and as slow."""

from __future__ import annotations

from typing import Any

import pytest

from titanic.facts.service_health import is_failing, is_slow, is_slower, slower_services


@pytest.mark.parametrize(
    ("failed", "retried", "succeeded", "failing"),
    [(5, 0, 0, False), (6, 0, 0, True), (6, 0, 119, True), (6, 0, 120, False), (0, 6, 5, True), (0, 6, 6, False)],
)
def test_a_service_that_fails_more_than_it_may_is_failing(
    failed: int, retried: int, succeeded: int, failing: bool
) -> None:
    figures: Any = {"failed": failed, "retried": retried, "succeeded": succeeded}
    assert is_failing(figures) is failing


@pytest.mark.parametrize(
    ("oldest", "workers", "running", "usual", "slow"),
    [
        (61.0, 4, 4, 0.01, True),
        (59.0, 4, 4, 0.01, False),  # a moment
        (61.0, 4, 3, 0.01, False),  # a limit, or it is about to be sent
        (61.0, 0, 0, 0.01, False),  # no workers: that is said elsewhere
        (500.0, 4, 4, 60.0, False),  # usual for it
        (601.0, 4, 4, 60.0, True),
        (3601.0, 4, 4, 3000.0, True),
        (3599.0, 4, 4, None, False),
        (3601.0, 4, 4, None, True),
    ],
)
def test_a_service_whose_requests_wait_longer_than_usual_is_slow(
    oldest: float, workers: int, running: int, usual: float | None, slow: bool
) -> None:
    hour: Any = {"wait": None if usual is None else {"p50": usual, "p90": usual, "p99": usual}}
    assert is_slow(oldest, workers, running, hour) is slow
    assert is_slow(oldest, workers, running, None) is (oldest > 3600)


def figures(runs: int, p50: float | None, p90: float | None = None) -> Any:
    run = None if p50 is None else {"p50": p50, "p90": p90 or 1.5 * p50, "p99": p90 or 2 * p50}
    return {"succeeded": runs - runs // 4, "failed": 0, "retried": runs // 4, "run": run}


@pytest.mark.parametrize(
    ("recent", "usual", "slower"),
    [
        (figures(20, 2.0), figures(1000, 0.2), True),
        (figures(19, 2.0), figures(1000, 0.2), False),  # few runs
        (figures(200, 2.0), figures(219, 0.2), False),  # new
        (figures(200, 2.0), figures(220, 0.2), True),
        (figures(200, 0.9), figures(1000, 0.2), False),  # a busy moment
        (figures(200, 0.09), figures(1000, 0.001), False),  # quick still
        (figures(200, 20.0), figures(1000, 0.1, 15.0), False),  # long requests are usual, too
        (figures(200, 20.0), figures(1000, 0.1, 0.9), True),
        (figures(200, 0.2), figures(1000, 2.0), False),
        (figures(20, None), figures(1000, 0.2), False),
        (figures(20, 2.0), figures(1000, None), False),
    ],
)
def test_a_service_whose_attempts_take_many_times_as_long_as_usual(recent: Any, usual: Any, slower: bool) -> None:
    assert is_slower(recent, usual) is slower


def test_what_is_slower_is_named_with_its_times() -> None:
    """Of busy services lately, of others over a longer time; a new one has no usual times."""
    slow, usual, few = figures(20, 2.0), figures(1000, 0.2), figures(19, 3.0)
    day: Any = {"services": dict.fromkeys(("busy", "rare", "well"), usual)}
    lately: Any = {"services": {"busy": figures(30, 4.0), "rare": few, "well": usual, "new": slow}}
    recent: Any = {"services": {"busy": slow, "rare": slow, "well": usual, "new": slow}}
    assert slower_services(day, lately, recent) == {"busy": "4 s, usually 200 ms", "rare": "2 s, usually 200 ms"}
