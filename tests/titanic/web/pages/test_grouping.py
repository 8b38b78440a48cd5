"""Which failures are the same."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from titanic.protocol.answers import RequestInfo
from titanic.web.pages.grouping import MOST_TEXT, group, normal, spread


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("OutOfStock: only 3 of 12 left", "OutOfStock: only … of … left"),
        ("no file '/srv/in/a 1.png' at 12:30:01.5", "no file … at …"),
        ("unknown user 01a1fdd40f82747ea223cfe554e7afbc", "unknown user …"),
        ("unknown user 01a1fdd4-0f82-747e-a223-cfe554e7afbc!", "unknown user …!"),
        ("cannot open /var/lib/x/7.dat: gone", "cannot open …: gone"),
        ("GET https://a.example/b?c=1 gave 502", "GET … gave …"),
        ("at 0x7f3a, digest 3f2a9c", "at …, digest …"),
        ("lot-4930 has -3, as smtp-0.example:25", "lot-… has …, as smtp-….example:…"),
        ('KeyError: "x"', "KeyError: …"),
        ("first\nTraceback: 1", "first"),
        ("\n  the face is decade old", "the face is decade old"),
        ("", ""),
    ],
)
def test_what_varies_is_left_out(reason: str, text: str) -> None:
    assert normal(reason) == text


def test_no_text_takes_long() -> None:
    for text in ("/a" * 5000, "'" * 5000, "a" * 5000, "1" * 5000, "f1" * 5000, "-" * 5000, "a/b." * 2000, "1:" * 3000):
        assert min(seconds(text) for _ in range(5)) < 0.1


def seconds(text: str) -> float:
    """How long it takes. Once it may take longer: other threads and the collector take their part."""
    began = time.process_time()
    assert len(normal(text)) <= MOST_TEXT
    return time.process_time() - began


def row(service: str, reason: str, finished: int, state: str = "failed") -> RequestInfo:
    said: dict[str, Any] = {"service": service, "reason": reason, "finished_at": finished, "state": state}
    return cast(RequestInfo, said)


def test_groups_are_by_service_state_and_text_the_largest_first() -> None:
    rows = [row("a", "bad 1", 5), row("b", "bad 2", 6), row("a", "bad 3", 9), row("a", "", 7, "expired")]
    found = group(rows)
    assert [(one.service, one.text, len(one.rows), one.first, one.last) for one in found] == [
        ("a", "bad …", 2, 5, 9),
        ("a", "no worker has begun it in time", 1, 7, 7),
        ("b", "bad …", 1, 6, 6),
    ]
    assert len({one.id for one in found}) == 3
    assert found[0].id == group(rows[::-1])[0].id


def test_failures_are_counted_by_time() -> None:
    rows = [row("a", "", at) for at in (0, 10, 99, 100, 5000, -700)]
    assert spread(rows, 0, 100, 10) == [1, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert spread(rows, 5, 5, 3)[0] == 0
    assert spread([], 0, 0, 3) == [0, 0, 0]
