"""How often something was said lately: the first few times in a minute it goes out, after that it is counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

LINES, WINDOW = 20, 60.0
"""Lines of a kind that go out in so many seconds."""

MOST_KINDS = 200
"""Kinds that have a window of their own. Services are among what makes a kind, and their names come from anybody: all
further kinds share one window."""

Kind = TypeVar("Kind", bound=Hashable)


class Windows(Generic[Kind]):
    """Used under a lock, or in one thread. Times are seconds of any clock that goes forward."""

    def __init__(self, others: Kind) -> None:
        """`others`: the kind that stands for all those that are too many."""
        self._others = others
        self._open: dict[Kind, tuple[float, int]] = {}
        """The end of each window, and how many came in it; in the order of their ends."""

    def take(self, kind: Kind, now: float) -> tuple[Kind, int]:
        """The kind that this one counts as, and how many of it have come by now, with this one. Ask `ended` first."""
        if kind not in self._open and len(self._open) >= MOST_KINDS:
            kind = self._others
        end, count = self._open.get(kind, (now + WINDOW, 0))
        self._open[kind] = (end, count + 1)
        return kind, count + 1

    def ended(self, now: float) -> Iterator[tuple[Kind, int]]:
        """The kinds whose windows are over and that had more than LINES, and how many more."""
        while self._open:
            kind, (end, count) = next(iter(self._open.items()))
            if now < end:
                return
            del self._open[kind]
            if count > LINES:
                yield kind, count - LINES
