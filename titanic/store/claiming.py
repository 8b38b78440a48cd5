"""What several nodes need of the store that they share: claims, and incarnations that hold them.

A node is a process; an *incarnation* is a number under which it claims requests. It lives until a node ends it: its own
node, which leaves or begins another one, or other nodes that have not seen it renewed for a whole lease. The end is
written to its row of `node` (`lease_until = '-infinity'`) and never undone, so all readers see the same, however old
their snapshot. Rows that a dead incarnation has claimed are free at once, without a search.

Only that write ends an incarnation. No clock decides, not even the database's, which jumps when another machine takes
over: an observer compares `lease_until` with its value a lease ago *by the observer's own clock*, and ends the
incarnation only if it has not changed (`Silent`). `lease_until` grows with each renewal, whatever the clock says.

Each method is one statement, given below for PostgreSQL at READ COMMITTED. Each may be executed long after its sender
has given it up, and a repeated one may be executed before the first. Neither does harm, because all of them name the
incarnation, and a sender that does not know the result of one goes on under another incarnation
(`titanic/cluster/claims_core.py`).

A request that was claimed for a worker that keeps its requests is *kept*: its worker may come to another node with it,
so it is not free with the end of its incarnation, but when a node has seen that incarnation ended for `patience`
seconds, by its own clock, and writes that it is *abandoned*. Until then, and later until another node claims it, the
node to which the worker comes takes the request over.

*Alive* is `EXISTS (SELECT FROM node WHERE incarnation = $me AND lease_until > '-infinity')`. *Free* is, of a row of
`ready`, `incarnation IS NULL OR EXISTS (SELECT FROM node n WHERE n.incarnation = ready.incarnation AND n.lease_until =
'-infinity' AND (n.abandoned OR NOT ready.kept))`. "No living row exists" would be wrong: a statement that finds a row
changed reads that row again, but `node` as it was when the statement began, and would take what a node that has joined
since has just claimed. So dead rows of `node` stay until no row of `ready` or `bounded` names them, and for a day after
`ended_at`, when their end was first seen. A claim may be committed long after the end of its node. So
`ready.incarnation` is a foreign key: a claim locks the row of its node (FOR KEY SHARE), and a row of `node` that a
claim names is never deleted:

    DELETE FROM node WHERE incarnation IN (SELECT incarnation FROM node
     WHERE ended_at < now() - interval '1 day' AND NOT EXISTS (
        SELECT FROM ready WHERE ready.incarnation = node.incarnation) AND … FOR UPDATE SKIP LOCKED)

Maintenance that removes rows from `ready` (expiring) skips those that are not free: they are running.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from titanic.errors import RecordCorrupt
from titanic.store.interface import Store, WriteTransaction
from titanic.store.records import ReadyRow


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


class NodeTransaction(WriteTransaction, Protocol):
    """A write transaction of a `remote` store. The dispatcher, which knows what it holds, names the incarnation under
    which it claims, releases and writes outcomes."""

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

            UPDATE ready SET incarnation = $me WHERE alive AND ctid = ANY (ARRAY(
                SELECT f.ctid FROM unnest($services, $limits) AS w (service, n), LATERAL (
                    SELECT ctid FROM ready WHERE service = w.service AND (free)
                     ORDER BY rank, uuid LIMIT w.n FOR UPDATE SKIP LOCKED) AS f)) RETURNING …
        """

    def release(self, incarnation: int, places: Sequence[Place]) -> None:
        """Free those of these requests that this incarnation has claimed.

        UPDATE ready SET incarnation = NULL FROM unnest($services, $ranks, $uuids) AS h (service, rank, uuid)
         WHERE (ready.service, ready.rank, ready.uuid) = (h.service, h.rank, h.uuid) AND incarnation = $me
        """

    def keep(self, incarnation: int, places: Sequence[Place]) -> None:
        """Keep these requests, too, those of them that this incarnation has claimed."""

    def take_over(self, incarnation: int, places: Sequence[Place], bounds: Mapping[bytes, Bound]) -> dict[bytes, bool]:
        """Claim, and keep, those of these requests that an ended incarnation has, abandoned or not. Return
        the ids of all that another incarnation has claimed, and whether they were taken over.

        UPDATE ready SET incarnation = $me, kept = true FROM node n, unnest($services, $ranks, $uuids) AS h (…)
         WHERE (ready.service, ready.rank, ready.uuid) = (h.service, h.rank, h.uuid) AND alive
           AND n.incarnation = ready.incarnation AND n.lease_until = '-infinity' AND n.incarnation <> $me
        """

    def count_no_more(self, incarnation: int, places: Sequence[Place]) -> None:
        """Stop counting these requests for a bound under which this incarnation has claimed them: no worker executes
        them any more.

        DELETE FROM bounded USING unnest($services, $uuids) AS h (service, uuid)
         WHERE (bounded.service, bounded.uuid) = (h.service, h.uuid) AND incarnation = $me
        """

    def under(self, incarnation: int, failed: Sequence[bytes]) -> None:
        """Write the following outcomes under this incarnation.

        `finish` with DONE counts for each request that has not ended, as it does without claims: the work is done.
        `postpone`, and `finish` with another status, say that the work is to be done again or never: those are the
        `failed`. They count only for a request that this incarnation has claimed, while it is alive; then the request
        is locked against other claims until the transaction ends. Otherwise they return False.

            SELECT uuid FROM ready JOIN unnest($services, $ranks, $uuids) AS h (service, rank, uuid)
             USING (service, rank, uuid) WHERE incarnation = $me AND alive FOR UPDATE OF ready
        """


