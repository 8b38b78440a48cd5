"""Outcomes on their way to the disk: gathered, counted, and kept for later when the disk does not take them."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import cast

from broker import Timers
from titanic.commit.writer import LIGHT_BYTES, LIGHT_OUTCOMES, Write, halves
from titanic.dispatch.attempts import AttemptFailure, AttemptOutcome, Finish, Flight
from titanic.dispatch.backlogs import Alarm
from titanic.errors import InvalidRequest, RecordCorrupt, StoreError, StoreFull
from titanic.facts.counts import ACCEPTED
from titanic.facts.recorder import FactsRecorder
from titanic.facts.set_service import KnownSettings
from titanic.logs import Incident, event
from titanic.protocol.documents import AttemptHistory, FailedAttempt
from titanic.protocol.submit_options import DEFAULT_PRIORITY, read_policy
from titanic.services.ask import Arrived, Inbox
from titanic.store import (
    FACTS_ROOM,
    Description,
    HistoryWriter,
    NewRequest,
    Outcome,
    Place,
    ReadTransaction,
    SharedWriteTransaction,
    State,
    Status,
    WriteTransaction,
    find_history,
    with_attempt,
)
from titanic.util.text import counted, read_process

log = logging.getLogger(__name__)

WRITE_AGAIN_FIRST = 1.0
WRITE_AGAIN_MOST = 30.0
"""Seconds until an outcome is written again after its commit failed: the first time, and at most. (The back-off of
requests is in attempts.py.)"""

WRITE_AGAIN_AT_THE_END = 0.2
"""The same when the server stops: what is not written then is done again."""

MOST_BYTES = 256 << 20
"""Bytes of memory of outcomes, roughly, beyond which nothing more is fetched: workers that are faster than the disk
must not fill the memory."""

EXPIRING_MOST = 1000
"""Expired requests being written, beyond which no more are searched for: all writes go through one thread, and other
writes wait there, too."""

GATHER = 0.005
"""Seconds for which outcomes are gathered while more are to come. They share a commit then, which costs as much as a
dozen outcomes. Postgres calls this commit_delay. No client waits for it."""

ENOUGH = 100
"""So many outcomes do not wait for more."""

FOOTPRINT = 500
"""Bytes of memory that an outcome takes besides its frames, roughly."""

GATHERED: Alarm = ("write", b"")
WRITE_AGAIN: Alarm = ("write again", b"")


class OutcomeBuffer:
    """What was decided and is not written yet. `bytes` and `expiring` leave out what the disk did not take: such a
    request keeps its worker's place instead."""

    def __init__(self, timers: Timers[Alarm]) -> None:
        self.bytes = 0
        self.expiring = 0
        """Outcomes of requests that have expired."""
        self.blocked = False
        """Whether nothing can be written now: all is kept."""
        self.flights = 0
        """How many requests have an outcome here or on its way to the disk."""
        self.gathered = False
        """Whether what was gathered is to be written now; its alarm sets it."""
        self.again = False
        """The same of what the disk did not take."""
        self._timers = timers
        self.gathering: list[AttemptOutcome] = []
        """Those to be written, soon or at once."""
        self._rewrites: list[AttemptOutcome] = []
        self._pause = 0.0
        self._hurried = False

    @property
    def full(self) -> bool:
        """Whether the disk is so far behind that nothing more is to be fetched."""
        return self.bytes > MOST_BYTES

    @property
    def crowded(self) -> bool:
        """Whether so many outcomes are expiries that no more should be searched for."""
        return self.expiring >= EXPIRING_MOST

    def add(self, flight: Flight, outcome: AttemptOutcome, size: int) -> None:
        """Take the outcome of a request; `size` is the bytes of its frames or text."""
        flight.settling = True
        self.flights += 1
        flight.size = size + FOOTPRINT
        self.bytes += flight.size
        self.expiring += flight.expiring
        self.gathering.append(outcome)

    def written(self, flights: Iterable[Flight]) -> None:
        """The outcomes of these requests are on disk, which works."""
        self._pause = 0.0
        for flight in flights:
            self.flights -= 1
            if not flight.held:
                self._discount(flight)

    def hold(self, flight: Flight) -> bool:
        """The disk did not take the outcome of this request; False when that was known."""
        if flight.held:
            return False
        flight.held = True
        self._discount(flight)
        return True

    def write_again(self, outcomes: Iterable[AttemptOutcome], now: float) -> None:
        """Write these again after a pause, which doubles each time."""
        self._rewrites += outcomes
        if WRITE_AGAIN not in self._timers:
            self._pause = min(WRITE_AGAIN_MOST, self._pause * 2 or WRITE_AGAIN_FIRST)
            self._timers.set(WRITE_AGAIN, now + (WRITE_AGAIN_AT_THE_END if self._hurried else self._pause))

    def hurry(self, now: float) -> None:
        """The server stops: write what is to be written again now, and then again and again."""
        self._hurried = True
        if WRITE_AGAIN in self._timers:
            self._timers.set(WRITE_AGAIN, now)

    def wants(self, uuids: Container[bytes]) -> bool:
        """Whether one of these is to be written next."""
        return any(outcome.uuid in uuids for outcome in self.gathering)

    def take(self, now: float, hurry: bool) -> list[list[AttemptOutcome]]:
        """Outcomes to be written, each list at once; without `hurry`, only when enough has gathered. Outcomes that
        failed once are written one by one: perhaps only one of them cannot be written."""
        batches: list[list[AttemptOutcome]] = []
        if self.blocked:
            return batches
        if self.gathering:
            if hurry or self.gathered or len(self.gathering) >= ENOUGH:
                batches.append(self.gathering)
                self.gathering, self.gathered = [], False
                self._timers.cancel(GATHERED)
            elif GATHERED not in self._timers:
                self._timers.set(GATHERED, now + GATHER)
        if self.again:
            batches += [[outcome] for outcome in self._rewrites]
            self._rewrites, self.again = [], False
        return batches

    def _discount(self, flight: Flight) -> None:
        self.bytes -= flight.size
        self.expiring -= flight.expiring


