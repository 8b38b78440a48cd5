"""What is said again and again: the first few lines, then a count."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from titanic.logs.windows import LINES, WINDOW, Windows


class Kind(NamedTuple):
    """Lines that are alike: those with the same text, arguments apart, about the same service."""

    logger: str
    text: str
    service: str


OTHERS = Kind("", "", "")

LOOK_EVERY = 5.0
"""Seconds between looks whether there is a count to tell, while lines are held back."""

COUNTED = {"counted": True}
"""What a logging call passes in `extra` that has a window of its own: its lines all go out."""


class Repeats(logging.Filter):
    """A filter for a handler. What it held back is told when its minute is over, whether anything follows or not."""

    def __init__(
        self, emit: Callable[[logging.LogRecord], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`emit` gets the lines that tell how many were left out."""
        super().__init__()
        self._emit = emit
        self._clock = clock
        self._windows = Windows(OTHERS)
        self._last: dict[Kind, logging.LogRecord] = {}
        """The last line that was held back, of each kind."""
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line goes out."""
        if "counted" in vars(record):
            return True
        now, kind = self._clock(), Kind(record.name, str(record.msg), str(vars(record).get("service", "")))
        self._tell(now)
        with self._lock:
            kind, count = self._windows.take(kind, now)
            if count <= LINES:
                return True
            self._last[kind] = record
            self._look_soon()
        return False

    def finish(self) -> None:
        """Tell what was left out by now: nothing will follow."""
        self._tell(math.inf)

    def _look_soon(self) -> None:
        """With the lock: have somebody look as long as there is something to tell."""
        if self._timer is None:
            timer = threading.Timer(LOOK_EVERY, self._look)
            timer.daemon = True
            with contextlib.suppress(RuntimeError):  # no thread can be had now: the next line tells, or asks again
                timer.start()
                self._timer = timer

    def _look(self) -> None:
        self._tell(self._clock())
        with self._lock:
            self._timer = None
            if self._last:
                self._look_soon()

    def _tell(self, now: float) -> None:
        with self._lock:
            ended = [(self._last.pop(kind), more) for kind, more in self._windows.ended(now)]
        for last, more in ended:
            self._emit(_summary(last, more))


def _summary(last: logging.LogRecord, more: int) -> logging.LogRecord:
    """A line about lines that were left out. It is about no request, but still about their service."""
    text = f"{last.getMessage()} (the last of {more} more like this within {WINDOW:.0f} s)"
    kept = {name: value for name, value in vars(last).items() if name not in ("uuid", "exc_info", "exc_text")}
    return logging.makeLogRecord(kept | {"msg": text, "args": None} | COUNTED)
