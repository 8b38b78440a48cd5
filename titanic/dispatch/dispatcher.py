"""The dispatcher's thread: moves requests between the store, its core and a transport."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from broker import Channel, Loop
from titanic.commit.writer import Writer
from titanic.config import ServerConfig
from titanic.dispatch.actions import AttemptOutcome, Fetch, Finish
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.failure_log import FailureLog
from titanic.dispatch.maintenance import Maintenance
from titanic.dispatch.outcome_write import OutcomeWrite, Written
from titanic.dispatch.transport import Transport
from titanic.dispatch.waiters import MOST_WAITERS, Waiters
from titanic.errors import RecordCorrupt, StoreError
from titanic.logs import Trouble
from titanic.protocol.limits import DEFAULT_PRIORITY
from titanic.protocol.tsp import SERVICES, WAIT
from titanic.services.ask import Answers, Ask, CloseDoubt, SendAnswers
from titanic.services.reader import Reader, ReadService
from titanic.store import Status, Store
from titanic.util.clock import Leaps, wall_us

log = logging.getLogger(__name__)

FETCH_BYTES = 16 << 20
"""Bodies that a round brings from the store, all services together, and at most one body more: what else is going on
waits no longer than it takes to read these."""

LOOKS = 20
"""Looks into the store for more and more requests, until results get their turn."""

DISMISS_MOST = 2.0
"""Seconds for which the end waits for the store to be looked at for those who came last to wait for a reply."""

COUNT_EVERY = 5.0
"""Seconds between questions who has workers, at a broker elsewhere: services that have enough are not asked for
otherwise, and somebody may look at the figures."""

GRACE_LOOK = 0.5
"""Seconds between looks whether waiting at the end is of any use."""


class _Doubt:
    """Closed requests that a worker may yet be given, and whom to tell when none can."""

    __slots__ = ("left", "then")

    def __init__(self, left: set[bytes], then: Callable[[], None]) -> None:
        self.left = left
        self.then = then

    def over(self, uuid: bytes) -> None:
        self.left.discard(uuid)
        if not self.left:
            self.then()


class Dispatcher(Channel):
    """Runs in a thread of its own, as a channel of its own loop."""

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        writer: Writer,
        reader: Reader,
        send_answers: SendAnswers,
        most_waiters: int = MOST_WAITERS,
    ) -> None:
        """`send_answers`: to those who wait for replies. `most_waiters`: how many may wait before those that have
        waited for longest are told that the reply is pending."""
        self.core = DispatchCore(config)
        # What is in flight is known here alone, and a fault in the middle of it could lose sight of a request for ever:
        # a server that ends and starts again forgets none.
        self.loop = Loop(strict=True)
        awaited = ReadService(WAIT, reader.read_awaited, self.replies_read, shared=True)
        self.waiters = Waiters(send_answers, lambda asks: reader.enqueue(awaited, asks), most_waiters)
        self.failures = FailureLog()
        self.maintenance = Maintenance(config, store, writer, self.core, self.loop.call, self._expired)
        self._clock = Leaps()
        self._clock.look(wall_us())
        """The wall clock, as the dispatcher's thread sees it."""
        self._damage = Trouble(log, "dispatch")
        self._unread = Trouble(log, "read what to dispatch")
        self._counts_workers = config.broker is not None
        self._count_at = 0.0
        self._more = False
        """Whether the last round was not done with looking."""
        self._store = store
        self._writer = writer
        self.transport: Transport | None = None
        """What requests travel by; None: no broker is known yet."""
        self._doubts: dict[bytes, list[_Doubt]] = {}
        """Who wants to know when no worker can be given a closed request any more."""
        self._settled = threading.Event()
        self._dismissed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self.loop.add(self)

    def connect(self, transport: Transport) -> None:
        """Send with this from now on; nothing is sent before. Call it before `start`, or in the loop's thread."""
        if self.transport is not None:
            self.transport.dismiss(time.monotonic())
        self.transport = transport
        self.core.backlogs.most_ahead = transport.most_ahead
        self.core.backlogs.surveys = transport.surveys

    def reconfigure(self, config: ServerConfig) -> None:
        """Go on with other settings. Any thread may say so."""
        self.loop.call(self._reconfigure, config)

    def start(self) -> None:
        """Begin with what the store holds."""
        self._thread.start()

    def wind_down(self, grace: float) -> None:
        """Send nothing new, and give what is in flight `grace` seconds to come back and to reach the disk; none when it
        can't reach the disk any more."""
        self.loop.call(self._set_stopping)
        until = time.monotonic() + grace
        while self._thread.is_alive() and self._store.usable and (left := until - time.monotonic()) > 0:
            if self._settled.wait(min(left, GRACE_LOOK)):
                return

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread. What is in flight will be executed again after the next start."""
        self.loop.call(self.waiters.dismiss)
        if self._thread.is_alive():
            self._dismissed.wait(DISMISS_MOST)
        self.loop.stop()
        if self._thread.is_alive():
            self._thread.join()

    # -- what the services tell (any thread) -----------------------------------------------------------------

    def arrived(self, services: Mapping[bytes, int]) -> None:
        """New requests for these services are on disk, with these priorities at most."""
        self.loop.call(lambda: self.core.arrived(services, time.monotonic()))

    def returned(self, services: Collection[bytes]) -> None:
        """Old requests for these services are in the queue again."""
        self.loop.call(self._returned, services)

    def due_at(self, when_us: int) -> None:
        """Something is on disk that is due then."""
        self.loop.call(self.maintenance.hasten_alarm, when_us)

    def closed(self, uuids: Sequence[bytes], services: Collection[bytes], doubts: Sequence[CloseDoubt]) -> None:
        """These requests are no longer in the store, in which some of them waited for these services."""
        self.loop.call(self._closed, uuids, services, doubts)

    def wait_for_replies(self, asks: Sequence[Ask]) -> None:
        """Somebody waits for replies."""
        self.loop.call(lambda: self.waiters.add(asks, time.monotonic()))

    def replies_read(self, answers: Answers) -> None:
        """What the store says of replies that somebody waits for."""
        self.loop.call(lambda: self.waiters.found(answers))

    def running(self) -> Collection[bytes]:
        """The requests that are with a worker, or whose outcome is on its way to the disk."""
        return self.core.flights.copy().keys()

    def in_flight(self) -> dict[bytes, int]:
        """How many requests of each service are in flight, of those that have any. Any thread may ask."""
        backlogs = self.core.backlogs.copy()
        return {name: backlog.in_flight for name, backlog in backlogs.items() if backlog.in_flight}

    def workers(self) -> dict[bytes, int | None]:
        """How many workers each service has, as a broker elsewhere said lately; None: some, it does not tell how many.
        Any thread may ask."""
        known = self.core.backlogs
        if known.surveys:
            return {name: count for name, count in (known.workers or {}).items() if name not in SERVICES}
        backlogs = known.copy()
        return {name: 0 if backlog.room == 0 else None for name, backlog in backlogs.items()}

    def stats(self) -> dict[str, Any]:
        """Figures for titanic.stats."""
        return {
            "running": len(self.core.flights),
            "waiting_clients": len(self.waiters),
            "dispatch": dict(self.core.counts),
        }

    # -- the channel -----------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Attempts and clients whose time is over, readers that are no more."""
        self.core.tick(now)
        self.waiters.tick(now)
        self.failures.tick(now)
        self.maintenance.tick(now)

    def next_deadline(self) -> float | None:
        """The core's, or that of a client who waits; soon, because of the readers."""
        if self._more:
            return 0.0
        times = (
            self.core.next_deadline() if self.transport is not None else None,
            self.waiters.next_deadline(),
            self.maintenance.readers_at,
        )
        return min((time for time in times if time is not None), default=None)

    def flush(self, now: float) -> None:
        """One round: take in results, decide, send."""
        core, transport = self.core, self.transport
        if transport is not None:
            self._move(core, transport, now)
        for uuid in core.take_certain():
            for doubt in self._doubts.pop(uuid, ()):
                doubt.over(uuid)
        if core.stopping and not core.flights:
            self._settled.set()
        if self.waiters.dismissed:
            self._dismissed.set()

    # -- inside ----------------------------------------------------------------------------------------------

    def _move(self, core: DispatchCore, transport: Transport, now: float) -> None:
        # First: what is not wanted any more must be known as such when a broker is found to have died.
        if recalls := core.take_recalls():
            for uuid in recalls:
                transport.recall_request(uuid, now)
            transport.push(now)  # somebody waits for this, and what follows may take a while
        transport.deliver_results(now)
        if core.take_alarm(now):
            self.maintenance.begin()
        if questions := core.take_questions(now):
            transport.ask_presence(questions, now)
        if core.take_survey(now) or self._uncounted(now):
            transport.survey(now)
        self._more = True
        left = FETCH_BYTES
        for _ in range(LOOKS):
            if not (fetches := core.take_fetches()):
                self._more = False
                break
            left = self._fetch(fetches, left, now)
            if sends := core.take_sends(now, self._clock.look(wall_us())):
                transport.send_requests(sends, now)
            if left <= 0:
                break
        for uuid in core.take_recalls():
            transport.recall_request(uuid, now)
        for outcomes in core.take_outcomes(now, self.waiters):
            self._writer.enqueue(OutcomeWrite(outcomes, self._written, self._unwritten))
        transport.push(now)

    def _uncounted(self, now: float) -> bool:
        if not self._counts_workers or now < self._count_at:
            return False
        self._count_at = now + COUNT_EVERY
        return True

    def _run(self) -> None:
        try:
            with self._store.read() as transaction:
                self.core.arrived(dict.fromkeys(transaction.waiting(), DEFAULT_PRIORITY), time.monotonic())
            self.maintenance.look()
            self.loop.run()
        except Exception:
            log.exception("the dispatcher met an unexpected error")
        finally:
            self.failures.finish()
            self._settled.set()  # nothing more will be
            self._dismissed.set()

    def _reconfigure(self, config: ServerConfig) -> None:
        self.maintenance.config = config
        self.core.reconfigure(config)
        self.maintenance.look()

    def _set_stopping(self) -> None:
        self.core.stopping = True

    def _returned(self, services: Collection[bytes]) -> None:
        self.core.returned(services)
        self.maintenance.look()  # they may have a time to live

    def _closed(self, uuids: Sequence[bytes], services: Collection[bytes], doubts: Sequence[CloseDoubt]) -> None:
        self.core.closed(uuids)
        self._withdrawn(services)
        self.waiters.wake(uuids)
        if uuids:
            self.maintenance.look()  # they are remembered for a time, and large ones are removed bit by bit
        for about, then in doubts:
            # What is not in flight now never will be: the store is read for it in this thread, and has it no more.
            doubt = _Doubt({uuid for uuid in about if self.core.in_doubt(uuid)}, then)
            for uuid in doubt.left:
                self._doubts.setdefault(uuid, []).append(doubt)
            if not doubt.left:
                then()

    def _withdrawn(self, services: Collection[bytes]) -> None:
        """Requests of these services have left the queue without having been sent. One that is absent is not looked at
        before it comes: if nothing is left for it, it is forgotten here."""
        backlogs = self.core.backlogs
        if absent := [name for name in services if name in backlogs and not backlogs[name].hungry]:
            try:
                with self._store.read() as transaction:
                    self.core.emptied([name for name in absent if transaction.oldest(name) is None])
            except StoreError as error:
                self._unread.met(error)

    def _written(self, written: Written) -> None:
        """Called in the writer's thread."""
        self.loop.call(self._settle, written)

    def _unwritten(self, outcomes: Sequence[AttemptOutcome]) -> None:
        """Called in the writer's thread."""
        self.loop.call(self.core.unsettled, outcomes, time.monotonic())

    def _settle(self, written: Written) -> None:
        core = self.core
        moot = {outcome.uuid for outcome in written.moot}
        for outcome in written.done:
            flight = core.flights.get(outcome.uuid)
            if flight is None or flight.closed or outcome.uuid in moot:
                continue
            if isinstance(outcome, Finish) and outcome.status is not Status.DONE:
                self.failures.tell(outcome.uuid, flight.backlog.name, outcome.status, outcome.reason)
        uuids = [outcome.uuid for outcome in written.done]
        core.settled(uuids, written.moot)
        if written.without_room:
            core.unsettled(written.without_room, time.monotonic(), full=True)
        self.waiters.wake(uuids)
        # Only now: those that were put off are not in flight any more, and their time to live counts again.
        self.maintenance.look()

    def _expired(self, expired: Sequence[tuple[bytes, bytes]]) -> None:
        self.waiters.wake([uuid for uuid, _ in expired])
        self._withdrawn({service for _, service in expired})
        for uuid, service in expired:
            self.failures.tell(uuid, service, Status.EXPIRED, "not done in time")

    def _fetch(self, fetches: Sequence[Fetch], left: int, now: float) -> int:
        """One look into the store for bodies of so many bytes; what is left of them."""
        sure_us = self._clock.look(wall_us())
        try:
            with self._store.read() as transaction:
                for service, after, limit in fetches:
                    if left <= 0:
                        break
                    try:
                        rows = transaction.next_ready(service, after, limit, left, skip=self.core.flights)
                    except RecordCorrupt as damage:
                        self._damage.met(damage)
                        self.core.damaged(service, damage.uuid, str(damage), now)
                    else:
                        left -= sum(map(len, chain.from_iterable([row.body for row in rows])))
                        self.core.fetched(service, rows, now, sure_us)
            self._unread.over()
        except StoreError as error:
            self._unread.met(error)
            for fetch in fetches:
                self.core.unreadable(fetch.service, now)
        return left
