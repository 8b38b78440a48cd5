"""Detects threads that are stuck.

Each thread is probed through the queue of its work. A thread that is stuck, in a disk operation or because of a bug,
does not answer. A probe costs one function call, and nothing between probes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from broker import Callback

CallInThread = Callable[[Callback], None]
"""Calls a function in a thread, soon."""


class Watchdog:
    """Probes threads. One thread calls `probe`; any thread may get the results."""

    def __init__(self, threads: Mapping[str, CallInThread]) -> None:
        """`threads`: by name, how to call a function in each."""
        self._lags: dict[str, float] = {}
        self._threads = threads
        self._missing: set[str] = set()
        self._asked_at: float | None = None

    def probe(self, now: float) -> bool:
        """Return whether all threads have answered the last probe; if so, probe them again."""
        if self._missing:
            return False
        first = self._asked_at is None
        self._asked_at = now
        self._missing = set(self._threads)
        for name, call in self._threads.items():
            call(self._answerer(name))
        return not first

    def late(self, now: float, after: float) -> list[str]:
        """The threads that have not answered for `after` seconds."""
        asked_at = self._asked_at
        return sorted(self._missing) if asked_at is not None and now > asked_at + after else []

    def lags(self, now: float) -> dict[str, float]:
        """Seconds of each thread's last response time, or since a probe that is still unanswered."""
        lags, asked_at = self._lags.copy(), self._asked_at
        if asked_at is not None:
            for name in self._missing.copy():
                lags[name] = max(lags.get(name, 0.0), now - asked_at)
        return lags

    def _answerer(self, name: str) -> Callback:
        asked = time.monotonic()

        def answer() -> None:
            self._lags[name] = time.monotonic() - asked
            self._missing.discard(name)

        return answer
