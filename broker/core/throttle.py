"""Keeps a line that repeats from filling the log: the first lines of a kind go out, then they are counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

LINES, WINDOW = 20, 60.0
"""Lines of a kind that go out in so many seconds."""

MOST_KINDS = 200
"""Kinds that are counted apart. A kind may depend on the name of a service, which anybody can invent: all further kinds
are counted together."""

COUNTED = {"counted": True}
"""A logging call that is throttled already passes this in `extra`: no other throttle holds its lines back."""

LineKind = TypeVar("LineKind", bound=Hashable)


class Throttle(Generic[LineKind]):
    """How often each kind of line has come in its window, which begins with the first. To be used under a lock, or in
    one thread. Times are seconds of any clock that goes forward."""

    def __init__(
        self, others: LineKind | None = None, *, lines: int = LINES, window: float = WINDOW, most: int = MOST_KINDS
    ) -> None:
        """`others`: the kind that stands for all those that are too many; None: the oldest makes room for a new one."""
        self._others = others
        self._lines = lines
        self._window = window
        self._most = most
        self._open: dict[LineKind, tuple[float, int]] = {}
        """The end of each window, and how many came in it; in the order of their ends."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def next_end(self) -> float | None:
        """When the next window is over; None: there is none."""
        for end, _ in self._open.values():
            return end
        return None

    def take(self, kind: LineKind, now: float, lines: int = 1) -> tuple[LineKind, int]:
        """The kind that this line counts as, or so many, and how many of it have come by now, with this one. Ask
        `ended` first."""
        if kind not in self._open and len(self._open) >= self._most:
            if self._others is not None:
                kind = self._others
            else:
                del self._open[next(iter(self._open))]
        end, count = self._open.get(kind, (now + self._window, 0))
        self._open[kind] = (end, count + lines)
        return kind, count + lines

    def ended(self, now: float) -> Iterator[tuple[LineKind, int]]:
        """The kinds whose window is over and had too many lines, and how many too many."""
        while self._open:
            kind, (end, count) = next(iter(self._open.items()))
            if now < end:
                return
            del self._open[kind]
            if count > self._lines:
                yield kind, count - self._lines

    def clear(self) -> None:
        """Forget all of them."""
        self._open.clear()
