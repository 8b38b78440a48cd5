"""What to dispatch next, without sockets, store or clock.

For each service with waiting requests: is it there, and with how many workers (asked through MMI, the answer
kept while it is busy, asked again with back-off while it is absent)? Then as many requests are kept in flight
as it has workers. Services take turns; one that is absent, slow or broken costs the others nothing.

A request in flight ends in one of these ways:

    a reply                                 → Finish done
    an error reply of a worker              → Postpone (back-off), or Finish failed at the last attempt
    400 or 413, the broker will never take it → Finish failed
    503 or 504, the broker refuses or gave up → back to the queue, its service pauses; not an attempt
    no reply in time (lanes only)           → as an error reply
    closed by its client                    → forgotten, a reply that still comes is dropped

Everything that happened is told by methods, everything to be done is taken with the `take_` methods. What is
decided about a request counts once it is on disk (`settled`); until then it stays known here, so that it is
not fetched and sent a second time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker import read_error
from titanic.config import ServerConfig
from titanic.dispatch.backlog import Backlog
from titanic.store import ReadyRow, Status
from titanic.tsp import Frames

NEVER_TAKEN = (400, 413)
TAKEN_LATER = (503, 504)


class Fetch(NamedTuple):
    """Read the next requests of a service from the store: answer with `fetched`."""

    service: bytes
    after: bytes | None
    limit: int


class Send(NamedTuple):
    """Send a request to its service: answer with `replied`."""

    uuid: bytes
    service: bytes
    body: Frames


class Finish(NamedTuple):
    """Keep how a request ended: answer with `settled`. `started` is when it was sent, in the core's clock."""

    uuid: bytes
    status: Status
    frames: Frames
    attempts: int
    reason: str
    started: float


class Postpone(NamedTuple):
    """Put a request off for `delay` seconds: answer with `settled`."""

    uuid: bytes
    delay: float
    attempts: int
    reason: str
    started: float


Outcome = Finish | Postpone


class _Flight:
    """A request that is being executed, or whose outcome is not on disk yet."""

    __slots__ = ("attempts", "backlog", "closed", "max_attempts", "settling", "started")

    def __init__(self, backlog: Backlog, attempts: int, max_attempts: int, started: float) -> None:
        self.backlog = backlog
        self.attempts = attempts
        self.max_attempts = max_attempts
        self.started = started
        self.settling = False
        """Whether its outcome is on its way to the disk."""
        self.closed = False
        """Whether its client closed it. The worker is still at it, so it keeps its place until the reply comes."""


