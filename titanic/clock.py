"""The wall clock. Somebody may set it, and not always right: years ahead, back again, before 1970.

Whatever it shows, times that are stored are positive and fit their fields. `Leaps` notices when it was set.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LATEST_US = 253_402_300_799_000_000
"""The end of the year 9999. Whatever is later counts as this: ids and records have room for some centuries more."""

BACK = 1.0
AHEAD = 600.0
"""Seconds by which the clock must have been set for it to be noticed."""

BELIEVED_AFTER = 3600.0
"""Seconds that a clock that was set ahead must go on before anything is removed for being old."""


def wall_us() -> int:
    """The wall clock in µs since the epoch, at least 1."""
    return min(max(time.time_ns() // 1000, 1), LATEST_US)


def elapsed() -> float:
    """Seconds of a clock that nobody sets. It goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leaps:
    """Whether the wall clock was set, found out by looking at it now and then. One thread uses it."""

    def __init__(self, elapsed: Callable[[], float] = elapsed) -> None:
        self._elapsed = elapsed
        self._offset: float | None = None
        self._doubtful_until = 0.0
        self.doubtful = False
        """Whether it was set ahead a short time ago: nothing should be removed for being old."""
        self.unchecked: bytes | None = b""
        """Up to where (a key) it was looked for what waits for the time of a clock that was wrong; None: it is done.
        At a start it is to be done, and each time the clock was set back."""

    def look(self, now_us: int) -> None:
        """Compare the wall clock with the other one."""
        elapsed = self._elapsed()
        offset = now_us / 1e6 - elapsed
        if self._offset is not None:
            if offset < self._offset - BACK:
                self.unchecked = b""
            elif offset > self._offset + AHEAD:
                self._doubtful_until = elapsed + BELIEVED_AFTER
        self._offset = offset
        self.doubtful = elapsed < self._doubtful_until
