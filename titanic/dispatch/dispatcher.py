"""The dispatcher moves requests: store → core → transport → broker, and outcomes: transport → core → writer.

It is a channel in the loop of the front, so an accepted request goes to its worker in the same round. Services, writes
and reads report what they did to its inbox (`post`), and `_take` handles it, in order. Clients wait for replies here,
because the dispatcher is the first to know that a request has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from broker import Action, Channel, Expected, Loop, earliest
from titanic.commit.writer import LIGHT_BYTES, Writer
from titanic.dispatch.attempts import (
    AskWorkers,
    Certain,
    Effect,
    Finish,
    GivenBack,
    KeepOutcomes,
    Maintain,
    RecallRequest,
    Send,
    Survey,
    attempt_end,
)
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.deliveries import Deliveries
from titanic.dispatch.fetching import Fetching, LocalFetch, ready_row
from titanic.dispatch.maintenance import Maintenance, MaintenanceWrite
from titanic.dispatch.outcomes import CompletionEvents, Outcomes, OutcomeWrite
from titanic.dispatch.service_log import FailureLog
from titanic.dispatch.transport import OwnBrokerTransport, Transport
from titanic.dispatch.waiters import MOST_WAITERS, Waiters
from titanic.errors import StoreError
from titanic.facts import set_service
from titanic.facts.counts import DISPATCHED, EXPIRED
from titanic.facts.recorder import AttemptEnd
from titanic.logs import event
from titanic.protocol.tsp import WAIT, Progress
from titanic.services.ask import (
    Answers,
    Arrived,
    Ask,
    Closed,
    CloseDoubt,
    DispatchView,
    Notice,
    Returned,
    SendAnswers,
    SettingsChanged,
    WaitForReplies,
    WaitingCloses,
)
from titanic.services.reader import Reader, ReadService
from titanic.settings import ServerConfig
from titanic.store import ServiceSettings, Status, Store

log = logging.getLogger(__name__)

LAST_WRITE = 2.0
"""Seconds of a shutdown reserved for recording which requests workers still have."""

LOG_REDISPATCH_AFTER = 1.0
"""Seconds for which dispatches after a restart are counted before they are logged."""

COUNT_EVERY = 5.0
"""Seconds between counts of the workers at a separate broker, for `workers` alone."""


DISMISS_MOST = 2.0
"""Maximum time for reading the replies of the clients that began to wait last."""

FACTS_EVERY = 1.0
"""Seconds between checks whether counts have waited long enough for a commit."""

GRACE_CHECK = 0.5
"""Seconds between checks whether waiting for the requests in flight still makes sense."""


DispatchNotice = Notice | OutcomeWrite | MaintenanceWrite
"""What is reported to a dispatcher."""


class Dispatcher(Channel):
    """Methods that begin with an underscore are called in the loop's thread. It is idle until it gets a report."""

    rests = True

    leased = False
    """Whether it may dispatch only while a lease lasts."""

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        writer: Writer,
        reader: Reader,
        send_answers: SendAnswers,
        loop: Loop,
        most_waiters: int = MOST_WAITERS,
    ) -> None:
        """`send_answers`: to clients that wait for replies. `loop`: to run in. `most_waiters`: see `Waiters`."""
        self._config = config
        self.core = DispatchCore(config, shared=store.remote)
        self.loop = loop
        self._reader = reader
        self._awaited = ReadService(WAIT, reader.read_awaited, self._replies_read, shared=True, replies=True)
        self.send_answers = send_answers
        self.congested = reader.host.congested
        self.waiters = Waiters(self, most_waiters)
        self.failures = FailureLog()
        self._refusals, self.audit = reader.refusals, reader.audit
        self.settings = set_service.KnownSettings(config.limits)
        """Settings of services that this process applies."""
        room, deaths = store.facts_room, config.poison_deaths
        self.completions = CompletionEvents(self.settings, self, writer.facts, room, deaths)
        self._pending_closes = WaitingCloses()
        self._counts_workers = config.broker is not None
        self._count_at = 0.0
        self._fetch_at: float | None = None
        """When to fetch from the store again at the latest; at once, if the last round left requests unread."""
        self._store = store
        self._writer = writer
        self.transport: Transport | None = None
        """The transport to the broker; None: no broker is known yet."""
        self.deliveries: Deliveries | None = None
        """What workers have that keep their requests; None: this server does not know."""
        self.store_id = ""
        """The id of the store; empty: it has none."""
        self.delivery_key = b""
        """That of `Secrets`, for a store that nodes share."""
        self.decides_within = 0.0
        """Seconds in which it is known whether a worker from another node may go on."""
        self._settled = threading.Event()
        """Nothing is in flight, nor on its way to the store."""
        self._dismissed = threading.Event()
        """All clients that waited have their answers."""
        self._facts_at = 0.0
        self._started = self._ended = False
        self._fetching = self._new_fetching(config, reader)
        self.maintenance = self._new_maintenance(config)
        self._log_redispatch_at: float | None = None
        """When to log how many requests were dispatched again."""
        self.loop.add(self)

    def _new_fetching(self, config: ServerConfig, reader: Reader) -> Fetching:
        """Create the `Fetching`. Part of the construction, like the next."""
        return LocalFetch(self._store, self.core, self)

    def _new_maintenance(self, config: ServerConfig) -> Maintenance:
        """Create the maintenance of the store."""
        return Maintenance(config, self._store, self._writer, self.core, self, self.completions)

    def start(self) -> None:
        """Begin with what the store holds."""
        self._started = True
        self.call(self._begin)

    def call(self, function: Action, *args: Any) -> None:
        """Call a function in the loop's thread, with `guard`. Any thread may call this."""
        self.loop.call(self.guard, function, *args)

    def guard(self, function: Action, *args: Any) -> None:
        """Call a function, in the loop's thread.

        Only the dispatcher knows what is in flight, and an error halfway could lose a request. So the first error ends
        the dispatcher, and with it the server: after a restart none is forgotten.
        """
        self.loop.touch(self)
        self._guarded(function, *args)

    def _guarded(self, function: Action, *args: Any) -> None:
        if self._ended:
            return
        try:
            function(*args)
        except Exception:
            log.exception("unexpected error in the dispatcher")
            self._end()

    def connect(self, transport: Transport) -> None:
        """Send requests with this transport. Call it before the loop runs, or in its thread."""
        if self.transport is not None:
            self.transport.dismiss(time.monotonic())
        self.transport = transport
        self.core.backlogs.connected(transport.most_ahead, surveys=transport.surveys)
        self.loop.touch(self)

    def resume(self, transport: OwnBrokerTransport) -> None:
        """Have the broker wait for the workers that had requests when the last run ended. Call it before anything is
        dispatched."""
        if self.deliveries is None or not (notes := self.deliveries.read()):
            return
        now, now_us = time.monotonic(), self._store.now_us()
        with self._store.read() as transaction:
            for note in notes:
                try:
                    found = ready_row(transaction, note.uuid)
                except StoreError:  # it fails when its turn comes
                    found = None
                if found is None:
                    self.deliveries.drop(note.uuid)
                    continue
                seconds = max(0.0, (now_us - note.sent_us) / 1e6)
                send = self.core.resume(*found, seconds, now, note.sent_us)
                transport.resume(send, Expected(note.delivery, note.keeper, seconds), now)
        transport.push(now)

    def wind_down(self, grace: float) -> None:
        """Send nothing new, and wait `grace` seconds until the requests in flight have returned and are stored, but not
        for those with which workers return. A failed store is not waited for."""
        self.call(self._set_stopping)
        self._wait_settled(grace)
        if not self._settled.is_set():
            self.call(self._give_up)
            self._wait_settled(LAST_WRITE)
            self.call(self.maintenance.begin)  # back into the queue, for other nodes, too

    def _wait_settled(self, grace: float) -> None:
        until = time.monotonic() + grace
        while self.alive and self._store.usable and (left := until - time.monotonic()) > 0:
            if self._settled.wait(min(left, GRACE_CHECK)):
                return

    def lasts(self) -> bool:
        """Whether workers may begin what waits at the broker. It is asked if the dispatcher is `leased`."""
        return True

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self._started and not self._ended and not self.loop.ended

    def stop(self) -> None:
        """Stop; the loop goes on. Requests in flight are executed again after the next start."""
        if self.alive:
            self.call(self.waiters.dismiss)
            self._dismissed.wait(DISMISS_MOST)
            self.call(self._end)

    # -- the services: see DispatcherInbox (any thread) -------------------------------------------------------

    def post(self, notice: DispatchNotice) -> None:
        if isinstance(notice, SettingsChanged):
            self.settings.know(notice.settings)  # for what is written from now on
        self.loop.call(self.guard, self._take, notice)

    def reconfigure(self, config: ServerConfig) -> None:
        """Apply other settings. Any thread may call it."""
        self.call(self._reconfigure, config)

    def _replies_read(self, answers: Answers) -> None:
        self.call(self.waiters.found, answers)

    def read_replies(self, asks: Sequence[Ask]) -> None:
        self._reader.enqueue(self._awaited, asks)

    def running(self) -> Collection[bytes]:
        return self.core.flights.copy().keys()

    def hold(self, uuid: bytes) -> bool:
        return self._fetching.hold(uuid)

    def progress(self, uuids: Collection[bytes]) -> dict[bytes, Progress]:
        """Return the progress of the running ones among these. Any thread may call it."""
        flights = self.core.flights
        found = ((uuid, flight.progress) for uuid in uuids if (flight := flights.get(uuid)) is not None)
        return {uuid: progress for uuid, progress in found if progress is not None}

    def worker_of(self, uuid: bytes) -> str:
        """Return the process of the worker that has a request, as HOST:PID; empty: unknown. Any thread may call it."""
        hold = None if self.transport is None else self.transport.worker_of(uuid)
        return "" if hold is None else hold.worker

    def view(self, uuid: bytes, service: bytes) -> DispatchView:
        """Return what is known of a request and its service. Any thread may call it."""
        now, flights, backlogs = time.monotonic(), self.core.flights.copy(), self.core.backlogs
        flight, backlog, transport = flights.get(uuid), backlogs.get(service), self.transport
        sent = [(one.started, key) for key, one in flights.items() if one.backlog.name == service and not one.closed]
        here = self._reader.host.broker
        left = None if here is None else here.departed(service)
        if left is None and service in backlogs.seen_at:
            left = "", backlogs.seen_at[service]
        waits = backlog is not None and backlog.allowed == 0 and service not in backlogs.paused
        troubled = backlog is not None and backlog.trouble and backlog.room is None
        return DispatchView(
            None if flight is None else max(0.0, now - flight.started),
            flight is not None and flight.settling,
            flight is not None and flight.held,
            None if flight is None or transport is None else transport.worker_of(uuid),
            [key for _, key in sorted(sent)],
            max(0.0, backlogs.rates.next_at(service) - now) if waits else None,
            0.0 if backlog is None else backlog.speed(now),
            None if left is None else (left[0], max(0.0, now - left[1])),
            max(0.0, backlog.ask_at - now) if backlog is not None and troubled else None,
        )

    def running_since(self, uuids: Collection[bytes]) -> dict[bytes, int]:
        """Return when those in flight among these were sent, in µs since the epoch. Any thread may call it."""
        now, now_us, flights = time.monotonic(), self._store.now_us(), self.core.flights
        sent = ((uuid, flights.get(uuid)) for uuid in uuids)
        return {uuid: now_us - int((now - one.started) * 1e6) for uuid, one in sent if one is not None}

    def in_flight(self) -> dict[bytes, int]:
        """The number of running stored requests of each service that has any. Any thread may read it."""
        return dict(Counter(one.backlog.name for one in self.core.flights.copy().values() if not one.closed))

    def workers(self) -> dict[bytes, int | None]:
        """The workers of each service, as a separate broker last reported; None: some, number unknown. Any thread may
        read it."""
        return self.core.backlogs.all_workers()

    def replies_given(self) -> int:
        return self.waiters.replies_given

    def stats(self) -> dict[str, Any]:
        return {
            "running": sum(self.in_flight().values()),
            "waiting_clients": len(self.waiters),
            "dispatch": dict(self.core.counts),
        }

    # -- the channel -----------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        self._guarded(self._tick, now)

    def flush(self, now: float) -> None:
        self._guarded(self._flush, now)

    def _tick(self, now: float) -> None:
        self.waiters.tick(now)
        self.failures.tick(now)
        if self.core.again:
            self._log_redispatched(now)
        self._refusals.tick(now)
        if (write := self.audit.due(now)) is not None:
            self._writer.enqueue(write)
        self.maintenance.tick(now)
        if now >= self._facts_at:
            self._facts_at = now + FACTS_EVERY
            self._writer.flush_facts()

    def next_deadline(self) -> float | None:
        """Return when the next round is due: at once, if requests were left unread."""
        if self._ended:
            return None
        again = 0.0 if self.core.again and self._log_redispatch_at is None else self._log_redispatch_at
        core = self.core.next_deadline() if self.transport is not None else None
        others = self.waiters.next_deadline(), self.maintenance.next_deadline(), self._facts_at
        return earliest(self._fetch_at, again, core, *others)

    def _flush(self, now: float) -> None:
        """Run one round: collect results, decide, send."""
        core, transport = self.core, self.transport
        if transport is not None:
            # First: when the transport finds the broker dead, it must know which requests are closed.
            if effects := core.take_effects(now, self.waiters):
                self._perform(effects, transport, now)
                transport.push(now)  # clients wait for this, and what follows may take a while
            transport.deliver_results(now)
            if self._counts_workers and now >= self._count_at:
                self._count_at = now + COUNT_EVERY
                transport.survey(now)
            self._fetch_at = self._fetching.fetch(now)
            if effects := core.take_effects(now, self.waiters):
                self._perform(effects, transport, now)
            transport.push(now)
        if core.stopping and not self._fetching.busy and self._waits_for_none():
            self._settled.set()
        if self.waiters.dismissed:
            self._dismissed.set()

    def _waits_for_none(self) -> bool:
        """Whether workers return with all that is in flight."""
        kept, flights = self.deliveries, self.core.flights
        return not flights or (
            kept is not None and all(uuid in kept and not flight.settling for uuid, flight in flights.items())
        )

    def _perform(self, effects: Iterable[Effect], transport: Transport, now: float) -> None:
        for effect in effects:
            match effect:
                case KeepOutcomes(outcomes):
                    self._writer.enqueue(self._outcome_write(outcomes))
                case RecallRequest(uuid):
                    transport.recall_request(uuid, now)
                case AskWorkers(services):
                    transport.ask_presence(services, now)
                    self._fetch_at = 0.0  # a broker in this process has answered: perhaps there is more to send
                case Survey():
                    transport.survey(now)
                    self._fetch_at = 0.0
                case Maintain():
                    self.maintenance.begin()
                case Certain(uuid):
                    self._withdrawn_from_workers(uuid)
                case GivenBack(uuid):
                    self._fetching.given_back(uuid)

    def _withdrawn_from_workers(self, uuid: bytes) -> None:
        """No worker can get this closed request any more."""
        for close in self._pending_closes.over(uuid):
            self._answer_close(close)

    # -- inside ----------------------------------------------------------------------------------------------

    def _outcome_write(self, outcomes: Outcomes) -> OutcomeWrite:
        return OutcomeWrite(outcomes, self, self.completions, failures=self.core.failures(outcomes))

    def send(self, sends: Sequence[Send], now: float) -> None:
        """Pass requests to the transport."""
        assert self.transport is not None  # nothing is fetched without one, and a transport is only replaced
        services: dict[bytes, int] = {}
        for one in sends:
            services[one.service] = services.get(one.service, 0) + 1
        self._writer.facts.count(DISPATCHED, services)
        self.transport.send_requests(sends, now)

    def _begin(self) -> None:
        self._read_settings()
        self._fetching.begin()
        self.maintenance.refresh_alarm()

    def _read_settings(self) -> None:
        with self._store.read() as transaction:
            self.hold_settings(set_service.service_settings(transaction))

    def hold_settings(self, settings: ServiceSettings) -> None:
        """Apply the settings of services."""
        if settings != self.settings.all:
            self.settings.know(settings)
        if self.settings.paused != self.core.backlogs.paused:
            self.core.pause_services(self.settings.paused)
        if self.settings.limits != self.core.backlogs.config.limits:
            self._reconfigure(self._config)

    def _end(self) -> None:
        """Stop for good, and release all waiting threads."""
        self._ended = True
        self.failures.finish()
        self._settled.set()
        self._dismissed.set()

    def is_running(self, uuid: bytes) -> bool:
        """Return whether this request is still to get an outcome that its clients may see. Called in the loop's
        thread."""
        return (flight := self.core.flights.get(uuid)) is not None and not flight.closed

    def _reconfigure(self, config: ServerConfig) -> None:
        self._config = config
        self.settings.know(self.settings.all, config.limits)
        self._configure(replace(config, limits=self.settings.limits))

    def _configure(self, config: ServerConfig) -> None:
        self.maintenance.config = config
        self.completions.poison_deaths = config.poison_deaths
        self.core.reconfigure(config)
        self.maintenance.refresh_alarm()

    def _give_up(self) -> None:
        """Record which requests workers still have. The others were recalled when the stop began."""
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        if count := self.core.give_up(
            f"the server stopped at {now} while a worker had the request; that worker may continue",
            () if self.deliveries is None else self.deliveries,
        ):
            text = "%d requests are still running: they are dispatched again, and their workers may continue"
            log.warning(text, count, extra=event("given-up"))

    def _log_redispatched(self, now: float) -> None:
        if self._log_redispatch_at is None:
            self._log_redispatch_at = now + LOG_REDISPATCH_AFTER
        elif now >= self._log_redispatch_at:
            text = "%d requests dispatched again: workers that had them may still run them; see titanic show"
            log.warning(text, self.core.again, extra=event("dispatched-again"))
            self._log_redispatch_at, self.core.again = None, 0

    def _set_stopping(self) -> None:
        self.core.stopping = True
        self.core.recall(self.core.flights)
        self.core.outcomes.hurry(time.monotonic())

    def _take(self, notice: DispatchNotice) -> None:
        match notice:
            case Arrived(services, due_us):
                if services:
                    self.core.arrived(services, time.monotonic())
                if due_us is not None:
                    self.maintenance.hasten_alarm(due_us)
            case OutcomeWrite():
                self._written(notice)
            case WaitForReplies(asks):
                self.waiters.add(asks, time.monotonic())
            case Closed():
                self._closed(notice)
            case Returned(services, held):
                self._fetching.release(held)
                self._returned(services)
                self.maintenance.refresh_alarm()  # they may have a TTL
            case SettingsChanged():
                self.hold_settings(self.settings.all)
            case MaintenanceWrite():
                self._maintained(notice)

    def _closed(self, notice: Closed) -> None:
        uuids, services, doubts, kill = notice
        self.core.closed(uuids, kill)
        self._withdrawn(services)
        self.waiters.wake(uuids)
        if uuids:
            self.maintenance.refresh_alarm()  # they are remembered for a time, and large ones are removed bit by bit
        self._keep_pending(doubts)

    def _keep_pending(self, closes: Sequence[CloseDoubt]) -> None:
        """Answer these closes as soon as no further worker can get any of their requests."""
        for close in closes:
            self.keep_pending(close)

    def keep_pending(self, close: CloseDoubt) -> None:
        """Answer a close as soon as no worker of this node can get its requests. Those not in flight now will never be
        sent."""
        if left := {uuid for uuid in close.uuids if self.core.in_doubt(uuid)}:
            self._pending_closes.add(close, left)
        else:
            self._answer_close(close)

    def _answer_close(self, close: CloseDoubt) -> None:
        if close.alive is not None:
            close.alive.extend(uuid for uuid in close.uuids if self.core.goes_on(uuid))
        close.ask.withdrawn(len(close.uuids))

    def _withdrawn(self, services: Collection[bytes]) -> None:
        """Note that requests of these services have left the queue unsent. An absent service with nothing left is
        forgotten until it returns."""
        backlogs = self.core.backlogs
        if absent := [name for name in services if name in backlogs and not backlogs[name].fetchable]:
            self._fetching.emptied(absent)

    def _returned(self, services: Collection[bytes]) -> None:
        """Note that requests of these services are waiting again."""
        self.core.returned(services)

    def _maintained(self, write: MaintenanceWrite) -> None:
        if write.error is not None:
            self.maintenance.pause(write.error)
            return
        self._returned(write.services)
        self.core.counts["expired"] += len(write.expired)
        for _, service in write.expired:
            self.core.ended.add(service, Status.EXPIRED)
        if write.expired:
            self._expired(write.expired)
        self.maintenance.maintained(write)

    def _written(self, write: OutcomeWrite) -> None:
        """Outcomes are committed, or the write has failed."""
        core = self.core
        if write.error is not None:
            core.unsettled(write.outcomes, time.monotonic())
            return
        done, unchanged, without_room = write.done, write.unchanged, write.without_room
        core.poisoned(write.poisoned.values())
        unchanged_uuids = {outcome.uuid for outcome in unchanged}
        ends: list[AttemptEnd] = []
        now_us = self._store.now_us()
        ended_us = now_us - int((time.monotonic() - write.created) * 1e6)
        for outcome in done:
            flight = core.flights.get(outcome.uuid)
            if flight is None or flight.closed or outcome.uuid in unchanged_uuids:
                continue
            if (end := attempt_end(outcome, flight, write.created, ended_us)) is not None:
                ends.append(end)
            if not isinstance(outcome, Finish):
                continue
            if outcome.status is not Status.DONE:
                self.failures.report(outcome.uuid, flight.backlog.name, outcome.status, outcome.reason)
            elif outcome.uuid in self.waiters and sum(map(len, outcome.frames)) <= LIGHT_BYTES:
                self.waiters.succeeded(outcome.uuid, outcome.frames)
        self._writer.facts.attempts(ends, now_us)
        uuids = [outcome.uuid for outcome in done]
        core.settled(uuids, unchanged)
        if self.deliveries is not None:
            for uuid in uuids:
                self.deliveries.drop(uuid)
        if without_room:
            core.unsettled(without_room, time.monotonic(), full=True)
        self.waiters.wake(uuids)
        # Only now: postponed requests are not in flight any more, and their TTL counts again.
        self.maintenance.refresh_alarm()

    def _expired(self, expired: Sequence[tuple[bytes, bytes]]) -> None:
        """These have expired in the store: UUID and service of each."""
        self.waiters.wake([uuid for uuid, _ in expired])
        self._withdrawn({service for _, service in expired})
        ends = [AttemptEnd(uuid, service, EXPIRED, None, None, "") for uuid, service in expired]
        self._writer.facts.attempts(ends, self._store.now_us())
        for uuid, service in expired:
            self.failures.report(uuid, service, Status.EXPIRED, "not done in time")
