"""The dispatcher's core with a store and workers made of dictionaries, and a clock that is moved.

play = Play(max_attempts=3)
play.submit("echo", "a", "b")
play.workers("echo", 1)
play.go()                       everything that can be done now is done; all this is at_work("a", "b", max_attempts=3)
play.reply("a", b"A")
play.sent                       ["a", "b"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from broker import ErrorReply
from titanic import ServerConfig
from titanic.dispatch.attempts import AttemptOutcome, Finish, Postpone
from titanic.dispatch.backlogs import Fetch
from titanic.dispatch.core import (
    AskWorkers,
    Certain,
    DispatchCore,
    Effect,
    KeepOutcomes,
    Maintain,
    RecallRequest,
    Survey,
)
from titanic.protocol.submit_options import DEFAULT_PRIORITY
from titanic.store import ReadyRow
from titanic.store.lmdb.schema import ready_prefix
from titanic.util.ids import SIZE


def names(prefix: str, count: int) -> list[str]:
    """Names for requests, in the order of their submission."""
    return [f"{prefix}{number:06}" for number in range(count)]


class Play:
    """Requests have names instead of UUIDs. Disk and presence answer at once, unless told to wait."""

    def __init__(self, **config: Any) -> None:
        self.now = 1000.0
        self.core = DispatchCore(ServerConfig(**config), seed=1)
        self.queue: dict[bytes, list[bytes]] = {}
        self.later: dict[bytes, tuple[float, bytes]] = {}
        self.attempts: Counter[bytes] = Counter()
        self.deliveries: Counter[bytes] = Counter()
        self.damaged: set[bytes] = set()
        self.present: Counter[bytes] = Counter()
        self.running: dict[bytes, bytes] = {}
        self.sent: list[str] = []
        self.ended: dict[str, Finish] = {}
        self.postponed: list[Postpone] = []
        self.asked: list[str] = []
        self.fetches = 0
        self.surveys = 0
        self.answers_presence = True
        self.disk = "works"
        self.wanted: Collection[bytes] | None = None
        """Those that somebody waits for; None: outcomes are not gathered."""
        self.batches: list[int] = []
        """How many outcomes each write had."""
        self.unwritten: list[list[AttemptOutcome]] = []
        self.max_attempts = 0
        self.options = b""
        self.priorities: dict[bytes, int] = {}
        self.expires: dict[bytes, int] = {}
        self.queued: set[bytes] = set()
        """Those that were sent and that no worker has yet."""
        self.certain: list[bytes] = []
        """Closed ones that no worker can get any more."""
        self.lingering: list[tuple[bytes, bytes]] = []
        """What workers have though its attempt was given up, and their services."""

    # -- the world -------------------------------------------------------------------------------------------

    def submit(self, service: str, *names: str, priority: int = DEFAULT_PRIORITY, expires: float = 0) -> None:
        """`expires` is a time of `now`: here the wall clock and the other are the same."""
        for name in names:
            self.queue.setdefault(service.encode(), []).append(name.encode())
            self.priorities[name.encode()] = priority
            self.expires[name.encode()] = int(expires * 1e6)
        self.core.arrived({service.encode(): priority}, self.now)

    def workers(self, service: str, count: int) -> None:
        self.present[service.encode()] = count

    def close(self, *names: str) -> None:
        for name in names:
            for queue in self.queue.values():
                if name.encode() in queue:
                    queue.remove(name.encode())
            self.later.pop(name.encode(), None)
        self.core.closed([name.encode() for name in names])

    def reply(self, name: str, *body: bytes) -> None:
        del self.running[name.encode()]
        self.core.replied(name.encode(), list(body), self.now)
        self.go()

    def fail(self, name: str, status: int = 500, text: str = "no", *detail: bytes) -> None:
        """The worker says so."""
        del self.running[name.encode()]
        self.core.failed(name.encode(), ErrorReply(status, text, list(detail)), self.now)
        self.go()

    def refuse(self, name: str, status: int, text: str = "no") -> None:
        """The broker says so."""
        del self.running[name.encode()]
        self.core.refused(name.encode(), ErrorReply(status, text, []), self.now)
        self.go()

    def lets_go(self, name: str) -> None:
        """The worker of an attempt that was given up is done with it, at last."""
        lingering = next(one for one in self.lingering if one[0] == name.encode())
        self.lingering.remove(lingering)
        self.core.left(lingering[1])
        self.go()

    def times_out(self, name: str) -> None:
        del self.running[name.encode()]
        self.core.timed_out(name.encode(), self.now)
        self.go()

    def write(self, *, fails: bool = False) -> None:
        """The disk is done with what it was given."""
        unwritten, self.unwritten = self.unwritten, []
        for batch in unwritten:
            if fails:
                self.core.unsettled(batch, self.now)
            else:
                self._keep(batch)
        self.go()

    def later_by(self, seconds: float) -> None:
        """Move the clock, from one deadline to the next."""
        end = self.now + seconds
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.go()
            following = self.core.next_deadline()
            assert following is None or following > self.now, "it would spin"
        self.now = end

    # -- one round -------------------------------------------------------------------------------------------

    def go(self) -> None:
        """Rounds until nothing more happens."""
        while self.round():
            pass
        self.check()

    def round(self) -> bool:
        due = self.core.next_deadline()
        busy = due is not None and due <= self.now
        while fetches := self.core.take_fetches():
            busy = True
            for fetch in fetches:
                self._fetch(fetch)
            for send in self.core.take_sends(self.now, int(self.now * 1e6)):
                assert send.uuid not in self.running, "sent twice"
                self.running[send.uuid] = send.service
                self.sent.append(send.uuid.decode())
        return self._perform(self.core.take_effects(self.now, self.wanted)) or busy

    def _perform(self, effects: list[Effect]) -> bool:
        for effect in effects:
            match effect:
                case Maintain():
                    self._promote()
                case AskWorkers(services):
                    self.asked += [name.decode() for name in services]
                    for name in services if self.answers_presence else ():
                        self.core.present(name, self.present[name], self.now)
                case Survey():
                    self.surveys += 1
                    if self.answers_presence:
                        self.core.surveyed({name: count for name, count in self.present.items() if count}, self.now)
                case RecallRequest(uuid) if uuid in self.queued:
                    self.queued.remove(uuid)
                    del self.running[uuid]
                    self.core.refused(uuid, ErrorReply(499, "cancelled by its client", []), self.now)
                case RecallRequest(uuid):
                    if uuid in self.running and self.core.kept(uuid):
                        self.lingering.append((uuid, self.running.pop(uuid)))
                case KeepOutcomes(outcomes):
                    self.batches.append(len(outcomes))
                    if self.disk == "works":
                        self._keep(outcomes)
                    elif self.disk == "slow":
                        self.unwritten.append(outcomes)
                    else:
                        self.core.unsettled(outcomes, self.now)
                case Certain(uuid):
                    self.certain.append(uuid)
        return bool(effects)

    def check(self) -> None:
        """What is true between any two rounds."""
        core = self.core
        known: Counter[bytes] = Counter()
        in_flight: Counter[bytes] = Counter()
        for flight in core.flights.values():
            known[flight.backlog.name] += 1
            in_flight[flight.backlog.name] += flight.held or not flight.settling
            assert core.backlogs[flight.backlog.name] is flight.backlog
        for name, backlog in core.backlogs.items():
            assert backlog.known == known[name]
            assert backlog.in_flight == in_flight[name]
            assert backlog.abandoned == sum(service == name for _, service in self.lingering)
            assert backlog.waiting or backlog.known or backlog.abandoned
            assert (name in core.backlogs.fetchable) == backlog.fetchable
            lacks_workers = backlog.waiting and not backlog.asked and not backlog.vacant
            assert (name in core.backlogs.absent) == (lacks_workers and backlog.room == 0)
            to_ask = lacks_workers and not (core.backlogs.surveys and name in core.backlogs.absent)
            assert (("ask", name) in core.timers) == to_ask or core.stopping
        assert core.backlogs.absent.keys() <= core.backlogs.keys()
        assert core.backlogs.fetchable.keys() <= core.backlogs.keys()
        settling = [flight.size for flight in core.flights.values() if flight.settling and not flight.held]
        assert core.outcomes.bytes == sum(settling)
        expiring = [flight for flight in core.flights.values() if flight.expiring and not flight.held]
        assert core.outcomes.expiring == len(expiring)

    # -- the store -------------------------------------------------------------------------------------------

    def _fetch(self, fetch: Fetch) -> None:
        self.fetches += 1
        queue = sorted(self.queue.get(fetch.service, []), key=lambda name: self.key(fetch.service, name))
        rows = [name for name in queue if fetch.after is None or self.key(fetch.service, name) > fetch.after]
        rows = [name for name in rows if name not in self.core.flights]
        more = len(rows) > fetch.limit
        del rows[fetch.limit :]
        for at, name in enumerate(rows):
            if name in self.damaged:
                if at == 0:
                    self.core.damaged(fetch.service, name, "damaged", self.now)
                    return
                rows, more = rows[:at], True
                break
        found = [self.row(fetch.service, name) for name in rows]
        self.core.fetched(fetch.service, found, self.now, int(self.now * 1e6), more=more)

    def key(self, service: bytes, name: bytes) -> bytes:
        """Its place in the queue."""
        return ready_prefix(service, self.priorities.get(name, DEFAULT_PRIORITY)) + name.ljust(SIZE, b"\0")

    def row(self, service: bytes, name: bytes) -> ReadyRow:
        return ReadyRow(
            self.key(service, name),
            name,
            self.attempts[name],
            [name],
            self.max_attempts,
            self.expires.get(name, 0),
            self.options,
            deliveries=self.deliveries[name],
        )

    def _keep(self, outcomes: list[AttemptOutcome]) -> None:
        for outcome in outcomes:
            service = next((name for name, queue in self.queue.items() if outcome.uuid in queue), None)
            if service is not None:
                self.queue[service].remove(outcome.uuid)
                if isinstance(outcome, Finish):
                    self.ended[outcome.uuid.decode()] = outcome
                else:
                    self.postponed.append(outcome)
                    self.attempts[outcome.uuid] = outcome.attempts
                    self.deliveries[outcome.uuid] = outcome.deliveries
                    self.later[outcome.uuid] = (self.now + outcome.delay, service)
        self.core.settled([outcome.uuid for outcome in outcomes])
        self._set_alarm()

    def _promote(self) -> None:
        due = {name: service for name, (when, service) in self.later.items() if when <= self.now}
        for name, service in due.items():
            del self.later[name]
            self.queue[service].append(name)
        self.core.returned(set(due.values()))
        self._set_alarm()

    def _set_alarm(self) -> None:
        self.core.set_alarm(min((when for when, _ in self.later.values()), default=None))


def at_work(*names: str, workers: int = 1, options: bytes = b"", **config: Any) -> Play:
    """These requests wait for `echo`, or are with one of its workers."""
    play = Play(**config)
    play.options = options
    play.submit("echo", *names)
    play.workers("echo", workers)
    play.go()
    return play
