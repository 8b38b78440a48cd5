"""Runs schedules: reads the queue's clock, submits ticks that are due, sleeps until the next one.

There is one clock, the queue's. The local one only measures sleep, at most half a minute, so it may be wrong or jump.
A tick that several schedulers submit becomes one request, by its key.

A scheduler that is in step submits the tick that has just come. After a start, a late tick, several ticks at once or a
clock set back, it searches back for the last tick that was submitted. The schedule's policy decides about missed ticks.

All state is in idempotency keys, which all schedulers share and which survive every restart:

    cron:NAME:2026-11-22T20:00:00Z   the request of a tick; set when the tick found one before that is unique
    cron:NAME:since:3f2a…            set when the schedule is first seen; the time is in its UUID
    cron:NAME:paused                 a request for `cron.paused`; NAME is paused while it exists
    cron:NAME:resumed                set on resuming; the time is in its UUID
    cron:NAME:asked                  a request for `cron.paused`; a scheduler submits NAME now and closes it
    cron:NAME:run:5d1c…              a request of `titanic cron run`; that of a scheduler has the UUID of the one above

"Set" means: a key with a request that is closed at once and never executed. With access control, keys belong to a
user: schedulers, and clients that pause schedules, must be the same user.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from titanic.client.client import Client
from titanic.client.request_queue import Found, RequestQueue
from titanic.errors import Forbidden, InvalidSchedule, KeyRefused, Refused, TimedOut, TitanicError, UnknownRequest
from titanic.protocol.documents import ScheduleReport
from titanic.protocol.submit_options import MOST_SECONDS, MOST_UUIDS, SubmitOptions
from titanic.protocol.tsp import paused_key
from titanic.schedules.schedule import MOST, Schedule, in_utc, resumed_key
from titanic.util.clock import Clock, elapsed

LATE = 60.0
"""Seconds until a tick counts as missed."""

LOOK_BACK = (20, 998)
"""Ticks to search for: first so many; when none of them is known, as many as fit into one request."""


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
        """All ticks up to here are done with; None: it has to search back."""

    def due(self, now: float) -> Plan | None:
        """What is to be submitted now; None: it has to search back, see `search`."""
        upto = self._upto
        if upto is not None and upto <= now:
            tick = self._ticks.after(upto)
            if tick > now:
                return Plan([], upto)
            if now - tick <= LATE and self._ticks.after(tick) > now:
                return Plan([tick], tick)
        self._upto = None
        return None

    def search(self, now: float, count: int) -> list[int]:
        """The ticks to search for, by their keys."""
        return self._ticks.last(now, count)

    @staticmethod
    def suffices(checked: list[int], known: Collection[int], since: float) -> bool:
        """Whether the search has gone back far enough: to a tick that was submitted, or to one that does not count."""
        return bool(known) or not checked or checked[0] <= since

    def missed(self, now: float, checked: list[int], known: Collection[int], since: float) -> Plan:
        """What is to be submitted after a search back through the ticks `checked`, of which some are `known`: they were
        submitted. Ticks up to `since` do not count: before that the schedule was new, or paused."""
        last = max(known, default=0)
        missed = [tick for tick in checked if tick > last and tick > since]
        fresh = [tick for tick in missed if now - tick <= LATE]
        policies = {"skip": fresh, "once": fresh or missed[-1:], "all": missed[-MOST:]}
        missed = policies[self.schedule.missed]
        return Plan(missed, checked[-1] if checked else int(now))

    def done(self, plan: Plan) -> None:
        """The ticks of this plan are submitted, or are not to be."""
        self._upto = plan.upto

    def next(self, now: float) -> int:
        """When to ask again."""
        return self._ticks.after(now)


PAUSED = "cron.paused"
"""The service of requests that stand for a pause. It has no workers."""

UNENDED = ("waiting", "delayed")
"""States of such a request while it counts."""

_NEVER: SubmitOptions = {"delay": 3600.0, "ttl": 600.0}
"""A request that is closed at once; if that does not come to pass, it expires before it could be executed."""


ASKED_FOR = 600.0
"""Seconds for which a scheduler is asked to run a schedule."""


class Past(NamedTuple):
    """What became of some ticks: those that were submitted, with their UUIDs; and the time up to which ticks do not
    count."""

    known: dict[int, str]
    since: float


class LastTick(NamedTuple):
    """A tick, its request, and the state of that; `closed` when it is gone."""

    tick: int
    uuid: str
    state: str


def submit_tick(client: RequestQueue, schedule: Schedule, tick: int) -> str:
    """The UUID of the request of a tick, from any scheduler."""
    return _submit(client, schedule, key=schedule.key(tick), key_for=schedule.key_for)


def submit_now(client: Client, schedule: Schedule, asked: str = "") -> str:
    """Submit a request beside the ticks; its UUID. `asked`: the UUID of what asks for it."""
    return _submit(client, schedule, key=f"cron:{schedule.name}:run:{asked or os.urandom(8).hex()}")


def _submit(client: RequestQueue, schedule: Schedule, **keys: Any) -> str:
    options: Any = {**schedule.options, **keys}
    return client.submit(schedule.service, *schedule.frames, **options)


def submitted_ticks(client: Client, schedule: Schedule, checked: Sequence[int]) -> Past:
    """What became of these ticks. The first search for a schedule sets its mark."""
    keys = {schedule.key(tick): tick for tick in checked}
    uuids, _ = client.find([schedule.mark, resumed_key(schedule.name), *keys])
    mark = uuids.get(schedule.mark) or _take(client, schedule.service, schedule.mark)
    resumed = uuids.get(resumed_key(schedule.name))
    since = max(_time_of(mark), _time_of(resumed) if resumed else 0.0)
    return Past({tick: uuids[key] for key, tick in keys.items() if key in uuids}, since)


def last_tick(client: Client, schedule: Schedule, now: float) -> LastTick | None:
    """The last tick that was submitted; None: there is none."""
    for count in LOOK_BACK:
        keys = {schedule.key(tick): tick for tick in schedule.ticks.last(now, count)}
        uuids, states = client.find(list(keys))
        if uuids:
            key = max(uuids, key=lambda one: keys[one])
            return LastTick(keys[key], uuids[key], states.get(uuids[key], "closed"))
    return None


def paused_schedules(client: RequestQueue, names: Iterable[str]) -> dict[str, str]:
    """Those of these schedules that are paused, with the UUID of what stands for the pause."""
    keys = {paused_key(name): name for name in names}
    return {keys[key]: uuid for key, uuid in _unended(client, keys).items()}


def _unended(client: RequestQueue, keys: Iterable[str]) -> dict[str, str]:
    """The keys of requests that have not ended, with their UUIDs."""
    uuids, states = client.find([*keys])
    return {key: uuid for key, uuid in uuids.items() if states.get(uuid) in UNENDED}


def pause_schedule(client: RequestQueue, name: str) -> None:
    """Have no scheduler submit the ticks of this schedule, until it is resumed."""
    _set_mark(client, paused_key(name), name, key_for=MOST_SECONDS)


def ask_to_run(client: RequestQueue, name: str) -> None:
    """Have a scheduler submit this schedule now, in addition to its ticks: within half a minute, if one runs; after ten
    minutes no more."""
    _set_mark(client, _asked_key(name), name, key_for=ASKED_FOR, ttl=ASKED_FOR)


def _set_mark(client: RequestQueue, key: str, name: str, **more: float) -> None:
    uuids, states = client.find([key])
    if states.get(uuids.get(key, "")) in UNENDED:
        return
    options: Any = {"key": key, "delay": MOST_SECONDS, **more}
    if key in uuids:  # its request was closed, or has expired
        options["forget"] = [key]
    client.submit(PAUSED, name, **options)


def _asked_key(name: str) -> str:
    return f"cron:{name}:asked"


def resume_schedule(client: RequestQueue, name: str) -> bool:
    """End a pause; ticks that passed meanwhile were not missed. Returns whether there was one."""
    uuid = paused_schedules(client, [name]).get(name)
    if uuid is None:
        return False
    # First the time: a scheduler that polls between the two finds it still paused.
    _take(client, PAUSED, resumed_key(name), forget=[resumed_key(name)])
    client.close(uuid)
    return True


def _take(client: RequestQueue, service: str, key: str, **more: Any) -> str:
    options: Any = {**_NEVER, "key": key, "key_for": MOST_SECONDS, **more}
    uuid = client.submit(service, b"", **options)
    with contextlib.suppress(Forbidden):  # then it stays as expired, until it is deleted for its age
        client.close(uuid)
    return uuid


def _time_of(uuid: str) -> float:
    """When a UUID was made, by the server's clock, in seconds since 1970."""
    return int(uuid[:12], 16) / 1000


