"""This process as one of the nodes that share a store: what ClaimsCore decides comes from and goes to the store here.

    the lease              a thread of its own, with a connection of its own: a slow commit must not cost it
    claims and releases    the writer's thread, as a `Write` each, together with whatever else is committed
    outcomes               the same, under the incarnation by which they were claimed; kept while there is none

A node is *cut off* when its lease is over, it cannot renew it, and it knows of other nodes that were alive: clients and
idle workers are sent there. Without other nodes it keeps them.

Requests that its own broker keeps for a worker that has left are taken back, and released: another node may have an
idle worker. What was claimed is in flight in DispatchCore, or it is given back.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, Protocol, cast

from titanic.cluster.background import BackgroundRead, BackgroundReader
from titanic.cluster.claims_core import POLL_INTERVAL, Claim, ClaimsCore, OutcomeWriting, Release, Room
from titanic.cluster.lease import OUT, Join, LeaseCall, LeaseState, Leave, Renew
from titanic.cluster.node_writes import ClaimWrite, NodeWrite, ReleaseWrite
from titanic.cluster.returning import ReturningWorkers
from titanic.cluster.shared_settings import ServiceSettingsCache
from titanic.commit.writer import BatchThread, Writer
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.fetching import Sender
from titanic.dispatch.outcomes import CompletionEvents, Outcomes, OutcomeWrite
from titanic.errors import (
    OtherLease,
    OutcomeUnknown,
    RecordCorrupt,
    StoreError,
    StoreFailed,
    StoreTooNew,
    StoreTooOld,
    TitanicError,
)
from titanic.logs import Incident, event
from titanic.services.ask import Inbox
from titanic.settings import ServerConfig
from titanic.store import (
    Bound,
    Joined,
    NodeFacts,
    Notification,
    NotificationChannel,
    ReadTransaction,
    ReadyRow,
    Renewed,
    SharedStore,
    Store,
    ready_counts,
)
from titanic.util.clock import ClockJumps, elapsed

log = logging.getLogger(__name__)

CUT_OFF = "cut off: clients and idle workers are sent to other nodes until this one reaches the database %s again"


class LeaseAnswer(NamedTuple):
    """What the store has answered to a call about the lease."""

    op: LeaseCall
    answer: Joined | Renewed | None = None
    """None: to a `Leave`, or there was an `error`."""
    error: StoreError | None = None


class WaitingRead(BackgroundRead[Collection[bytes]]):
    """The services that have something to claim."""

    def __init__(self, absent: Mapping[bytes, int]) -> None:
        """`absent`: those without workers, and what had come for them."""
        self.absent = absent

    def read(self, transaction: ReadTransaction) -> Collection[bytes]:
        return ready_counts(transaction.queues())


class NodeDispatcher(Inbox[NodeWrite | LeaseAnswer | OutcomeWrite], Sender, Protocol):
    """The dispatcher of a node."""


class Host(Protocol):
    """The server that a node is part of. Methods are called in the loop's thread."""

    def facts(self) -> NodeFacts:
        """What other nodes see of it, with each renewal of the lease."""

    def drain(self) -> None:
        """Drain: an operator has asked for it, or the store is not for this version any more."""

    def cut_off_changed(self) -> None:
        """Take note: the node's `cut_off` has changed."""

    def send_workers_on(self, most: int | None = None) -> None:
        """Send idle workers to other nodes: so many at most, by default all. While the node is cut off, this is called
        now and then: workers may have come."""

    def shared_limits_changed(self) -> None:
        """Apply the shared limits, which another node has changed."""


