"""What several nodes need of the store that they share: claims, incarnations that hold them, notifications, recalls.

A node is a process; an *incarnation* is a number under which it claims requests. It lives until a node ends it: its own
node, which leaves or begins another one, or other nodes that have not seen it renewed for a whole lease. The end is
written to its row of `node` (`lease_until = '-infinity'`) and never undone, so all readers see the same, however old
their snapshot. Rows that a dead incarnation has claimed are free at once, without a search.

Only that write ends an incarnation. No clock decides, not even the database's, which jumps when another machine takes
over: an observer compares `lease_until` with its value a lease ago *by the observer's own clock*, and ends the
incarnation only if it has not changed (`Silent`). `lease_until` grows with each renewal, whatever the clock says.

Each method that claims or that concerns an incarnation is one statement at READ COMMITTED
(`titanic/store/postgres/claims.py` and `nodes.py`). Each may be executed long after its sender has given it up, and a
repeated one may be executed before the first. Neither does harm, because all of them name the incarnation, and a sender
that does not know the result of one goes on under another incarnation (`titanic/cluster/claims_core.py`).

A request that was claimed for a worker that keeps its requests is *kept*: its worker may come to another node with it,
so it is not free with the end of its incarnation, but when a node has seen that incarnation ended for `patience`
seconds, by its own clock, and writes that it is *abandoned*. Until then, and later until another node claims it, the
node to which the worker comes takes the request over.

*Free* is a row of `ready` that no incarnation has claimed, or one that has ended (and is abandoned, if the row is
kept). "No living row exists" would be wrong: a statement that finds a row changed reads that row again, but `node` as
it was when the statement began, and would take what a node that has joined since has just claimed. So dead rows of
`node` stay until no row of `ready` or `bounded` names them, and for a day after `ended_at`, when their end was first
seen. A claim may be committed long after the end of its node. So `ready.incarnation` is a foreign key: a claim locks
the row of its node (FOR KEY SHARE), and a row of `node` that a claim names is never deleted.

Maintenance that removes rows from `ready` (expiring) skips those that are not free: they are running.

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

from titanic.errors import RecordCorrupt
from titanic.store.interface import ReadTransaction, Store, WriteTransaction
from titanic.store.records import Page, ReadyRow
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


# -- incarnations and claims ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """The timing of leases. All nodes must have the same `lease`; a node with another one is refused."""

    lease: float = 10.0
    """Seconds without a renewal after which others may end an incarnation."""
    renew: float = 2.0
    """Seconds between two renewals, and the time limit of each."""
    margin: float = 1.0
    """Seconds before the end of its lease at which a node stops dispatching."""
    patience: float = 30.0
    """Seconds for which workers of an ended incarnation may come to other nodes with their requests."""

    @classmethod
    def of(cls, lease: float) -> LeaseConfig:
        """Return a configuration with intervals that fit a lease."""
        return cls(lease, renew=lease / 5, margin=lease / 10)


class NodeFacts(NamedTuple):
    """What a node publishes about itself, for people: its name, version and endpoints, the number of workers and of
    requests in flight for each of its services, and its access file (`NodeRow`)."""

    name: str
    version: str
    endpoints: Sequence[str] = ()
    services: Mapping[bytes, tuple[int, int]] = {}
    access: str = ""


class Place(NamedTuple):
    """Where a waiting request is: its row of `ready`."""

    service: bytes
    rank: int
    uuid: bytes


class Silent(NamedTuple):
    """An incarnation, and the `lease_until` that it was seen with, in µs since the epoch."""

    incarnation: int
    lease_until: int


class Joined(NamedTuple):
    """`alive`: the incarnation can be used. `held`: of the requests that it was to take over, those that are its own.
    `others`: the other living incarnations. `ended`: those that ended, and are not abandoned."""

    alive: bool
    held: Collection[bytes]
    others: Sequence[Silent]
    ended: Sequence[int] = ()


class Renewed(NamedTuple):
    """`alive`: the lease is renewed; otherwise the incarnation is over for good. `draining`: an operator wants the node
    to be drained. `others`, `ended`: as in `Joined`."""

    alive: bool
    draining: bool
    others: Sequence[Silent]
    ended: Sequence[int] = ()


class Bound(NamedTuple):
    """What holds for a service over all nodes; 0: nothing. `running`: how many of its requests may count at all living
    incarnations together. `rate`: how many may be claimed in a second, evenly spread."""

    running: int = 0
    rate: float = 0.0


class Claimed(NamedTuple):
    """What a claim has found: `rows` are claimed now, services without any are absent. `more`: services of which there
    were more, but too large together. `again`: services that may have more, and in how many seconds they can be asked
    for it: because of a bound for which another node was claiming at that moment, because of their rate, or because not
    all requests were examined. `damaged` are those of the rows that cannot be read, which have no body."""

    rows: dict[bytes, list[ReadyRow]]
    more: Collection[bytes] = ()
    again: Mapping[bytes, float] = {}
    damaged: Mapping[bytes, RecordCorrupt] = {}


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


# -- store and transactions ----------------------------------------------------------------------------------


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

    def delivery_key(self) -> bytes:
        """The key by which all nodes know the secrets of deliveries."""

    def nodes(self) -> list[NodeRow]:
        """The living incarnations."""

    def nodes_and_claims(self) -> list[NodeRow]:
        """The same with what each has claimed, and dead incarnations that still have claims, or did not leave and are
        not long dead, unless one of that name has joined since. Reads all waiting rows."""


class SharedWriteTransaction(WriteTransaction, SharedReadTransaction, Protocol):
    """Changes that concern other nodes. The dispatcher, which knows what it holds, names the incarnation under which it
    claims, releases and writes outcomes."""

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

    def drain_nodes(self, incarnations: Collection[int]) -> None:
        """Drain these incarnations, those of them that live: each reads it when it renews its lease, and ends when it
        has nothing left to do."""

    def claim(
        self,
        incarnation: int,
        wants: Mapping[bytes, int],
        max_bytes: int,
        bounds: Mapping[bytes, Bound],
        keeps: Mapping[bytes, int],
    ) -> Claimed | None:
        """Claim free requests, at most so many of each service, as `next_ready` orders them. None: it is over.

        They end with the request that brings the bodies to `max_bytes`; one is claimed however large it is. Rows that
        other transactions have locked are skipped. `bounds` hold for all nodes together: a claimed request of a
        service with a bound on `running` counts until `count_no_more`, also when it is closed meanwhile. `keeps`: how
        many of a service's, the first ones, are kept.
        """

    def release(self, incarnation: int, places: Sequence[Place]) -> None:
        """Free those of these requests that this incarnation has claimed."""

    def keep(self, incarnation: int, places: Sequence[Place]) -> None:
        """Keep these requests, too, those of them that this incarnation has claimed."""

    def take_over(self, incarnation: int, places: Sequence[Place], bounds: Mapping[bytes, Bound]) -> dict[bytes, bool]:
        """Claim, and keep, those of these requests that an ended incarnation has, abandoned or not. Return
        the ids of all that another incarnation has claimed, and whether they were taken over."""

    def count_no_more(self, incarnation: int, places: Sequence[Place]) -> None:
        """Stop counting these requests for a bound under which this incarnation has claimed them: no worker executes
        them any more."""

    def under(self, incarnation: int, failed: Sequence[bytes]) -> None:
        """Write the following outcomes under this incarnation.

        `finish` with DONE counts for each request that has not ended, as it does without claims: the work is done.
        `postpone`, and `finish` with another status, say that the work is to be done again or never: those are the
        `failed`. They count only for a request that this incarnation has claimed, while it is alive; then the request
        is locked against other claims until the transaction ends. Otherwise they return False.
        """


class SharedStore(Store, Protocol):
    """A `remote` store, with transactions of the types SharedReadTransaction and SharedWriteTransaction.
    `notifications`: None without a channel.

    `join`, `renew` and `leave` have a connection of their own: a slow commit of requests must not cost a lease; one
    thread calls them. They give up after `LeaseConfig.renew`, and raise StoreTooNew when the store is too new for this
    version: a node of an earlier version is refused, even if it ran when the store was upgraded. If an earlier store
    was put in its place, they raise StoreTooOld. `join` raises OtherLease if another living node has another `lease`.
    The `ended` that they return may still contain an incarnation that the statement has ended. From `join` on, the
    node counts its changes under a number of its own, its *shard*: the smallest that no other living node has.

    `close` ends the incarnations that have joined.
    """

    notifications: NotificationChannel | None

    def join(
        self, incarnation: int, before: int | None, held: Sequence[Place], facts: NodeFacts, config: LeaseConfig
    ) -> Joined:
        """Begin an incarnation in place of the one before, which ends, and take over the requests in `held` that the
        one before has claimed. A repeated call with the same number renews it, and takes over nothing more, because the
        first call may have been executed."""

    def renew(
        self,
        incarnation: int,
        silent: Sequence[Silent],
        facts: NodeFacts,
        config: LeaseConfig,
        abandoned: Sequence[int] = (),
    ) -> Renewed:
        """Renew the lease, even if it has lapsed, end the silent incarnations, if they still are silent, and mark those
        that are abandoned."""

    def leave(self, incarnations: Sequence[int]) -> None:
        """End these incarnations, also one with a `join` that may be under way. What they have claimed is free."""
