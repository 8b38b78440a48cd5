"""Charts are valid SVG with a text alternative."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from support.each import each

from titanic.web.template_filters import Line, bars, chart, ends, interval, nice, rate, spark


def test_a_chart_has_a_text_alternative() -> None:
    svg = chart('"a" <b>', [Line("done", [None, 1, 2.5, None, 2]), Line("failed", [None] * 5)], rate)
    image, legend = ElementTree.fromstring(f"<x>{svg}</x>")
    assert image.get("aria-label") == '"a" <b>, last 60 minutes. done: 2.0, maximum 2.5; failed: unknown'
    assert ["".join(item.itertext()) for item in legend] == ["done: 2.0", "failed: unknown"]
    assert "style" not in svg
    assert [text.text for text in image.iter("text")][:2] == ["2.5", "5"]


def test_without_values_there_is_no_chart() -> None:
    assert chart("a", [Line("done", [None, None])], rate) == ""
    assert spark([None, 1], "a", 1) == ""


def test_a_single_value_is_visible() -> None:
    assert "m-4 0h8" in chart("a", [Line("p50", [None, 1, None])], rate)


@each(
    ("when", "words"),
    [
        ("every 3600 s", "every hour"),
        ("every 5400 s", "every 90 minutes"),
        ("every 172800 s", "every 2 days"),
        ("every 1 s", "every second"),
        ("30 2 * * *", "30 2 * * *"),
    ],
)
def test_intervals_are_words(when: str, words: str) -> None:
    assert interval(when) == words


def test_a_spark_of_zeros_is_a_line_at_the_bottom() -> None:
    assert "0.0 22.0L96.0 22.0" in spark([0, 0], "a", 0)


def test_small_charts_have_the_scale_of_their_table() -> None:
    assert "0.0 22.0L96.0 12.0" in spark([0, 5], "a", 10)
    assert 'y="12.0" width="3" height="12.0"' in bars([5], "a", 10)
    assert 'y="0.0" width="19" height="60.0"' in bars([5], "a")
    assert 'height="1.5"' in bars([1], "a", 1000), "a few are seen beside many"


def test_long_names_keep_both_ends() -> None:
    assert ends("orders.eu", 9) == "orders.eu"
    assert ends("orders.eu-central-1.production", 11) == "order…uction"
    assert ends("a\x1b" * 99, 6) == r"a\x1ba…\x1ba\x1b"


@each(("most", "end"), [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (4, 5), (51, 100), (100_000, 100_000)])
def test_axes_end_at_round_numbers(most: float, end: float) -> None:
    assert nice(most) == pytest.approx(end)
