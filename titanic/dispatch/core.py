"""What to dispatch next, without sockets, store or clock.

For each service with waiting requests: is it there, and with how many workers (asked through MMI, the answer
kept while it is busy, asked again with back-off while it is absent)? A broker that can be asked for all its
workers at once is: one question a second, however many services are absent. Then as many requests are kept in
flight as a service has workers. Services take turns; one that is absent, slow or broken costs the others
nothing: it is not even looked at before the time has come to ask for it again.

A request in flight ends in one of these ways:

    a reply                                 → Finish done
    an error reply of a worker              → Postpone (back-off), or Finish failed at the last attempt
    several workers died of it              → the same
    the broker will never take it (400, 413) → Finish failed
    the broker refuses or gave up (503, 504) → back to the queue, its service pauses; not an attempt
    no reply in time                        → as an error reply; a reply that still comes is dropped, and until then
                                              its worker has no place for another one
    no reply in time, and no worker had it  → back to the queue (499); not an attempt
    its time to live is over before it is sent → Finish expired
    more urgent ones came, and what is ahead of them at the broker does not move → back to the queue
    closed by its client                    → forgotten, a reply that still comes is dropped

Everything that happened is told by methods, everything to be done is taken with the `take_` methods. What is
decided about a request counts once it is on disk (`settled`); until then it stays known here, so that it is
not fetched and sent a second time. When the disk does not take it (`unsettled`), it is kept and tried again:
the work is done, and nobody is to do it twice.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Mapping, Sequence

from broker import ErrorReply, Timers
from titanic.config import ServerConfig
from titanic.dispatch.actions import Fetch, Finish, Outcome, Postpone, Send
from titanic.dispatch.outcome_buffer import Settling
from titanic.dispatch.presence import Asking
from titanic.dispatch.state import Backlog, Flight
from titanic.protocol.tsp import Frames
from titanic.services.submission import Policy, read_policy
from titanic.store import ReadyRow, Status, priority_in

NEVER_TAKEN = (400, 413)
TAKEN_LATER = (499, 503, 504)
GIVEN_BACK = 499
"""Asked for and got: nothing is wrong with the service."""

REFUSED_MOST = 10
"""How often a reply may find no room in the store, some four minutes long, before the request fails for that."""

OVERTAKE = 0.05
"""Seconds for which a more urgent request waits for what was sent ahead of it. Then that is taken back."""

LATE_MOST = 256
"""Requests whose time is over of which one look into the store brings more than can be sent, at most."""

_NO_POLICY = Policy()
_COUNTED_AS = {Status.DONE: "succeeded", Status.FAILED: "failed", Status.EXPIRED: "expired"}


class DispatchCore:
    """Decides; `now` is monotonic seconds."""

    def __init__(self, config: ServerConfig, *, seed: int | None = None) -> None:
        self.config = config
        self.most_ahead = 0
        """Requests of a service that may be in flight beyond the number of its workers."""
        self.flights: dict[bytes, Flight] = {}
        self.backlogs: dict[bytes, Backlog] = {}
        self.workers: Mapping[bytes, int] | None = None
        """What a broker that can be asked for all its workers said last."""
        self.stopping = False
        """While true, nothing new is sent."""
        self.counts = {"dispatched": 0, "succeeded": 0, "failed": 0, "expired": 0, "retried": 0, "returned": 0}
        self._random = random.Random(seed)
        self._hungry: dict[bytes, Backlog] = {}
        self._asking = Asking(self._longer)
        self._limits: Timers[bytes] = Timers()
        self._lapses: Timers[bytes] = Timers()
        """When the time to live of what was sent is over."""
        self._overtakes: Timers[bytes] = Timers()
        """When it is looked at whether urgent requests of a service still wait."""
        self._sends: list[Send] = []
        self._recalls: list[bytes] = []
        self._certain: list[bytes] = []
        self._settling = Settling()
        self._alarm: float | None = None

    @property
    def surveys(self) -> bool:
        """Whether the broker can be asked for all its workers at once (`take_survey`)."""
        return self._asking.surveys

    @surveys.setter
    def surveys(self, can: bool) -> None:
        self._asking.surveys = can
        for backlog in self.backlogs.values():
            self._asking.place(backlog)

    # -- what happened ---------------------------------------------------------------------------------------

    def arrived(self, services: Mapping[bytes, int], now: float) -> None:
        """These services have new requests in the store, the highest priority of which is given."""
        for name, priority in services.items():
            backlog = self._backlog(name)
            backlog.added(priority)
            if priority > backlog.least_urgent and backlog.surplus:
                backlog.urgent = max(backlog.urgent, priority)
                if name not in self._overtakes:
                    self._overtakes.set(name, now + OVERTAKE)
            self._place(backlog)

    def returned(self, services: Iterable[bytes]) -> None:
        """These services have requests again that were there before: anywhere in the queue."""
        for name in services:
            backlog = self._backlog(name)
            backlog.rewind()
            self._place(backlog)

    def present(self, name: bytes, workers: int, now: float) -> None:
        """How many workers a service has now; 0 when it is absent."""
        backlog = self.backlogs.get(name)
        if backlog is None:
            return
        backlog.asked = False
        limits = self.config.limits.get(name)
        backlog.room = min(workers, limits.running) if limits is not None and limits.running else workers
        if backlog.room > backlog.taken:
            backlog.pause = 0.0
            backlog.ask_at = now
        else:
            backlog.pause = self._longer(backlog.pause)
            backlog.ask_at = now + max(backlog.pause, self._asking.crowd)
        self._place(backlog)

    def surveyed(self, workers: Mapping[bytes, int], now: float) -> None:
        """All services that have workers, and how many. Costs nothing for those that are still absent."""
        self.workers = workers
        self._asking.surveyed(now)
        for name in [name for name in workers if name in self._asking.absent]:
            self.present(name, workers[name], now)

    def fetched(self, name: bytes, rows: Sequence[ReadyRow], now: float, wall_us: int) -> None:
        """What the store had for a `Fetch`. It may be less than was asked for; nothing means that there is no more.

        `wall_us` is the time of day. Those whose time is over expire here, and take no worker's place.
        """
        backlog = self.backlogs.get(name)
        if backlog is None:
            return
        backlog.waiting = bool(rows)
        late = 0
        for row in rows:
            if 0 < row.expires_at <= wall_us and not self.stopping:
                backlog.cursor = row.key
                self._take_off(row.uuid, backlog, self._flight(row, backlog, now))
                self._expired(row.uuid)
                late += 1
            elif backlog.free and not self.stopping:
                backlog.cursor = row.key
                self._begin(row, backlog, now)
            else:
                break
        backlog.late = min(LATE_MOST, 2 * late)
        self._hungry.pop(name, None)  # the others are looked at before it is again
        self._place(backlog)

    def damaged(self, name: bytes, uuid: bytes, reason: str, now: float) -> None:
        """The store cannot read the request that is next: it fails, so that those behind it get their turn."""
        if uuid not in self.flights and (backlog := self.backlogs.get(name)) is not None:
            self._take_off(uuid, backlog, Flight(backlog, 0, 0, _NO_POLICY, 0, now))
            if (flight := self._landing(uuid)) is not None:
                self._finish(uuid, flight, Status.FAILED, [], reason)
        self.unreadable(name, now)

    def unreadable(self, name: bytes, now: float) -> None:
        """The store could not be read: try this service again after a while."""
        if (backlog := self.backlogs.get(name)) is not None:
            self._pause(backlog, now)

    def replied(self, uuid: bytes, body: Frames, now: float) -> None:
        """The whole reply to a request came."""
        if (flight := self._landing(uuid)) is not None:
            self._count(flight.backlog, now)
            flight.attempts += 1
            self._finish(uuid, flight, Status.DONE, body, "")

    def failed(self, uuid: bytes, error: ErrorReply, now: float) -> None:
        """A worker's error reply came. Its status is the worker's choice and means nothing here."""
        if (flight := self._landing(uuid)) is not None:
            self._count(flight.backlog, now)
            self._failed(uuid, flight, error.text, error.detail)

    def refused(self, uuid: bytes, error: ErrorReply, now: float) -> None:
        """The broker says why there is no reply."""
        flight = self._landing(uuid)
        if flight is None:
            return
        if error.status in TAKEN_LATER:
            self._give_back(uuid, flight, now, pause=error.status != GIVEN_BACK)
        elif error.status in NEVER_TAKEN:
            self._finish(uuid, flight, Status.FAILED, error.detail, f"{error.status} {error.text}")
        else:
            self._failed(uuid, flight, error.text, error.detail)

    def timed_out(self, uuid: bytes, now: float) -> None:
        """No reply came in the time that an attempt may take."""
        flight = self._landing(uuid)
        if flight is not None:
            self._failed(uuid, flight, f"no reply within {self.config.attempt_timeout:g} s", [])

    def tick(self, now: float) -> None:
        """Attempts that take longer than their limit have failed, whatever their worker is still doing; if a worker
        has them, which is to be found out now."""
        for uuid in self._limits.due(now):
            flight = self.flights.get(uuid)
            if flight is not None and not flight.settling and not flight.closed:
                flight.overdue = True
                self._recalls.append(uuid)
        for uuid in self._lapses.due(now):
            flight = self.flights.get(uuid)
            if flight is not None and not flight.settling and not flight.closed:
                self._recalls.append(uuid)  # if no worker has it yet, none is to begin
        for name in self._overtakes.due(now):
            if (backlog := self.backlogs.get(name)) is not None:
                self._overtake(backlog, now)

    def kept(self, uuid: bytes) -> bool:
        """A request cannot be taken back: a worker has it, or nobody can say. Whether this attempt is over therefore:
        then its reply is not wanted any more, `left` is to be told when it comes."""
        flight = self.flights.get(uuid)
        if flight is None or flight.settling:
            return False
        if flight.closed:
            flight.kept = True
            self._certain.append(uuid)
        if flight.closed or not flight.overdue:
            return False
        flight.backlog.lingering += 1
        self._landing(uuid)
        self._failed(uuid, flight, f"no reply within its limit of {flight.policy.limit:g} s", [])
        return True

    def left(self, name: bytes) -> None:
        """A worker of this service is done with an attempt that was given up."""
        backlog = self.backlogs[name]
        backlog.lingering -= 1
        self._place(backlog)

    def settled(self, uuids: Iterable[bytes], moot: Iterable[Outcome] = ()) -> None:
        """The outcomes of these requests are on disk. `moot`: outcomes that changed nothing there, because the
        requests had ended or were closed already; they don't count."""
        for outcome in moot:
            self.counts[_COUNTED_AS[outcome.status] if isinstance(outcome, Finish) else "retried"] -= 1
        self._settling.written([flight for uuid in uuids if (flight := self._forget(uuid)) is not None])

    def unsettled(self, outcomes: Sequence[Outcome], now: float, *, full: bool = False) -> None:
        """The outcomes could not be written: try it again after a while.

        `full`: because there is no room for their frames. In time they have to do without: what never fits would
        hold a worker's place for ever.
        """
        if full:
            outcomes = [self._refuse(outcome) for outcome in outcomes]
        for outcome in outcomes:
            flight = self.flights[outcome.uuid]
            if self._settling.hold(flight):
                flight.backlog.in_flight += 1
                self._place(flight.backlog)
        self._settling.again(outcomes, now)

    def closed(self, uuids: Iterable[bytes]) -> None:
        """These requests are gone from the store: a reply that still comes is dropped."""
        for uuid in uuids:
            flight = self.flights.get(uuid)
            if flight is not None:
                flight.closed = True
                if not flight.settling:
                    self._recalls.append(uuid)

    def emptied(self, services: Iterable[bytes]) -> None:
        """The store's queue of these services is empty: they are not asked for any more."""
        for name in services:
            if (backlog := self.backlogs.get(name)) is not None:
                backlog.waiting = False
                self._place(backlog)

    def in_doubt(self, uuid: bytes) -> bool:
        """Whether a worker may yet be given a request that was closed: it is on its way, and nobody has said that a
        worker has it. `take_certain` tells when that is over."""
        flight = self.flights.get(uuid)
        return flight is not None and flight.closed and not flight.settling and not flight.kept

    def set_alarm(self, when: float | None) -> None:
        """When the next delayed request is due; None: there is none."""
        self._alarm = when

    def hasten_alarm(self, when: float) -> None:
        """One more delayed request is due then."""
        self._alarm = when if self._alarm is None else min(self._alarm, when)

    # -- what is to be done ----------------------------------------------------------------------------------

    def take_questions(self, now: float) -> list[bytes]:
        """Services whose presence is to be asked for: answer with `present`."""
        if self.stopping:
            return []
        names = list(self._asking.questions.due(now))
        for name in names:
            self.backlogs[name].asked = True
        return names

    def take_survey(self, now: float) -> bool:
        """Whether the broker is to be asked for all its workers: answer with `surveyed`."""
        return not self.stopping and self._asking.take_survey(now)

    def take_fetches(self) -> list[Fetch]:
        """What is to be read from the store, services in turn: answer one after the other with `fetched`, `damaged` or
        `unreadable`, then take again, until there are no more. Those without an answer come first then."""
        if self.stopping or self._settling.full:
            return []
        fetches = []
        for name, backlog in self._hungry.items():
            if backlog.late and self._settling.crowded:
                continue
            fetches.append(Fetch(name, backlog.cursor, backlog.free + backlog.late))
        return fetches

    def take_sends(self, now: float, wall_us: int) -> list[Send]:
        """Requests to be sent. Take them after each `fetched`.

        `wall_us` is the time of day. The end of a request's time to live is compared with it here, when the
        request is known to be in flight already: whoever else looks for what has expired passes it over since then,
        so nothing is sent whose end is on its way to the disk.
        """
        sends, self._sends = self._sends, []
        good = []
        for send in sends:
            end = self.flights[send.uuid].expires_at
            if 0 < end <= wall_us:
                self._expired(send.uuid)
                continue
            if end:
                self._lapses.set(send.uuid, now + (end - wall_us) / 1e6)
            good.append(send)
        self.counts["dispatched"] += len(good)
        return good

    def take_recalls(self) -> list[bytes]:
        """Requests to be taken back, if no worker has them yet: answer with `replied`, or first with `kept`."""
        recalls, self._recalls = self._recalls, []
        return recalls

    def take_certain(self) -> list[bytes]:
        """Closed requests that no worker can be given any more."""
        certain, self._certain = self._certain, []
        return certain

    def take_outcomes(self, now: float, wanted: Container[bytes] | None = None) -> list[list[Outcome]]:
        """What is to be written, each list as one.

        `wanted`: the requests that somebody waits for. Outcomes of others may be gathered for a moment while more
        are in flight. None: don't gather.
        """
        settling = self._settling
        hurry = wanted is None or self.stopping or settling.flights >= len(self.flights) or settling.wants(wanted)
        return settling.take(now, hurry)

    def take_alarm(self, now: float) -> bool:
        """Whether delayed requests are due: look, and set the alarm anew."""
        if self._alarm is None or now < self._alarm or self.stopping:
            return False
        self._alarm = None
        return True

    def next_deadline(self) -> float | None:
        """When something is to be done without anything having happened."""
        times = [self._settling.next_deadline(), self._limits.next(), self._lapses.next(), self._overtakes.next()]
        if not self.stopping:
            times += (self._asking.next_deadline(), self._alarm)
        return min((time for time in times if time is not None), default=None)

    # -- inside ----------------------------------------------------------------------------------------------

    def _place(self, backlog: Backlog) -> None:
        """Put a backlog that changed where its next step will be looked for."""
        name = backlog.name
        if backlog.hungry:
            self._hungry[name] = backlog
        else:
            self._hungry.pop(name, None)
        self._asking.place(backlog)
        if backlog.idle:
            del self.backlogs[name]

    def _count(self, backlog: Backlog, now: float) -> None:
        """A worker of the service is done with an attempt: there is somebody, and so fast they are."""
        backlog.trouble = 0.0
        if backlog.ended(now, self._most_ahead(backlog.name)):
            self._place(backlog)

    def _backlog(self, name: bytes) -> Backlog:
        backlog = self.backlogs.get(name)
        if backlog is None:
            backlog = self.backlogs[name] = Backlog(name)
        return backlog

    def _most_ahead(self, name: bytes) -> int:
        limits = self.config.limits.get(name)
        return 0 if limits is not None and limits.running else self.most_ahead

    def _flight(self, row: ReadyRow, backlog: Backlog, now: float) -> Flight:
        policy = read_policy(row.options) if row.options else _NO_POLICY
        most = row.max_attempts or self.config.max_attempts
        return Flight(backlog, row.attempts, most, policy, row.expires_at, now, priority_in(row.key))

    def _begin(self, row: ReadyRow, backlog: Backlog, now: float) -> None:
        flight = self._flight(row, backlog, now)
        if not backlog.in_flight:
            backlog.least_urgent = flight.priority
        backlog.least_urgent = min(backlog.least_urgent, flight.priority)
        self._take_off(row.uuid, backlog, flight)
        if flight.policy.limit:
            self._limits.set(row.uuid, now + flight.policy.limit)
        self._sends.append(Send(row.uuid, backlog.name, row.body, row.expires_at > 0))

    def _overtake(self, backlog: Backlog, now: float) -> None:
        """Take back what was sent ahead and is less urgent than what has come since."""
        urgent, backlog.urgent = backlog.urgent, 0
        behind = [
            (uuid, flight)
            for uuid, flight in self.flights.items()
            if flight.backlog is backlog
            and flight.priority < urgent
            and flight.started <= now - OVERTAKE
            and not (flight.settling or flight.closed or flight.recalled)
        ]
        # Those that were sent last are those that no worker has yet.
        for uuid, flight in behind[-backlog.surplus :] if backlog.surplus else []:
            flight.recalled = True
            self._recalls.append(uuid)

    def _take_off(self, uuid: bytes, backlog: Backlog, flight: Flight) -> None:
        backlog.in_flight += 1
        backlog.known += 1
        self.flights[uuid] = flight

    def _expired(self, uuid: bytes) -> None:
        flight = self._landing(uuid)
        if flight is not None:
            reason = f"not done in time, after {flight.attempts} attempts"
            flight.expiring = True
            self._finish(uuid, flight, Status.EXPIRED, [], reason)

    def _landing(self, uuid: bytes) -> Flight | None:
        """The flight whose attempt just ended, if anything is still to be done about it."""
        flight = self.flights.get(uuid)
        if flight is None or flight.settling:
            return None
        flight.backlog.in_flight -= 1
        if flight.policy.limit:
            self._limits.cancel(uuid)
        if flight.expires_at:
            self._lapses.cancel(uuid)
        if flight.closed:
            self._forget(uuid)
            self._certain.append(uuid)
            return None
        self._place(flight.backlog)
        return flight

    def _forget(self, uuid: bytes) -> Flight | None:
        flight = self.flights.pop(uuid, None)
        if flight is not None:
            flight.backlog.known -= 1
            if flight.held:
                flight.backlog.in_flight -= 1
            self._place(flight.backlog)
        return flight

    def _pause(self, backlog: Backlog, now: float) -> None:
        """Something is wrong with the service or its queue: send nothing before asking for it anew."""
        backlog.room = None
        backlog.trouble = self._longer(backlog.trouble)
        backlog.ask_at = now + backlog.trouble
        self._place(backlog)

    def _longer(self, pause: float) -> float:
        return min(self.config.presence_most, pause * 2 or self.config.presence_first)

    def _failed(self, uuid: bytes, flight: Flight, reason: str, detail: Frames) -> None:
        flight.attempts += 1
        if flight.attempts >= flight.max_attempts:
            self._finish(uuid, flight, Status.FAILED, detail, reason)
            return
        first = flight.policy.retry_first or self.config.retry_first
        most = flight.policy.retry_most or max(first, self.config.retry_most)
        delay = min(most, first * 2.0 ** min(flight.attempts - 1, 60))
        delay *= self._random.uniform(0.9, 1.1)  # those that failed together are not tried again together
        self.counts["retried"] += 1
        text = b"\n".join([reason.encode(), *detail]).decode(errors="replace")
        self._settling.add(flight, Postpone(uuid, delay, flight.attempts, text, flight.started), len(text))

    def _finish(self, uuid: bytes, flight: Flight, status: Status, frames: Frames, reason: str) -> None:
        self.counts[_COUNTED_AS[status]] += 1
        outcome = Finish(uuid, status, frames, flight.attempts, reason, flight.started)
        self._settling.add(flight, outcome, sum(map(len, frames)))

    def _refuse(self, outcome: Outcome) -> Outcome:
        flight = self.flights[outcome.uuid]
        flight.refused += 1
        if flight.refused <= REFUSED_MOST or not isinstance(outcome, Finish):
            return outcome
        reason = f"the store had no room for its reply of {sum(map(len, outcome.frames))} bytes"
        if outcome.status is not Status.DONE:
            reason = f"{outcome.reason} ({reason})"
        return outcome._replace(status=Status.FAILED, frames=[], reason=reason)

    def _give_back(self, uuid: bytes, flight: Flight, now: float, *, pause: bool) -> None:
        self.counts["returned"] += 1
        if flight.expires_at:
            self._alarm = now  # the end of its time counts again
        backlog = flight.backlog
        backlog.rewind()  # first: a backlog with something waiting is not forgotten
        if pause:
            self._pause(backlog, now)
        elif backlog.room and backlog.in_flight < backlog.room and not flight.recalled:
            backlog.room -= 1  # there was a place for it, and no worker took it: those that are left go on
        self._forget(uuid)
