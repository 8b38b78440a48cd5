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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Protocol, cast

from titanic.cluster.background import BackgroundReader
from titanic.cluster.claims import (
    OUT,
    POLL_INTERVAL,
    Claim,
    ClaimsCore,
    Join,
    LeaseCall,
    LeaseState,
    Leave,
    OutcomeWriting,
    Release,
    Renew,
    Room,
)
from titanic.cluster.settings import ServiceSettingsCache
from titanic.commit.writer import BatchThread, Write, Writer
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.dispatcher import Dispatcher
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
from titanic.settings import ServerConfig
from titanic.store import (
    Bound,
    Claimed,
    ClaimingStore,
    Joined,
    NodeFacts,
    NodeTransaction,
    Notification,
    NotificationChannel,
    Place,
    ReadTransaction,
    ReadyRow,
    Renewed,
    Store,
    WriteTransaction,
    ready_counts,
)
from titanic.util.clock import ClockJumps, elapsed

log = logging.getLogger(__name__)

CUT_OFF = "cut off: clients and idle workers are sent to other nodes until this one reaches the database %s again"


CLAIM_BYTES = 8 << 20
"""Bytes of bodies that one claim takes for all services together, plus at most one body. Only other writes wait
meanwhile."""


class _OneWrite:
    """The base of claims and releases. `failed` is called with the reason when the commit fails."""

    light = False

    def __init__(self, failed: Callable[[StoreError], None]) -> None:
        self.failed = failed

    def uuids(self) -> Sequence[bytes]:
        """None: claimed requests are new here, and released ones need not be read."""
        return ()

    def parts(self) -> list[Write]:
        return []


