"""What cannot be done for a while, in the log: when that begins, now and then while it lasts, and when it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

EVERY = 300.0
"""Seconds between two lines about the same."""

MOST_REASONS = 100
"""Reasons that are remembered."""


class Trouble:
    """Used in one thread, by somebody who tries again and again. Whoever never says that it is over tells each reason
    when it is met first, and then every five minutes."""

    def __init__(self, log: logging.Logger, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`what` cannot be done: "read what is due"."""
        self._log = log
        self._what = what
        self._clock = clock
        self._said: dict[str, float] = {}
        """When each reason may be told again, the next one first."""

    def met(self, error: Exception | str, **extra: Any) -> None:
        """It failed, for this reason. `extra`: the line's fields."""
        now, why = self._clock(), str(error)
        while self._said and (len(self._said) >= MOST_REASONS or next(iter(self._said.values())) <= now):
            del self._said[next(iter(self._said))]
        if why not in self._said:
            self._log.error("cannot %s: %s", self._what, why, extra=extra)
            self._said[why] = now + EVERY

    def over(self, **extra: Any) -> None:
        """It was done. `extra`: the line's fields."""
        if self._said:
            self._log.info("can %s again", self._what, extra=extra)
            self._said.clear()