class ClaimingNode:
    """A `Fetching` for a store that nodes share. Methods are called in the loop's thread, unless they say otherwise."""

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        writer: Writer,
        core: DispatchCore,
        dispatcher: NodeDispatcher,
        background: BackgroundReader,
        settings: ServiceSettingsCache,
        host: Host,
        channel: NotificationChannel | None,
        completions: CompletionEvents,
    ) -> None:
        """`channel`: to other nodes; None: they are not notified."""
        self.claims = ClaimsCore(_draw, replace(config.lease, patience=config.wire.worker_return))
        self.reconfigure(config)
        self.cut_off = False
        """Whether other nodes serve while this one cannot. Any thread may read it."""
        self.leases_lost = 0
        self.problem: TitanicError | None = None
        """Why this node must not go on: the store is for later versions by now."""
        self._store = cast(SharedStore, store)
        self._writer = writer
        self._core = core
        self._dispatcher = dispatcher
        self._background = background
        self._settings = settings
        self.returning = ReturningWorkers(self.claims, core, writer, dispatcher, store.now_us, channel)
        """Workers that come from other nodes with requests."""
        self._host = host
        self._channel = channel
        self._completions = completions
        self._thread: BatchThread[tuple[LeaseCall, NodeFacts]] = BatchThread("lease", self._ask_all)
        self._clock = ClockJumps()
        self._now_us = store.now_us
        self._clock.observe(self._now_us())
        self.turn_at: float | None = 0.0
        """When it is to be called next at the latest; in the loop's clock, like all other times here except those
        passed to ClaimsCore."""
        self._given_back: list[bytes] = []
        self._poll_at = 0.0
        """When to poll for services with requests, at a broker that does not report which services have workers."""
        self._workers: Mapping[bytes, int] | None = None
        """The services with workers, as the broker reported at the last check."""
        self._unreached = False
        """Whether the store did not answer the last statement of the lease."""
        self._send_on_at = 0.0
        """When workers that have come since are sent on, by the clock of ClaimsCore."""
        self._dispatched = True
        """Whether it could dispatch at the last check."""
        self._unread = Incident(log, "claim what to dispatch")
        self._unrenewed = Incident(log, "renew this node's lease")
        self._damage = Incident(log, "dispatch")

    def reconfigure(self, config: ServerConfig) -> None:
        """Apply other settings."""
        self.config = config
        bounds = {name: Bound(limits.running, limits.rate) for name, limits in config.limits.items()}
        before, now = self.claims.bounds, {name: bound for name, bound in bounds.items() if any(bound)}
        self.claims.bounds = now
        self.claims.arrived({name for name, _ in before.items() ^ now.items()})

    # -- the lease -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. Any thread may call it."""
        self._thread.start()

    def stop(self) -> None:
        """Query the store no more. Another thread calls it."""
        self._thread.stop()

    def turn(self, now: float) -> None:
        """Handle the lease, before anything is dispatched."""
        claims, clock = self.claims, elapsed()
        if recalls := claims.take_recalls(clock):
            self._core.recall(recalls)
        if (op := claims.take_lease(clock)) is not None:
            self._thread.put((op, self._host.facts()))
        self._core.outcomes.blocked = not claims.writes
        self._report_state(clock)
        self._know_cut_off(clock)
        due = claims.next_deadline()
        self.turn_at = None if due is None else now + max(0.0, due - clock)

    def drain(self) -> None:
        """Claim nothing more, return what no worker has started, and leave when nothing is left."""
        self.claims.drain()
        self._core.recall(self._core.flights)

    def others(self) -> bool:
        """Whether other nodes were alive at this node's last successful poll. Any thread may ask."""
        return self._channel is not None and not self._channel.alone

    @property
    def has_left(self) -> bool:
        """Whether it was drained, and nothing is left."""
        return self.claims.lease.state is LeaseState.LEFT

    def incarnation(self) -> int | None:
        """The number under which it claims; None: it has none. Any thread may ask, as for the rest."""
        return None if self.has_left else self.claims.lease.incarnation

    def lasts(self) -> bool:
        """Whether workers may begin what it has dispatched: after it stood still, its lease may be over."""
        return self.claims.lease.lasts(elapsed())

    def awaited_for(self, incarnation: int) -> float | None:
        """For how many seconds more it awaits the workers of another node that has ended, as far as it knows."""
        return self.claims.lease.awaited_for(incarnation, elapsed())

    @property
    def lease_left(self) -> float:
        """Seconds for which it may dispatch if it does not renew its lease."""
        lease, now = self.claims.lease, elapsed()
        return lease.until - now if lease.lasts(now) else 0.0

    @property
    def held(self) -> int:
        """How many requests it has claimed."""
        return len(self.claims.holds)

    def _report_state(self, now: float) -> None:
        dispatches = self.claims.lease.lasts(now)
        if dispatches == self._dispatched:
            return
        if not dispatches and self.claims.lease.incarnation is not None and not self.has_left:
            text = "dispatching stopped: this node could not renew its lease at %s; other nodes take over its requests"
            log.warning(text, self._store.place, extra=event("lease-over"))
            self.leases_lost += 1
        elif dispatches:
            log.info("this node has a lease at %s and dispatches", self._store.place, extra=event("lease"))
        self._dispatched = dispatches

    def _know_cut_off(self, now: float) -> None:
        lease = self.claims.lease
        cut_off = self._unreached and self.others() and not lease.lasts(now) and lease.state not in OUT
        if cut_off is not self.cut_off:
            self.cut_off = cut_off
            if cut_off:
                log.warning(CUT_OFF, self._store.place, extra=event("cut-off"))
            self._host.cut_off_changed()
        elif cut_off and now >= self._send_on_at:
            self._host.send_workers_on()
        else:
            return
        self._send_on_at = now + lease.config.lease

    def _ask_all(self, calls: Sequence[tuple[LeaseCall, NodeFacts]]) -> None:
        """Called in the thread of the lease, and so is `_ask`."""
        for op, facts in calls:
            try:
                answer = LeaseAnswer(op, self._ask(op, facts))
            except StoreError as error:
                answer = LeaseAnswer(op, error=error)
            except Exception as error:  # the thread must live on
                log.exception("a bug in this program: could not renew the lease")
                failure = StoreFailed("the renewal failed", f"{type(error).__name__}: {error}", "report this")
                answer = LeaseAnswer(op, error=failure)
            self._dispatcher.post(answer)

    def _ask(self, op: LeaseCall, facts: NodeFacts) -> Joined | Renewed | None:
        store, config = self._store, self.claims.lease.config
        match op:
            case Join():
                self._settings.read_first()
                return store.join(op.incarnation, op.before, op.held, facts, config)
            case Renew():
                return store.renew(op.incarnation, op.silent, facts, config, op.abandoned)
            case Leave():
                store.leave(op.incarnations)
                return None

    def answered(self, reply: LeaseAnswer) -> None:
        """The store has answered a call about the lease, or could not."""
        op, answer, error = reply
        if isinstance(error, StoreTooNew | StoreTooOld | OtherLease):
            self._refused(error)
        elif error is not None:
            self._unanswered(op, error)
        elif isinstance(op, Leave):
            self.claims.left(op)
        else:
            self._reached()
            if isinstance(op, Renew):
                self._renewed(op, cast(Renewed, answer))
            else:
                self.claims.joined(op, cast(Joined, answer), elapsed())

    def _reached(self) -> None:
        self._unreached = False
        self._unrenewed.recovered()

    def _renewed(self, op: Renew, answer: Renewed) -> None:
        self._settings.refresh()
        self.returning.keep()
        drains = self.claims.draining
        self.claims.renewed(op, answer, elapsed())
        if self.claims.draining and not drains:
            log.info("an operator is draining this node: it claims no more requests", extra=event("draining"))
            self.drain()
            self._host.drain()

    def _refused(self, error: StoreTooNew | StoreTooOld | OtherLease) -> None:
        what = "other-lease" if isinstance(error, OtherLease) else "store-too-new"
        log.error("dispatching stopped: %s", error, extra=event(what))
        self.claims.refused()
        self._dispatched = False
        self.problem = error
        self._host.drain()  # nothing is to be accepted either

    def _unanswered(self, op: LeaseCall, error: StoreError) -> None:
        self._unreached = True
        self._unrenewed.failed(error)
        self.claims.failed(op, elapsed(), unchanged=False)

    # -- claims ----------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self.claims.busy or len(self._given_back) > 0 or self.returning.busy

    def begin(self) -> None:
        """Do nothing: services are checked when they have workers."""

    def emptied(self, names: Sequence[bytes]) -> None:
        """Poll again: services without workers are forgotten when they have no requests."""
        self._poll_at = 0.0

    def arrived(self, services: Collection[bytes]) -> None:
        """These services have new requests to claim."""
        self.claims.arrived(services)

    def returned(self, services: Collection[bytes]) -> None:
        """The same, anywhere in the queue."""
        self._poll_again(services)
        if services and self.others():
            cast(NotificationChannel, self._channel).publish(Notification(arrived=set(services)))

    def arrived_elsewhere(self, services: Iterable[bytes]) -> None:
        """The same, as another node has reported: check the services that have workers here."""
        known = self._core.backlogs
        self._poll_again([name for name in services if name in known or name in (known.workers or ())])

    def _poll_again(self, services: Collection[bytes]) -> None:
        self._core.returned(services)
        self.claims.arrived(services)

    def hold(self, uuid: bytes) -> bool:
        """Nothing: what is to be changed is claimed by no node, or it is not changed. Any thread may call it."""
        return True

    def release(self, uuids: Collection[bytes]) -> None:
        """Nothing."""

    def given_back(self, uuid: bytes) -> None:
        """The core has given up a request that was claimed."""
        self._given_back.append(uuid)

    def forgotten(self, uuid: bytes) -> None:
        """A closed request is with no worker any more, or stays with the one that has it."""
        if uuid not in self._core.flights:
            self.claims.forgotten(uuid)

    def fetch(self, now: float) -> float | None:
        claims, core = self.claims, self._core
        if not core.backlogs.surveys and now >= self._poll_at:
            self._poll_at = now + POLL_INTERVAL
            absent = {name: backlog.news for name, backlog in core.backlogs.items() if not backlog.room}
            self._background.ask(WaitingRead(absent))
        if (workers := core.backlogs.workers) is not self._workers:
            self._workers = workers
            core.recall(self._beyond(workers or {}, now - POLL_INTERVAL))
        if self._given_back:
            claims.given_back(self._given_back)
            self._given_back.clear()
        self.returning.poll(now)
        claim = claims.take_claim(elapsed(), {} if claims.claiming else self._rooms())
        if claim is not None:
            self._writer.enqueue(ClaimWrite(self._dispatcher, claim))
        if (release := claims.take_release()) is not None:
            bounded = claims.bounded([place.uuid for place in release.places])
            self._writer.enqueue(ReleaseWrite(self._dispatcher, release, bounded))
        return self.returning.due_at if core.backlogs.surveys else self._poll_at

    def _beyond(self, workers: Mapping[bytes, int], sent: float) -> list[bytes]:
        """What may wait at the broker since then, because services have fewer workers than when it was sent, or these
        are busy with something else: another node may have some. (The broker keeps what a worker has.)"""
        backlogs, is_held = self._core.backlogs, self.returning.is_held
        few = {backlog for backlog in backlogs.values() if backlog.taken > workers.get(backlog.name, 0)}
        queued = {backlogs[name] for name in backlogs.queued if name in backlogs} if self.others() else set()
        if not few and not queued:
            return []
        old = [
            (uuid, one.backlog) for uuid, one in self._core.flights.items() if one.started <= sent and not one.closed
        ]
        return [uuid for uuid, backlog in old if backlog in few or (backlog in queued and not is_held(uuid))]

    def _rooms(self) -> dict[bytes, Room]:
        rooms, backlogs = {}, self._core.backlogs
        for name, _, limit in self._core.take_fetches():
            backlog = backlogs[name]
            ahead = backlog.free - max(0, (backlog.room or 0) - backlog.taken)
            rooms[name] = Room(limit - ahead, ahead, self.returning.keeps(name))
        return rooms

    def claimed(self, write: ClaimWrite) -> None:
        """A claim is committed, or has failed."""
        claims, core, now, op, found = self.claims, self._core, time.monotonic(), write.op, write.found
        if write.error is not None:
            self._failed(op, write.error)
            return
        self._unread.recovered()
        if found is None:
            claims.claimed(op, None, (), elapsed())
            return
        granted = claims.claimed(op, found.rows, found.more, elapsed(), found.again)
        uuids = [row.uuid for row in chain.from_iterable(granted.values())]
        if claims.may_dispatch(elapsed()):
            self._dispatch(granted, found.damaged, now)
        claims.given_back([uuid for uuid in uuids if uuid not in core.flights])
        core.emptied([name for name in op.wants if claims.lacks(name) and name not in found.again])

    def _dispatch(
        self, granted: Mapping[bytes, list[ReadyRow]], damaged: Mapping[bytes, RecordCorrupt], now: float
    ) -> None:
        core, sure_us = self._core, self._clock.observe(self._now_us())
        for name, rows in granted.items():
            core.fetched(name, [row for row in rows if row.uuid not in damaged], now, sure_us)
        sends = core.take_sends(now, sure_us)
        for send in sends:
            self.claims.sent(send.uuid)
        for name, rows in granted.items():
            for row in rows:
                if (damage := damaged.get(row.uuid)) is not None:
                    self._damage.failed(damage)
                    core.damaged(name, row.uuid, str(damage), now)
        self._dispatcher.send(sends, now)

    def released(self, write: ReleaseWrite) -> None:
        """A release is committed, or has failed."""
        if write.error is not None:
            self._failed(write.op, write.error)
            return
        self.claims.released(write.op)
        self.returned({place.service for place in write.op.places})

    def _failed(self, op: Claim | Release, error: StoreError) -> None:
        self._unread.failed(error)
        self.claims.failed(op, elapsed(), unchanged=not isinstance(error, OutcomeUnknown))

    def found_waiting(self, answer: WaitingRead) -> None:
        """Report to the core which services have something."""
        if answer.error is not None:
            self._unread.failed(answer.error)
            return
        backlogs, absent, services = self._core.backlogs, answer.absent, answer.found
        gone = [name for name, news in absent.items() if name not in services and name in backlogs]
        self._core.emptied([name for name in gone if backlogs[name].news == absent[name]])
        self._poll_again(services)

    # -- outcomes --------------------------------------------------------------------------------------------

    def outcome_write(self, outcomes: Outcomes) -> OutcomeWrite:
        """These are to be written."""
        uuids = [outcome.uuid for outcome in outcomes]
        for uuid in uuids:
            self.claims.ended(uuid)
        op, bounded, failures = self.claims.writing(uuids), self.claims.bounded(uuids), self._core.failures(outcomes)
        return OutcomeWrite(outcomes, self._dispatcher, self._completions, op.incarnation, op.number, bounded, failures)

    def written(self, write: OutcomeWrite) -> None:
        """Outcomes are committed, or the write has failed. Those that are to be written again are taken out of it."""
        assert write.incarnation is not None
        claims = self.claims
        uuids = [outcome.uuid for outcome in write.done]
        op = OutcomeWriting(write.number, write.incarnation, uuids)
        if write.error is not None:
            claims.failed(op, elapsed(), unchanged=not isinstance(write.error, OutcomeUnknown))
            return
        services = {hold.place.service for uuid in uuids if (hold := claims.holds.get(uuid)) is not None}
        again = set(claims.written(op, {outcome.uuid for outcome in write.unchanged}))
        if again:
            self._core.unsettled([outcome for outcome in write.done if outcome.uuid in again], time.monotonic())
            write.done = [outcome for outcome in write.done if outcome.uuid not in again]
            write.unchanged = [outcome for outcome in write.unchanged if outcome.uuid not in again]
        self.returned([name for name in services if name in self.config.limits])  # the bound may have been in the way


def _draw() -> int:
    """Draw a random number that is new: with so many bits, a collision is unlikely enough. It is small enough for
    programs that read JSON numbers as floats (jq, JavaScript)."""
    return secrets.randbits(52) + 1
