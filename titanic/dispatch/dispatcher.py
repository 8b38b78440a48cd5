"""The dispatcher's thread: moves requests between the store, its core and a courier."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import zmq

from broker import Loop
from titanic.clock import Leaps, wall_us
from titanic.config import ServerConfig
from titanic.dispatch.actions import Fetch, Finish, Outcome
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.courier import Courier
from titanic.errors import RecordCorrupt, StoreError, StoreFull
from titanic.failure_log import FailureLog
from titanic.services.asks import Answers, Ask
from titanic.services.waiting import Waiters
from titanic.store import DEFAULT_PRIORITY, ReadTransaction, Retention, Status, Store, WriteTransaction
from titanic.writer import Write, Writer, halves

log = logging.getLogger(__name__)

FETCH_BYTES = 64 << 20
"""Bodies that one look into the store brings, at most."""

STEP = 500
"""Requests that one look at the clock does something about, of each kind, at most: a trickle, not a pause."""

PAUSE_US = 1_000_000
"""Until what could not be done is tried again."""

KEEP_ALL = Retention(0, 0, 0)

SHORTEST_ALARM = 0.02
READERS_EVERY = 5.0
"""Seconds between looks for readers that were killed: they hold places, and pages that could be used again."""

LONGEST_ALARM = 30.0
"""Seconds after which the wall clock is looked at again: somebody may have set it."""


class Dispatcher:
    """Runs in a thread of its own, as a channel of its own loop."""

    rests = False

    def __init__(self, config: ServerConfig, store: Store, writer: Writer) -> None:
        self.config = config
        self.core = DispatchCore(config)
        self.loop = Loop()
        self.waiters: Waiters
        """Who wants to know what becomes of requests; set with `serve`."""
        self.failures = FailureLog()
        self.leaps = Leaps()
        """The wall clock, as the writer's thread sees it."""
        self._serving = False
        self._readers_at = 0.0
        self._store = store
        self._writer = writer
        self._courier: Courier | None = None
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self.loop.add(self)

    def use(self, courier: Courier) -> None:
        """Send with this from now on; nothing is sent before. Call it before `start`, or in the loop's thread."""
        self._courier = courier
        self.core.most_ahead = courier.most_ahead
        self.core.surveys = courier.surveys

    def serve(self, waiters: Waiters) -> None:
        """Tell these what happens to requests. Call it before `start`."""
        self.waiters = waiters
        self._serving = True

    def start(self) -> None:
        """Begin with what the store holds."""
        self._thread.start()

    def wind_down(self, grace: float) -> None:
        """Send nothing new, and give what is in flight `grace` seconds to come back and to reach the disk."""
        self.loop.call(self._set_stopping)
        if self._thread.is_alive():
            self._settled.wait(grace)

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread. What is in flight will be executed again after the next start."""
        if self._serving:
            self.loop.call(self.waiters.dismiss)
        self.loop.stop()
        if self._thread.is_alive():
            self._thread.join()

    # -- what the services tell (any thread) -----------------------------------------------------------------

    def arrived(self, services: Mapping[bytes, int]) -> None:
        """New requests for these services are on disk, with these priorities at most."""
        self.loop.call(self.core.arrived, services)

    def returned(self, services: Collection[bytes]) -> None:
        """Old requests for these services are in the queue again."""
        self.loop.call(self._returned, services)

    def look_at_clock(self) -> None:
        """Something is on disk that has a time of its own."""
        self.loop.call(self.look)

    def closed(self, uuids: Sequence[bytes]) -> None:
        """These requests are no longer in the store."""
        self.loop.call(self._closed, uuids)

    def wait(self, asks: Sequence[Ask]) -> None:
        """Somebody waits for replies."""
        self.loop.call(lambda: self.waiters.add(asks, time.monotonic()))

    def found(self, answers: Answers) -> None:
        """What the store says of replies that somebody waits for."""
        self.loop.call(lambda: self.waiters.found(answers))

    def running(self) -> Collection[bytes]:
        """The requests that are with a worker, or whose outcome is on its way to the disk."""
        return self.core.flights.copy().keys()

    def stats(self) -> dict[str, Any]:
        """Figures for titanic.stats."""
        return {
            "running": len(self.core.flights),
            "waiting_clients": len(self.waiters),
            "dispatch": dict(self.core.counts),
        }

    # -- the channel -----------------------------------------------------------------------------------------

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """None of its own: the courier has them."""
        return []

    def changed(self) -> bool:
        """Never."""
        return False

    def drain(self, now: float) -> bool:
        """Nothing comes in here."""
        return False

    def tick(self, now: float) -> None:
        """Attempts and clients whose time is over, readers that are no more."""
        self.core.tick(now)
        self.waiters.tick(now)
        if now >= self._readers_at:
            self._readers_at = now + READERS_EVERY
            self._forget_readers()

    def next_deadline(self) -> float | None:
        """The core's, or that of a client who waits; soon, because of the readers."""
        times = (
            self.core.next_deadline() if self._courier is not None else None,
            self.waiters.next_deadline(),
            self._readers_at,
        )
        return min((time for time in times if time is not None), default=None)

    def flush(self, now: float) -> None:
        """One round: take in results, decide, send."""
        core, courier = self.core, self._courier
        if courier is not None:
            self._move(core, courier, now)
        if core.stopping and not core.flights:
            self._settled.set()

    def close(self) -> None:
        """Nothing of its own to close."""

    # -- inside ----------------------------------------------------------------------------------------------

    def _move(self, core: DispatchCore, courier: Courier, now: float) -> None:
        courier.deliver(now)
        if core.take_alarm(now):
            self._writer.put(_Keep(self, STEP))
        if questions := core.take_questions(now):
            courier.ask(questions, now)
        if core.take_survey(now):
            courier.survey(now)
        while fetches := core.take_fetches():
            self._fetch(fetches, now)
            if sends := core.take_sends(wall_us()):
                courier.send(sends, now)
        for uuid in core.take_recalls():
            courier.recall(uuid, now)
        for outcomes in core.take_outcomes(now):
            self._writer.put(_Outcomes(self, outcomes))
        courier.push(now)

    def _run(self) -> None:
        try:
            with self._store.read() as transaction:
                self.core.arrived(dict.fromkeys(transaction.waiting(), DEFAULT_PRIORITY))
            self.look()
            self.loop.run()
        except Exception:
            log.exception("the dispatcher met an unexpected error")
        finally:
            self._settled.set()  # nothing more will be

    def _set_stopping(self) -> None:
        self.core.stopping = True

    def _returned(self, services: Collection[bytes]) -> None:
        self.core.returned(services)
        self.look()  # they may have an end of their time

    def _closed(self, uuids: Sequence[bytes]) -> None:
        self.core.closed(uuids)
        self.waiters.wake(uuids)
        self.look()  # they are remembered for a time, and what was large is removed bit by bit

    def look(self) -> None:
        """Set the alarm to what the store says now."""
        try:
            with self._store.read() as transaction:
                due = self.next_due(transaction)
            # What is delayed may have been so by a clock that was wrong.
            self.set_alarm(due if self.leaps.unchecked is None else 0)
        except StoreError as error:
            log.error("cannot read what is due: %s", error)
            self.set_alarm(wall_us() + PAUSE_US)

    def next_due(self, transaction: ReadTransaction) -> int | None:
        """When there is something for `_Keep` to do. Any thread may ask."""
        return transaction.next_due(self.config.retention, skip=self.core.flights)

    def _forget_readers(self) -> None:
        try:
            if killed := self._store.reader_check():
                log.warning("%d readers of the store ended without a word", killed)
        except StoreError as error:
            log.error("cannot look for readers: %s", error)

    def set_alarm(self, due_us: int | None) -> None:
        """Have what has a time of its own looked at when the first of it is due (µs since the epoch)."""
        now = time.monotonic()
        if due_us is None:
            self.core.set_alarm(None)
        else:
            self.core.set_alarm(now + min(LONGEST_ALARM, max(SHORTEST_ALARM, (due_us - wall_us()) / 1e6)))

    def _fetch(self, fetches: Sequence[Fetch], now: float) -> None:
        try:
            with self._store.read() as transaction:
                for service, after, limit in fetches:
                    try:
                        rows = transaction.next_ready(service, after, limit, FETCH_BYTES)
                    except RecordCorrupt as damage:
                        log.error("cannot dispatch: %s", damage)
                        self.core.damaged(service, damage.uuid, str(damage), now)
                    else:
                        self.core.fetched(service, rows, now)
        except StoreError as error:
            log.error("cannot read what to dispatch: %s", error)
            for fetch in fetches:
                self.core.unreadable(fetch.service, now)


