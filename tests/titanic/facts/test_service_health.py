"""When a service counts as failing, and as slow."""

from __future__ import annotations

from typing import Any

import pytest

from titanic.facts.service_health import is_failing, is_slow, run_times, run_times_of


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
    assert is_slow(oldest, workers, running, None, hour) is slow
    assert is_slow(oldest, 9, running, running or None, hour) is (slow or (workers > running > 0 and oldest > 60))
    assert is_slow(oldest, workers, running, None, None) is (oldest > 3600)


def test_what_waits_now_is_not_usual() -> None:
    times: Any = [{"p50": p50, "p90": p50, "p99": p50} for p50 in (0.1, 300.0)]
    hour: Any = {"wait": times[1], "usual": {"attempts": 100, "wait": times[0], "run": None}}
    assert is_slow(600.0, 4, 4, None, hour)
    few: Any = hour | {"usual": hour["usual"] | {"attempts": 99}}
    assert not is_slow(600.0, 4, 4, None, few)
    never: Any = hour | {"usual": hour["usual"] | {"wait": None}}
    assert not is_slow(600.0, 4, 4, None, never)
    assert is_slow(3001.0, 4, 4, None, never)


def figures(runs: int, p50: float | None, before: int = 0, usual: float = 0.2, p90: float | None = None) -> Any:
    """A service that ran so often and so long, and in the day before."""
    run = None if p50 is None else {"p50": p50, "p90": 2 * p50, "p99": 3 * p50}
    day = {"p50": usual, "p90": p90 or 1.5 * usual, "p99": p90 or 2 * usual}
    more = {"usual": {"attempts": before, "wait": None, "run": day}} if before else {}
    return {"succeeded": runs - runs // 4, "failed": 0, "retried": runs // 4, "run": run, **more}


@pytest.mark.parametrize(
    ("recent", "slower"),
    [
        (figures(20, 2.0, 100), True),
        (figures(19, 2.0, 100), False),  # few runs
        (figures(200, 2.0, 99), False),  # new
        (figures(200, 2.0), False),
        (figures(200, 0.9, 100), False),  # a busy moment
        (figures(200, 0.09, 1000, 0.001), False),  # quick still
        (figures(200, 20.0, 1000, 0.1, 15.0), False),  # long requests are usual, too
        (figures(200, 20.0, 1000, 0.1, 0.9), True),
        (figures(200, 0.2, 1000, 2.0), False),
        (figures(20, None, 1000), False),
    ],
)
def test_a_service_whose_attempts_take_many_times_as_long_as_usual(recent: Any, slower: bool) -> None:
    assert run_times_of(recent, recent, recent).is_slower is slower
    assert not run_times_of(None, None, recent).is_slower


def test_what_is_slower_is_named_with_its_times() -> None:
    """Of busy services lately, of others over a longer time. What it did in the hour is not usual if it ran before."""
    busy = figures(30, 4.0, 400, 4.0), figures(60, 2.0, 300, 2.0), figures(120, 1.0, 100, 0.2)
    rare = figures(19, 3.0), figures(20, 2.0, 100, 0.2), figures(40, 1.0, 99, 0.1)
    spans: Any = [{"services": {"busy": one, "rare": other, "new": one}} for one, other in zip(busy, rare, strict=True)]
    spans[2]["services"] |= {"new": figures(90, 4.0), "idle": figures(90, 4.0)}
    found = {name: (one.text, one.is_slower) for name, one in run_times(*spans).items()}
    assert found == {
        "busy": ("4 s, usually 200 ms", True),
        "rare": ("2 s, usually 200 ms", True),
        "new": ("4 s, usually 2 s", False),
        "idle": ("", False),
    }