class ClaimingStore(Store, Protocol):
    """A store that nodes share. `join`, `renew` and `leave` have a connection of their own: a slow commit of requests
    must not cost a lease; one thread calls them. They give up after `LeaseConfig.renew`, and raise StoreTooNew when
    the store is too new for this version: a node of an earlier version is refused, even if it ran when the store was
    upgraded. If an earlier store was put in its place, they raise StoreTooOld. `join` raises OtherLease if another
    living node has another `lease`. (others) is

        ARRAY(SELECT (incarnation, lease_until) FROM node WHERE lease_until > '-infinity' AND incarnation <> $me)

    and (ended) has those with `lease_until = '-infinity' AND NOT abandoned`, as the statement found them: the first may
    still contain one that the statement has ended. From `join` on, the node counts
    its changes under a number of its own, its *shard*: the smallest that no other living node has.

    `close` ends the incarnations that have joined.
    """

    def write(self) -> NodeTransaction: ...

    def join(
        self, incarnation: int, before: int | None, held: Sequence[Place], facts: NodeFacts, config: LeaseConfig
    ) -> Joined:
        """Begin an incarnation in place of the one before, which ends, and take over the requests in `held` that the
        one before has claimed. A repeated call with the same number renews it, and takes over nothing more, because the
        first call may have been executed. `xmax` is 0 for a row that was inserted, and not updated.

            WITH born AS (
                INSERT INTO node (incarnation, lease_until, …) SELECT $me, clock_timestamp() + $lease, …
                  FROM meta WHERE format = $format
                ON CONFLICT (incarnation) DO UPDATE SET lease_until = greatest(
                    node.lease_until + interval '1 microsecond', clock_timestamp() + $lease)
                 WHERE node.lease_until > '-infinity' RETURNING xmax = 0 AS now),
            ended AS (UPDATE node SET lease_until = '-infinity', abandoned = true
                WHERE incarnation = $before AND (SELECT now FROM born)),
            h AS (SELECT * FROM unnest($services, $ranks, $uuids) AS h (service, rank, uuid)),
            taken AS (
                UPDATE ready SET incarnation = $me FROM h WHERE incarnation = $before AND (SELECT now FROM born)
                   AND (ready.service, ready.rank, ready.uuid) = (h.service, h.rank, h.uuid) RETURNING ready.uuid),
            counted AS (
                UPDATE bounded SET incarnation = $me FROM h WHERE incarnation = $before AND (SELECT now FROM born)
                   AND (bounded.service, bounded.uuid) = (h.service, h.uuid))
            SELECT format, EXISTS (SELECT FROM born) AS alive, ARRAY(
                SELECT uuid FROM taken UNION SELECT ready.uuid FROM ready JOIN h USING (service, rank, uuid)
                 WHERE incarnation = $me) AS held, (others), (ended) FROM meta
        """

    def renew(
        self,
        incarnation: int,
        silent: Sequence[Silent],
        facts: NodeFacts,
        config: LeaseConfig,
        abandoned: Sequence[int] = (),
    ) -> Renewed:
        """Renew the lease, even if it has lapsed, end the silent incarnations, if they still are silent, and mark those
        that are abandoned.

        WITH mine AS (
            UPDATE node SET lease_until = greatest(
                lease_until + interval '1 microsecond', clock_timestamp() + $lease)
             WHERE incarnation = $me AND lease_until > '-infinity'
               AND (SELECT format FROM meta) = $format RETURNING draining),
        silent AS (
            SELECT incarnation FROM node JOIN unnest($silent, $seen) AS s (incarnation, lease_until)
             USING (incarnation, lease_until) WHERE EXISTS (SELECT FROM mine) FOR NO KEY UPDATE OF node SKIP LOCKED),
        ended AS (UPDATE node SET lease_until = '-infinity' WHERE incarnation IN (SELECT incarnation FROM silent)),
        over AS (UPDATE node SET abandoned = true WHERE incarnation = ANY($abandoned) AND lease_until = '-infinity')
        SELECT format, (SELECT draining FROM mine), (others), (ended) FROM meta
        """

    def leave(self, incarnations: Sequence[int]) -> None:
        """End these incarnations, also one with a `join` that may still be under way. What they have claimed is free.

        INSERT INTO node (incarnation, lease_until, …) SELECT unnest($incarnations), '-infinity', …
        ON CONFLICT (incarnation) DO UPDATE SET lease_until = '-infinity'
        """
