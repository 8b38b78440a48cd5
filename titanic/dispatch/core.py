"""Decides what to send next and what becomes of a request, without sockets, store or clock.

As many requests of a service are in flight as it has workers (`backlogs.py`), and a few more if it is fast. An attempt
ends in one of these ways:

    a reply                                     → Finish done
    an error reply of a worker                  → Postpone (back-off, or as it says), or Finish failed at the last
                                                  attempt, or when it says so
    a worker that is not ready for it           → Postpone, not an attempt; Finish failed after `unready_timeout`
    its worker died, and had nothing else       → as an error reply; the next attempt runs alone
                                                  (`broker.core.worker_registry`)
      ... three times                           → Finish failed, as poison: decided when it is written (`outcomes.py`)
    its worker died, and others of its process  → back to the queue, to run alone (502); not an attempt
      had requests, too
    the broker will never take it (400, 413)    → Finish failed
    the broker refuses or gives up (503, 504)   → back to the queue, its service pauses; not an attempt
    past its limit                              → as an error reply, when its worker has ended it or died; whatever
                                                  the worker says then is dropped
    its worker still has it `limit_grace` later → the same at once, and until a reply comes its worker has no place for
    no reply in time                              another one
    no reply in time, and no worker had it      → back to the queue (499); not an attempt
    its time to live is over before it is sent  → Finish expired
    more urgent ones wait behind it too long    → back to the queue
    closed by its client                        → forgotten; a reply that still comes is dropped

Methods report what happened; `take_effects` returns what to do, in order, and `take_fetches` what to read from the
store. What is due later is an alarm (ALARMS). A decision about a request counts once it is on disk (`settled`). Until
then the request stays known here, so that it is not fetched and sent a second time. When the disk does not take the
decision (`unsettled`), it is kept and written later: the work is done, and is not to be done twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Container, Iterable, Sequence

from broker import ErrorReply, Timers, WorkerIdentity
from titanic.dispatch.attempts import (
    AskWorkers,
    AttemptFailure,
    AttemptOutcome,
    Certain,
    Effect,
    Finish,
    Flight,
    GivenBack,
    KeepOutcomes,
    Maintain,
    Postpone,
    RecallRequest,
    Send,
    Survey,
    after_failure,
    context_of,
    without_room,
)
from titanic.dispatch.backlogs import HIGHEST, OVERTAKE, Alarm, Backlog, Backlogs, Fetch
from titanic.dispatch.outcomes import EndedCounts, OutcomeBuffer
from titanic.protocol.submit_options import Policy, read_policy
from titanic.protocol.tsp import FLOW_SUFFIX, Frames, read_progress
from titanic.settings import ServerConfig
from titanic.store import ReadyRow, Status, priority_in

NEVER_TAKEN = (400, 413)
TAKEN_LATER = (499, 503, 504)
GIVEN_BACK = 499
"""The broker gave back what it was asked to: nothing is wrong with the service."""
LOST = 502
"""A worker's process died with several requests in hand, of which this was one."""

MOST_SUSPECTS = 10_000
"""Requests of which it is remembered that workers died that had them; of more, the oldest are forgotten."""

LATE_MOST = 256
"""Requests that one read of the store brings beyond those that can be sent, at most, because many have expired."""

MAINTENANCE: Alarm = ("maintenance", b"")


_NO_POLICY = Policy()
_FLOW = FLOW_SUFFIX.encode()
_COUNTED_AS = {Status.DONE: "succeeded", Status.FAILED: "failed", Status.EXPIRED: "expired"}


def _counted_as(outcome: AttemptOutcome) -> str:
    if isinstance(outcome, Finish):
        return _COUNTED_AS[outcome.status]
    return "retried" if outcome.delay else "returned"


