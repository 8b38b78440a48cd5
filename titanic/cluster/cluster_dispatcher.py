"""The dispatcher of a node: of a server that shares its store with others.

It dispatches what the node has claimed (node.py), publishes events that concern other nodes, and receives theirs
(notifications.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

from broker import Loop, earliest
from titanic.cluster.background import BackgroundRead, BackgroundReader, ClusterMaintenance, DueRead
from titanic.cluster.node import ClaimingNode, Host, LeaseAnswer, WaitingRead
from titanic.cluster.node_writes import ClaimWrite, KeepWrite, NodeWrite, ReleaseWrite, TakeOverWrite
from titanic.cluster.notifications import Cluster, ClusterRead, NodesRead, RecallsRead, SettleWrite, WithdrawRecalled
from titanic.cluster.shared_settings import LimitsRead, ServiceSettingsCache, SettingsRead, SharedLimits
from titanic.commit.writer import Writer
from titanic.dispatch.attempts import Finish
from titanic.dispatch.dispatcher import Dispatcher, DispatchNotice
from titanic.dispatch.maintenance import Maintenance, MaintenanceWrite
from titanic.dispatch.outcomes import Outcomes, OutcomeWrite
from titanic.dispatch.transport import Transport
from titanic.dispatch.waiters import MOST_WAITERS
from titanic.protocol.tsp import Progress
from titanic.services.ask import (
    Arrived,
    Closed,
    CloseDoubt,
    Returned,
    SendAnswers,
    SettingsChanged,
    WaitForReplies,
)
from titanic.services.reader import Reader
from titanic.settings import ServerConfig
from titanic.store import Notification, SharedStore, Store

ClusterNotice = DispatchNotice | NodeWrite | LeaseAnswer | BackgroundRead[Any] | Notification | WithdrawRecalled
"""What is reported to the dispatcher of a node."""


class ClusterDispatcher(Dispatcher):
    """A Dispatcher for a store that nodes share."""

    leased = True

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        writer: Writer,
        reader: Reader,
        send_answers: SendAnswers,
        loop: Loop,
        most_waiters: int = MOST_WAITERS,
        *,
        host: Host,
        limits: SharedLimits | None = None,
    ) -> None:
        """`host`: the server. `limits`: those that nodes share, if they share any."""
        self._host = host
        self._limits = limits
        super().__init__(config, store, writer, reader, send_answers, loop, most_waiters)

    def _new_fetching(self, config: ServerConfig, reader: Reader) -> ClaimingNode:
        store, core, host = self._store, self.core, self._host
        self._background = BackgroundReader(store, reader, self)
        self._cache = ServiceSettingsCache(store, self._background, self._limits, self)
        channel = cast(SharedStore, store).notifications
        self.node = ClaimingNode(
            config, store, self._writer, core, self, self._background, self._cache, host, channel, self.completions
        )
        """This process as a node of the shared store."""
        self.cluster: Cluster | None = None
        """The other nodes, if notifications go between them."""
        if channel is not None:
            parts = self.node, core, self.waiters, self, self._writer, self._background, self._cache, host, self
            self.cluster = Cluster(channel, *parts)
        return self.node

    def _new_maintenance(self, config: ServerConfig) -> Maintenance:
        parts = self._store, self._writer, self.core, self, self.completions, self._background
        return ClusterMaintenance(config, *parts)

    def lasts(self) -> bool:
        return self.node.lasts()

    def connect(self, transport: Transport) -> None:
        super().connect(transport)
        self.node.returning.connect(transport, self.deliveries)

    def start(self) -> None:
        self.node.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        self.node.stop()

    # -- any thread ------------------------------------------------------------------------------------------

    def post(self, notice: ClusterNotice) -> None:
        match notice:
            case Arrived(services, _) if self.cluster is not None:
                self.cluster.arrived(services)
            case SettingsChanged(settings):
                self._cache.changed_here()
                self.settings.know(settings)  # for what is written from now on
                self.publish_settings()
        self.loop.call(self.guard, self._take, notice)

    def publish_settings(self) -> None:
        """Notify other nodes that settings or limits of services have changed."""
        if self.cluster is not None:
            self.cluster.settings_changed()

    def progress(self, uuids: Collection[bytes]) -> dict[bytes, Progress]:
        found, flights = super().progress(uuids), self.core.flights
        if self.cluster is not None:
            for uuid in uuids:
                if uuid not in flights and (progress := self.cluster.progress.get(uuid)) is not None:
                    found[uuid] = progress
        return found

    # -- the channel -----------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        super()._tick(now)
        if self.cluster is not None:
            self.cluster.tick(now)

    def next_deadline(self) -> float | None:
        due = super().next_deadline()
        if due == 0.0 or self._ended:
            return due
        return earliest(due, self.node.turn_at, None if self.cluster is None else self.cluster.next_deadline())

    def _flush(self, now: float) -> None:
        self.node.turn(now)
        super()._flush(now)

    # -- inside ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        super()._begin()
        if self.cluster is not None:
            self.cluster.begin()

    def _read_settings(self) -> None:
        """Do nothing: they are read before the first claim."""

    def _configure(self, config: ServerConfig) -> None:
        self.node.reconfigure(config)
        super()._configure(config)

    def _set_stopping(self) -> None:
        super()._set_stopping()
        self.node.claims.drain()

    def _take(self, notice: ClusterNotice) -> None:
        node, cluster = self.node, self.cluster
        match notice:
            case ClaimWrite():
                node.claimed(notice)
            case ReleaseWrite():
                node.released(notice)
            case TakeOverWrite():
                node.returning.answered(notice)
            case KeepWrite() if notice.error is None:
                node.claims.keep(notice.places)
            case LeaseAnswer():
                node.answered(notice)
            case WaitingRead():
                node.found_waiting(notice)
            case DueRead():
                notice.maintenance.polled(notice)
            case SettingsRead():
                if self._cache.found(notice):
                    self.hold_settings(notice.found)
            case LimitsRead():
                if self._cache.found_limits(notice):
                    self._host.shared_limits_changed()
            case Notification() if cluster is not None:
                cluster.heard(notice)
            case ClusterRead() if cluster is not None:
                cluster.seen(notice)
            case NodesRead() if cluster is not None:
                cluster.balance(notice)
            case RecallsRead() if cluster is not None:
                cluster.found_recalls(notice)
            case WithdrawRecalled(recalls) if cluster is not None:
                cluster.withdraw(recalls)
            case SettleWrite() if cluster is not None:
                cluster.removed(notice)
            case Closed(uuids):
                self._ended_here(uuids)
                super()._take(notice)
            case Arrived(services):
                super()._take(notice)
                if services:
                    node.arrived(services)
            case Returned() | SettingsChanged() | WaitForReplies() | OutcomeWrite() | MaintenanceWrite():
                super()._take(notice)

    def _keep_pending(self, closes: Sequence[CloseDoubt]) -> None:
        if self.cluster is None:
            super()._keep_pending(closes)
        else:
            self.cluster.closed(closes)

    def _withdrawn_from_workers(self, uuid: bytes) -> None:
        self.node.forgotten(uuid)
        super()._withdrawn_from_workers(uuid)
        if self.cluster is not None:
            self.cluster.withdrawn(uuid)

    def _outcome_write(self, outcomes: Outcomes) -> OutcomeWrite:
        return self.node.outcome_write(outcomes)

    def _returned(self, services: Collection[bytes]) -> None:
        self.node.returned(services)

    def _written(self, write: OutcomeWrite) -> None:
        self.node.written(write)
        super()._written(write)
        self._ended_here([outcome.uuid for outcome in write.done if isinstance(outcome, Finish)])

    def _expired(self, expired: Sequence[tuple[bytes, bytes]]) -> None:
        super()._expired(expired)
        self._ended_here([uuid for uuid, _ in expired])

    def _ended_here(self, uuids: Collection[bytes]) -> None:
        if self.cluster is not None:
            self.cluster.ended(uuids)