class _Outcomes:
    """What became of requests, on its way to the disk."""

    def __init__(self, dispatcher: Dispatcher, outcomes: Sequence[Outcome]) -> None:
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._homeless: list[Outcome] = []

    def write(self, transaction: WriteTransaction, now_us: int) -> None:
        self._homeless = []
        self._dispatcher.leaps.look(now_us)  # by the time that they get now, they will be old one day
        now = time.monotonic()
        for outcome in self._outcomes:
            try:
                self._write(transaction, outcome, now_us, max(0, now_us - int((now - outcome.started) * 1e6)))
            except StoreFull as error:  # the others may fit
                log.error("no room for the reply to %s: %s", outcome.uuid.hex(), error)
                self._homeless.append(outcome)

    @staticmethod
    def _write(transaction: WriteTransaction, outcome: Outcome, now_us: int, dispatched_at: int) -> None:
        if isinstance(outcome, Finish):
            transaction.finish(
                outcome.uuid,
                outcome.status,
                outcome.frames,
                attempts=outcome.attempts,
                dispatched_at=dispatched_at,
                finished_at=now_us,
                reason=outcome.reason,
            )
        else:
            transaction.postpone(
                outcome.uuid,
                due=now_us + int(outcome.delay * 1e6),
                attempts=outcome.attempts,
                dispatched_at=dispatched_at,
                reason=outcome.reason,
            )

    def parts(self) -> list[Write]:
        return [_Outcomes(self._dispatcher, half) for half in halves(self._outcomes)]

    def committed(self) -> None:
        self._dispatcher.loop.call(self._settle)

    def failed(self, error: StoreError) -> None:
        self._dispatcher.loop.call(self._dispatcher.core.unsettled, self._outcomes, time.monotonic())

    def _settle(self) -> None:
        homeless = {outcome.uuid for outcome in self._homeless}
        uuids = [outcome.uuid for outcome in self._outcomes if outcome.uuid not in homeless]
        core = self._dispatcher.core
        for outcome in self._outcomes:
            flight = core.flights.get(outcome.uuid)
            if flight is None or flight.closed or outcome.uuid in homeless:
                continue
            if isinstance(outcome, Finish) and outcome.status is not Status.DONE:
                self._dispatcher.failures.tell(outcome.uuid, flight.backlog.name, outcome.status, outcome.reason)
        core.settled(uuids)
        if homeless:
            core.unsettled(self._homeless, time.monotonic(), full=True)
        self._dispatcher.waiters.wake(uuids)
        # Only now: those that were put off are not in flight any more, and the end of their time counts again.
        self._dispatcher.look()


