"""The dispatcher of a node: of a server that shares its store with others.

It dispatches what the node has claimed (node.py), publishes events that concern other nodes, and receives theirs
(notifications.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import cast

from broker import Loop, earliest
from titanic.cluster.background import BackgroundReader, ClusterMaintenance
from titanic.cluster.node import ClaimingNode, Host
from titanic.cluster.notifications import Cluster
from titanic.cluster.settings import ServiceSettingsCache, SharedLimits
from titanic.commit.writer import Write, Writer
from titanic.dispatch.attempts import Finish
from titanic.dispatch.dispatcher import Dispatcher
from titanic.dispatch.maintenance import Maintenance
from titanic.dispatch.outcomes import Outcomes
from titanic.dispatch.waiters import MOST_WAITERS
from titanic.protocol.tsp import Progress
from titanic.services.ask import Arrived, Closed, CloseDoubt, Notice, SendAnswers, SettingsChanged
from titanic.services.reader import Reader
from titanic.settings import ServerConfig
from titanic.store import SharedStore, Store


class ClusterDispatcher(Dispatcher):
    """A Dispatcher for a store that nodes share."""

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
        store, core, host, call = self._store, self.core, self._host, self.call
        self._background = BackgroundReader(store, reader.call, call)
        self._cache = ServiceSettingsCache(
            store, self._background, self._limits, self.hold_settings, host.limits_changed, call
        )
        channel = cast(SharedStore, store).notifications
        self.node = ClaimingNode(
            config, store, self._writer, core, self, self._background, self._cache, host, channel, self.completions
        )
        """This process as a node of the shared store."""
        self.cluster: Cluster | None = None
        """The other nodes, if notifications go between them."""
        if channel is not None:
            parts = self.node, core, self.waiters, self._pending_closes
            self.cluster = Cluster(channel, *parts, self._writer, self._background, self._cache, host, call)
        return self.node

    def _new_maintenance(self, config: ServerConfig) -> Maintenance:
        reports = self.call, self.expired, self.node.returned, self.completions
        return ClusterMaintenance(config, self._store, self._writer, self.core, *reports, self._background)

    @property
    def lasts(self) -> Callable[[], bool]:
        return self.node.lasts

    def start(self) -> None:
        self.node.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        self.node.stop()

    # -- any thread ------------------------------------------------------------------------------------------

    def post(self, notice: Notice) -> None:
        match notice:
            case Arrived(services, _) if self.cluster is not None:
                self.cluster.arrived(services)
            case SettingsChanged():
                self._cache.changed_here()
                self.publish_settings()
        super().post(notice)

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

    def _reconfigure(self, config: ServerConfig) -> None:
        self.node.reconfigure(config)
        super()._reconfigure(config)

    def _set_stopping(self) -> None:
        super()._set_stopping()
        self.node.claims.drain()

    def _take(self, notice: Notice) -> None:
        if isinstance(notice, Closed):
            self._ended_here(notice.uuids)
        super()._take(notice)
        if isinstance(notice, Arrived) and notice.services:
            self.node.arrived(notice.services)

    def _keep_pending(self, closes: Sequence[CloseDoubt]) -> None:
        if self.cluster is None:
            super()._keep_pending(closes)
        else:
            self.cluster.closed(closes)

    def _withdrawn_from_workers(self, uuid: bytes) -> None:
        self.node.forgotten(uuid)
        super()._withdrawn_from_workers(uuid)

    def _new_write(self, outcomes: Outcomes) -> Write:
        return self.node.outcome_write(outcomes)

    def written(self, done: Outcomes, unchanged: Outcomes, without_room: Outcomes) -> None:
        super().written(done, unchanged, without_room)
        self._ended_here([outcome.uuid for outcome in done if isinstance(outcome, Finish)])

    def expired(self, expired: Sequence[tuple[bytes, bytes]]) -> None:
        super().expired(expired)
        self._ended_here([uuid for uuid, _ in expired])

    def _ended_here(self, uuids: Collection[bytes]) -> None:
        if self.cluster is not None:
            self.cluster.ended(uuids)
