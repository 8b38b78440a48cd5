"""The first lines of a kind are logged, the others counted."""

from __future__ import annotations

from broker.core.throttle import Throttle


def test_lines_are_held_back_until_their_window_ends() -> None:
    throttle: Throttle[str, int] = Throttle(lines=2, window=10)
    assert [throttle.take("a", line, 0.0) for line in range(5)] == [("a", held) for held in (0, 0, 1, 2, 3)]
    assert throttle.take("b", 9, 1.0) == ("b", 0)
    assert throttle.holds_back
    assert throttle.next_end == 10
    assert [*throttle.ended(9.9)] == []
    assert [*throttle.ended(10)] == [("a", 3, 4)]
    assert not throttle.holds_back
    assert [*throttle.ended(11)] == [], "nothing was held back of b"
    assert throttle.next_end is None
    assert throttle.take("a", 0, 12.0) == ("a", 0)


def test_several_lines_count_at_once() -> None:
    throttle: Throttle[str, str] = Throttle(lines=1, window=1)
    assert throttle.take("a", "first", 0.0) == ("a", 0)
    assert throttle.take("a", "last", 0.0, 7) == ("a", 7)
    assert [*throttle.ended(1.0)] == [("a", 7, "last")]


def test_further_kinds_count_together_or_replace_the_oldest() -> None:
    together: Throttle[str, None] = Throttle("others", lines=1, most=2)
    assert [together.take(kind, None, 0.0) for kind in "abcd"] == [("a", 0), ("b", 0), ("others", 0), ("others", 1)]
    replacing: Throttle[str, None] = Throttle(lines=1, most=2)
    assert [replacing.take(kind, None, 0.0) for kind in "aabca"] == [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("a", 0)]
    assert len(replacing) == 2
    assert not replacing.holds_back
    replacing.clear()
    assert len(replacing) == 0
