"""Error texts quote what was wrong, but not all of it."""

from __future__ import annotations

import json

import pytest

from titanic.services import admin, list_requests, request_submit
from titanic.util.text import quoted

HUGE = "x" * 1_000_000


def test_what_is_short_is_quoted_as_it_is() -> None:
    assert quoted("a'b") == repr("a'b")


@pytest.mark.parametrize("value", [HUGE, [HUGE] * 1000, {HUGE: {HUGE: HUGE}}, 10**4000, list(range(10**6))])
def test_what_is_huge_is_shortened(value: object) -> None:
    assert len(quoted(value)) < 1000


@pytest.mark.parametrize(
    ("read", "options"),
    [
        (list_requests.read_options, {HUGE: 1}),
        (list_requests.read_options, {"state": HUGE}),
        (list_requests.read_options, {"state": [HUGE] * 100}),
        (admin.read_options, {"do": "retry", HUGE: 1}),
        (lambda body: request_submit.parse_submit([*body, b"echo", b""], 0), {HUGE: 1}),
    ],
)
def test_answers_do_not_echo_huge_options(read: object, options: object) -> None:
    with pytest.raises(ValueError, match=r"unknown|at most 67108864 are read") as error:
        read([json.dumps(options).encode()])  # type: ignore[operator]
    assert len(str(error.value)) < 1000
