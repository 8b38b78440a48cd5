"""The services that have waiting requests: which of them to read from the store next, and which to ask the broker for.

Services take turns. An absent, slow or broken service costs the others nothing: it is skipped until it is due to be
asked for again. A broker of this project is asked for all absent services at once (a survey), about once a second; any
other broker is asked for each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from broker import Timers
from titanic.protocol.submit_options import MAX_PRIORITY
from titanic.protocol.tsp import SERVICES
from titanic.settings import ServerConfig
from titanic.store import priority_in

HIGHEST = MAX_PRIORITY

MAX_SEEN = 1000
"""Services without workers of which is remembered when they had some."""

OVERTAKE = 0.05
"""Seconds for which a more urgent request waits for those that were sent ahead of it. Then they are taken back."""

QUESTIONS = 200
"""Questions a second about absent services, roughly, to a broker that must be asked for each."""

AHEAD = 0.01
"""Seconds of work that a service is given ahead. A worker that becomes free then has its next request from the broker
at once, and Titanic hears of results in batches: three times as many a second. A request of higher priority that comes
meanwhile waits so much longer. Slower services get nothing ahead."""

AHEAD_REMOTE = 0.04
"""The same when each claim is a commit in a database on another machine: a third of the commits of 0.01 s."""

SMOOTHED = 30.0
"""Seconds over which the speed of a service is averaged, to estimate how long its queue takes."""

COUNTED = 0.05
"""Seconds, at least, over which the speed of a service is measured."""


Alarm = tuple[str, bytes]
"""A kind of alarm (see ALARMS in core.py), and the service or request that it is for."""

SURVEY: Alarm = ("survey", b"")


class Fetch(NamedTuple):
    """Read the next requests of a service from the store, except those in flight: answer with `fetched`."""

    service: bytes
    after: bytes | None
    limit: int


SPREAD = 0.1
"""Seconds of its rate that a service may catch up at once."""


class Rates:
    """When the next request of each service with a rate may begin: evenly spread, and never more than that.

    What a service did not use counts for SPREAD only: at 10 a second one begins each 100 ms, and two at once at most.
    An attempt counts when it begins, however it ends. `now` is monotonic seconds, `rate` is per second."""

    def __init__(self, timers: Timers[Alarm]) -> None:
        self._next_at: dict[bytes, float] = {}
        self._timers = timers

    def allowed(self, name: bytes, rate: float, now: float) -> int:
        """How many may begin now. When there is none, the alarm "rate" is set for when there is one."""
        next_at = max(self._next_at.get(name, 0.0), now - SPREAD)
        if now < next_at:
            self._timers.set(("rate", name), next_at)
            return 0
        return int((now - next_at) * rate) + 1

    def next_at(self, name: bytes) -> float:
        """When the next one may begin; 0: none has begun yet."""
        return self._next_at.get(name, 0.0)

    def change(self, name: bytes, before: float, rate: float) -> None:
        """The rate is another one; 0: there is none. It counts from when the last one began."""
        next_at = self._next_at.pop(name, 0.0)
        if next_at and before and rate:
            self._next_at[name] = next_at - 1 / before + 1 / rate

    def began(self, name: bytes, rate: float, now: float) -> None:
        """One of them begins."""
        self._next_at[name] = max(self._next_at.get(name, 0.0), now - SPREAD) + 1 / rate


@dataclass(slots=True, eq=False)
class Backlog:
    """A service with requests that wait or are in flight."""

    name: bytes
    waiting: bool = True
    """Whether the store may hold requests beyond `cursor`."""
    news: int = 0
    """How often requests have come to the queue. What was read from the store before that is out of date."""
    cursor: bytes | None = None
    """The place in the store's queue of the last request that was fetched; None: fetch from the front."""
    in_flight: int = 0
    """Requests that were sent and not answered, or answered but not yet writable to the disk."""
    known: int = 0
    """Those, and the requests with an outcome that is being written."""
    abandoned: int = 0
    """Workers that still work on an attempt that was given up because it passed its limit."""
    room: int | None = None
    """How many may be in flight: as many as there are workers, 0 without any; None: not known yet."""
    allowed: int | None = None
    """How many may start before its rate is checked again; None: it has no rate. 0 while it is paused."""
    ahead: int = 0
    """How many more may be sent, to wait at the broker for the next free worker."""
    spare: int = 0
    """How many more may be sent anyway, because its workers have other services, too: the broker decides which service
    a free slot goes to, and the next one of this service must be there for each slot that may become free."""
    late: int = 0
    """How many requests more than its room are fetched: as many as had expired the last time."""
    least_urgent: int = HIGHEST
    """The lowest priority among the requests sent since nothing was in flight."""
    urgent: int = 0
    """The highest priority of the requests that arrived while others were ahead; 0 once it was handled."""
    finished: int = 0
    """Attempts that ended since `counted_from`."""
    counted_from: float = 0.0
    mean: float = 0.0
    """Attempts that end in a second, over about SMOOTHED seconds; 0: not known yet."""
    asked: bool = False
    """Whether a question about its presence is on its way."""
    ask_at: float = 0.0
    """Its presence is not asked for before this time."""
    to_ask: bool = False
    """Whether the alarm for that is set."""
    pause: float = 0.0
    """The present wait for that, in seconds; it doubles with each one in a row."""
    trouble: float = 0.0
    """The present wait after something went wrong, in seconds; 0 once a worker has answered again."""

    @property
    def vacant(self) -> int:
        """How many more its workers can take."""
        more = max(self.ahead, self.spare)
        return max(0, self.room + more - self.in_flight - self.abandoned) if self.room else 0

    @property
    def free(self) -> int:
        """How many more may be sent."""
        return self.vacant if self.allowed is None else min(self.vacant, self.allowed)

    @property
    def taken(self) -> int:
        """How many of its workers can take nothing now."""
        return self.in_flight + self.abandoned

    @property
    def surplus(self) -> int:
        """How many requests are with the broker beyond those that workers can have."""
        return max(0, self.in_flight - (self.room or 0))

    @property
    def fetchable(self) -> bool:
        """Whether more of its requests are to be fetched now. While most of what was sent ahead is still at the broker,
        there is no hurry: to read many from the store costs little more than to read one."""
        return self.waiting and self.free > self.ahead // 4

    def ended(self, now: float, most_ahead: int, seconds: float = AHEAD) -> bool:
        """An attempt is over. As many may be sent ahead as are done in so many seconds; True when that number
        changed."""
        self.finished += 1
        elapsed = now - self.counted_from
        if elapsed < COUNTED:
            return False
        before, speed = self.ahead, self.finished / elapsed
        self.ahead = min(most_ahead, int(speed * seconds))
        if self.counted_from:
            share = elapsed / (elapsed + SMOOTHED) if self.mean else 1.0
            self.mean += (speed - self.mean) * share
        self.finished, self.counted_from = 0, now
        return self.ahead != before

    def speed(self, now: float) -> float:
        """Return how many attempts end in a second; 0: not known yet."""
        return min(self.mean, (self.finished + 1) / max(COUNTED, now - self.counted_from))

    def added(self, priority: int) -> None:
        """New requests are in the queue, each behind all others of its priority; the highest priority is given."""
        self.waiting = True
        self.news += 1
        if self.cursor is not None and priority > priority_in(self.cursor):
            self.cursor = None

    def rewind(self) -> None:
        """Something is in the queue that may stand before the cursor."""
        self.waiting = True
        self.news += 1
        self.cursor = None


