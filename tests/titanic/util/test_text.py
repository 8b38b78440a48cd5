"""Error texts quote what was wrong, but not all of it."""

from __future__ import annotations

import json
from functools import partial

import pytest
from support.each import each

from titanic.protocol import messages
from titanic.util.text import quoted

HUGE = "x" * 1_000_000


def test_what_is_short_is_quoted_as_it_is() -> None:
    assert quoted("a'b") == repr("a'b")


@each("value", [HUGE, [HUGE] * 1000, {HUGE: {HUGE: HUGE}}, 10**4000, list(range(10**6))])
def test_what_is_huge_is_shortened(value: object) -> None:
    assert len(quoted(value)) < 1000


@each(
    ("read", "options"),
    [
        (partial(messages.read, messages.List), {HUGE: 1}),
        (partial(messages.read, messages.List), {"state": HUGE}),
        (partial(messages.read, messages.List), {"state": [HUGE] * 100}),
        (messages.read_admin, {"do": HUGE}),
        (messages.read_admin, {"do": "retry", HUGE: 1}),
        (partial(messages.read, messages.Submit), {HUGE: 1}),
    ],
)
def test_answers_do_not_echo_huge_options(read: object, options: object) -> None:
    with pytest.raises(ValueError, match=r"unknown|must be") as error:
        read(json.dumps(options).encode())  # type: ignore[operator]
    assert len(str(error.value)) < 1000
