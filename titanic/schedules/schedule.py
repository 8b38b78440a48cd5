"""A schedule: what is submitted, and when. Plain data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal, get_args

from titanic.errors import InvalidSchedule
from titanic.protocol.submit_options import MOST_SECONDS, SubmitOptions
from titanic.schedules.ticks import EveryTicks, Ticks, cron_ticks
from titanic.util.text import quoted

Body = bytes | str

Missed = Literal["skip", "once", "all"]
"""What becomes of ticks that passed while nobody could submit them: nothing; the last of them is submitted; all are,
up to 100."""

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

    Its name is all that schedulers know it by: two with one name and the same times are one schedule. `tz` is for
    `cron`; intervals are counted from 1970 in UTC, so 3600 is each full hour. `options` are those of `Client.submit`,
    but for keys: each tick has its own. Raises InvalidSchedule.
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
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds != int(seconds) or seconds < 1:
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
        """The key of the first sight of this schedule: ticks before it were not missed. One whose times are changed is
        another."""
        times = f"{self.cron}|{self.ticks.shortest}|{self.tz}".encode()
        return f"cron:{self.name}:since:{hashlib.sha256(times).hexdigest()[:12]}"

    @cached_property
    def key_for(self) -> float:
        """Seconds that the key of a tick counts: longer than the last `MOST` ticks take, for no older one is ever
        submitted. And for a week, to tell what was missed; but for schedules of seconds only as long as some ten
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
"""Times over two years, from which the next two ticks tell how long the pauses are."""


def check_name(name: object) -> None:
    """Raise InvalidSchedule for what cannot be the name of a schedule."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        advice = "write up to 100 letters, digits, and . _ - between them"
        raise InvalidSchedule(f"name is {quoted(name)}", "", advice)


def paused_key(name: str) -> str:
    """The key of the request that stands for the pause of a schedule."""
    return f"cron:{name}:paused"


def resumed_key(name: str) -> str:
    """The key whose request tells when a schedule was resumed."""
    return f"cron:{name}:resumed"


def in_utc(tick: float) -> str:
    """A time as text: 2026-11-22T20:00:00Z."""
    return datetime.fromtimestamp(int(tick), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _which(schedule: Schedule) -> str:
    return "both" if schedule.cron else "neither"
