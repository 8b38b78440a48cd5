"""Titanic as a running thing: store, writer, front, reader, dispatcher, services.

threads      job
broker       the broker's loop (integrated), or `lanes`: worker sockets at a broker elsewhere. In this loop runs the
             dispatcher, which sends stored requests to their services. A change that arrives alone is committed here
writer       all other changes of the store: one transaction and one sync for all that have arrived
reader       titanic.reply and the other services that only read
redrive      jobs that retry or close many requests
gather       requests without an answer, with `--gather`
drain        the beginning of a drain, which must not hold up the broker
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from broker import Access
from titanic import cluster
from titanic.commit.writer import Write, Writer
from titanic.dispatch.deliveries import Deliveries, DeliveryNotes
from titanic.dispatch.dispatcher import Dispatcher
from titanic.errors import StoreFailed, TitanicError, disk_trouble
from titanic.facts.audit import Act, Audit, AuditWrite, system_origin
from titanic.facts.closed_steps import ClosedSteps
from titanic.protocol import tsp
from titanic.server.front import LAST, Front, IntegratedFront
from titanic.server.server_access import ServerAccess
from titanic.server.snapshot import (
    NodeSnapshot,
    ServerSnapshot,
    WorkerCounts,
    archive_lag,
    gather,
    refusals,
    service_snapshots,
    shown_totals,
)
from titanic.server.watchdog import Watchdog
from titanic.services.ask import ServiceContext, ServiceFigures
from titanic.services.nodes import rows_of, running_elsewhere
from titanic.services.ownership import Refusals
from titanic.services.reader import Reader
from titanic.services.redriver import Redriver
from titanic.services.service_handler import ServiceHandler
from titanic.settings import LIVE, ServerConfig
from titanic.store import (
    HistoryWriter,
    NodeFacts,
    ReadTransaction,
    SharedReadTransaction,
    SharedStore,
    open_store,
)
from titanic.version import __version__

log = logging.getLogger(__name__)

RELOAD_SECONDS = 10.0
"""Maximum time that `reload` waits until the broker's loop applies the new access file."""

ENDING = "shutting down: try again in a moment"
"""The answer to new requests during the shutdown."""

DRAINING = tsp.draining("this node is shutting down: use another node")
CUT_OFF = tsp.draining("this node cannot reach the database, but others may: use another node")
"""The answer of a node that is cut off while other nodes serve."""


