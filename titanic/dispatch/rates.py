"""How many requests of a service may begin in a time: evenly spread, and never more than that.

What a service did not use counts for a tenth of a second only. So 10 a second are one each 100 ms, and two at once at
most. An attempt counts when it begins, however it ends.
"""

from __future__ import annotations

from broker import Timers

SPREAD = 0.1
"""Seconds of its rate that a service may catch up at once."""


class Rates:
    """When the next request of each service with a rate may begin. `now` is monotonic seconds, `rate` is per second."""

    def __init__(self) -> None:
        self._next_at: dict[bytes, float] = {}
        self.due: Timers[bytes] = Timers()
        """When services that have used up what they may are to be looked at again."""

    def allowed(self, name: bytes, rate: float, now: float) -> int:
        """How many may begin now. When there is none, it is `due` when there is one."""
        next_at = max(self._next_at.get(name, 0.0), now - SPREAD)
        if now < next_at:
            self.due.set(name, next_at)
            return 0
        return int((now - next_at) * rate) + 1

    def began(self, name: bytes, rate: float, now: float) -> None:
        """One of them begins."""
        self._next_at[name] = max(self._next_at.get(name, 0.0), now - SPREAD) + 1 / rate