log = logging.getLogger("titanic.cron")

SLEEP_MOST = 30.0
"""Seconds until the queue is asked for the time again."""

AGAIN = 2.0
"""Seconds until what failed is tried again."""

BEHIND = 0.002
"""Seconds that it sleeps beyond a tick: one that it wakes before costs another question."""

REGISTER_LEAST, REGISTER_MOST = 5.0, 600.0
"""Seconds between two reports to the server: after ticks at least, without them at most, and after a refusal."""

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

    def __init__(self, client: Client, schedules: Sequence[Schedule], *, elapsed: Clock = elapsed) -> None:
        """`elapsed`: the clock by which it sleeps. Raises InvalidSchedule for two with one name."""
        names = [schedule.name for schedule in schedules]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidSchedule(f"two schedules have the name {twice[0]}", "their keys would be equal", "rename one")
        self._client = client
        self._elapsed = elapsed
        self._cores = [ScheduleCore(schedule) for schedule in schedules]
        self._complaints: dict[str, str] = {}
        self._failed: dict[str, TitanicError] = {}
        self._stopping = threading.Event()
        self._last: dict[str, tuple[int, str]] = {}
        self._unreported = True
        self._register_from, self._register_at = 0.0, 0.0

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
        """Have `run` return, from any thread. It ends what it has started."""
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
        names = [core.schedule.name for core in (*due, *self._cores)]
        keys = [paused_key(name) for name in names[: len(due)]] + [_asked_key(name) for name in names[len(due) :]]
        marks = _unended(self._client, keys[:MOST_UUIDS]) if keys else {}
        done: list[Submitted] = []
        asked_for: dict[str, tuple[int, str]] = {}
        for core, plan in plans.items():
            with self._blaming(core):
                if plan.ticks and paused_key(core.schedule.name) not in marks:
                    for tick in plan.ticks:
                        done.append((core.schedule, tick, self._submit(core.schedule, tick, asked)))
                core.done(plan)
                if (mark := marks.get(_asked_key(core.schedule.name))) is not None:
                    uuid = submit_now(self._client, core.schedule, mark)
                    log.info("%s: run now is request %s", core.schedule.name, uuid)
                    asked_for[core.schedule.name] = int(now), uuid
                    with contextlib.suppress(Forbidden):  # it expires
                        self._client.close(mark)
        for core in self._cores:
            self._complain(core.schedule.name, self._failed.get(core.schedule.name))
        self._last.update({schedule.name: (tick, uuid) for schedule, tick, uuid in done} | asked_for)
        self._unreported = self._unreported or bool(done or asked_for)
        self._register(now)
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
            checked = core.search(now, count)
            past = submitted_ticks(self._client, core.schedule, checked)
            if core.suffices(checked, past.known, past.since):
                break
        if past.known:
            self._last[core.schedule.name] = max(past.known.items())
        return core.missed(now, checked, past.known, past.since)

    def _submit(self, schedule: Schedule, tick: int, asked: float) -> str:
        """Submit a tick; its UUID. Raises TimedOut when that was decided long ago: a scheduler that was suspended for
        longer than keys are kept would submit it a second time."""
        if self._elapsed() - asked > LATE:
            raise TimedOut("this scheduler was suspended", f"for more than {LATE:g} s", "it checks what is due again")
        uuid = submit_tick(self._client, schedule, tick)
        found = ""
        if isinstance(uuid, Found):  # the tick has no request; its key says that it is done with
            found = " of before, which is unique"
            options: SubmitOptions = {**_NEVER, "key": schedule.key(tick), "key_for": schedule.key_for}
            with contextlib.suppress(Forbidden, Refused, UnknownRequest):  # the service may be full, of that request
                mark = self._client.submit(schedule.service, **options)
                if "unique" not in self._client.show(mark):  # else another scheduler has submitted the tick meanwhile
                    self._client.close(mark)
        log.info("%s: tick %s is request %s%s", schedule.name, in_utc(tick), uuid, found)
        return uuid

    def _register(self, now: float) -> None:
        """Report the schedules to the server, which remembers them for those who ask."""
        elapsed = self._elapsed()
        if elapsed < (self._register_from if self._unreported else self._register_at):
            return
        self._unreported, self._register_at = False, elapsed + REGISTER_MOST
        try:
            self._client.register_schedules([self._report(core, now) for core in self._cores[:MOST_UUIDS]])
            self._register_from = elapsed + REGISTER_LEAST
        except TitanicError as error:  # of an older server, mostly; ticks do not depend on it
            log.debug("the schedules are not registered: %s", error)
            self._register_from = self._register_at

    def _report(self, core: ScheduleCore, now: float) -> ScheduleReport:
        schedule = core.schedule
        report: ScheduleReport = {
            "name": schedule.name,
            "service": schedule.service,
            "when": (schedule.cron or schedule.when)[:200],
            "tz": schedule.tz,
            "next": core.next(now),
        }
        if (last := self._last.get(schedule.name)) is not None:
            report["tick"], report["uuid"] = last
        return report

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
        prefix = f"{name}: " if name else ""
        if text:
            log.warning("%snothing was submitted, retrying: %s", prefix, text)
        else:
            log.info("%sworking again", prefix)
