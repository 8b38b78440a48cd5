"""The other nodes of a shared store: notifications to them, notifications from them, and the poll that finds the same.

    committed here ──publish──► notification ──heard──► the other nodes
    arrived, returned                                   claim requests
    ended, expired, closed                              wake the clients that wait for the reply
    closed what another node has claimed                take it back from the broker; then settle the recall
    settled a recall                                    answer the client that closed the request
    progress of a worker                                show it
    a worker came with what another has                 wait longer for that worker

Notifications may be lost. So each node polls every POLL_INTERVAL seconds, in one round trip, and finds the same. It
also polls after a new connection for notifications, and when a notification had to leave something out.

A close is answered when no worker can receive the request any more, neither at this node (the core knows) nor at the
others. For those, the recall in the database decides: the node that had claimed the request settles it, or that node's
incarnation is over. A node that has lost its incarnation may go on with what it holds under the next one, so it gets
PATIENCE more seconds to find the recall.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from json import dumps
from typing import NamedTuple, cast

from titanic.cluster.background import BackgroundRead, BackgroundReader
from titanic.cluster.node import ClaimingNode, Host
from titanic.cluster.node_writes import NodeWrite
from titanic.cluster.shared_settings import ServiceSettingsCache
from titanic.commit.writer import Writer
from titanic.dispatch.attempts import Flight
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.dispatcher import Dispatcher
from titanic.dispatch.waiters import Waiters
from titanic.errors import StoreError
from titanic.logs import Incident, event
from titanic.protocol.tsp import Progress, read_progress
from titanic.services.ask import CloseDoubt, Inbox, WaitingCloses
from titanic.store import (
    ClusterView,
    NodeRow,
    Notification,
    NotificationChannel,
    ReadTransaction,
    Recall,
    SharedReadTransaction,
    SharedWriteTransaction,
    StatusQuery,
    Topic,
    WriteTransaction,
)

log = logging.getLogger(__name__)

POLL_INTERVAL = 1.5
"""Seconds between polls for changes by other nodes."""

MIN_POLL_INTERVAL = 0.05
"""The same, at least, after a notification that left something out."""

SHARE = 10
"""A slow poll is followed by a pause that is this many times as long."""

NAMESAKES = 2.0
"""Leases after which another node of the same name is not this node's predecessor."""

PATIENCE = 2 * POLL_INTERVAL
"""Seconds that a node has to find a recall after the end of the incarnation that it was for."""


BALANCE_EVERY = 60.0
"""Seconds between checks whether this node has more workers than its share."""

CROWDED = 1.25
"""It has more than its share if it has this many times its share."""

SENT_ON = 10
"""Each time one in this many workers is sent on, at least one."""


SAME_NAME = "another node has the same name; both are listed with their incarnations; give each its own --node-name"


PROGRESS_INTERVAL = 1.0
"""Seconds, at least, between two notifications of progress."""

MAX_REMEMBERED = 10_000
"""Requests of others that are remembered; of more, the oldest are forgotten."""

_OVER = b""


class ProgressElsewhere:
    """Progress of requests at other nodes: each node publishes its own about once a second and remembers what it
    receives. Nothing is stored. Methods are called in the loop's thread, `get` in any."""

    def __init__(self, line: NotificationChannel, flights: Mapping[bytes, Flight]) -> None:
        self._line = line
        self._flights = flights
        self._published: dict[bytes, Progress] = {}
        self._publish_at = 0.0
        self._heard: dict[bytes, Progress] = {}

    def publish(self, now: float) -> None:
        """Publish new progress to the other nodes, if that is due."""
        if now < self._publish_at or self._line.alone:
            return
        self._publish_at = now + PROGRESS_INTERVAL
        far = {uuid: one.progress for uuid, one in self._flights.items() if one.progress is not None}
        news = {uuid: dumps(said).encode() for uuid, said in far.items() if self._published.get(uuid) is not said}
        news |= {uuid: _OVER for uuid in self._published if uuid not in far}
        self._published = far
        if news:
            self._line.publish(Notification(progress=news))

    def heard(self, news: Mapping[bytes, bytes]) -> None:
        """Remember another node's progress."""
        for uuid, text in news.items():
            self._heard.pop(uuid, None)
            if (progress := read_progress(text)) is not None:
                self._heard[uuid] = progress
        while len(self._heard) > MAX_REMEMBERED:
            del self._heard[next(iter(self._heard))]

    def ended(self, uuids: Collection[bytes]) -> None:
        """These have ended."""
        for uuid in uuids:
            self._heard.pop(uuid, None)

    def get(self, uuid: bytes) -> Progress | None:
        """Return the last progress of this request that another node has published."""
        return self._heard.get(uuid)