class Server:
    """A Titanic server. `start`, then `stop`; or use it as a context manager."""

    def __init__(self, config: ServerConfig) -> None:
        """Open the store and bind the endpoints: raises StoreError, broker.EndpointError, or broker.AccessError for an
        access file with a fault."""
        self.config = config
        self.control = ServerAccess(config.access, config.key) if config.access and config.key else None
        """The access control; None: everything is allowed."""
        self.store = open_store(
            config.store,
            capacity=config.capacity,
            preallocate=config.preallocate,
            closed_body_limit=config.closed_body_limit,
            drop_unarchived=config.drop_unarchived,
            durability=config.durability,
        )
        self._limits: cluster.SharedLimits | None = None
        """The limits of services, if servers that share the store have them in common."""
        if isinstance(config.store, str) and cast(SharedStore, self.store).notifications is not None:
            try:
                self._limits = cluster.SharedLimits(self.store, config.limits)
            except BaseException:
                self.store.discard()
                raise
            config = self.config = replace(config, limits=self._limits.held)
        self.writer = Writer(self.store)
        queue = os.urandom(8).hex()
        try:
            self.front: Front
            if config.broker is None:
                self.front = IntegratedFront(config, self.control)
            else:
                from titanic.server.attached_front import AttachedFront  # few have their broker elsewhere

                self.front = AttachedFront(config, config.broker, self.store.place, queue)
        except BaseException:
            self.store.discard()
            raise
        self.endpoints, self.gathers = self.front.endpoints, self.front.gathers
        """The endpoints for clients and for requests without an answer, with real ports."""
        self._audit = Audit(self, self.store.now_us, self.store.facts_room)
        self._refusals = Refusals(audit=self._audit)
        self.shares = self.store.remote
        """Whether other nodes may share the store."""
        self.broker = self.front.broker
        """The broker in this process; None: it is separate."""
        self.congested = self.front.congested
        self._reader = Reader(self.store, self._refusals, self, self._audit)
        front, store, writer, reader = self.front, self.store, self.writer, self._reader
        parts = config, store, writer, reader, front.send_answers, front.loop, front.most_waiters
        self._shared = cluster.ClusterDispatcher(*parts, host=self, limits=self._limits) if store.remote else None
        self.node = None if self._shared is None else self._shared.node
        """This server as a node of a shared store; None: the store is not shared."""
        self.dispatcher = self._shared or Dispatcher(*parts)
        self._know_deliveries(config.store)
        self._context = ServiceContext(
            front.send_answers,
            self.dispatcher,
            writer.clock_jumps,
            writer.facts,
            front.most_body,
            config.wire.max_waiting_bytes,
            self._refusals,
            self._audit,
            host=self,
            settings=self.dispatcher.settings,
            histories=HistoryWriter(store.facts_room, config.closed_body_limit),
            closed_steps=ClosedSteps(store.facts_room),
            keep_body=config.keep_body,
            queue=queue,
        )
        self._drains = False
        """Whether clients and workers are redirected because of that."""
        self.draining = False
        """Whether it is draining: it stops when it is idle."""
        self._redriver = Redriver(self._context, store)
        self.wake_jobs = self._redriver.wake
        self._services = ServiceHandler(self.store, self.writer, self._reader, self._context)
        threads = {"writer": self.writer.call, "reader": self._reader.call}
        self.watchdog = Watchdog(threads | self.front.threads())

    def _know_deliveries(self, place: Path | str) -> None:
        """Have workers keep their requests, if requests wait for their return; else a stop waits for them."""
        dispatcher, patience = self.dispatcher, self.config.wire.worker_return
        if not patience:
            return
        with self.store.read() as transaction:
            identity = transaction.identity()
            if self.store.remote:
                dispatcher.delivery_key = cast(SharedReadTransaction, transaction).delivery_key()
                dispatcher.decides_within = 2 * self.config.lease.lease + patience
        if identity is None:  # a damaged store has none until it is opened again
            return
        dispatcher.store_id = identity.hex()
        if isinstance(place, Path):
            dispatcher.deliveries = DeliveryNotes(place, identity, self.store.now_us)
        else:
            dispatcher.deliveries = Deliveries()

    def start(self) -> Server:
        """Start the threads. An invalid endpoint raises broker.EndpointError."""
        try:
            self.front.start(self.dispatcher, self._services.handle_batch)
        except BaseException:
            self._end(started=False)
            raise
        self.writer.start()
        self._reader.start()
        self.dispatcher.start()
        self._redriver.start()
        self._record_access()
        return self

    def drain(self) -> None:
        """Drain a node of a shared store: it is `drained` when it is idle. Any thread may call it.

        New requests are refused, so that clients go to another node. No more requests are claimed, and those that no
        worker has are returned. Workers finish their requests and are redirected to other nodes as they become free.
        """
        if not self.draining and self.node is not None:
            self.draining = True
            threading.Thread(target=self._drain, name="drain", daemon=True).start()

    def _drain(self) -> None:
        self.front.stop_gathering(LAST)  # first: what was gathered can only be stored here
        self._turn_away()

    def _turn_away(self, *, ending: bool = False) -> None:
        node, dispatcher = self.node, self.dispatcher
        if node is not None:
            self._drains = True
            self._refuse()
            dispatcher.call(node.drain)
            dispatcher.call(dispatcher.waiters.dismiss, DRAINING)
            if self.broker is not None:  # workers of a separate broker stay there
                self.broker.wind_down(ending=ending)

    def cut_off_changed(self) -> None:
        """Send clients and idle workers to other nodes while this one is cut off. Called in the loop's thread."""
        node = self.node
        if node is not None:
            self._refuse()
            if node.cut_off:
                self.dispatcher.waiters.send_away(CUT_OFF)
            if self.broker is not None:
                self.broker.cut_off(node.cut_off)

    def _refuse(self) -> None:
        cut_off = self.node is not None and self.node.cut_off
        self._context.refusing = DRAINING if self._drains else CUT_OFF if cut_off else None

    @property
    def elsewhere(self) -> str:
        """Why clients and workers are sent to other nodes; empty: they are not. Any thread may call it."""
        if self.draining:
            return "draining"
        node = self.node
        return "cut off: this node cannot reach the database" if node is not None and node.cut_off else ""

    @property
    def drained(self) -> bool:
        """Whether it has been idle since `drain`: it can be stopped."""
        node = self.node
        return self._drains and self.draining and node is not None and node.has_left and not self.workers

    def stop(self, *, started: bool = True) -> None:
        """Finish the requests in hand and stop.

        New requests are refused. Workers have `grace` seconds to return their replies; requests that take longer are
        executed again after the next start. If the store has failed, nothing is waited for. Not `started`: the server
        cannot serve; then, as with a `problem`, an empty store that was created for it is deleted. A node of a shared
        store is drained first, within `grace`.
        """
        self.front.stop_gathering(LAST if self.store.usable else 0.0)
        if self.node is None:
            self._context.refusing = tsp.failure(ENDING)
        else:
            self._turn_away(ending=True)
        self.dispatcher.wind_down(self.config.grace)
        self._redriver.stop()
        self.record(AuditWrite(self._audit, flush=True))
        if self.dispatcher.deliveries is not None:
            self.front.end_soon()
            if self.node is not None:
                self.dispatcher.call(self.node.returning.keep)
        self.dispatcher.stop()
        self._reader.stop()
        self.writer.stop()
        self._end(started=started and self.problem is None)

    @property
    def problem(self) -> TitanicError | None:
        """Why it cannot serve, if that is discovered after `start`. It is not `alive` then."""
        node = self.node
        return self.front.problem or (node.problem if node is not None else None)

    @property
    def running(self) -> int:
        """Requests that a worker has or that wait for their outcome to be stored."""
        return len(self.dispatcher.core.flights)

    @property
    def accepted(self) -> int:
        """Requests accepted since the start."""
        return self._context.counts["accepted"]

    @property
    def gathered(self) -> dict[str, int]:
        """Gathered messages: "stored", "dropped", and "waiting" for either."""
        return self.front.gathered()

    @property
    def workers(self) -> dict[bytes, int] | None:
        """How many workers each service has; None: only the broker elsewhere knows."""
        return None if self.broker is None else self.broker.workers()

    def snapshot(self) -> ServerSnapshot:
        """Counters and current figures. Any thread may call it; it takes some milliseconds with many services."""
        workers: WorkerCounts | None = self.workers
        if workers is None and self.ready:
            workers = self.dispatcher.workers()
        with self.store.read() as transaction:
            node = self.node
            elsewhere = {} if node is None else running_elsewhere(rows_of(transaction), node.incarnation())
            running, skip = self.dispatcher.in_flight(), self.dispatcher.running()
            named = self._context.named.choose(transaction, {*running, *(workers or ())})
            services = service_snapshots(transaction, named, running, elsewhere, skip, workers, self.store.now_us())
            store_id = (transaction.identity() or b"").hex()
            space = transaction.space()
            full_in = self._context.fill_rate.full_in(time.monotonic(), transaction)
            counts = transaction.counts()
            lag = archive_lag(transaction, self.store.now_us())
            about_node = None if node is None else self._node_snapshot(node, transaction)
        return ServerSnapshot(
            counted={**self._services.counts, **self.dispatcher.core.counts},
            refused=dict(self._context.refused),
            refused_users=refusals(self._context.refused_users.copy()),
            forbidden=self.forbidden(),
            services=services,
            totals=shown_totals(self.writer.facts.since_start()),
            paused=sorted(name.decode(errors="replace") for name in self.dispatcher.settings.paused),
            store=counts,
            durability=self.store.durability,
            store_id=store_id,
            usable=self.store.usable,
            full=space.full,
            full_in=full_in,
            disk_full=space.disk_full,
            archive_lag=lag,
            backed_up_at=self.store.backed_up_at,
            readers=self.store.readers(),
            waiting_clients=len(self.dispatcher.waiters),
            commit_seconds=self.writer.seconds,
            commit_sizes=self.writer.sizes,
            lags=self.watchdog.lags(time.monotonic()),
            broker=None if self.broker is None else self.broker.counters(),
            node=about_node,
        )

    def _node_snapshot(self, node: cluster.ClaimingNode, transaction: ReadTransaction) -> NodeSnapshot:
        rows = cast(SharedReadTransaction, transaction).nodes()
        draining = sum(row.draining for row in rows)
        return NodeSnapshot(self.facts().name, len(rows), draining, node.lease_left, node.held, node.leases_lost)

    @property
    def access(self) -> Access | None:
        """The users now; None: only the broker knows them, or there is no access control. Any thread may ask."""
        return None if self.control is None else self.control.access

    def others(self) -> bool:
        """Whether other nodes are alive, as far as this one knows."""
        return self.node is not None and self.node.others()

    def incarnation(self) -> int | None:
        """The number under which this node claims requests, if it has one now."""
        return None if self.node is None else self.node.incarnation()

    def awaited_for(self, incarnation: int) -> float | None:
        """For how many seconds more this node awaits the workers of one that has ended, as far as it knows."""
        return None if self.node is None else self.node.awaited_for(incarnation)

    def figures(self) -> ServiceFigures:
        """Figures of services at this server."""
        dispatcher, workers = self.dispatcher, self.workers
        counts = dispatcher.workers() if workers is None else workers
        return ServiceFigures(dispatcher.in_flight(), counts, dispatcher.core.ended.copy())

    def record(self, write: Write) -> None:
        """Have acts, refusals and steps of jobs written. Any thread may call it."""
        self.front.loop.call(self.writer.enqueue, write)

    def _record_access(self, acts: Sequence[Act] = ()) -> None:
        access = None if self.control is None else (self.facts().name, self.control.digest)
        if acts or access:
            self.record(AuditWrite(self._audit, acts, access=access))

    def forbidden(self) -> dict[tuple[str, str], int]:
        """Numbers of refusals, by user and action."""
        return refusals(self._refusals.counts, {} if self.broker is None else self.broker.refusals())

    def facts(self) -> NodeFacts:
        """What this node publishes to other nodes. Any thread may call it."""
        workers, running = self.workers, self.dispatcher.in_flight()
        if workers is None:
            workers = {name: count or 0 for name, count in self.dispatcher.workers().items()}
        named = gather({}, running, workers)
        services = {name: (workers.get(name, 0), running.get(name, 0)) for name in named}
        config = self.config
        endpoints = config.advertise or self.endpoints
        access = "open" if config.broker is None else ""
        if self.control is not None:
            access = self.control.digest
        return NodeFacts(config.node_name or socket.gethostname(), __version__, endpoints, services, access)

    def shortages(self) -> dict[str, str]:
        """Why requests are refused now, and what to do: no room ("store", "disk"), or no database ("database"). Any
        thread may call it."""
        try:
            with self.store.read() as transaction:
                space = transaction.space()
                self._context.fill_rate.full_in(time.monotonic(), transaction)
        except StoreFailed as error:
            if not self.store.remote:
                raise
            return {"database": str(error)}
        found = {"store": "the store is full; close requests, or raise its capacity"} if space.full else {}
        if space.disk_full:
            what, _, advice = disk_trouble(self.store.place, space.disk_free)  # a number would be logged as it changes
            found["disk"] = f"{what}; {advice}"
        return found

    def reload(self, config: ServerConfig) -> None:
        """Apply the LIVE settings of `config` and the access file; the others stay. Raises broker.AccessError for a
        fault in that file, and StoreError if the shared limits of services cannot be changed: then nothing changes."""
        access = None if self.control is None else self.control.read_again()
        if self._limits is not None and self._shared is not None:
            self._limits.change(config.limits)
            self._shared.publish_settings()
            config = replace(config, limits=self._limits.held)
        changed = [name for name in LIVE if getattr(self.config, name) != getattr(config, name)]
        acts = [system_origin().act("settings", text=f"reloaded: {', '.join(changed)}")] if changed else []
        self.config = replace(self.config, **{name: getattr(config, name) for name in LIVE})
        self._context.keep_body = self.config.keep_body
        self.dispatcher.reconfigure(self.config)
        if self.control is not None and access is not None:
            if text := self.control.swap(access):
                acts.append(system_origin().act("access", text=text))
            self.front.reload(access)
            self.front.loop.call(self.dispatcher.waiters.review, access)
            in_force = threading.Event()
            self.front.loop.call(in_force.set)
            in_force.wait(RELOAD_SECONDS)
        self._record_access(acts)

    def send_workers_on(self, most: int | None = None) -> None:
        """Send idle workers to other nodes, at most `most`, by default all. Any thread may call it."""
        if self.broker is not None:
            self.broker.send_on(most)

    def shared_limits_changed(self) -> None:
        """Apply the shared limits, which another node has changed. Called in the loop's thread."""
        if self._limits is not None:
            self.config = replace(self.config, limits=self._limits.held)
            self.dispatcher.reconfigure(self.config)

    def _end(self, *, started: bool) -> None:
        """Close everything once the threads that use the store have ended."""
        self.dispatcher.stop()
        self.front.stop()
        self._refusals.finish()
        if self.dispatcher.deliveries is not None:
            self.dispatcher.deliveries.close()
        if started:
            self.writer.finish()
            self.store.close()
        else:
            self.store.discard()

    @property
    def ready(self) -> bool:
        """Whether clients are served; with a broker elsewhere, not before it has registered our services."""
        return self.alive and self.front.ready

    @property
    def alive(self) -> bool:
        """Whether all threads are running, there is no `problem`, and the store can be used.

        A thread that met an error of this program has logged it and ended; a store has to be opened again after its
        disk failed. Restart it; nothing is lost.
        """
        return self.problem is None and self.store.usable and self.dispatcher.alive and self.front.alive

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
