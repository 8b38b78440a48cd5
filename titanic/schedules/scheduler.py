"""Runs schedules: asks the queue for the time, submits what is due, sleeps until the next tick.

There is one clock, that of the queue. This machine's is only used to sleep, and not for longer than half a minute: so
it may be wrong, or jump. A tick that many schedulers submit is one request, by its key.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from titanic.client.client import Client
from titanic.errors import InvalidSchedule, KeyRefused, TimedOut, TitanicError
from titanic.schedules import queue_state
from titanic.schedules.core import LATE, LOOK_BACK, Plan, ScheduleCore
from titanic.schedules.schedule import Schedule, in_utc
from titanic.util.clock import elapsed

log = logging.getLogger("titanic.cron")

SLEEP_MOST = 30.0
"""Seconds until the queue is asked for the time again."""

AGAIN = 2.0
"""Seconds until what failed is tried again."""

BEHIND = 0.002
"""Seconds that it sleeps beyond a tick: one that it wakes before costs another question."""

Submitted = tuple[Schedule, int, str]
"""A tick and its UUID."""


class Round(NamedTuple):
    """What one round did, how many seconds to sleep, and the first error of a schedule."""

    submitted: list[Submitted]
    sleep: float
    error: TitanicError | None


class Scheduler:
    """Submits the ticks of schedules. Any number of schedulers may run the same ones, on any machines.

    scheduler = Scheduler(client, [Schedule("nightly", "backup", cron="30 2 * * *")])
    threading.Thread(target=scheduler.run).start()
    ...
    scheduler.stop()
    """

    def __init__(
        self, client: Client, schedules: Sequence[Schedule], *, elapsed: Callable[[], float] = elapsed
    ) -> None:
        """`elapsed`: the clock by which it sleeps. Raises InvalidSchedule for two with one name."""
        names = [schedule.name for schedule in schedules]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidSchedule(f"two schedules have the name {twice[0]}", "their ticks would be one", "rename one")
        self._client = client
        self._elapsed = elapsed
        self._cores = [ScheduleCore(schedule) for schedule in schedules]
        self._complaints: dict[str, str] = {}
        self._failed: dict[str, TitanicError] = {}
        self._stopping = threading.Event()

    def run(self) -> None:
        """Submit ticks as they come, until `stop`. A queue that is away is waited for. Raises KeyRefused."""
        while not self._stopping.is_set():
            try:
                sleep = self.round().sleep
                self._complain("", None)
            except KeyRefused:
                raise
            except TitanicError as error:
                self._complain("", error)
                sleep = AGAIN
            self._stopping.wait(sleep)

    def stop(self) -> None:
        """Have `run` return, from any thread. It ends what it has begun."""
        self._stopping.set()

    def once(self) -> list[Submitted]:
        """Submit what is due now. Raises the error of the first schedule for which that failed, after all others."""
        done = self.round()
        if done.error is not None:
            raise done.error
        return done.submitted

    def round(self) -> Round:
        """Submit what is due now. Raises TimedOut when the queue is away, and KeyRefused."""
        now = self._client.clock()
        asked = self._elapsed()
        self._failed = {}
        plans: dict[ScheduleCore, Plan] = {}
        for core in self._cores:
            with self._blaming(core):
                plans[core] = self._plan(core, now)
        due = [core for core, plan in plans.items() if plan.ticks]
        paused = queue_state.paused(self._client, [core.schedule.name for core in due]) if due else {}
        done: list[Submitted] = []
        for core, plan in plans.items():
            with self._blaming(core):
                if plan.ticks and core.schedule.name not in paused:
                    for tick in plan.ticks:
                        done.append((core.schedule, tick, self._submit(core.schedule, tick, asked)))
                core.done(plan)
        for core in self._cores:
            self._complain(core.schedule.name, self._failed.get(core.schedule.name))
        first = next(iter(self._failed.values()), None)
        return Round(done, self._until_next(now, asked) if first is None else AGAIN, first)

    @contextmanager
    def _blaming(self, core: ScheduleCore) -> Iterator[None]:
        """What goes wrong with one schedule does not hold up the others; a queue that is away does."""
        try:
            yield
        except (TimedOut, KeyRefused):
            raise
        except TitanicError as error:
            self._failed[core.schedule.name] = error

    def _plan(self, core: ScheduleCore, now: float) -> Plan:
        if (plan := core.due(now)) is not None:
            return plan
        for count in LOOK_BACK:
            looked = core.look(now, count)
            past = queue_state.past(self._client, core.schedule, looked)
            if core.suffices(looked, past.known, past.since):
                break
        return core.missed(now, looked, past.known, past.since)

    def _submit(self, schedule: Schedule, tick: int, asked: float) -> str:
        """Submit a tick; its UUID. Raises TimedOut when that was decided long ago: who stood still for longer than
        keys count would submit it a second time."""
        if self._elapsed() - asked > LATE:
            raise TimedOut("this scheduler stood still", f"for more than {LATE:g} s", "looking again what is due")
        uuid = queue_state.submit_tick(self._client, schedule, tick)
        log.info("%s: tick %s is request %s", schedule.name, in_utc(tick), uuid)
        return uuid

    def _until_next(self, now: float, asked: float) -> float:
        ticks = [core.next(now) for core in self._cores]
        passed = self._elapsed() - asked
        return min(SLEEP_MOST, max(0.0, min(ticks, default=now + SLEEP_MOST) - now - passed + BEHIND))

    def _complain(self, name: str, error: TitanicError | None) -> None:
        """Log what is wrong with a schedule, or with all (no name), once; and that it is over."""
        text = "" if error is None else str(error)
        if text == self._complaints.get(name, ""):
            return
        self._complaints[name] = text
        who = f"{name}: " if name else ""
        if text:
            log.warning("%snothing was submitted, trying again: %s", who, text)
        else:
            log.info("%sit works again", who)
