"""What nodes read and write in the store that they share: notifications, recalls, limits, and what each node reports.

*Notifications* only save time. Each node also polls every second or two (`cluster_view`), so a notification may be
lost, repeated, late or out of order. They go through the database: no node needs to reach another.

*Recalls.* A request that is closed while another node has claimed it may be on its way to a worker there. The close
leaves a recall for that node, in the same commit. The node withdraws the request from its broker unless a worker
already has it; when no worker can receive it any more, the node removes the recall. Then the close is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from titanic.store.interface import ReadTransaction, Store, WriteTransaction
from titanic.store.records import Page
from titanic.store.service_settings import Limits

# -- notifications -------------------------------------------------------------------------------------------


class Topic(Enum):
    """What a notification is about."""

    ARRIVED = "arrived"
    ENDED = "ended"
    CLOSED = "closed"
    CERTAIN = "certain"
    SETTINGS = "settings"


@dataclass(slots=True)
class Notification:
    """What a node has committed. An empty one says that the node is there.

    `arrived`: services with more requests to claim. `ended`: requests that have ended or are closed, for the clients
    that wait for replies. `closed`: closed requests, each with the incarnation that had claimed it and is to withdraw
    it. `kill`: closed requests whose processes are to be killed. `certain`: requests that no worker at the node can
    receive any more. `alive`: those among them that a worker goes on with. `progress`: the progress of the node's
    workers with these requests, a JSON object each, empty when an attempt is over. `brought`: requests of other nodes
    with which workers have come to this one, and go on. `poll`: topics to poll, because not all of their news fits
    here.
    """

    arrived: set[bytes] = field(default_factory=set)
    ended: set[bytes] = field(default_factory=set)
    closed: dict[bytes, int] = field(default_factory=dict)
    certain: set[bytes] = field(default_factory=set)
    poll: set[Topic] = field(default_factory=set)
    progress: dict[bytes, bytes] = field(default_factory=dict)
    kill: set[bytes] = field(default_factory=set)
    alive: set[bytes] = field(default_factory=set)
    brought: set[bytes] = field(default_factory=set)

    def add(self, more: Notification) -> None:
        """Include another notification."""
        self.arrived |= more.arrived
        self.ended |= more.ended
        self.closed |= more.closed
        self.certain |= more.certain
        self.poll |= more.poll
        self.progress |= more.progress
        self.kill |= more.kill
        self.alive |= more.alive
        self.brought |= more.brought


Heard = Callable[[Notification], None]
"""Takes what another node has published."""


class NotificationChannel(Protocol):
    """Carries notifications between the nodes of a store."""

    alone: bool
    """Whether no other node is known to live: then nothing is sent. Polling sets it; a notification from another node
    clears it."""

    def start(self, heard: Heard) -> None:
        """Listen from now on. `heard` is called in a thread of its own. After a reconnect it is called with all topics
        in `poll`, because notifications may have been missed."""

    def publish(self, news: Notification) -> None:
        """Send a notification soon. Any thread may call it, after the commit; it never blocks."""

    def stop(self) -> None:
        """Send what is left, if that is quick, and end."""


# -- nodes ---------------------------------------------------------------------------------------------------


class NodeRow(NamedTuple):
    """An incarnation of a node, as the node reported it when it renewed its lease.

    `lease`: seconds until it ends unless it is renewed, by the clock of the store; None: it has ended. `started_at`:
    when the incarnation began, in µs since the epoch. `services`: the number of workers and of requests in flight, for
    each service that has any. `claims`: how many requests it has claimed; None: they were not counted. `access`: the
    first 16 digits of the SHA-256 of its access file; "open": it has none; empty: unknown.
    """

    incarnation: int
    name: str
    version: str
    endpoints: Sequence[str]
    started_at: int
    lease: float | None
    services: Mapping[str, tuple[int, int]]
    draining: bool
    shard: int
    claims: int | None
    access: str = ""

    @property
    def workers(self) -> int:
        """How many workers it has."""
        return sum(workers for workers, _ in self.services.values())

    @property
    def running(self) -> int:
        """How many requests are in flight there."""
        return sum(running for _, running in self.services.values())


class NodesReadTransaction(ReadTransaction, Protocol):
    """A read transaction of a `remote` store."""

    def delivery_key(self) -> bytes:
        """The key by which all nodes know the secrets of deliveries."""

    def nodes(self) -> list[NodeRow]:
        """The living incarnations."""

    def nodes_and_claims(self) -> list[NodeRow]:
        """The same with what each has claimed, and dead incarnations that still have claims. Reads all waiting rows."""


class NodesWriteTransaction(WriteTransaction, NodesReadTransaction, Protocol):
    """A write transaction of a `remote` store."""

    def drain_nodes(self, incarnations: Collection[int]) -> None:
        """Drain these incarnations, those of them that live: each reads it when it renews its lease, and ends when it
        has nothing left to do."""


# -- what nodes poll for -------------------------------------------------------------------------------------


class Recall(NamedTuple):
    """A request that was closed while an incarnation had claimed it. `over`: that incarnation has ended."""

    uuid: bytes
    incarnation: int
    over: bool = False


class ClusterView(NamedTuple):
    """The answer to a StatusQuery. `ended`: awaited requests that have ended or are unknown. `closed`: requests in
    flight that have left the store. `recalls`: what the node's incarnations are to withdraw. `recalled`: recalls that
    the node waits for and that are still there. `others`: how many other incarnations live."""

    ended: Collection[bytes]
    closed: Collection[bytes]
    recalls: Sequence[Recall]
    recalled: Sequence[Recall]
    others: int
    namesakes: int = 0
    """How many of the others have this node's name."""


