"""When a schedule is due: its ticks, in whole seconds since 1970.

A schedule's ticks are the same for everybody who asks, wherever he begins to count: schedulers that start at different
times must agree on them. That is tested around changes of the clocks.

What cronsim does then is what Debian's cron does. With a wildcard in the minutes or hours, ticks follow the time that
passes: an hour that comes twice has its ticks twice, one that is left out has none. A fixed time comes once a day: in
an hour that is left out it comes when that is over, and in one that comes twice the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from importlib import import_module
from itertools import islice
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from titanic.errors import InvalidSchedule, TitanicError
from titanic.util.extras import how_to_install
from titanic.util.text import quoted


class Ticks(Protocol):
    """The ticks of a schedule."""

    @property
    def shortest(self) -> int:
        """Seconds that are between two of them at least."""

    def after(self, time: float) -> int:
        """The first tick above a time."""

    def last(self, time: float, count: int) -> list[int]:
        """The last `count` ticks up to a time, oldest first."""


@dataclass(frozen=True, slots=True)
class EveryTicks:
    """The multiples of so many seconds since 1970, in UTC."""

    shortest: int

    def after(self, time: float) -> int:
        return (int(time // self.shortest) + 1) * self.shortest

    def last(self, time: float, count: int) -> list[int]:
        newest = int(time // self.shortest)
        return [n * self.shortest for n in range(max(0, newest - count + 1), newest + 1)]


@dataclass(frozen=True, slots=True)
class CronTicks:
    """Those of a cron expression in a time zone."""

    expression: str
    zone: tzinfo
    shortest: int

    def after(self, time: float) -> int:
        return next(self._above(int(time // 1)))

    def last(self, time: float, count: int) -> list[int]:
        # Walking back only finds where to begin: what a tick is, walking on decides.
        backwards = islice(self._walk(int(time // 1) + 1, reverse=True), count + 1)
        begin = min((int(found.timestamp()) for found in backwards), default=None)
        if begin is None:
            return []
        ticks = []
        for tick in self._above(begin - 1):
            if tick > time:
                break
            ticks.append(tick)
        return ticks[-count:]

    def _above(self, time: int) -> Iterator[int]:
        """The ticks above a time. In an hour that comes twice, cronsim may begin with those of its first time."""
        above = time
        for found in self._walk(time):
            tick = int(found.timestamp())
            if tick > above:
                above = tick
                yield tick

    def _walk(self, time: int, reverse: bool = False) -> Iterator[datetime]:
        walk: Iterator[datetime] = _cronsim().CronSim(self.expression, datetime.fromtimestamp(time, self.zone), reverse)
        return walk


def cron_ticks(expression: str, tz: str) -> CronTicks:
    """The ticks of a cron expression of five fields, or six that begin with seconds. Raises InvalidSchedule."""
    zone = zone_of(tz)
    ticks = CronTicks(expression, zone, 1 if len(expression.split()) == 6 else 60)
    try:
        ticks.after(0)
    except StopIteration:
        raise InvalidSchedule(f"cron is {quoted(expression)}", "no day is ever like that") from None
    except _cronsim().CronSimError as error:
        advice = "write minute, hour, day, month and weekday, as in '30 2 * * *'"
        raise InvalidSchedule(f"cron is {quoted(expression)}", _lower(str(error)), advice) from None
    return ticks


def zone_of(tz: str) -> tzinfo:
    """A time zone by its name. Raises InvalidSchedule."""
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except (KeyError, OSError, ValueError):  # also a name that is a path, or a folder of zones
        advice = "write one like Europe/Berlin, or UTC"
        raise InvalidSchedule(f"tz is {quoted(tz)}", "no time zone has this name", advice) from None


def _cronsim() -> Any:
    """The module, which is in an extra."""
    try:
        return import_module("cronsim")
    except ImportError as error:
        advice = how_to_install("tasks")
        raise TitanicError("cron expressions need cronsim", str(error), advice) from None


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