OPTIONS = b'{"type": "application/json"}'
FAILED_OPTIONS = b'{"type": "application/json", "keep": 3600}'
"""Of events for `on_failed`: as tasks that return None, so that many failures do not fill the store."""


class CompletionEvents:
    """The requests that are stored because others have ended, in the same commit: `on_end` and `on_failed` in
    PROTOCOL.md. One thread at a time may call."""

    def __init__(
        self,
        settings: KnownSettings,
        inbox: Inbox[Arrived],
        facts: FactsRecorder,
        facts_room: int = FACTS_ROOM,
        poison_deaths: int = 3,
    ) -> None:
        """`facts_room`: of the store. `poison_deaths`: as in ServerConfig."""
        self.settings = settings
        self.histories = HistoryWriter(facts_room)
        self.poison_deaths = poison_deaths
        self._facts = facts
        self._inbox = inbox
        self._incident = Incident(log, "store a notification of the end of a request")

    def store(self, transaction: WriteTransaction, uuids: Sequence[bytes], now_us: int) -> Stored:
        """Store a request for each of these that ended in this transaction, where one is wanted."""
        return self._accept(transaction, completion_events(transaction, uuids, self.settings.on_end), now_us)

    def committed(self, stored: Stored) -> None:
        """This is on disk."""
        self.settings.missed += stored.missed
        if stored.error is not None:
            self._incident.failed(stored.error, **event("no-room-for-end"))
        if stored.services:
            self._facts.count(ACCEPTED, stored.services)
            self._inbox.post(Arrived(dict.fromkeys(stored.services, DEFAULT_PRIORITY), None))

    def _accept(self, transaction: WriteTransaction, new: Sequence[NewRequest], now_us: int) -> Stored:
        stored = Stored()
        try:
            if new:
                transaction.accept(new, now_us)
            stored.services = Counter([one.service for one in new])
        except (StoreFull, InvalidRequest) as error:
            if len(new) == 1:
                stored.missed, stored.error = 1, error
                return stored
            for one in new:  # the others may still fit
                stored.add(self._accept(transaction, [one], now_us))
        return stored


MAX_DETAIL = 65_536
"""Bytes of what a worker said of a failure that go with a completion event."""


def completion_events(
    transaction: ReadTransaction, uuids: Iterable[bytes], on_end: Mapping[bytes, bytes]
) -> list[NewRequest]:
    """Make the requests to store because these have ended. `on_end`: by service, which service gets one for each."""
    new = []
    for uuid in uuids:
        try:
            row = transaction.describe(uuid)
            if row is None:
                continue
            policy = read_policy(row.options)
            # The event belongs to the trace of what has ended.
            traced = {name: text for name, text in policy.texts.items() if name in ("trace", "tracestate")}
            trace = b", " + json.dumps(traced).encode()[1:] if traced else b"}"
            if target := on_end.get(row.service):
                new.append(NewRequest(target, [body_of(row)], options=OPTIONS[:-1] + trace, owner=row.owner))
            if row.state is not State.DONE and (name := policy.on_failed):
                detail = transaction.reply(uuid) if 0 < row.reply_bytes <= MAX_DETAIL else None
                frames = detail.frames if isinstance(detail, Outcome) else ()
                options = FAILED_OPTIONS[:-1] + trace
                new.append(NewRequest(name.encode(), [body_of(row), *frames], options=options, owner=row.owner))
        except RecordCorrupt:
            continue
    return new