class ClaimWrite(_OneWrite):
    """Claim requests. `claimed` is called with them once that is committed."""

    def __init__(
        self,
        op: Claim,
        claimed: Callable[[Claimed | None], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        super().__init__(failed)
        self._op, self._claimed = op, claimed
        self._found: Claimed | None = None

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        op = self._op
        self._found = cast(NodeTransaction, transaction).claim(op.incarnation, op.wants, CLAIM_BYTES, op.bounds)

    def __len__(self) -> int:
        return sum(map(len, self._found.rows.values())) if self._found is not None else 0

    def committed(self) -> None:
        self._claimed(self._found)


class ReleaseWrite(_OneWrite):
    """`bounded`: those that count for bounds. `released` is called once it is committed."""

    def __init__(
        self, op: Release, bounded: Sequence[Place], released: Callable[[], None], failed: Callable[[StoreError], None]
    ) -> None:
        super().__init__(failed)
        self._op, self._bounded, self._released = op, bounded, released

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        shared = cast(NodeTransaction, transaction)
        shared.release(self._op.incarnation, self._op.places)
        if self._bounded:
            shared.count_no_more(self._op.incarnation, self._bounded)

    def __len__(self) -> int:
        return len(self._op.places)

    def committed(self) -> None:
        self._released()


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

    def limits_changed(self) -> None:
        """Apply the shared limits, which another node has changed."""


class ClaimingNode:
    """A `Fetching` for a store that nodes share. Methods are called in the loop's thread, unless they say otherwise."""

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        writer: Writer,
        core: DispatchCore,
        dispatcher: Dispatcher,
        background: BackgroundReader,
        settings: ServiceSettingsCache,
        host: Host,
        channel: NotificationChannel | None,
        completions: CompletionEvents,
    ) -> None:
        """`channel`: to other nodes; None: they are not notified."""
        self.claims = ClaimsCore(_draw, config.lease)
        self.reconfigure(config)
        self.cut_off = False
        """Whether other nodes serve while this one cannot. Any thread may read it."""
        self.leases_lost = 0
        self.problem: TitanicError | None = None
        """Why this node must not go on: the store is for later versions by now."""
        self._store = cast(ClaimingStore, store)
        self._writer = writer
        self._core = core
        self._dispatcher = dispatcher
        self._call = dispatcher.call
        self._background = background
        self._settings = settings
        self._host = host
        self._channel = channel
        self._completions = completions
        self._thread: BatchThread[None] = BatchThread("lease", _nothing)
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
        self.claims.bounds = {name: bound for name, bound in bounds.items() if any(bound)}

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
            self._thread.call(partial(self._ask, op, self._host.facts()))
        self._core.outcomes.blocked = not claims.writes
        self._tell_state(clock)
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

    @property
    def lease_left(self) -> float:
        """Seconds for which it may dispatch if it does not renew its lease."""
        lease, now = self.claims.lease, elapsed()
        return lease.until - now if lease.lasts(now) else 0.0

    @property
    def held(self) -> int:
        """How many requests it has claimed."""
        return len(self.claims.holds)

    def _tell_state(self, now: float) -> None:
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

    def _ask(self, op: LeaseCall, facts: NodeFacts) -> None:
        """Called in the thread of the lease."""
        store, config = self._store, self.claims.lease.config
        try:
            if isinstance(op, Join):
                self._settings.read_first()
                joined = store.join(op.incarnation, op.before, op.held, facts, config)
                self._call(self._joined, op, joined)
            elif isinstance(op, Renew):
                renewed = store.renew(op.incarnation, op.silent, facts, config)
                self._call(self._renewed, op, renewed)
            else:
                store.leave(op.incarnations)
                self._call(self._left, op)
        except (StoreTooNew, StoreTooOld, OtherLease) as error:
            self._call(self._refused, error)
        except StoreError as error:
            self._call(self._unanswered, op, error)
        except Exception as error:  # the thread must live on
            log.exception("a bug in this program: could not renew the lease")
            failure = StoreFailed("the renewal failed", f"{type(error).__name__}: {error}", "report this")
            self._call(self._unanswered, op, failure)

    def _joined(self, op: Join, answer: Joined) -> None:
        self._reached()
        self.claims.joined(op, answer, elapsed())

    def _reached(self) -> None:
        self._unreached = False
        self._unrenewed.recovered()

    def _renewed(self, op: Renew, answer: Renewed) -> None:
        self._reached()
        self._settings.refresh()
        drains = self.claims.draining
        self.claims.renewed(op, answer, elapsed())
        if self.claims.draining and not drains:
            log.info("an operator is draining this node: it claims no more requests", extra=event("draining"))
            self.drain()
            self._host.drain()

    def _left(self, op: Leave) -> None:
        self.claims.left(op)

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
        return self.claims.busy or len(self._given_back) > 0

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
            self._background.read(_waiting, partial(self._found_waiting, absent), self._unread.failed)
        if (workers := core.backlogs.workers) is not self._workers:
            self._workers = workers
            core.recall(self._beyond(workers or {}, now - POLL_INTERVAL))
        if self._given_back:
            claims.given_back(self._given_back)
            self._given_back.clear()
        claim = claims.take_claim(elapsed(), {} if claims.claiming else self._rooms())
        if claim is not None:
            done = partial(self._call, self._claimed, claim)
            self._writer.enqueue(ClaimWrite(claim, done, partial(self._call, self._unclaimed, claim)))
        if (release := claims.take_release()) is not None:
            done = partial(self._call, self._released, release)
            bounded = claims.bounded([place.uuid for place in release.places])
            self._writer.enqueue(ReleaseWrite(release, bounded, done, partial(self._call, self._unclaimed, release)))
        return None if core.backlogs.surveys else self._poll_at

    def _beyond(self, workers: Mapping[bytes, int], sent: float) -> list[bytes]:
        """What may wait at the broker since then, because services have fewer workers than when it was sent: another
        node may have some. (The broker keeps what a worker has.)"""
        few = {backlog for backlog in self._core.backlogs.values() if backlog.taken > workers.get(backlog.name, 0)}
        if not few:
            return []
        flights = self._core.flights.items()
        return [uuid for uuid, one in flights if one.backlog in few and one.started <= sent and not one.closed]

    def _rooms(self) -> dict[bytes, Room]:
        rooms, backlogs = {}, self._core.backlogs
        for name, _, limit in self._core.take_fetches():
            backlog = backlogs[name]
            ahead = backlog.free - max(0, (backlog.room or 0) - backlog.taken)
            rooms[name] = Room(limit - ahead, ahead)
        return rooms

    def _claimed(self, op: Claim, found: Claimed | None) -> None:
        claims, core, now = self.claims, self._core, time.monotonic()
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

    def _unclaimed(self, op: Claim | Release, error: StoreError) -> None:
        self._unread.failed(error)
        self.claims.failed(op, elapsed(), unchanged=not isinstance(error, OutcomeUnknown))

    def _released(self, op: Release) -> None:
        self.claims.released(op)
        self.returned({place.service for place in op.places})

    def _found_waiting(self, absent: Mapping[bytes, int], services: Collection[bytes]) -> None:
        """These have something. `absent`: those without workers when the store was asked, and what had come then."""
        backlogs = self._core.backlogs
        gone = [name for name, news in absent.items() if name not in services and name in backlogs]
        self._core.emptied([name for name in gone if backlogs[name].news == absent[name]])
        self._poll_again(services)

    # -- outcomes --------------------------------------------------------------------------------------------

    def outcome_write(self, outcomes: Outcomes) -> OutcomeWrite:
        """These are to be written."""
        uuids = [outcome.uuid for outcome in outcomes]
        for uuid in uuids:
            self.claims.ended(uuid)
        op = self.claims.writing(uuids)
        written, unwritten = partial(self._call, self._written, op), partial(self._call, self._unwritten, op)
        ends = self._completions
        return OutcomeWrite(outcomes, written, unwritten, op.incarnation, self.claims.bounded(uuids), ends)

    def _written(self, op: OutcomeWriting, done: Outcomes, unchanged: Outcomes, without_room: Outcomes) -> None:
        claims = self.claims
        uuids = [outcome.uuid for outcome in done]
        services = {hold.place.service for uuid in uuids if (hold := claims.holds.get(uuid)) is not None}
        again = set(claims.written(op._replace(uuids=uuids), {outcome.uuid for outcome in unchanged}))
        if again:
            self._core.unsettled([outcome for outcome in done if outcome.uuid in again], time.monotonic())
            done = [outcome for outcome in done if outcome.uuid not in again]
            unchanged = [outcome for outcome in unchanged if outcome.uuid not in again]
        self.returned([name for name in services if name in self.config.limits])  # the bound may have been in the way
        self._dispatcher.written(done, unchanged, without_room)

    def _unwritten(self, op: OutcomeWriting, outcomes: Outcomes, error: StoreError) -> None:
        self.claims.failed(op, elapsed(), unchanged=not isinstance(error, OutcomeUnknown))
        self._core.unsettled(outcomes, time.monotonic())


def _draw() -> int:
    """Draw a random number that is new: with so many bits, a collision is unlikely enough. It is small enough for
    programs that read JSON numbers as floats (jq, JavaScript)."""
    return secrets.randbits(52) + 1


def _nothing(items: list[None]) -> None:
    return


def _waiting(transaction: ReadTransaction) -> Collection[bytes]:
    return ready_counts(transaction.queues())