class _Keep:
    """Keeping time: what was delayed goes back into the queue, what is too old expires, what is old enough goes.

    `step` is how many requests of each kind are moved at most.
    """

    def __init__(self, dispatcher: Dispatcher, step: int) -> None:
        self._dispatcher = dispatcher
        self._step = step
        self._moved = False
        self._services: list[bytes] = []
        self._expired: list[tuple[bytes, bytes]] = []
        self._due: int | None = None
        self._recapped = 0
        self._unchecked: bytes | None = None

    def write(self, transaction: WriteTransaction, now_us: int) -> None:
        self._services = [service for service, _ in transaction.promote(now_us, self._step)]
        running = self._dispatcher.core.flights
        self._expired = transaction.expire(now_us, self._step, skip=running)
        leaps = self._dispatcher.leaps
        leaps.look(now_us)
        self._recapped, self._unchecked = 0, None
        trimmed = transaction.trim(
            now_us, KEEP_ALL if leaps.doubtful else self._dispatcher.config.retention, self._step
        )
        if leaps.unchecked is not None:
            self._recapped, self._unchecked = transaction.recap(now_us, leaps.unchecked, self._step)
        self._due = self._dispatcher.next_due(transaction)
        self._moved = bool(self._services or self._expired or any(trimmed[:4]) or self._due == 0)
        if self._unchecked is not None:
            self._moved, self._due = True, 0

    def parts(self) -> list[Write]:
        return [_Keep(self._dispatcher, self._step // 4)] if self._step >= 4 else []

    def committed(self) -> None:
        self._dispatcher.leaps.unchecked = self._unchecked
        if self._recapped:
            log.warning("%d requests were put off by a clock that was ahead: they are due sooner", self._recapped)
        self._dispatcher.loop.call(self._tell)

    def failed(self, error: StoreError) -> None:
        self._dispatcher.loop.call(self._dispatcher.set_alarm, wall_us() + PAUSE_US)

    def _tell(self) -> None:
        dispatcher = self._dispatcher
        dispatcher.core.returned(self._services)
        dispatcher.core.counts["expired"] += len(self._expired)
        dispatcher.waiters.wake([uuid for uuid, _ in self._expired])
        for uuid, service in self._expired:
            dispatcher.failures.tell(uuid, service, Status.EXPIRED, "not done in time")
        if not self._moved and self._due is not None:
            # What is due cannot be done now: an archive has to catch up first, for example. Don't insist.
            self._due = max(self._due, wall_us() + PAUSE_US)
        dispatcher.set_alarm(self._due)
