"""The wall clock. It can be set, also wrongly: years ahead, back again, before 1970.

Whatever it shows, stored times are positive and fit their fields. `ClockJumps` notices when the clock was set.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds."""

LATEST_US = 253_402_300_799_000_000
"""The end of the year 9999. Later times count as this: ids and records have room for some centuries more."""

BACK = 1.0
AHEAD = 5.0
"""Seconds by which the clock must have been set for it to be noticed."""

BELIEVED_AFTER = 3600.0
"""Seconds that a clock must run after it was set ahead, before requests may end because of that."""

_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", 0) or getattr(time, "CLOCK_MONOTONIC", 0)
"""On macOS the second one runs on while the machine sleeps. Windows, where only clients run, has neither."""


def wall_us() -> int:
    """The wall clock in µs since the epoch, at least 1."""
    return min(max(time.time_ns() // 1000, 1), LATEST_US)


def elapsed() -> float:
    """Seconds of a clock that cannot be set. It runs on while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


def capped(until: int, since: int, now_us: int) -> int:
    """The end of a time span that began at `since` and was to last until `until`; all in µs since the epoch.

    When the clock was ahead at `since` and was set back, more than the whole span would be left. Then the span counts
    from now.
    """
    return min(until, now_us + max(until - since, 0))


class ClockJumps:
    """Detects that the wall clock was set, by comparing it from time to time. One thread uses it."""

    def __init__(self, elapsed: Clock = elapsed) -> None:
        self._elapsed = elapsed
        self._offset: int | None = None
        self._doubted: list[tuple[float, int]] = []  # until when, and by how many µs it was set ahead
        self.ahead_us = 0
        """By how many µs the clock was set ahead a short time ago, and not set back since. It may be wrong by so much:
        nothing should end now that would not end by the clock as it was before."""
        self.unchecked: bytes | None = b""
        """The key up to which requests were checked for times of a clock that was wrong; None: all are checked. The
        check is due at a start, and each time the clock was set back."""

    def observe(self, now_us: int) -> int:
        """Compare the wall clock with the other one. Returns the earliest time that it may be, µs since the epoch."""
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
        self.ahead_us = sum(ahead for _, ahead in self._doubted) if self._doubted else 0
        return now_us - self.ahead_us