class SettleWrite(NodeWrite):
    """Remove recalls."""

    def __init__(self, inbox: Inbox[NodeWrite], recalls: Sequence[tuple[bytes, int]]) -> None:
        super().__init__(inbox)
        self.recalls = recalls

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        cast(SharedWriteTransaction, transaction).settle(self.recalls)

    def __len__(self) -> int:
        return len(self.recalls)


class WithdrawRecalled(NamedTuple):
    """Other nodes have closed these requests. Each has the incarnation that had claimed it."""

    recalls: Sequence[tuple[bytes, int]]


class RecallsRead(BackgroundRead[Sequence[Recall]]):
    """The recalls of closed requests that are still there."""

    def __init__(self, uuids: Collection[bytes]) -> None:
        self.uuids = uuids

    def read(self, transaction: ReadTransaction) -> Sequence[Recall]:
        return cast(SharedReadTransaction, transaction).recalled(self.uuids)


class NodesRead(BackgroundRead[Sequence[NodeRow]]):
    """All nodes."""

    def read(self, transaction: ReadTransaction) -> Sequence[NodeRow]:
        return cast(SharedReadTransaction, transaction).nodes()


class ClusterRead(BackgroundRead[ClusterView]):
    """The poll for changes by other nodes."""

    def __init__(self, query: StatusQuery) -> None:
        self.query = query

    def read(self, transaction: ReadTransaction) -> ClusterView:
        return cast(SharedReadTransaction, transaction).cluster_view(self.query)


ClusterNotice = NodeWrite | Notification | WithdrawRecalled