class StatusQuery(NamedTuple):
    """What a node polls for. `awaited`: requests that its clients wait for. `flights`: requests in flight here.
    `incarnations`: its own, also former ones. `recalled`: closed requests that others may still give to a worker."""

    awaited: Collection[bytes]
    flights: Collection[bytes]
    incarnations: Collection[int]
    recalled: Collection[bytes]


class ClaimRow(NamedTuple):
    """A claim of a request. `lease`: seconds until that of its node ends unless it is renewed; None: the node has
    ended, and the request is kept for its worker. `silent`: seconds since the node renewed it."""

    incarnation: int
    node: str
    lease: float | None
    silent: float


class SharedReadTransaction(ReadTransaction, Protocol):
    """What a `remote` store knows of all its nodes. A request is *claimed* when a row of `ready` names an incarnation
    that has not ended: users see it as running."""

    def service_limits(self) -> dict[bytes, Limits]:
        """The limits of all services that have some."""

    def cluster_view(self, question: StatusQuery) -> ClusterView:
        """What has happened at other nodes, in one round trip."""

    def recalled(self, uuids: Collection[bytes]) -> Sequence[Recall]:
        """The recalls of these closed requests that are still there."""

    def running(self, uuids: Collection[bytes]) -> set[bytes]:
        """Those of these requests that a node has claimed."""

    def claim_of(self, uuid: bytes) -> ClaimRow | None:
        """Which node has claimed a request; None: none has."""

    def list_running(
        self,
        *,
        service: bytes | None,
        owner: bytes | None,
        after: bytes | None,
        limit: int,
        newest: bool = False,
        text: str | None = None,
    ) -> Page:
        """`select` of the requests that a node has claimed."""


class SharedWriteTransaction(WriteTransaction, SharedReadTransaction, Protocol):
    """Changes that concern other nodes."""

    def optimistic(self, alone: bool = False) -> None:
        """Rely on what is likely, such as that a new idempotency key is free, rather than read it first. When that was
        wrong, or another node was in the way, the transaction raises WriteConflict, and is to be repeated. `alone`: it
        has one kind of change only."""

    def agree_limits(self, given: Mapping[bytes, Limits]) -> None:
        """Set limits for services that have none, and, while no node renews its lease, for the others, too."""

    def change_limits(self, changes: Mapping[bytes, Limits | None]) -> None:
        """Set limits, or remove them."""

    def settle(self, recalls: Iterable[tuple[bytes, int]]) -> None:
        """Remove these recalls: no worker can receive the requests any more from these incarnations."""


class SharedStore(Store, Protocol):
    """A `remote` store, with transactions of the types SharedReadTransaction and SharedWriteTransaction.
    `notifications`: None without a channel."""

    notifications: NotificationChannel | None
