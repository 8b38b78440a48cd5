"""Keeps a line that repeats from filling the log: the first lines of a kind go out, then they are counted.

Throttle        counts the lines of each kind; its user words the lines and the count (broker/core/throttle.py)
Incident        for something that is tried again and again: each reason once in five minutes, and its end
RepeatFilter    for all other lines of ours: of those that are alike, the first twenty in a minute, then a count
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from broker import COUNTED, WINDOW, Throttle
from titanic.errors import StoreAway
from titanic.util.clock import Clock

EVERY = 300.0
"""Seconds between two lines about the same incident."""

MOST_REASONS = 100
"""Reasons of an incident that are remembered."""

OURS = ("titanic", "titanic_data", "broker", "uvicorn", "asyncio")
"""How the names of loggers begin that many requests can fill. Applications have others: all of their lines go out."""

CHECK_INTERVAL = 5.0
"""Seconds between checks for a count to log, while lines are held back."""


class Incident:
    """Something that cannot be done for a while: logged when that begins, now and then while it lasts, and when it is
    over. Without `recovered`, each reason is logged when it is first met, and then every five minutes. Used in one
    thread."""

    def __init__(self, log: logging.Logger, what: str, clock: Clock = time.monotonic) -> None:
        """`what` cannot be done: "read what is due"."""
        self.reasons: Throttle[str, None] = Throttle(lines=1, window=EVERY, most=MOST_REASONS)
        self._log = log
        self._what = what
        self._clock = clock

    def failed(self, error: Exception | str, **extra: Any) -> None:
        """It failed for this reason. `extra`: fields of the line. That a database is away its store has logged."""
        if isinstance(error, StoreAway):
            return
        now, why = self._clock(), str(error)
        for _ in self.reasons.ended(now):
            pass  # only the first of each is logged, and no count
        _, held = self.reasons.take(why, None, now)
        if not held:
            self._log.error("cannot %s: %s", self._what, why, extra=extra)

    def recovered(self, **extra: Any) -> None:
        """It was done. `extra`: fields of the line."""
        if self.reasons:
            self._log.info("can %s again", self._what, extra=extra)
            self.reasons.clear()


class _RepeatKind(NamedTuple):
    """Lines that are alike: those with the same text, arguments apart, about the same service."""

    logger: str
    text: str
    service: str


class RepeatFilter(logging.Filter):
    """A filter for a handler. Lines that it holds back are counted in one line when their minute is over."""

    def __init__(self, emit: Callable[[logging.LogRecord], object], clock: Clock = time.monotonic) -> None:
        """`emit` gets the lines with the counts."""
        super().__init__()
        self._emit = emit
        self._clock = clock
        self._throttle: Throttle[_RepeatKind, logging.LogRecord] = Throttle(_RepeatKind("", "", ""))
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if "counted" in vars(record) or record.name.partition(".")[0] not in OURS:
            return True
        now, kind = self._clock(), _RepeatKind(record.name, str(record.msg), str(vars(record).get("service", "")))
        self._report(now)
        with self._lock:
            _, held = self._throttle.take(kind, record, now)
            if held:
                self._look_soon()
        return not held

    def finish(self) -> None:
        """Log the counts now: nothing follows."""
        self._report(math.inf)

    def _look_soon(self) -> None:
        """With the lock: start a timer, unless one runs."""
        if self._timer is None:
            timer = threading.Timer(CHECK_INTERVAL, self._look)
            timer.daemon = True
            with contextlib.suppress(RuntimeError):  # no thread can be had now: the next line tries again
                timer.start()
                self._timer = timer

    def _look(self) -> None:
        self._report(self._clock())
        with self._lock:
            self._timer = None
            if self._throttle.holds_back:
                self._look_soon()

    def _report(self, now: float) -> None:
        with self._lock:
            ended = [*self._throttle.ended(now)]
        for _, more, last in ended:
            self._emit(_summary(last, more))


def _summary(last: logging.LogRecord, more: int) -> logging.LogRecord:
    """The line that counts lines like `last`. It names their service, but no request."""
    text = f"{last.getMessage()} (the last of {more} more like this within {WINDOW:.0f} s)"
    kept = {
        name: value for name, value in vars(last).items() if name not in ("uuid", "attempt", "exc_info", "exc_text")
    }
    return logging.makeLogRecord(kept | {"msg": text, "args": None} | COUNTED)
