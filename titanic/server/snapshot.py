"""Counters and current state of a server, collected on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from titanic.commit.writer import Histogram
from titanic.errors import RecordCorrupt
from titanic.facts.counts import OTHER
from titanic.facts.recorder import ServiceTotals
from titanic.services.named_services import Named
from titanic.store import NO_QUEUE, Counts, Durability, ReadTransaction, StoreReader, ready_counts

MOST_SERVICES = 100
"""Services with their own statistics: those with the most waiting requests. Clients can invent any number of names."""

OTHERS = "(others)"

MOST_REFUSALS = 200
"""Pairs of user and action with refusals that are shown separately."""

UNKNOWN = "(unknown)"
"""In place of a user's name, for connections that are not authenticated."""

WorkerCounts = Mapping[bytes, int | None]
"""The number of workers by service; missing services have none. None: an unknown number."""


class ServiceSnapshot(NamedTuple):
    """The requests and workers of a service. `oldest`: the age in seconds of the request that has waited longest; 0 for
    OTHERS."""

    waiting: int
    running: int
    workers: int | None
    oldest: float = 0.0


class NodeSnapshot(NamedTuple):
    """A server among those that share its store. `nodes`, `draining`: how many are alive, and how many of these drain.
    `lease`: seconds for which it may dispatch unless it renews its lease. `held`: claimed requests. `lost`: lost
    leases."""

    name: str
    nodes: int
    draining: int
    lease: float
    held: int
    lost: int


class ArchiveLag(NamedTuple):
    """Closed requests that the registered archive does not have yet: how many, and the seconds since the first of them
    was closed."""

    requests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """A snapshot of a server."""

    counted: Mapping[str, int]
    """Requests since the start, by outcome."""
    refused: Mapping[str, int]
    """Refusals, by reason."""
    refused_users: Mapping[tuple[str, str], int]
    """Refusals, by user and reason."""
    forbidden: Mapping[tuple[str, str], int]
    """Refusals for lack of a permission, by user and action."""
    services: Mapping[str, ServiceSnapshot]
    totals: Mapping[str, ServiceTotals]
    """What this process has counted since its start, by service."""
    paused: Sequence[str]
    """The paused services."""
    store: Counts
    durability: Durability
    """What a commit waits for."""
    store_id: str
    """The id of the store; empty: it has none yet."""
    usable: bool
    """Whether the store can be used: its disk may have failed."""
    full: bool
    """Whether the store has no room for a small request."""
    full_in: float | None
    """Seconds until the store is full, at the present rate; None: it does not fill, or it is not known yet."""
    disk_full: bool
    """Whether the disk has no room for writes."""
    archive_lag: ArchiveLag | None
    """None: no archive is registered."""
    backed_up_at: float | None
    """When the last backup began, in seconds since 1970; None: unknown."""
    readers: Sequence[StoreReader]
    """Processes that have been reading the store for some time."""
    waiting_clients: int
    commit_seconds: Histogram
    commit_sizes: Histogram
    lags: Mapping[str, float]
    """Seconds of each thread's last response time (`Watchdog`)."""
    broker: Mapping[str, int] | None
    """The integrated broker's counters."""
    node: NodeSnapshot | None
    """None: it has its store to itself."""


def service_snapshots(
    transaction: ReadTransaction,
    known: Named,
    running: Mapping[bytes, int],
    elsewhere: Mapping[bytes, int],
    skip: Container[bytes],
    workers: WorkerCounts | None,
    now_us: int,
) -> dict[str, ServiceSnapshot]:
    """Snapshots of the services with their own statistics, and one of all others together. `elsewhere`: the number of
    requests running at other nodes. `skip`: the requests running here."""
    ready = ready_counts(known.queues)
    waiting = {name: max(0, n - running.get(name, 0) - elsewhere.get(name, 0)) for name, n in ready.items()}
    unread = max(0, transaction.counts().waiting - sum(ready.values())) if known.others else 0
    named = gather(waiting, running, workers)
    found, figures = {}, transaction.queues(named, skip)
    for name in named:
        oldest = figures.get(name, NO_QUEUE).oldest
        found[name.decode(errors="replace")] = ServiceSnapshot(
            waiting.get(name, 0),
            running.get(name, 0),
            None if workers is None else workers.get(name, 0),
            0.0 if oldest is None else max(0.0, (now_us - oldest) / 1e6),
        )
    return found | others(named, waiting, running, workers, unread)


def archive_lag(transaction: ReadTransaction, now_us: int) -> ArchiveLag | None:
    """How far the registered archive lags behind; None: there is none."""
    archive = transaction.archive()
    if not archive.registered:
        return None
    first = max(archive.first, archive.archived_upto + 1)
    closed = []
    if first <= archive.last:
        with suppress(RecordCorrupt):
            closed = transaction.closed_bulk(first, first).requests()
    seconds = max(0.0, (now_us - closed[0].closed_at) / 1e6) if closed else 0.0
    return ArchiveLag(archive.last - first + 1, seconds)


def gather(waiting: Mapping[bytes, int], running: Mapping[bytes, int], workers: WorkerCounts | None) -> list[bytes]:
    """The services with their own statistics: first those that wait without workers, so that an alert can name them."""
    names = waiting.keys() | running.keys() | (workers or {}).keys()
    if len(names) <= MOST_SERVICES:
        return sorted(names)
    counts = {name: (waiting.get(name, 0), running.get(name, 0)) for name in names}
    absent = {name for name in names if counts[name][0] and workers is not None and workers.get(name, 0) == 0}
    return sorted(names, key=lambda name: (name not in absent, *(-n for n in counts[name]), name))[:MOST_SERVICES]


def others(
    named: Sequence[bytes],
    waiting: Mapping[bytes, int],
    running: Mapping[bytes, int],
    workers: WorkerCounts | None,
    unread: int = 0,
) -> dict[str, ServiceSnapshot]:
    """The snapshot of all services that are not `named`, together; empty when there are none. `unread`: so many
    requests wait besides."""
    apart = set(named)
    rest = [
        None if each is None else sum(count or 0 for name, count in each.items() if name not in apart)
        for each in (waiting, running, workers)
    ]
    found = ServiceSnapshot((rest[0] or 0) + unread, rest[1] or 0, rest[2])
    return {OTHERS: found} if any(found[:3]) else {}


def shown_totals(totals: Mapping[bytes, ServiceTotals]) -> dict[str, ServiceTotals]:
    """Totals by names that can be shown; those of equal names are added up."""
    found: dict[str, ServiceTotals] = {}
    for service, more in totals.items():
        name = OTHERS if service == OTHER else service.decode(errors="replace")
        if (known := found.get(name)) is not None:
            tally = [one + other for one, other in zip(known.tally, more.tally, strict=True)]
            more = ServiceTotals(tally, known.wait + more.wait, known.run + more.run)
        found[name] = more
    return found


def refusals(*counted: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Add counts by user and action. The first of each that there were are named for good, and the others are added up,
    so that no number decreases."""
    found: Counter[tuple[str, str]] = Counter()
    for counts in counted:
        for at, ((user, action), count) in enumerate(counts.items()):
            found[(user or UNKNOWN, action) if at < MOST_REFUSALS else (OTHERS, "")] += count
    return dict(found)


def bounded(counts: Mapping[str, int]) -> dict[str, int]:
    """The largest of these counts, and the sum of the others."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    named = {name: counts[name] for name in names[:MOST_SERVICES]}
    return named | ({OTHERS: sum(counts[name] for name in names[MOST_SERVICES:])} if len(names) > MOST_SERVICES else {})