class Stored:
    """What one write has stored."""

    def __init__(self) -> None:
        self.services: Counter[bytes] = Counter()
        self.missed = 0
        self.error: StoreFull | InvalidRequest | None = None

    def add(self, more: Stored) -> None:
        """This as well."""
        self.services += more.services
        self.missed += more.missed
        self.error = more.error or self.error


def body_of(row: Description) -> bytes:
    """Make the body of a completion event from the facts of a request that has ended."""
    said = {
        "uuid": row.uuid.hex(),
        "service": row.service.decode(errors="replace"),
        "state": row.state.name.lower(),
        "key": row.key.decode(errors="replace"),
        "submitted_at": row.submitted_at,
        "finished_at": row.finished_at,
        "attempts": row.attempts,
        "reason": row.reason,
        "owner": row.owner.decode(errors="replace"),
    }
    return json.dumps(said).encode()


Outcomes = Sequence[AttemptOutcome]

_NO_FAILURES: Mapping[bytes, AttemptFailure] = {}

POISON = "poison: "
"""How the reason of a request that killed its workers begins."""


def _poisoned(outcome: AttemptOutcome, history: AttemptHistory) -> Finish:
    """The end of a request that killed its workers."""
    names = Counter(one["worker"] for one in history["attempts"] if one["outcome"] == "died" and one["worker"])
    named = ", ".join(f"{name} ({count} times)" if count > 1 else name for name, count in names.items())
    died = f"{counted(history['deaths'], 'worker')} died while processing it and nothing else"
    reason = f"{POISON}{died}" + (f", the last ones {named}" if named else "")
    return Finish(outcome.uuid, Status.FAILED, [], outcome.attempts, reason, outcome.started)


def _described(failure: AttemptFailure, started_at: int, ended_at: int) -> FailedAttempt:
    host, pid = read_process(failure.worker.name)
    return FailedAttempt(
        delivery=failure.delivery,
        outcome=failure.outcome,
        started_at=started_at,
        ended_at=ended_at,
        worker=failure.worker.name,
        host=host,
        pid=pid,
        version=failure.worker.version,
        user=failure.worker.user,
        error=failure.error,
    )