class DispatchCore:
    """Decides; `now` is monotonic seconds."""

    def __init__(self, config: ServerConfig, *, seed: int | None = None) -> None:
        self.config = config
        self.flights: dict[bytes, _Flight] = {}
        self.backlogs: dict[bytes, Backlog] = {}
        self.stopping = False
        """While true, nothing new is sent."""
        self.counts = {"dispatched": 0, "succeeded": 0, "failed": 0, "retried": 0, "returned": 0}
        self._random = random.Random(seed)
        self._outcomes: list[Outcome] = []
        self._sends: list[Send] = []
        self._alarm: float | None = None

    # -- what happened ---------------------------------------------------------------------------------------

    def arrived(self, services: Iterable[bytes], *, rewind: bool = False) -> None:
        """These services have new requests in the store: at the end of the queue, or (`rewind`) anywhere in it."""
        for name in services:
            backlog = self.backlogs.get(name)
            if backlog is None:
                self.backlogs[name] = Backlog(name)
            elif rewind:
                backlog.rewind()
            else:
                backlog.waiting = True

    def present(self, name: bytes, workers: int, now: float) -> None:
        """How many workers a service has now; 0 when it is absent."""
        backlog = self.backlogs.get(name)
        if backlog is None:
            return
        backlog.asked = False
        backlog.room = workers
        if workers > backlog.in_flight:
            backlog.pause = 0.0
            backlog.ask_at = now
        else:
            self._ask_later(backlog, now)

    def fetched(self, name: bytes, rows: Sequence[ReadyRow], now: float) -> None:
        """What the store had for a `Fetch`. It may be less than was asked for; nothing means that there is no more."""
        backlog = self.backlogs.get(name)
        if backlog is None:
            return
        backlog.waiting = bool(rows)
        for row in rows:
            if row.uuid in self.flights:
                backlog.cursor = row.key
            elif backlog.free and not self.stopping:
                backlog.cursor = row.key
                self._take_off(row.uuid, backlog, row.attempts, row.max_attempts or self.config.max_attempts, now)
                self._sends.append(Send(row.uuid, name, row.body))
                self.counts["dispatched"] += 1
            else:
                break

    def damaged(self, name: bytes, uuid: bytes, reason: str, now: float) -> None:
        """The store cannot read the request that is next: it fails, so that those behind it get their turn."""
        if uuid not in self.flights and (backlog := self.backlogs.get(name)) is not None:
            self._take_off(uuid, backlog, 0, 0, now)
            if (flight := self._landing(uuid)) is not None:
                self._finish(uuid, flight, Status.FAILED, [], reason)
        self.unreadable(name, now)

    def unreadable(self, name: bytes, now: float) -> None:
        """The store could not be read: try this service again after a while."""
        if (backlog := self.backlogs.get(name)) is not None:
            self._pause(backlog, now)

    def replied(self, uuid: bytes, body: Frames, now: float) -> None:
        """The reply to a request came, or an error reply."""
        flight = self._landing(uuid)
        if flight is None:
            return
        error = read_error(body)
        if error is None:
            flight.attempts += 1
            self._finish(uuid, flight, Status.DONE, body, "")
        elif error.status in TAKEN_LATER:
            self._give_back(uuid, flight, now)
        elif error.status in NEVER_TAKEN:
            self._finish(uuid, flight, Status.FAILED, error.detail, f"{error.status} {error.text}")
        else:
            self._failed(uuid, flight, error.text, error.detail)

    def timed_out(self, uuid: bytes, now: float) -> None:
        """No reply came in the time that an attempt may take."""
        flight = self._landing(uuid)
        if flight is not None:
            self._failed(uuid, flight, f"no reply within {self.config.attempt_timeout:g} s", [])

    def settled(self, uuids: Iterable[bytes]) -> None:
        """The outcomes of these requests are on disk."""
        for uuid in uuids:
            self._forget(uuid)

    def unsettled(self, outcomes: Sequence[Outcome], now: float) -> None:
        """The outcomes could not be written: these requests are still in the queue and will be executed again."""
        for outcome in outcomes:
            flight = self._forget(outcome.uuid)
            if flight is not None:
                flight.backlog.rewind()
                self._pause(flight.backlog, now)

    def closed(self, uuids: Iterable[bytes]) -> None:
        """These requests are gone from the store: a reply that still comes is dropped."""
        for uuid in uuids:
            flight = self.flights.get(uuid)
            if flight is not None:
                flight.closed = True

    def set_alarm(self, when: float | None) -> None:
        """When the next delayed request is due; None: there is none."""
        self._alarm = when

    # -- what is to be done ----------------------------------------------------------------------------------

    def take_questions(self, now: float) -> list[bytes]:
        """Services whose presence is to be asked for: answer with `present`."""
        questions = []
        if not self.stopping:
            for backlog in self._wanting(now):
                backlog.asked = True
                questions.append(backlog.name)
        return questions

    def take_fetches(self) -> list[Fetch]:
        """What is to be read from the store, services in turn."""
        if self.stopping:
            return []
        fetches = []
        for name, backlog in list(self.backlogs.items()):
            if backlog.idle:
                del self.backlogs[name]
            elif backlog.waiting and backlog.free:
                # After a rewind the rows that are known already are met again, and passed over.
                known = backlog.known if backlog.cursor is None else 0
                fetches.append(Fetch(name, backlog.cursor, backlog.free + known))
        return fetches

    def take_sends(self) -> list[Send]:
        """Requests to be sent."""
        sends, self._sends = self._sends, []
        return sends

    def take_outcomes(self) -> list[Outcome]:
        """What is to be written."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def take_alarm(self, now: float) -> bool:
        """Whether delayed requests are due: look, and set the alarm anew."""
        if self._alarm is None or now < self._alarm or self.stopping:
            return False
        self._alarm = None
        return True

    def next_deadline(self) -> float | None:
        """When something is to be done without anything having happened."""
        if self.stopping:
            return None
        times = [backlog.ask_at for backlog in self.backlogs.values() if self._wants(backlog)]
        if self._alarm is not None:
            times.append(self._alarm)
        return min(times, default=None)

    # -- inside ----------------------------------------------------------------------------------------------

    @staticmethod
    def _wants(backlog: Backlog) -> bool:
        """Whether it waits for (more) workers than are known."""
        return backlog.waiting and not backlog.free and not backlog.asked

    def _wanting(self, now: float) -> list[Backlog]:
        return [one for one in self.backlogs.values() if self._wants(one) and now >= one.ask_at]

    def _take_off(self, uuid: bytes, backlog: Backlog, attempts: int, max_attempts: int, now: float) -> _Flight:
        backlog.in_flight += 1
        backlog.known += 1
        flight = self.flights[uuid] = _Flight(backlog, attempts, max_attempts, now)
        return flight

    def _landing(self, uuid: bytes) -> _Flight | None:
        """The flight whose attempt just ended, if anything is still to be done about it."""
        flight = self.flights.get(uuid)
        if flight is None or flight.settling:
            return None
        flight.backlog.in_flight -= 1
        if flight.closed:
            self._forget(uuid)
            return None
        return flight

    def _forget(self, uuid: bytes) -> _Flight | None:
        flight = self.flights.pop(uuid, None)
        if flight is not None:
            flight.backlog.known -= 1
        return flight

    def _pause(self, backlog: Backlog, now: float) -> None:
        """Something is wrong with the service or its queue: send nothing before asking for it anew."""
        backlog.room = None
        self._ask_later(backlog, now)

    def _ask_later(self, backlog: Backlog, now: float) -> None:
        first, most = self.config.presence_first, self.config.presence_most
        backlog.pause = min(most, backlog.pause * 2 or first)
        backlog.ask_at = now + backlog.pause

    def _failed(self, uuid: bytes, flight: _Flight, reason: str, detail: Frames) -> None:
        flight.attempts += 1
        if flight.attempts >= flight.max_attempts:
            self._finish(uuid, flight, Status.FAILED, detail, reason)
            return
        config = self.config
        delay = min(config.retry_most, config.retry_first * 2.0 ** min(flight.attempts - 1, 60))
        delay *= self._random.uniform(0.9, 1.1)  # those that failed together are not tried again together
        self.counts["retried"] += 1
        text = b"\n".join([reason.encode(), *detail]).decode(errors="replace")
        self._settle(flight, Postpone(uuid, delay, flight.attempts, text, flight.started))

    def _finish(self, uuid: bytes, flight: _Flight, status: Status, frames: Frames, reason: str) -> None:
        self.counts["succeeded" if status is Status.DONE else "failed"] += 1
        self._settle(flight, Finish(uuid, status, frames, flight.attempts, reason, flight.started))

    def _settle(self, flight: _Flight, outcome: Outcome) -> None:
        flight.settling = True
        self._outcomes.append(outcome)

    def _give_back(self, uuid: bytes, flight: _Flight, now: float) -> None:
        self._forget(uuid)
        self.counts["returned"] += 1
        backlog = flight.backlog
        backlog.rewind()
        self._pause(backlog, now)
