"""When a service counts as failing, and as slow."""

from __future__ import annotations

from typing import Any

import pytest

from titanic.facts.service_health import is_failing, is_slow


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
