"""What is said again and again: the first few lines, then a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LINES, WINDOW = 20, 60.0
"""Lines with the same message, arguments apart, that go out in so many seconds."""

MOST_MESSAGES = 1000
"""Messages that are remembered."""


class Repeats(logging.Filter):
    """A filter for a handler. What it held back is told with the first line that goes out after its window."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line goes out."""
        now, key = self._clock(), (record.name, str(record.msg))
        end, count = self._seen.pop(key, (0.0, 0))
        if now >= end:
            if count > LINES:
                record.msg = f"{record.msg} (and {count - LINES} more like this in the minute before)"
            end, count = now + WINDOW, 0
        self._seen[key] = (end, count + 1)
        if len(self._seen) > MOST_MESSAGES:
            del self._seen[next(iter(self._seen))]
        return count < LINES
