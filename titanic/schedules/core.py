"""Which ticks of a schedule are to be submitted at a time. No clock, socket or thread.

A scheduler that is in step submits the tick that has just come. One that is not in step looks back: after a start, when
more than one tick has come, when one is late, when the clock went back. It looks for the last tick that anybody has
submitted; those behind it were missed, and the policy says what becomes of them. No state is kept but the keys that
the queue remembers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from titanic.schedules.schedule import MOST, Schedule

LATE = 60.0
"""Seconds until a tick counts as missed."""

LOOK_BACK = (20, 998)
"""Ticks that are looked for: first so many; when none of them is known, as many as fit into one question."""


class Plan(NamedTuple):
    """Ticks to submit, oldest first. Then all ticks up to `upto` are done with."""

    ticks: list[int]
    upto: int


class ScheduleCore:
    """What a scheduler knows of one schedule. Times are seconds since 1970, by the clock of the queue."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._ticks = schedule.ticks
        self._upto: int | None = None
        """All ticks up to here are done with; None: it has to look back."""

    def due(self, now: float) -> Plan | None:
        """What is to be submitted now; None: it has to look back, see `look`."""
        upto = self._upto
        if upto is not None and upto <= now:
            tick = self._ticks.after(upto)
            if tick > now:
                return Plan([], upto)
            if now - tick <= LATE and self._ticks.after(tick) > now:
                return Plan([tick], tick)
        self._upto = None
        return None

    def look(self, now: float, count: int) -> list[int]:
        """The ticks whose keys are to be looked for."""
        return self._ticks.last(now, count)

    @staticmethod
    def suffices(looked: list[int], known: Collection[int], since: float) -> bool:
        """Whether a look back has gone back far enough: to a tick that was submitted, or to one that does not count."""
        return bool(known) or not looked or looked[0] <= since

    def missed(self, now: float, looked: list[int], known: Collection[int], since: float) -> Plan:
        """What is to be submitted after a look back at the ticks `looked`, of which some are `known`: they were
        submitted. Ticks up to `since` do not count: before that the schedule was new, or paused."""
        last = max(known, default=0)
        missed = [tick for tick in looked if tick > last and tick > since]
        missed = missed[-MOST:] if self.schedule.missed == "all" else missed[-1:]
        if self.schedule.missed == "skip":
            missed = [tick for tick in missed if now - tick <= LATE]
        return Plan(missed, looked[-1] if looked else int(now))

    def done(self, plan: Plan) -> None:
        """The ticks of this plan are submitted, or are not to be."""
        self._upto = plan.upto

    def next(self, now: float) -> int:
        """When to ask again."""
        return self._ticks.after(now)
