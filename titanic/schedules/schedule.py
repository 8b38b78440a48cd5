"""A schedule: what to submit, and when. Plain data.

Ticks are whole seconds since 1970. They are the same wherever counting begins: schedulers that start at different times
must agree on them, also around changes of daylight saving time (tested).

cronsim follows Debian's cron. With a wildcard in the minutes or hours, ticks follow elapsed time: a repeated hour has
its ticks twice, a skipped one has none. A fixed time comes once a day: when its hour is skipped it comes at the end of
the gap, when its hour is repeated it comes the first time. A sixth field, in front, is for seconds; whether a time is
fixed does not depend on it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from importlib import import_module
from itertools import islice, takewhile
from typing import Any, Literal, Protocol, get_args
from zoneinfo import ZoneInfo

from titanic.errors import InvalidSchedule, TitanicError
from titanic.protocol.submit_options import MOST_SECONDS, SubmitOptions
from titanic.util.text import how_to_install, quoted


class Ticks(Protocol):
    """The ticks of a schedule."""

    @property
    def shortest(self) -> int:
        """Seconds that are between two of them at least: of a cron expression 60, or 1 if it has seconds."""

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
        # Walking back only finds where to begin: what a tick is, walking on decides. It ends at 1970, where times do:
        # rare ticks would be looked for before the year 1, which is an error.
        backwards = (int(found.timestamp()) for found in self._walk(int(time // 1) + 1, reverse=True))
        begin = min(islice(takewhile(lambda tick: tick >= 0, backwards), count + 1), default=None)
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
        raise InvalidSchedule(f"cron is {quoted(expression)}", "it never matches a day") from None
    except _cronsim().CronSimError as error:
        advice = "write minute, hour, day, month and weekday, as in '30 2 * * *', or six fields with seconds first"
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


Body = bytes | str

Missed = Literal["skip", "once", "all"]
"""What to do about ticks that no scheduler could submit in time: nothing; submit the last of them; submit all, up to
100."""

MISSED: tuple[str, ...] = get_args(Missed)

MOST = 100
"""Missed ticks that are submitted at most, with the policy `all`: the last ones."""

DAY, WEEK = 86_400, 604_800

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

NOT_OPTIONS = ("key", "key_for", "forget", "keys", "many")
"""What the ticks themselves decide."""


@dataclass(frozen=True)
class Schedule:
    """Requests that are submitted again and again: by a cron expression, or every so many seconds.

        Schedule("nightly", "backup", cron="30 2 * * *", tz="Europe/Berlin", missed="once")
        Schedule("poll", "fetch", b"news", every=300, options={"ttl": 300})

    Its name is all that schedulers know it by: two with one name and the same times are one schedule. `cron` has five
    fields, or six, of which the first is for seconds. `tz` is for `cron`; intervals are counted from 1970 in UTC, so
    3600 is each full hour. `options` are those of `Client.submit`, but for keys: each tick has its own. Raises
    InvalidSchedule.
    """

    name: str
    service: str
    body: Body | Sequence[Body] = b""
    cron: str = ""
    every: float | timedelta = 0
    tz: str = "UTC"
    missed: Missed = "skip"
    options: SubmitOptions = field(default_factory=SubmitOptions)
    ticks: Ticks = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.missed not in MISSED:
            raise InvalidSchedule(f"missed is {quoted(self.missed)}", "", f"it must be {', '.join(MISSED)}")
        if bad := [name for name in NOT_OPTIONS if name in self.options]:
            raise InvalidSchedule(f"options have {bad[0]}", "each tick has a key of its own", "leave it out")
        if bool(self.cron) == bool(self.every):
            raise InvalidSchedule("a schedule has either cron or every", f"{self.name} has {_which(self)}")
        object.__setattr__(self, "ticks", cron_ticks(self.cron, self.tz) if self.cron else self._every())

    def _every(self) -> EveryTicks:
        seconds: Any = self.every.total_seconds() if isinstance(self.every, timedelta) else self.every
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds % 1 != 0 or seconds < 1:
            raise InvalidSchedule(f"every is {quoted(self.every)}", "", "it must be a whole number of seconds")
        if self.tz != "UTC":
            raise InvalidSchedule("every has no tz", "intervals are counted from 1970 in UTC", "use cron, or drop tz")
        return EveryTicks(int(seconds))

    @property
    def frames(self) -> Sequence[Body]:
        """The body of its requests, which may be one frame or several."""
        return (self.body,) if isinstance(self.body, (bytes, str)) else self.body

    @property
    def when(self) -> str:
        """For people: the expression with its zone, or the interval."""
        if self.cron:
            return self.cron if self.tz == "UTC" else f"{self.cron} {self.tz}"
        return f"every {self.ticks.shortest} s"

    # -- keys ------------------------------------------------------------------------------------------------

    def key(self, tick: int) -> str:
        """The key that makes all submissions of a tick one request."""
        return f"cron:{self.name}:{in_utc(tick)}"

    @property
    def mark(self) -> str:
        """The key that marks when this schedule was first seen: ticks before that were not missed. Other times make it
        another schedule."""
        times = f"{self.cron}|{self.ticks.shortest}|{self.tz}".encode()
        return f"cron:{self.name}:since:{hashlib.sha256(times).hexdigest()[:12]}"

    @cached_property
    def key_for(self) -> float:
        """Seconds that the key of a tick counts: longer than the last `MOST` ticks take, for no older one is ever
        submitted. And for a week, to know what was missed; but for schedules of seconds only as long as some ten
        thousand ticks take, a day at least, since each key takes 135 bytes of the store.
        """
        longest = max(
            pause
            for n in PROBES
            for tick in [self.ticks.after(n)]
            for pause in (tick - n, self.ticks.after(tick) - tick)
        )
        return float(min(MOST_SECONDS, max(MOST * longest + DAY, min(WEEK, max(DAY, 10_000 * self.ticks.shortest)))))


PROBES = [1_767_225_600 + n * 1_051_200 for n in range(60)]
"""Times over two years, from which the next two ticks show how long the pauses are."""


def check_name(name: object) -> None:
    """Raise InvalidSchedule for what cannot be the name of a schedule."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        advice = "write up to 100 letters, digits, and . _ - between them"
        raise InvalidSchedule(f"name is {quoted(name)}", "", advice)


def resumed_key(name: str) -> str:
    """The key of the request that records when a schedule was resumed."""
    return f"cron:{name}:resumed"


def in_utc(tick: float) -> str:
    """A time as text: 2026-11-22T20:00:00Z."""
    return datetime.fromtimestamp(int(tick), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _which(schedule: Schedule) -> str:
    return "both" if schedule.cron else "neither"
