"""The time of day, as the database has it. Nodes share it, so they agree on what is over whatever their own clocks
show.

It is asked with each new connection, and now and then. In between a clock goes on from there that nobody can set.
"""

from __future__ import annotations

import threading

from titanic.util.clock import LATEST_US, elapsed, wall_us

ASK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The database's time in SQL, µs since the epoch."""

ASK_EVERY = 10.0
"""Seconds between questions, for somebody may set the database's clock."""

_SLOW = 1.0
"""Seconds after which an answer says nothing about the time any more."""


class DatabaseClock:
    """Any thread may call. Before it has heard anything, it is the clock of this machine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offset: int | None = None
        """What is to be added to `elapsed`, in µs."""
        self._asked = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the database is to be asked."""
        return elapsed() >= self._asked + ASK_EVERY

    def heard(self, told_us: int, asked: float) -> None:
        """The database has told its time, in answer to a question that was sent when `elapsed` was `asked`."""
        answered = elapsed()
        offset, doubt = told_us - int((asked + answered) / 2 * 1e6), (answered - asked) / 2 * 1e6
        with self._lock:
            if self._offset is not None and answered - asked > _SLOW:
                return
            self._asked = answered
            if self._offset is None or abs(offset - self._offset) > doubt:
                self._offset = offset

    def now_us(self) -> int:
        """µs since the epoch, at least 1."""
        offset = self._offset
        return wall_us() if offset is None else min(max(int(elapsed() * 1e6) + offset, 1), LATEST_US)