class Cluster:
    """Methods are called in the loop's thread, `arrived` in any."""

    def __init__(
        self,
        line: NotificationChannel,
        node: ClaimingNode,
        core: DispatchCore,
        waiters: Waiters,
        dispatcher: Dispatcher,
        writer: Writer,
        background: BackgroundReader,
        settings: ServiceSettingsCache,
        host: Host,
        inbox: Inbox[ClusterNotice],
    ) -> None:
        self._line = line
        self._node = node
        self._core = core
        self._waiters = waiters
        self._dispatcher = dispatcher
        self._writer = writer
        self._background = background
        self._settings = settings
        self._host = host
        self._inbox = inbox
        self.progress = ProgressElsewhere(line, core.flights)
        """Progress of requests at other nodes."""
        self._own: set[int] = set()
        """The incarnations that this node has had."""
        self._poll_at: float | None = None
        """When to poll; None: not started."""
        self._polling = self._hurried = False
        """Whether a poll is under way, and whether another one is to follow soon."""
        self._began = 0.0
        """When the last poll began."""
        self._others: float = math.inf
        """How many other nodes there were at the last poll."""
        self._expected = WaitingCloses()
        """The closes that wait for other nodes."""
        self._over_since: dict[bytes, float] = {}
        """When it became known that the incarnation which had to withdraw a request is over."""
        self._taking_back: dict[bytes, int] = {}
        """Requests that other nodes have closed and a worker here may still get, with the incarnation that claimed
        them."""
        self._withdrawing: dict[bytes, int] = {}
        """Those among them that the broker is to withdraw."""
        self._settled: list[tuple[bytes, int]] = []
        """Recalls that are to be removed."""
        self._balance_at = math.inf
        self._namesakes_since: float | None = None
        """Since when others have this node's name; infinite once that was logged."""
        self._incident = Incident(log, "poll for changes by other nodes")

    def begin(self) -> None:
        """Listen, and poll."""
        self._poll_at = 0.0
        self._balance_at = time.monotonic() + BALANCE_EVERY
        self._line.start(self._inbox.post)

    # -- notifications of this node ----------------------------------------------------------------------------

    def arrived(self, services: Collection[bytes]) -> None:
        """These services have something more to be claimed."""
        if services and not self._line.alone:
            self._line.publish(Notification(arrived=set(services)))

    def ended(self, uuids: Collection[bytes]) -> None:
        """These have ended, or are closed."""
        if uuids and not self._line.alone:
            self._line.publish(Notification(ended=set(uuids)))

    def settings_changed(self) -> None:
        """Publish that settings of a service have changed."""
        if not self._line.alone:
            self._line.publish(Notification(poll={Topic.SETTINGS}))

    def closed(self, doubts: Sequence[CloseDoubt]) -> None:
        """Requests were closed at this node. The doubts are handed on as soon as no other node can give a worker any of
        the requests."""
        if (kill := {uuid for one in doubts if one.alive is not None for uuid in one.uuids}) and not self._line.alone:
            self._line.publish(Notification(kill=kill))
        uuids = set[bytes]()
        for doubt in doubts:
            if doubt.uuids:
                self._expected.add(doubt, set(doubt.uuids))
                uuids.update(doubt.uuids)
            else:
                self._dispatcher.keep_pending(doubt)
        if uuids:
            self._background.ask(RecallsRead(uuids))

    # -- time --------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        if self._settled:
            return 0.0
        return None if self._polling else self._poll_at

    def tick(self, now: float) -> None:
        """Remove recalls that are settled. Poll, when that is due."""
        if self._settled:
            settled, self._settled = self._settled, []
            self._writer.enqueue(SettleWrite(self._inbox, settled))
        if self._poll_at is None or self._polling or now < self._poll_at:
            return
        if now >= self._balance_at and not self._line.alone:
            self._balance_at = now + BALANCE_EVERY
            self._background.ask(NodesRead())
        self._polling, self._hurried, self._began = True, False, now
        self.progress.publish(now)
        self._know_own()
        flights = self._core.flights
        query = StatusQuery(
            self._waiters.awaited(),
            [uuid for uuid, flight in flights.items() if not flight.closed],
            list(self._own),
            list(self._expected),
        )
        self._background.ask(ClusterRead(query))

    def hurry(self) -> None:
        """Poll soon."""
        self._hurried = True
        if self._poll_at is not None and not self._polling:
            self._poll_at = min(self._poll_at, self._began + MIN_POLL_INTERVAL)

    # -- notifications of others -----------------------------------------------------------------------------------

    def heard(self, news: Notification) -> None:
        """Another node has published this."""
        if news.arrived:
            self._node.arrived_elsewhere(news.arrived)
        if news.progress:
            self.progress.heard(news.progress)
        if news.ended:
            self._waiters.wake(news.ended)
            self.progress.ended(news.ended)
        self._core.closed((), news.kill)
        self._node.returning.brought_elsewhere(news.brought)
        if news.closed:
            self._know_own()
            self._take_back_soon([(uuid, one) for uuid, one in news.closed.items() if one in self._own])
        for uuid in news.certain:
            if uuid not in news.alive:
                for alive in self._expected.killing(uuid):
                    alive[:] = [one for one in alive if one != uuid]  # several times after several closes, or never
            self._over(uuid)
        if Topic.SETTINGS in news.poll:
            self._settings.refresh()
        if news.poll:
            self.hurry()

    def _know_own(self) -> None:
        lease = self._node.claims.lease
        self._own.update(number for number in (lease.incarnation, lease.drawn) if number is not None)

    def seen(self, answer: ClusterRead) -> None:
        """Take over what the poll has found."""
        self._polled()
        if answer.error is not None:
            self._not_seen(answer.error)
            return
        self._incident.recovered()
        sight = answer.found
        self._waiters.wake(sight.ended)
        if sight.closed:
            self._core.closed(sight.closed)
        if sight.recalls:
            self._take_back_soon([(uuid, incarnation) for uuid, incarnation, _ in sight.recalls])
        self._found_recalled(answer.query.recalled, sight.recalled)
        self._know_namesakes(sight.namesakes)
        if sight.others < self._others:  # what one that has ended had delayed may be due
            self._dispatcher.maintenance.refresh_alarm()
        self._others = sight.others
        news = self._line.alone and sight.others > 0
        self._line.alone = sight.others == 0
        if news:
            self._line.publish(Notification())

    def _know_namesakes(self, count: int) -> None:
        """Say so when others have this node's name, unless it is that of its killed predecessor, which ends soon."""
        now, config = time.monotonic(), self._node.claims.lease.config
        if not count:
            self._namesakes_since = None
        elif self._namesakes_since is None:
            self._namesakes_since = now
        elif now > self._namesakes_since + NAMESAKES * config.lease:
            self._namesakes_since = math.inf
            log.warning(SAME_NAME, extra=event("same-name"))

    def balance(self, answer: NodesRead) -> None:
        """Send some idle workers on if this node has more than its share, as after a restart of the others."""
        if answer.error is not None:
            self._incident.failed(answer.error)
            return
        rows = [row for row in answer.found if not row.draining]
        mine = sum(row.workers for row in rows if row.incarnation == self._node.incarnation())
        share = sum(row.workers for row in rows) / max(1, len(rows))
        if mine > CROWDED * share and mine > 1 + min(row.workers for row in rows):
            most = max(1, mine // SENT_ON)
            text = "this node has %d workers, its share is %.1f: sending up to %d idle ones to other nodes"
            log.info(text, mine, share, most, extra=event("workers-sent-on"))
            self._host.send_workers_on(most)

    def _not_seen(self, error: StoreError) -> None:
        self._incident.failed(error)

    def _polled(self) -> None:
        now = time.monotonic()
        took = now - self._began
        self._polling = False
        self._poll_at = now + (max(MIN_POLL_INTERVAL, took) if self._hurried else max(POLL_INTERVAL, SHARE * took))

    # -- closes that wait for others -----------------------------------------------------------------------------

    def found_recalls(self, answer: RecallsRead) -> None:
        """Settle closes, and notify the nodes that the others wait for."""
        if answer.error is not None:
            self._incident.failed(answer.error)
            return
        for uuid in {recall.uuid for recall in answer.found if recall.incarnation not in self._own}:
            for alive in self._expected.killing(uuid):
                alive.append(uuid)  # until its node says that it is not
        self._found_recalled(answer.uuids, answer.found)
        if answer.found:
            self._line.publish(Notification(closed={recall.uuid: recall.incarnation for recall in answer.found}))

    def _found_recalled(self, asked: Collection[bytes], recalls: Sequence[Recall]) -> None:
        """Settle the closes of the requests in `asked` that have no recall left in `recalls`: other nodes have
        withdrawn them."""
        left = {recall.uuid: recall for recall in recalls}
        now = time.monotonic()
        for uuid in asked:
            recall = left.get(uuid)
            if recall is None:
                self._over(uuid)
            elif recall.over and now >= self._over_since.setdefault(uuid, now) + PATIENCE:
                self._over(uuid)
                self._settled.append((uuid, recall.incarnation))

    def _over(self, uuid: bytes) -> None:
        """Note that no other node can send this request to a worker."""
        self._over_since.pop(uuid, None)
        for close in self._expected.over(uuid):
            self._dispatcher.keep_pending(close)

    # -- what others have closed -----------------------------------------------------------------------------------

    def _take_back_soon(self, recalls: Iterable[tuple[bytes, int]]) -> None:
        """Withdraw these soon: claims made before the close may still arrive from the writer."""
        new = {uuid: incarnation for uuid, incarnation in recalls if uuid not in self._taking_back}
        if new:
            self._taking_back |= new
            self._writer.call(self._inbox.post, WithdrawRecalled(list(new.items())))

    def withdraw(self, recalls: Sequence[tuple[bytes, int]]) -> None:
        """Withdraw these from the broker, and settle each when no worker here can get it."""
        uuids = [uuid for uuid, _ in recalls]
        self._core.closed(uuids)
        self._waiters.wake(uuids)
        for uuid, incarnation in recalls:
            if self._core.in_doubt(uuid):
                self._withdrawing[uuid] = incarnation
            else:
                self._settled.append((uuid, incarnation))

    def withdrawn(self, uuid: bytes) -> None:
        """No worker of this node can get this closed request any more."""
        incarnation = self._withdrawing.pop(uuid, None)
        if incarnation is not None:
            self._settled.append((uuid, incarnation))

    def removed(self, write: SettleWrite) -> None:
        """Publish the recalls that were removed; if they were not, the next poll finds them again."""
        uuids = {uuid for uuid, _ in write.recalls}
        if write.error is None:
            alive = {uuid for uuid in uuids if self._core.goes_on(uuid)}
            self._line.publish(Notification(certain=uuids, alive=alive))
        for uuid in uuids:
            self._taking_back.pop(uuid, None)
