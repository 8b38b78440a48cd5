"""The wall clock. Somebody may set it, and not always right: years ahead, back again, before 1970.

Whatever it shows, times that are stored are positive and fit their fields. `Leaps` notices when it was set.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LATEST_US = 253_402_300_799_000_000
"""The end of the year 9999. Whatever is later counts as this: ids and records have room for some centuries more."""

BACK = 1.0
AHEAD = 5.0
"""Seconds by which the clock must have been set for it to be noticed."""

BELIEVED_AFTER = 3600.0
"""Seconds that a clock that was set ahead must go on before anything ends by it that would not have ended without."""


def wall_us() -> int:
    """The wall clock in µs since the epoch, at least 1."""
    return min(max(time.time_ns() // 1000, 1), LATEST_US)


def elapsed() -> float:
    """Seconds of a clock that nobody sets. It goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def capped(until: int, since: int, now_us: int) -> int:
    """The end of a time that was given at `since` to last until `until`; all in µs since the epoch.

    When the clock by which it was given was ahead and was set back, more of it would be left than there was. It is the
    whole then, counted from now.
    """
    return min(until, now_us + max(until - since, 0))


class Leaps:
    """Whether the wall clock was set, found out by looking at it now and then. One thread uses it."""

    def __init__(self, elapsed: Callable[[], float] = elapsed) -> None:
        self._elapsed = elapsed
        self._offset: int | None = None
        self._doubted: list[tuple[float, int]] = []  # until when, and by how many µs it was set ahead
        self.ahead_us = 0
        """By how many µs it was set ahead a short time ago, and not set back since. It may be wrong by so much: nothing
        should end that has not ended by the clock as it was before."""
        self.unchecked: bytes | None = b""
        """Up to where (a key) it was looked for what waits for the time of a clock that was wrong; None: it is done.
        At a start it is to be done, and each time the clock was set back."""

    def look(self, now_us: int) -> int:
        """Compare the wall clock with the other one. Returns the time that it is at least, in µs since the epoch."""
        elapsed = self._elapsed()
        offset = now_us - int(elapsed * 1e6)
        leap = 0 if self._offset is None else offset - self._offset
        self._offset = offset
        if leap > AHEAD * 1e6:
            self._doubted.append((elapsed + BELIEVED_AFTER, leap))
        elif leap < -BACK * 1e6:
            self.unchecked = b""
            while leap < 0 and self._doubted:
                until, ahead = self._doubted.pop()
                leap += ahead
                if leap > 0:
                    self._doubted.append((until, leap))
        while self._doubted and self._doubted[0][0] <= elapsed:
            del self._doubted[0]
        self.ahead_us = sum(ahead for _, ahead in self._doubted)
        return now_us - self.ahead_us
