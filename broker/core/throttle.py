"""Keeps a repeated line from filling the log: the first lines of a kind are logged, the others counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

LINES, WINDOW = 20, 60.0
"""Lines of a kind that are logged in so many seconds."""

MOST_KINDS = 200
"""Kinds that are counted apart; all further kinds are counted together. A kind may depend on the name of a service,
which any client can invent."""

COUNTED = {"counted": True}
"""`extra` of a logging call with throttled lines: no other throttle holds them back."""

LineKind = TypeVar("LineKind", bound=Hashable)
Line = TypeVar("Line")


class Throttle(Generic[LineKind, Line]):
    """Counts the lines of each kind in a window of time, which begins with the first, and remembers the last one held
    back.

    Use it in one thread or under a lock. Times are seconds of any clock that goes forward.
    """

    def __init__(
        self, others: LineKind | None = None, *, lines: int = LINES, window: float = WINDOW, most: int = MOST_KINDS
    ) -> None:
        """`others`: stands for all kinds above `most`; None: the oldest kind makes room for a new one."""
        self._others = others
        self._lines = lines
        self._window = window
        self._most = most
        self._open: dict[LineKind, tuple[float, int]] = {}
        """The end of each window and its number of lines; in the order of their ends."""
        self._last: dict[LineKind, Line] = {}
        """The last line held back of each kind."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def next_end(self) -> float | None:
        """When the next window is over; None: there is none."""
        for end, _ in self._open.values():
            return end
        return None

    @property
    def holds_back(self) -> bool:
        """Whether `ended` will have something to report."""
        return bool(self._last)

    def take(self, kind: LineKind, line: Line, now: float, count: int = 1) -> tuple[LineKind, int]:
        """Count a line, or `count` of them. Return the kind it counts as and how many are held back so far.

        0: log it. Call `ended` first.
        """
        if kind not in self._open and len(self._open) >= self._most:
            if self._others is not None:
                kind = self._others
            else:
                oldest = next(iter(self._open))
                del self._open[oldest]
                self._last.pop(oldest, None)
        end, before = self._open.get(kind, (now + self._window, 0))
        self._open[kind] = (end, before + count)
        if before + count > self._lines:
            self._last[kind] = line
        return kind, max(0, before + count - self._lines)

    def ended(self, now: float) -> Iterator[tuple[LineKind, int, Line]]:
        """Remove the windows that are over. Of each that held lines back, yield the kind, their number and the last."""
        while self._open:
            kind, (end, count) = next(iter(self._open.items()))
            if now < end:
                return
            del self._open[kind]
            if count > self._lines:
                yield kind, count - self._lines, self._last.pop(kind)

    def clear(self) -> None:
        """Forget all windows."""
        self._open.clear()
        self._last.clear()
