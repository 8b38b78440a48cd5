"""Timelines: nothing is made up."""

from __future__ import annotations

from typing import Any, cast

from titanic.protocol.answers import RequestInfo
from titanic.web.pages.life import life

FRESH: dict[str, Any] = {
    "state": "waiting",
    "submitted_at": 1_000_000,
    "not_before": 0,
    "expires_at": 0,
    "attempts": 0,
    "dispatched_at": 0,
    "due": 0,
    "finished_at": 0,
}


def told(**more: Any) -> list[tuple[str, str, int]]:
    return [(one.stage, one.what, one.at) for one in life(cast(RequestInfo, FRESH | more))]


def test_a_request_that_waits() -> None:
    assert told(expires_at=9) == [
        ("done", "Submitted", 1_000_000),
        ("now", "Waits for a worker", 0),
        ("ahead", "Expires, unless a worker has begun it", 9),
    ]


def test_a_request_that_is_delayed() -> None:
    assert told(state="delayed", not_before=2_000_000, due=2_000_000)[1:] == [("now", "Delayed until", 2_000_000)]


def test_a_request_that_is_tried_again() -> None:
    assert told(state="delayed", attempts=3, dispatched_at=5, due=8)[1:] == [
        ("unknown", "2 earlier attempts failed", 0),
        ("done", "Attempt 3: sent to a worker", 5),
        ("done", "That attempt failed", 0),
        ("now", "Tried again, attempt 4", 8),
    ]


def test_a_request_that_runs() -> None:
    assert told(state="running")[1:] == [("now", "Running", 0)]
    row = FRESH | {"state": "running", "running_since": 2_000_000, "worker": "bee:17"}
    now = life(cast(RequestInfo, row))[-1]
    assert (now.what, now.at, now.more) == ("Running since", 2_000_000, "at bee:17")


def test_a_request_that_is_done() -> None:
    row = FRESH | {"state": "done", "attempts": 1, "dispatched_at": 1_500_000, "finished_at": 3_500_000}
    found = life(cast(RequestInfo, row))
    assert [(one.what, one.more) for one in found] == [
        ("Submitted", ""),
        ("Sent to a worker", "after 500 ms"),
        ("Done", "ran 2.0 s"),
    ]


def test_a_request_that_expired() -> None:
    found = told(state="expired", finished_at=7_000_000, expires_at=7_000_000)
    assert found[1:] == [("done", "Expired", 7_000_000)]