class DispatchCore:
    """Decides; `now` is monotonic seconds."""

    def __init__(self, config: ServerConfig, *, shared: bool = False, seed: int | None = None) -> None:
        """`shared`: whether other nodes use the store, too."""
        self.timers: Timers[Alarm] = Timers()
        """The alarms that are set (ALARMS)."""
        self.backlogs = backlogs = Backlogs(config, self.timers, shared=shared)
        self.flights: dict[bytes, Flight] = {}
        self.outcomes = OutcomeBuffer(self.timers)
        self.stopping = False
        """While true, nothing new is sent."""
        self.counts = dict.fromkeys((*_COUNTED_AS.values(), "dispatched", "retried", "returned", "poisoned"), 0)
        self.ended = EndedCounts()
        self.again = 0
        """Requests dispatched since this was set to 0 that workers had before, which was no attempt."""
        self._suspects: dict[bytes, None] = {}
        """Requests that run alone, because workers died that had them. It is not stored: after a restart, or at another
        node, the worst of them may kill one more process."""
        # Reports about a service, rather than about one of its requests, go straight to the backlogs.
        self.arrived, self.returned, self.emptied = backlogs.arrived, backlogs.returned, backlogs.emptied
        self.present, self.surveyed, self.unreadable = backlogs.present, backlogs.surveyed, backlogs.unreadable
        self._config = config
        self._shared = shared
        self._dice = random.Random(seed)
        self._unready: dict[bytes, float] = {}
        """Since when no worker was ready for a request."""
        self._sends: list[Send] = []
        self._effects: list[Effect] = []
        self._to_ask: list[bytes] = []

    def reconfigure(self, config: ServerConfig) -> None:
        """Go on with other settings. Of services with other limits, requests that no worker has started come back."""
        self._config = config
        if changed := self.backlogs.reconfigure(config):
            self.recall([uuid for uuid, flight in self.flights.items() if flight.backlog.name in changed])

    def pause_services(self, names: Collection[bytes]) -> None:
        """Pause these services. Requests that no worker has started come back."""
        self.backlogs.pause_services(names)
        if names:
            self.recall([uuid for uuid, flight in self.flights.items() if flight.backlog.name in names])

    # -- what happened ---------------------------------------------------------------------------------------

    def fetched(self, name: bytes, rows: Sequence[ReadyRow], now: float, wall_us: int, *, more: bool = True) -> None:
        """Take what the store had for a `Fetch`: perhaps fewer than requested; none when there are no more. `more`:
        whether there may be some behind them.

        `wall_us` is the time of day. Requests past their TTL expire here and take no worker's place.
        """
        backlog = self.backlogs.get(name)
        if backlog is None:
            return
        backlog.waiting = bool(rows) and more
        late = 0
        for row in rows:
            if 0 < row.expires_at <= wall_us and not self.stopping:
                backlog.cursor = row.key
                self._take_off(row.uuid, backlog, self._flight(row, backlog, now))
                self._expired(row.uuid)
                late += 1
            elif backlog.free and not self.stopping:
                backlog.cursor = row.key
                self._begin(row, backlog, now, wall_us)
            else:
                backlog.waiting = True
                break
        backlog.late = min(LATE_MOST, 2 * late)
        self.backlogs.fetchable.pop(name, None)  # the others have their turns before it has the next one
        self.backlogs.place(backlog)

    def resume(self, name: bytes, row: ReadyRow, seconds: float, now: float, sent_us: int) -> Send:
        """A worker has had this request for `seconds`, since before this process began: return how to have the broker
        wait for it."""
        backlog = self.backlogs.of(name)
        flight = self._flight(row, backlog, now)
        flight.started = now - seconds
        backlog.least_urgent = min(backlog.least_urgent if backlog.in_flight else HIGHEST, flight.priority)
        self._take_off(row.uuid, backlog, flight)
        if flight.policy.ends_after:
            self.timers.set(("limit", row.uuid), max(now, flight.started + flight.policy.limit))
        if row.expires_at:
            self.timers.set(("lapsed", row.uuid), max(now, flight.started + (row.expires_at - sent_us) / 1e6))
        context = context_of(row, flight, self._config, sent_us)
        return Send(row.uuid, name, row.body, row.expires_at > 0, context)

    def damaged(self, name: bytes, uuid: bytes, reason: str, now: float) -> None:
        """The store cannot read the next request: it fails, so that those behind it get their turn."""
        if uuid not in self.flights and (backlog := self.backlogs.get(name)) is not None:
            self._take_off(uuid, backlog, Flight(backlog, 0, 0, _NO_POLICY, 0, now))
            if (flight := self._landing(uuid)) is not None:
                self._finish(uuid, flight, Status.FAILED, [], reason)
        self.unreadable(name, now)

    def replied(self, uuid: bytes, body: Frames, now: float) -> None:
        """The whole reply to a request came."""
        if (flight := self._landing(uuid)) is not None:
            self.backlogs.worked(flight.backlog, now)
            if flight.overdue:
                self._failed(uuid, flight, flight.past_limit, [])
                return
            flight.attempts += 1
            self._finish(uuid, flight, Status.DONE, body, "")

    def failed(self, uuid: bytes, error: ErrorReply, now: float) -> None:
        """A worker's error reply came. The worker chooses its status, which means nothing here."""
        if (flight := self._landing(uuid)) is not None:
            self.backlogs.worked(flight.backlog, now)
            self._suspects.pop(uuid, None)
            if flight.overdue:
                self._failed(uuid, flight, flight.past_limit, [])
            else:
                self._failed(uuid, flight, error.text, error.detail)

    def refused(self, uuid: bytes, error: ErrorReply, now: float) -> None:
        """The broker says why there is no reply."""
        flight = self._landing(uuid)
        if flight is None:
            return
        if error.status in TAKEN_LATER:
            self._give_back(uuid, flight, now, pause=error.status != GIVEN_BACK)
        elif flight.overdue:  # perhaps its worker died because its process was killed at the limit
            self._failed(uuid, flight, flight.past_limit, [])
        elif error.status in NEVER_TAKEN:
            self._finish(uuid, flight, Status.FAILED, error.detail, f"{error.status} {error.text}")
        elif error.status == LOST:
            self._suspect(uuid)
            self._lost(uuid, flight, error.text)
        else:
            self._suspect(uuid)
            self._failed(uuid, flight, error.text, error.detail, died=True)

    def timed_out(self, uuid: bytes, now: float) -> None:
        """No reply came within the time of an attempt."""
        flight = self._landing(uuid)
        if flight is not None:
            self._failed(uuid, flight, f"no reply within {self._config.attempt_timeout:g} s", [])

    def failed_at(self, uuid: bytes, worker: WorkerIdentity) -> None:
        """Note the worker of an attempt that ends now."""
        if (flight := self.flights.get(uuid)) is not None:
            flight.worker = worker

    def failures(self, outcomes: Iterable[AttemptOutcome]) -> dict[bytes, AttemptFailure]:
        """Return how the attempts with these outcomes have failed, by request."""
        found: dict[bytes, AttemptFailure] = {}
        for outcome in outcomes:
            if (flight := self.flights.get(outcome.uuid)) is not None and flight.failure is not None:
                found[outcome.uuid] = flight.failure
        return found

    def poisoned(self, outcomes: Iterable[Finish]) -> None:
        """These requests are on disk as failed, because they killed their workers, instead of being tried again."""
        for outcome in outcomes:
            self.counts["poisoned"] += 1
            if (flight := self.flights.get(outcome.uuid)) is not None and flight.attempts < flight.max_attempts:
                self.counts["retried"] -= 1
                self.counts["failed"] += 1
                self._suspects.pop(outcome.uuid, None)
                self.ended.add(flight.backlog.name, Status.FAILED)

    def recall(self, uuids: Iterable[bytes]) -> None:
        """Recall these requests, as far as they are in flight and no worker has started them."""
        flights = self.flights
        self._effects += [RecallRequest(uuid) for uuid in uuids if uuid in flights and not flights[uuid].settling]

    def kept(self, uuid: bytes, *, ends: bool = False) -> bool:
        """Note that a request cannot be taken back: a worker has it, or may have it. `ends`: that worker kills its
        process. True when this ends its attempt; then its reply is dropped, and must be reported with `left` when it
        comes."""
        flight = self.flights.get(uuid)
        if flight is None or flight.settling:
            return False
        if flight.closed:
            flight.kept, flight.ends = True, ends
            self._effects.append(Certain(uuid))
        if flight.closed or not flight.overstays:
            return False
        flight.backlog.abandoned += 1
        self._landing(uuid)
        self._failed(uuid, flight, flight.past_limit, [])
        return True

    def left(self, name: bytes) -> None:
        """A worker of this service has ended an attempt that was given up."""
        backlog = self.backlogs[name]
        backlog.abandoned -= 1
        self.backlogs.place(backlog)

    def settled(self, uuids: Iterable[bytes], unchanged: Iterable[AttemptOutcome] = ()) -> None:
        """The outcomes of these requests are on disk. `unchanged`: outcomes that changed nothing there, because the
        requests were closed or had ended already; they do not count."""
        for outcome in unchanged:
            self.counts[_counted_as(outcome)] -= 1
            if isinstance(outcome, Finish) and (flight := self.flights.get(outcome.uuid)) is not None:
                self.ended.add(flight.backlog.name, outcome.status, -1)
        self.outcomes.written([flight for uuid in uuids if (flight := self._forget(uuid)) is not None])

    def unsettled(self, outcomes: Sequence[AttemptOutcome], now: float, *, full: bool = False) -> None:
        """The outcomes could not be written: try again after a while.

        `full`: there is no room for their frames. After some tries they are written without: a reply that never fits
        would hold a worker's place for ever.
        """
        if full:
            outcomes = [without_room(outcome, self.flights[outcome.uuid]) for outcome in outcomes]
        for outcome in outcomes:
            flight = self.flights[outcome.uuid]
            if self.outcomes.hold(flight):
                flight.backlog.in_flight += 1
                self.backlogs.place(flight.backlog)
        self.outcomes.write_again(outcomes, now)

    def started(self, uuid: bytes, now: float) -> None:
        """A worker begins a request that has waited at the broker: its limit counts from now on."""
        flight = self.flights.get(uuid)
        if flight is not None and not flight.settling:
            flight.started = now
            if flight.policy.ends_after:
                self.timers.set(("limit", uuid), now + flight.policy.limit)

    def progressed(self, uuid: bytes, said: bytes) -> None:
        """The worker of a request says how far it is."""
        if (flight := self.flights.get(uuid)) is not None and (progress := read_progress(said)) is not None:
            flight.progress = progress

    def give_up(self, reason: str, kept: Container[bytes] = ()) -> int:
        """The server ends, and waits no longer for what workers have: it is dispatched again. How many requests that
        are. That they were delivered is to be kept. `kept`: with these, workers return."""
        left = [uuid for uuid, flight in self.flights.items() if not flight.settling and uuid not in kept]
        given_up = [(uuid, flight) for uuid in left if (flight := self._landing(uuid)) is not None]
        for uuid, flight in given_up:
            self._lost(uuid, flight, reason)
        return len(given_up)

    def reason(self, uuid: bytes) -> bytes:
        """Why the reply of a request in flight is no longer wanted, as in `mmi.cancel`; empty: it is."""
        flight = self.flights.get(uuid)
        if flight is None or not (flight.closed or flight.overdue):
            return b""
        return b"kill" if flight.kill else b"limit" if flight.overdue else b"running"

    def goes_on(self, uuid: bytes) -> bool:
        """Whether a worker has a closed request and does not kill its process."""
        flight = self.flights.get(uuid)
        return flight is not None and flight.closed and not flight.ends

    def closed(self, uuids: Iterable[bytes], kill: Iterable[bytes] = ()) -> None:
        """These requests have left the store: a reply that still comes is dropped. `kill`: their processes are to be
        killed, even if they were closed before."""
        for uuid in kill:
            if (flight := self.flights.get(uuid)) is not None:
                flight.kill, flight.kept = True, False
        for uuid in {*uuids, *kill}:
            flight = self.flights.get(uuid)
            if flight is not None:
                flight.closed = True
                self.recall((uuid,))

    def in_doubt(self, uuid: bytes) -> bool:
        """Whether a worker may still receive a closed request: it was sent, and no worker is known to have it.
        `Certain` follows once that is decided."""
        flight = self.flights.get(uuid)
        return flight is not None and flight.closed and not flight.settling and not flight.kept

    def set_alarm(self, when: float | None) -> None:
        """The store has something to do then; None: never."""
        if when is None:
            self.timers.cancel(MAINTENANCE)
        else:
            self.timers.set(MAINTENANCE, when)

    def hasten_alarm(self, when: float) -> None:
        """The store has something more to do then."""
        before = self.timers.get(MAINTENANCE)
        if before is None or when < before:
            self.timers.set(MAINTENANCE, when)

    # -- what is to be done ----------------------------------------------------------------------------------

    def take_effects(self, now: float, wanted: Container[bytes] | None = None) -> list[Effect]:
        """Return what is to be done, in order.

        `wanted`: the requests with waiting clients. Other outcomes may be gathered for a moment while more requests
        are in flight. None: do not gather.
        """
        timers, settling = self.timers, self.outcomes
        if timers.wake_at is not None and timers.wake_at <= now:
            for what, about in timers.due(now):
                ALARMS[what](self, about, now)
            if self._to_ask:
                self._effects.append(AskWorkers(self._to_ask))
                self._to_ask = []
        if settling.gathering or settling.again:
            hurry = wanted is None or self.stopping or settling.flights >= len(self.flights) or settling.wants(wanted)
            self._effects += [KeepOutcomes(batch) for batch in settling.take(now, hurry)]
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when `take_effects` is to be called again at the latest."""
        return self.timers.wake_at

    def take_fetches(self) -> list[Fetch]:
        """What is to be read from the store, services in turn: answer one after the other with `fetched`, `damaged` or
        `unreadable`, then take again, until there are no more. Those without an answer come first then."""
        if not self.backlogs.fetchable or self.stopping or self.outcomes.full:
            return []
        return self.backlogs.fetches(late=not self.outcomes.crowded)

    def take_sends(self, now: float, wall_us: int) -> list[Send]:
        """Requests to be sent. Take them after each `fetched`.

        `wall_us` is the time of day. A request's TTL is compared with it here, once the request is known to be in
        flight: from then on the search for expired requests skips it, so no request is sent while its expiry is being
        written.
        """
        sends, self._sends = self._sends, []
        good = []
        for send in sends:
            end = self.flights[send.uuid].expires_at
            if 0 < end <= wall_us:
                self._expired(send.uuid)
                continue
            if end:
                self.timers.set(("lapsed", send.uuid), now + (end - wall_us) / 1e6)
            good.append(send)
        self.counts["dispatched"] += len(good)
        return good

    # -- inside ----------------------------------------------------------------------------------------------

    def _flight(self, row: ReadyRow, backlog: Backlog, now: float) -> Flight:
        policy = read_policy(row.options) if row.options else _NO_POLICY
        most = row.max_attempts or self._config.max_attempts
        past = max(row.attempts, row.deliveries)
        priority = priority_in(row.key)
        ready_at = 0 if past else max(row.not_before, int.from_bytes(row.uuid[:6]) * 1000)
        known = row.expires_at, now, priority
        return Flight(backlog, row.attempts, most, policy, *known, deliveries=past, ready_at=ready_at)

    def _begin(self, row: ReadyRow, backlog: Backlog, now: float, wall_us: int) -> None:
        flight = self._flight(row, backlog, now)
        backlog.least_urgent = min(backlog.least_urgent if backlog.in_flight else HIGHEST, flight.priority)
        self._take_off(row.uuid, backlog, flight)
        # A flow comes back after each poll of its steps: nobody else has it.
        self.again += flight.deliveries > flight.attempts and not backlog.name.endswith(_FLOW)
        if backlog.allowed is not None:
            self.backlogs.began(backlog, now)
        if flight.policy.ends_after:
            self.timers.set(("limit", row.uuid), now + flight.policy.limit)
        context = context_of(row, flight, self._config, wall_us, alone=row.uuid in self._suspects)
        self._sends.append(Send(row.uuid, backlog.name, row.body, row.expires_at > 0, context))

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
        """Return the flight of an attempt that has just ended; None when nothing is left to do about it."""
        flight = self.flights.get(uuid)
        if flight is None or flight.settling:
            return None
        flight.backlog.in_flight -= 1
        if flight.policy.ends_after:
            self.timers.cancel(("limit", uuid))
            self.timers.cancel(("overdue", uuid))
        if flight.expires_at:
            self.timers.cancel(("lapsed", uuid))
        if flight.closed:
            self._forget(uuid)
            self._effects.append(Certain(uuid))
            return None
        self.backlogs.place(flight.backlog)
        return flight

    def _forget(self, uuid: bytes) -> Flight | None:
        flight = self.flights.pop(uuid, None)
        if flight is not None:
            flight.backlog.known -= 1
            if flight.held:
                flight.backlog.in_flight -= 1
            self.backlogs.place(flight.backlog)
        return flight

    def _failed(self, uuid: bytes, flight: Flight, reason: str, detail: Frames, *, died: bool = False) -> None:
        config, dice = self._config, self._dice
        outcome, size = after_failure(uuid, flight, reason, detail, config, dice, self._unready, died=died)
        self.counts["failed" if isinstance(outcome, Finish) else "retried"] += 1
        if isinstance(outcome, Finish):
            self._suspects.pop(uuid, None)
            self.ended.add(flight.backlog.name, Status.FAILED)
        self.outcomes.add(flight, outcome, size)

    def _suspect(self, uuid: bytes) -> None:
        self._suspects[uuid] = None
        if len(self._suspects) > MOST_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

    def _lost(self, uuid: bytes, flight: Flight, reason: str) -> None:
        """Its worker is gone, and that was no attempt. How often workers have had it is to be kept."""
        self.counts["returned"] += 1
        flight.fail("lost", reason, [])
        outcome = Postpone(uuid, 0.0, flight.attempts, reason, flight.started, flight.deliveries + 1)
        self.outcomes.add(flight, outcome, len(reason))

    def _finish(self, uuid: bytes, flight: Flight, status: Status, frames: Frames, reason: str) -> None:
        self._suspects.pop(uuid, None)
        self.counts[_COUNTED_AS[status]] += 1
        self.ended.add(flight.backlog.name, status)
        self._unready.pop(uuid, None)
        outcome = Finish(uuid, status, frames, flight.attempts, reason, flight.started)
        self.outcomes.add(flight, outcome, sum(map(len, frames)))

    def _give_back(self, uuid: bytes, flight: Flight, now: float, *, pause: bool) -> None:
        self.counts["returned"] += 1
        if self._shared:
            self._effects.append(GivenBack(uuid))
        if flight.expires_at:
            self.set_alarm(now)  # its time to live counts again
        backlog = flight.backlog
        backlog.rewind()  # first: a backlog where something waits is not forgotten
        if pause:
            self.backlogs.pause(backlog, now)
        elif backlog.room and backlog.in_flight < backlog.room and not flight.recalled:
            backlog.room -= 1  # no worker took its place: the others go on
        self._forget(uuid)

    # -- alarms ----------------------------------------------------------------------------------------------

    def _past_limit(self, uuid: bytes, now: float) -> None:
        """Have the worker that has the request end its attempt, or the broker give it back."""
        flight = self.flights.get(uuid)
        if flight is not None and not flight.settling and not flight.closed:
            flight.overdue = True
            self._effects.append(RecallRequest(uuid))
            self.timers.set(("overdue", uuid), now + self._config.limit_grace)

    def _overstays(self, uuid: bytes, now: float) -> None:
        """Fail the attempt if a worker still has the request: ask the broker."""
        flight = self.flights.get(uuid)
        if flight is not None and not flight.settling and not flight.closed:
            flight.overstays = True
            self._effects.append(RecallRequest(uuid))

    def _lapsed(self, uuid: bytes, now: float) -> None:
        """Recall a request whose time to live is over, unless a worker has started it."""
        flight = self.flights.get(uuid)
        if flight is not None and not flight.settling and not flight.closed:
            self._effects.append(RecallRequest(uuid))

    def _overtake(self, name: bytes, now: float) -> None:
        """Recall what was sent ahead and is less urgent than what has arrived since."""
        if (backlog := self.backlogs.get(name)) is None:
            return
        urgent, backlog.urgent = backlog.urgent, 0
        behind = [
            (uuid, flight)
            for uuid, flight in self.flights.items()
            if flight.backlog is backlog
            and flight.priority < urgent
            and flight.started <= now - OVERTAKE
            and not (flight.settling or flight.closed or flight.recalled)
        ]
        # No worker has those yet that were sent last; perhaps none has any, if all do something else.
        most = len(behind) if name in self.backlogs.joint else backlog.surplus
        for uuid, flight in behind[-most:] if most else []:
            flight.recalled = True
            self._effects.append(RecallRequest(uuid))

    def _check_rate(self, name: bytes, now: float) -> None:
        self.backlogs.check_rate(name, now)

    def _ask(self, name: bytes, now: float) -> None:
        if not self.stopping:
            self.backlogs.ask(name)
            self._to_ask.append(name)

    def _survey(self, _: bytes, now: float) -> None:
        if not self.stopping:
            self.backlogs.survey()
            self._effects.append(Survey())

    def _maintain(self, _: bytes, now: float) -> None:
        if not self.stopping:
            self._effects.append(Maintain())

    def _write(self, _: bytes, now: float) -> None:
        self.outcomes.gathered = True

    def _write_again(self, _: bytes, now: float) -> None:
        self.outcomes.again = True


ALARMS: dict[str, Callable[[DispatchCore, bytes, float], None]] = {
    "limit": DispatchCore._past_limit,
    "overdue": DispatchCore._overstays,
    "lapsed": DispatchCore._lapsed,
    "overtake": DispatchCore._overtake,
    "rate": DispatchCore._check_rate,
    "ask": DispatchCore._ask,
    "survey": DispatchCore._survey,
    "maintenance": DispatchCore._maintain,
    "write": DispatchCore._write,
    "write again": DispatchCore._write_again,
}
"""What each kind of alarm does."""
