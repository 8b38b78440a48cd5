"""Whether the threads that do the work get on with it.

Each thread is asked for a sign of life through the queue where its work comes in. A thread that is stuck, in a call to
the disk or for an error of this program, does not answer. A look costs one function call, and nothing between looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

CallInThread = Callable[[Callable[[], None]], None]
"""Has a function called in a thread, soon."""


class Watchdog:
    """One thread looks; any thread may ask for the result."""

    def __init__(self, threads: Mapping[str, CallInThread]) -> None:
        """`threads`: their names, and how to have a function called in each."""
        self._lags: dict[str, float] = {}
        self._threads = threads
        self._missing: set[str] = set()
        self._asked_at: float | None = None

    def probe(self, now: float) -> bool:
        """Whether all threads have answered since the last look that asked them; if so, they are asked again."""
        if self._missing:
            return False
        first = self._asked_at is None
        self._asked_at = now
        self._missing = set(self._threads)
        for name, call in self._threads.items():
            call(self._answerer(name))
        return not first

    def late(self, now: float, after: float) -> list[str]:
        """The threads that have owed an answer for `after` seconds."""
        asked_at = self._asked_at
        return sorted(self._missing) if asked_at is not None and now > asked_at + after else []

    def lags(self, now: float) -> dict[str, float]:
        """Seconds that each thread last took to answer; for one that owes an answer, the seconds since it was asked."""
        lags, asked_at = self._lags.copy(), self._asked_at
        if asked_at is not None:
            for name in self._missing.copy():
                lags[name] = max(lags.get(name, 0.0), now - asked_at)
        return lags

    def _answerer(self, name: str) -> Callable[[], None]:
        asked = time.monotonic()

        def answer() -> None:
            self._lags[name] = time.monotonic() - asked
            self._missing.discard(name)

        return answer
