"""What a server has counted and what is there now, collected when somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from titanic.commit.writer import Histogram
from titanic.store import Counts, Durability, ReadTransaction, StoreReader

MOST_SERVICES = 100
"""Services with figures of their own: those with the most waiting. Anybody can invent names of services."""

OTHERS = "(others)"

MOST_REFUSALS = 200
"""Users and actions whose refusals have figures of their own."""

UNKNOWN = "(unknown)"
"""Instead of a user's name: nobody knows whose the connection is."""

WorkerCounts = Mapping[bytes, int | None]
"""How many workers services have; one that is not in it has none. None: some, it is not known how many."""


class ServiceSnapshot(NamedTuple):
    """What a service has to do, and who does it. `oldest`: the age in seconds of the request that waits longest; 0 for
    OTHERS."""

    waiting: int
    running: int
    workers: int | None
    oldest: float = 0.0


class NodeSnapshot(NamedTuple):
    """A server among those that share its store: how many of them live, and how many of these are to end; for how many
    seconds it may dispatch if it does not renew its lease, what it has claimed, and how many leases it has lost."""

    name: str
    nodes: int
    draining: int
    lease: float
    held: int
    lost: int


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """A snapshot of a server."""

    counted: Mapping[str, int]
    """Requests since the start, by what became of them."""
    refused: Mapping[str, int]
    """Refusals, by reason."""
    forbidden: Mapping[tuple[str, str], int]
    """What users lacked a permission for, by user and action."""
    services: Mapping[str, ServiceSnapshot]
    paused: Sequence[str]
    """The services that are."""
    store: Counts
    durability: Durability
    """What a commit waits for."""
    store_id: str
    """Which store it is; empty: it has no id yet."""
    usable: bool
    """Whether the store can be used: its disk may have failed."""
    full: bool
    """Whether the store has no room for a small request."""
    full_in: float | None
    """Seconds until that is so, at the present rate; None: it does not fill, or it is not known yet."""
    disk_full: bool
    """Whether the disk has no room for what is written."""
    readers: Sequence[StoreReader]
    """Processes that have been reading the store for some time."""
    waiting_clients: int
    commit_seconds: Histogram
    commit_sizes: Histogram
    lags: Mapping[str, float]
    """Seconds that each thread last took to answer (`Watchdog`)."""
    broker: Mapping[str, int] | None
    """The integrated broker's counters."""
    node: NodeSnapshot | None
    """None: it has its store to itself."""


def service_snapshots(
    transaction: ReadTransaction,
    running: Mapping[bytes, int],
    elsewhere: Mapping[bytes, int],
    skip: Container[bytes],
    workers: WorkerCounts | None,
    now_us: int,
) -> dict[str, ServiceSnapshot]:
    """The snapshot of each service with figures of its own, and one of all others together. `elsewhere`: how many are
    running at other nodes. `skip`: those that are running here."""
    queues = transaction.waiting().items()
    waiting = {name: max(0, n - running.get(name, 0) - elsewhere.get(name, 0)) for name, n in queues}
    named = gather(waiting, running, workers)
    found = {}
    for name in named:
        oldest = transaction.oldest(name, skip)
        found[name.decode(errors="replace")] = ServiceSnapshot(
            waiting.get(name, 0),
            running.get(name, 0),
            None if workers is None else workers.get(name, 0),
            0.0 if oldest is None else max(0.0, (now_us - oldest) / 1e6),
        )
    return found | others(named, waiting, running, workers)


def gather(waiting: Mapping[bytes, int], running: Mapping[bytes, int], workers: WorkerCounts | None) -> list[bytes]:
    """The services with figures of their own."""
    names = waiting.keys() | running.keys() | (workers or {}).keys()
    if len(names) <= MOST_SERVICES:
        return sorted(names)
    return sorted(names, key=lambda name: (-waiting.get(name, 0), -running.get(name, 0), name))[:MOST_SERVICES]


def others(
    named: Sequence[bytes],
    waiting: Mapping[bytes, int],
    running: Mapping[bytes, int],
    workers: WorkerCounts | None,
) -> dict[str, ServiceSnapshot]:
    """The snapshot of all services that are not `named`, together; empty when there are none."""
    apart = set(named)
    rest = [
        None if each is None else sum(count or 0 for name, count in each.items() if name not in apart)
        for each in (waiting, running, workers)
    ]
    return {OTHERS: ServiceSnapshot(rest[0] or 0, rest[1] or 0, rest[2])} if any(rest) else {}


def refusals(*counted: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """The sums of several counts by user and action: the largest of them, and the sum of the others."""
    total: Counter[tuple[str, str]] = Counter()
    for counts in counted:
        total.update(counts)
    keys = sorted(total, key=lambda key: (-total[key], key))
    rest = sum(total[key] for key in keys[MOST_REFUSALS:])
    found = {(user or UNKNOWN, action): total[user, action] for user, action in keys[:MOST_REFUSALS]}
    return found | ({(OTHERS, ""): found.get((OTHERS, ""), 0) + rest} if rest else {})


def bounded(counts: Mapping[str, int]) -> dict[str, int]:
    """The largest of these counts, and the sum of the others."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    named = {name: counts[name] for name in names[:MOST_SERVICES]}
    return named | ({OTHERS: sum(counts[name] for name in names[MOST_SERVICES:])} if len(names) > MOST_SERVICES else {})