class OutcomeWrite:
    """A batch of outcomes, as one `Write`, which is posted when it is committed or has failed."""

    def __init__(
        self,
        outcomes: Outcomes,
        inbox: Inbox[OutcomeWrite],
        ends: CompletionEvents,
        incarnation: int | None = None,
        number: int = 0,
        bounded: Sequence[Place] = (),
        failures: Mapping[bytes, AttemptFailure] = _NO_FAILURES,
    ) -> None:
        """`ends`: stores what is wanted when requests have ended. `failures`: how attempts have failed, by request. In
        a store that nodes share, `incarnation`: under which they were claimed, and `number`: of their `OutcomeWriting`;
        `bounded`: where those of them are that count for bounds."""
        self.outcomes = outcomes
        self.incarnation = incarnation
        self.number = number
        self.error: StoreError | None = None
        """Why nothing was written, if it failed."""
        self.done: Outcomes = ()
        """Those that are on disk."""
        self.unchanged: list[AttemptOutcome] = []
        """Those among them that changed nothing: the requests were closed, or had ended already."""
        self.without_room: list[AttemptOutcome] = []
        """Those for which the store had no room."""
        self.poisoned: dict[bytes, Finish] = {}
        """Those of requests that killed their workers, in place of what was decided."""
        self.failures = failures
        self._inbox = inbox
        self._ends = ends
        self._bounded = bounded
        self.created = time.monotonic()
        """When the attempts had ended."""
        self._stored: Stored | None = None
        self.light = len(outcomes) <= LIGHT_OUTCOMES and sum(map(_size, outcomes)) <= LIGHT_BYTES

    def uuids(self) -> Sequence[bytes]:
        return [outcome.uuid for outcome in self.outcomes]

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        self.unchanged, self.without_room, self.poisoned = [], [], {}
        if self.incarnation is not None:
            failed = [outcome.uuid for outcome in self.outcomes if not _is_done(outcome)]
            cast(SharedWriteTransaction, transaction).under(self.incarnation, failed)
            if self._bounded:
                cast(SharedWriteTransaction, transaction).count_no_more(self.incarnation, self._bounded)
        for outcome in self.outcomes:
            try:
                # How long it ran, without the wait for this commit: never before it was submitted.
                dispatched_at = max(0, now_us - int((self.created - outcome.started) * 1e6))
                if (failure := self.failures.get(outcome.uuid)) is not None:
                    self._write_failed(transaction, outcome, failure, now_us, dispatched_at)
                elif not write_outcome(transaction, outcome, now_us, dispatched_at):
                    self.unchanged.append(outcome)
            except StoreFull as error:  # the others may fit
                extra = event("no-room-for-reply", uuid=outcome.uuid)
                log.error("no room for the reply to %s: %s", outcome.uuid.hex(), error, extra=extra)
                self.without_room.append(outcome)
        self._stored = None
        every = bool(self._ends.settings.on_end)
        written = [self.poisoned.get(one.uuid, one) for one in self.outcomes] if self.poisoned else self.outcomes
        if ended := [one.uuid for one in written if isinstance(one, Finish) and (every or not _is_done(one))]:
            not_now = {outcome.uuid for outcome in (*self.unchanged, *self.without_room)}
            self._stored = self._ends.store(transaction, [uuid for uuid in ended if uuid not in not_now], now_us)

    def _write_failed(
        self,
        transaction: WriteTransaction,
        outcome: AttemptOutcome,
        failure: AttemptFailure,
        now_us: int,
        dispatched_at: int,
    ) -> None:
        """Write the outcome of a failed attempt, and the attempt into the history of its request. The request fails at
        once if it has killed too many workers."""
        attempt = _described(failure, dispatched_at, now_us)
        history = with_attempt(find_history(transaction, outcome.uuid), attempt, outcome.attempts)
        is_poison = failure.outcome == "died" and history["deaths"] >= self._ends.poison_deaths
        if is_poison:
            outcome = _poisoned(outcome, history)
        if not write_outcome(transaction, outcome, now_us, dispatched_at):
            self.unchanged.append(outcome)
            return
        self._ends.histories.put(transaction, outcome.uuid, history)
        if is_poison:
            assert isinstance(outcome, Finish)
            self.poisoned[outcome.uuid] = outcome

    def __len__(self) -> int:
        return len(self.outcomes)

    def parts(self) -> list[Write]:
        # All attempts are over.
        more = self._inbox, self._ends, self.incarnation, self.number, self._bounded, self.failures
        return [OutcomeWrite(half, *more) for half in halves(self.outcomes)]

    def committed(self) -> None:
        without_room = {outcome.uuid for outcome in self.without_room}
        done = [outcome for outcome in self.outcomes if outcome.uuid not in without_room]
        self.done = [self.poisoned.get(outcome.uuid, outcome) for outcome in done] if self.poisoned else done
        self._inbox.post(self)
        if self._stored is not None:
            self._ends.committed(self._stored)

    def failed(self, error: StoreError) -> None:
        self.error = error
        self._inbox.post(self)


def _is_done(outcome: AttemptOutcome) -> bool:
    return isinstance(outcome, Finish) and outcome.status is Status.DONE


def _size(outcome: AttemptOutcome) -> int:
    """Bytes that it adds to the store, roughly."""
    return sum(map(len, outcome.frames)) if isinstance(outcome, Finish) else len(outcome.reason)


def write_outcome(transaction: WriteTransaction, outcome: AttemptOutcome, now_us: int, dispatched_at: int) -> bool:
    """Store an outcome. False when there was nothing to be changed: the request was closed, or has ended already."""
    if isinstance(outcome, Finish):
        return transaction.finish(
            outcome.uuid,
            outcome.status,
            outcome.frames,
            attempts=outcome.attempts,
            dispatched_at=dispatched_at,
            finished_at=now_us,
            reason=outcome.reason,
        )
    return transaction.postpone(
        outcome.uuid,
        due=now_us + int(outcome.delay * 1e6),
        attempts=outcome.attempts,
        dispatched_at=dispatched_at,
        reason=outcome.reason,
        deliveries=outcome.deliveries,
    )


MAX_COUNTED_SERVICES = 10_000
"""Services that are counted: anybody can invent names."""

_PLACES = {Status.DONE: 0, Status.FAILED: 1, Status.EXPIRED: 2}


class EndedCounts(dict[bytes, list[int]]):
    """How many requests of each service have ended here since the start: done, failed, expired. One thread counts, any
    may copy."""

    def add(self, service: bytes, status: Status, count: int = 1) -> None:
        """So many more."""
        counts = self.get(service)
        if counts is None:
            if len(self) >= MAX_COUNTED_SERVICES:
                return
            counts = self[service] = [0, 0, 0]
        counts[_PLACES[status]] += count