class Backlogs(dict[bytes, Backlog]):
    """All services that have something to do, by name."""

    def __init__(self, config: ServerConfig, timers: Timers[Alarm], *, shared: bool = False) -> None:
        super().__init__()
        self.config = config
        self.timers = timers
        self.shared = shared
        """Whether other nodes may add requests to the store without a notification: then services that have workers
        are polled, and absent ones are forgotten."""
        self.most_ahead = 0
        """Requests of a service that may be in flight beyond the number of its workers."""
        self.seconds_ahead = AHEAD_REMOTE if shared else AHEAD
        """Seconds of work that they may be."""
        self.workers: Mapping[bytes, int] | None = None
        """What a broker that can be asked for all its workers said last."""
        self.fetchable: dict[bytes, Backlog] = {}
        """Those for which the store is to be read, in the order of their turns."""
        self.absent: dict[bytes, Backlog] = {}
        """Those that wait for their first worker."""
        self.joint: set[bytes] = set()
        """Services whose workers have other services, too, as the broker said last."""
        self.queued: Collection[bytes] = frozenset()
        """Services of which requests wait at the broker for a worker, as it said last."""
        self.paused: Collection[bytes] = frozenset()
        """Paused services: none of their requests may start."""
        self.rates = Rates(timers)
        self.seen_at: dict[bytes, float] = {}
        """When services that have no workers had some, as a separate broker last said."""
        self.surveys = False
        """Whether the broker can be asked for all its workers at once."""
        self._survey_at = 0.0
        self._surveyed_at = 0.0
        self._survey_pause = 0.0
        self._surveying = False

    def connected(self, most_ahead: int, *, surveys: bool) -> None:
        """Note what the broker can do that is there now."""
        self.most_ahead, self.surveys = most_ahead, surveys
        for backlog in self.values():
            self.place(backlog)
        self._plan_survey()

    def reconfigure(self, config: ServerConfig) -> set[bytes]:
        """Go on with other settings. Return the services that have other limits."""
        before, self.config = self.config.limits, config
        names = before.keys() | config.limits.keys()
        changed = {name for name in names if before.get(name) != config.limits.get(name)}
        for name in changed:
            old, new = before.get(name), config.limits.get(name)
            self.rates.change(name, old.rate if old else 0.0, new.rate if new else 0.0)
        for name in changed & self.keys():
            backlog = self[name]
            self.timers.set(("rate", name), 0.0)  # the next check applies the new rate
            backlog.room, backlog.ahead, backlog.ask_at = None, 0, 0.0  # and the next answer how many may run
            self.place(backlog)
        return changed

    def pause_services(self, names: Collection[bytes]) -> None:
        """Nothing of these services begins from now on, and of no others."""
        changed = {*self.paused} ^ {*names}
        self.paused = names
        for name in changed & self.keys():
            self.timers.set(("rate", name), 0.0)  # the next check applies the pause

    def of(self, name: bytes) -> Backlog:
        """The backlog of a service, a new one if it has none."""
        backlog = self.get(name)
        if backlog is None:
            backlog = self[name] = Backlog(name)
        return backlog

    def place(self, backlog: Backlog) -> None:
        """Update the indexes for a backlog that has changed: whether it is to be fetched for, or asked about."""
        name = backlog.name
        if backlog.fetchable:
            self.fetchable[name] = backlog
        else:
            self.fetchable.pop(name, None)
        lacks_workers = backlog.waiting and not backlog.asked and not backlog.vacant
        absent = lacks_workers and backlog.room == 0
        if not absent:
            if self.absent.pop(name, None) is not None and not self.absent:
                self._plan_survey()
        elif name not in self.absent:
            # One more has joined them: the next survey is soon again.
            self._survey_at = min(self._survey_at, backlog.ask_at) if self.absent else backlog.ask_at
            self._survey_pause = 0.0
            self.absent[name] = backlog
            self._plan_survey()
        if lacks_workers and not (absent and self.surveys):
            self.timers.set(("ask", name), backlog.ask_at)
            backlog.to_ask = True
        elif backlog.to_ask:
            self.timers.cancel(("ask", name))
            backlog.to_ask = False
        if not (backlog.waiting or backlog.known or backlog.abandoned):
            del self[name]

    # -- what happened ---------------------------------------------------------------------------------------

    def arrived(self, services: Mapping[bytes, int], now: float) -> None:
        """These services have new requests in the store, the highest priority of which is given."""
        for name, priority in services.items():
            backlog = self.of(name)
            backlog.added(priority)
            if priority > backlog.least_urgent and (backlog.surplus or name in self.joint):
                backlog.urgent = max(backlog.urgent, priority)
                if ("overtake", name) not in self.timers:
                    self.timers.set(("overtake", name), now + OVERTAKE)
            self.place(backlog)

    def returned(self, services: Iterable[bytes]) -> None:
        """These services have requests again that were there before: anywhere in the queue."""
        for name in services:
            backlog = self.of(name)
            backlog.rewind()
            self.place(backlog)

    def emptied(self, services: Iterable[bytes]) -> None:
        """The store's queue of these services is empty: they are not asked for any more."""
        for name in services:
            if (backlog := self.get(name)) is not None:
                backlog.waiting = False
                self.place(backlog)

    def present(self, name: bytes, workers: int, now: float) -> None:
        """A service has so many workers now; 0 when it is absent."""
        backlog = self.get(name)
        if backlog is None:
            return
        backlog.asked = False
        limits = self.config.limits.get(name)
        backlog.room = min(workers, limits.running) if limits is not None and limits.running else workers
        # With a shared store, other nodes may have free workers for what would wait here.
        alone = self.shared or (limits is not None and (limits.running or limits.rate))
        backlog.spare = backlog.room if name in self.joint and not alone else 0
        backlog.allowed = self._allowed(name, now)
        if backlog.room > backlog.taken:
            backlog.pause = 0.0
            backlog.ask_at = now
        else:
            # To ask for each of many takes its time.
            crowd = 0.0 if self.surveys else len(self.absent) / QUESTIONS
            backlog.pause = self._longer(backlog.pause)
            backlog.ask_at = now + max(backlog.pause, crowd)
        self.place(backlog)

    def surveyed(self, workers: Mapping[bytes, int], now: float, shown: Mapping[bytes, int] | None = None) -> None:
        """All services that have workers, and how many. Costs nothing for those that are still absent. `shown`: how
        many `all_workers` returns, if those are fewer."""
        for name in () if self.workers is None else self.workers.keys() - workers.keys():
            self.seen_at.pop(name, None)
            self.seen_at[name] = self._surveyed_at
            if len(self.seen_at) > MAX_SEEN:
                del self.seen_at[next(iter(self.seen_at))]
        self._surveyed_at = now
        self.workers = workers if shown is None else shown
        self._surveying = False
        self._survey_pause = self._longer(self._survey_pause)
        self._survey_at = now + self._survey_pause
        if self.shared:
            self._look_again(workers, now)
        for name in [name for name in workers if name in self.absent]:
            self.present(name, workers[name], now)
        self._plan_survey()

    def unreadable(self, name: bytes, now: float) -> None:
        """The store could not be read: try this service again after a while."""
        if (backlog := self.get(name)) is not None:
            self.pause(backlog, now)

    def pause(self, backlog: Backlog, now: float) -> None:
        """Stop sending to a service with a fault, in it or in its queue, and ask for it again after a delay."""
        backlog.room = None
        backlog.trouble = self._longer(backlog.trouble)
        backlog.ask_at = now + backlog.trouble
        self.place(backlog)

    def worked(self, backlog: Backlog, now: float) -> None:
        """Note that a worker of the service has finished an attempt: it has workers, and this is their speed."""
        backlog.trouble = 0.0
        limits = self.config.limits.get(backlog.name)
        alone = limits is not None and (limits.running or limits.rate)
        if backlog.ended(now, 0 if alone else self.most_ahead, self.seconds_ahead):
            self.place(backlog)

    def began(self, backlog: Backlog, now: float) -> None:
        """A request of a service that has a rate is sent."""
        limits = self.config.limits.get(backlog.name)
        if backlog.allowed and limits is not None and limits.rate:
            self.rates.began(backlog.name, limits.rate, now)
            backlog.allowed -= 1
            if not backlog.allowed:
                backlog.allowed = self.rates.allowed(backlog.name, limits.rate, now)

    def check_rate(self, name: bytes, now: float) -> None:
        """Apply the rate of a service, or its pause, which may have changed."""
        if (backlog := self.get(name)) is not None:
            backlog.allowed = self._allowed(name, now)
            self.place(backlog)

    # -- what is to be done ----------------------------------------------------------------------------------

    def ask(self, name: bytes) -> None:
        """Note that the broker is asked for this service."""
        self[name].asked, self[name].to_ask = True, False

    def survey(self) -> None:
        """Note that the broker is asked for all its workers."""
        self._surveying = True

    def fetches(self, *, late: bool) -> list[Fetch]:
        """Return what to read from the store, services in turn. Not `late`: without services that have many requests
        past their TTL."""
        return [
            Fetch(name, backlog.cursor, backlog.free + backlog.late)
            for name, backlog in self.fetchable.items()
            if late or not backlog.late
        ]

    def all_workers(self) -> dict[bytes, int | None]:
        """How many workers each service has, as far as the broker has said. Any thread may ask."""
        if self.surveys:
            return {name: count for name, count in (self.workers or {}).items() if name not in SERVICES}
        return {name: 0 if backlog.room == 0 else None for name, backlog in self.copy().items()}

    # -- inside ----------------------------------------------------------------------------------------------

    def _plan_survey(self) -> None:
        if self.surveys and (self.shared or self.absent) and not self._surveying:
            self.timers.set(SURVEY, self._survey_at)
        else:
            self.timers.cancel(SURVEY)

    def _allowed(self, name: bytes, now: float) -> int | None:
        if name in self.paused:
            return 0
        limits = self.config.limits.get(name)
        return self.rates.allowed(name, limits.rate, now) if limits is not None and limits.rate else None

    def _look_again(self, workers: Mapping[bytes, int], now: float) -> None:
        for name in [name for name, backlog in self.items() if backlog.room and name not in workers]:
            self.present(name, 0, now)  # without waiting requests, nothing else would ask
        for name in workers.keys() - SERVICES:
            known = name in self
            backlog = self.of(name)
            backlog.waiting = True
            if known and backlog.room is None:
                self.place(backlog)  # it is asked for when its time has come
            else:
                self.present(name, workers[name], now)
        if self._survey_pause >= self.config.presence_most:  # from now on the next survey finds them as soon
            self.emptied([name for name in self.absent if name not in workers])

    def _longer(self, pause: float) -> float:
        return min(self.config.presence_most, pause * 2 or self.config.presence_first)
