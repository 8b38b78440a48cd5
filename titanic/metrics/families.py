"""The metric families for Prometheus. Their names are a contract with dashboards and alerts: see deploy/."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from titanic.commit.writer import Histogram
from titanic.facts.counts import BOUNDS, COUNTS, RUN, WAIT
from titanic.facts.recorder import ServiceTotals
from titanic.server.snapshot import NodeSnapshot, ServerSnapshot
from titanic.version import __version__

REQUESTS = {
    "accepted": "Requests accepted: stored, and given a UUID.",
    "repeated": "Submissions that repeated an idempotency key; nothing was stored.",
    "dispatched": "Attempts started: requests sent to a worker.",
    "succeeded": "Requests that ended with a reply.",
    "failed": "Requests that failed for good.",
    "expired": "Requests that expired.",
    "poisoned": "Requests that failed as poison: too many workers died while running nothing else.",
    "retried": "Failed attempts after which the request is retried.",
    "returned": "Requests returned to the queue because no worker took them.",
    "closed": "Requests closed by clients and administrators.",
    "replies_given": "Replies returned to clients.",
}
"""The counters of requests, by the name under which they are counted."""

_SELF = Path("/proc/self")
_STARTED = 19
"""The field of /proc/self/stat after the name in brackets with the start, in ticks since the machine booted."""


def queue(snapshot: ServerSnapshot) -> Iterator[Metric]:
    """The families of a server."""
    yield about()
    for name, text in REQUESTS.items():
        metric = f"titanic_{name}" if name in ("poisoned", "replies_given") else f"titanic_requests_{name}"
        yield CounterMetricFamily(metric, text, value=snapshot.counted[name])
    text = "Requests that were not stored."
    yield labelled("titanic_requests_refused", text, "reason", snapshot.refused, CounterMetricFamily)
    if snapshot.refused_users:
        text = "Requests of a user that were not stored."
        yield counts_by("titanic_user_requests_refused", text, ("user", "reason"), snapshot.refused_users)
    yield from refusals(snapshot.forbidden)
    yield from _services(snapshot)
    yield from _totals(snapshot.totals)
    yield from _store(snapshot)
    yield _histogram("titanic_commit_seconds", "Commit duration: changes, write and sync.", snapshot.commit_seconds)
    yield _histogram("titanic_commit_changes", "Changes per commit.", snapshot.commit_sizes)
    yield GaugeMetricFamily("titanic_waiting_clients", "Clients waiting for a reply.", value=snapshot.waiting_clients)
    yield threads(snapshot.lags)
    if snapshot.broker is not None:
        yield from broker(snapshot.broker)
    if snapshot.node is not None:
        yield from _node(snapshot.node)


def about() -> Metric:
    """Which version is running."""
    return InfoMetricFamily("titanic", "The version of Titanic.", value={"version": __version__})


def threads(lags: Mapping[str, float]) -> Metric:
    """How far each thread lags behind."""
    text = "Time that a thread takes to answer a probe."
    return labelled("titanic_thread_lag_seconds", text, "thread", lags)


def broker(counters: Mapping[str, int]) -> Iterator[Metric]:
    """The families of a broker."""
    gauges = {
        "waiting": ("titanic_broker_waiting", "Requests in the broker's memory that wait for a worker."),
        "waiting_bytes": ("titanic_broker_waiting_bytes", "Memory used by requests that wait in the broker."),
        "workers": ("titanic_broker_workers", "Registered workers."),
        "workers_busy": ("titanic_broker_workers_busy", "Registered workers that have a request."),
        "peers": (
            "titanic_broker_peers",
            "Connections of clients and workers; a queue in a separate process has one for each lane.",
        ),
        "services": ("titanic_broker_services", "Services known to the broker."),
    }
    for name, (metric, text) in gauges.items():
        yield GaugeMetricFamily(metric, text, value=counters[name])
    events = {name: count for name, count in counters.items() if name not in gauges}
    text = "Events counted by the broker; see mmi.stats."
    yield labelled("titanic_broker_events", text, "event", events, CounterMetricFamily)


def refusals(counts: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    """Refusals for lack of a permission; nothing while there are none."""
    if counts:
        text = (
            "Refusals for lack of a permission; `action` is a service of Titanic, or what the broker refused."
            " The action `handshake` includes connections that only probed the server."
        )
        yield counts_by("titanic_refusals", text, ("user", "action"), counts)


def workers(count: Mapping[str, int | None]) -> Metric:
    """How many workers each service has; None: unknown."""
    return labelled("titanic_workers", "Registered workers of a service, if known.", "service", count)


def ready(is_so: bool) -> Metric:
    """Whether clients are served."""
    text = "1 while clients are served, as /readyz reports; 0 otherwise, and while a separate broker does not answer."
    return GaugeMetricFamily("titanic_ready", text, value=is_so)


def worker_ready(is_so: bool) -> Metric:
    """Whether a worker gets requests."""
    text = "1 while the worker is registered, as /readyz reports."
    return GaugeMetricFamily("titanic_worker_ready", text, value=is_so)


def _services(snapshot: ServerSnapshot) -> Iterable[Metric]:
    gauges = {
        "titanic_requests_waiting": ("Requests that can be executed now and are not running.", "waiting"),
        "titanic_requests_running": (
            "Requests that workers have, or that the broker holds until a worker is free.",
            "running",
        ),
        "titanic_requests_oldest_seconds": (
            "Age of the longest-waiting request; running requests are excluded.",
            "oldest",
        ),
    }
    for name, (text, field) in gauges.items():
        yield labelled(name, text, "service", {key: getattr(load, field) for key, load in snapshot.services.items()})
    if snapshot.paused:
        text = "1 for a service that is paused: its requests are not dispatched."
        yield labelled("titanic_service_paused", text, "service", dict.fromkeys(snapshot.paused, 1))
    yield workers({name: load.workers for name, load in snapshot.services.items()})


def _totals(services: Mapping[str, ServiceTotals]) -> Iterable[Metric]:
    """What this process has counted for each service. For totals, add up all nodes: each counts only its own work."""
    for at, name in enumerate(COUNTS):
        if name in REQUESTS:
            values = {service: totals.tally[at] for service, totals in services.items()}
            yield labelled(f"titanic_service_{name}", REQUESTS[name], "service", values, CounterMetricFamily)
    waits = [((service,), tally[WAIT:RUN], waited) for service, (tally, waited, _) in services.items()]
    text = "Time from a request's submission to its first attempt."
    yield durations("titanic_service_wait_seconds", text, ("service",), waits)
    runs = [((service,), tally[RUN:], ran) for service, (tally, _, ran) in services.items()]
    yield durations("titanic_service_run_seconds", "Run time of an attempt.", ("service",), runs)


def durations(
    name: str, text: str, labels: Sequence[str], times: Iterable[tuple[Sequence[str], Sequence[int], float]]
) -> Metric:
    """Histograms of times. `times`: for each its labels, the counts in the buckets of BOUNDS, and the sum; empty ones
    are left out."""
    family = HistogramMetricFamily(name, text, labels=labels)
    bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    for key, buckets, seconds in times:
        if any(buckets):
            family.add_metric(key, list(zip(bounds, accumulate(buckets), strict=True)), sum_value=seconds)
    return family


def _store(snapshot: ServerSnapshot) -> Iterable[Metric]:
    store = snapshot.store
    gauges = {
        "titanic_requests_delayed": ("Requests that are delayed.", store.delayed),
        "titanic_replies_stored": ("Requests that have ended and are not closed.", store.replies),
        "titanic_store_capacity_bytes": ("Size limit of the store.", store.capacity),
        "titanic_store_used_bytes": ("Bytes of the store in use.", store.used),
        "titanic_store_free_bytes": ("Bytes of the store not in use.", max(0, store.capacity - store.used)),
        "titanic_store_closed": ("Closed requests in the store.", store.closed),
        "titanic_store_pinned_bytes": (
            "Bytes that cannot be reused because a process has been reading the store for some time.",
            max((reader.pinned for reader in snapshot.readers), default=0),
        ),
        "titanic_store_reader_seconds": (
            "How long the oldest reader has been reading the store; 0: there is no long-running reader.",
            max((reader.age for reader in snapshot.readers), default=0),
        ),
        "titanic_store_full": ("1 while there is no room for a small request.", snapshot.full),
        "titanic_disk_full": ("1 while the disk of the store is full.", snapshot.disk_full),
        "titanic_store_usable": ("1 while the store can be used, 0 after its disk failed.", snapshot.usable),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(name, text, value=value)
    yield InfoMetricFamily("titanic_store", "Durability of the store.", value={"durability": snapshot.durability})
    text = "Time until the store is full at the rate of the last hour; +Inf while it is not filling."
    left = math.inf if snapshot.full_in is None else snapshot.full_in
    yield GaugeMetricFamily("titanic_store_full_in_seconds", text, value=left)
    text = "Identity of the store, the same on all nodes that share it."
    yield InfoMetricFamily("titanic_store_id", text, value={"id": snapshot.store_id})
    text = "Closed requests dropped for lack of space before they were archived."
    yield CounterMetricFamily("titanic_store_lost", text, value=store.lost)
    if (lag := snapshot.archive_lag) is not None:
        text = "Closed requests that the registered archive does not have yet."
        yield GaugeMetricFamily("titanic_archive_lag_requests", text, value=lag.requests)
        text = "Time since the oldest request that awaits archiving was closed."
        yield GaugeMetricFamily("titanic_archive_lag_seconds", text, value=lag.seconds)
    if (at := snapshot.backed_up_at) is not None:
        text = "Unix time in seconds when `titanic backup` began the last complete backup."
        yield GaugeMetricFamily("titanic_backup_timestamp_seconds", text, value=at)


def _node(node: NodeSnapshot) -> Iterable[Metric]:
    text = "Name of this server among those that share its store."
    yield InfoMetricFamily("titanic_node", text, value={"name": node.name})
    gauges = {
        "titanic_nodes": ("Live servers that share the store.", node.nodes),
        "titanic_nodes_draining": ("Live servers that are draining.", node.draining),
        "titanic_node_lease_seconds": (
            "How long this server may still dispatch without renewing its lease; 0: it may not dispatch.",
            node.lease,
        ),
        "titanic_node_claims": ("Requests that this server has claimed.", node.held),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(name, text, value=value)
    text = "Leases that this server lost; other servers took over its claims."
    yield CounterMetricFamily("titanic_node_leases_lost", text, value=node.lost)


def labelled(
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float | None],
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    """A family with one label. A value of None is unknown, and left out."""
    family = kind(name, text, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key], value)
    return family


def counts_by(name: str, text: str, labels: tuple[str, str], counts: Mapping[tuple[str, str], int]) -> Metric:
    """A counter with two labels."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    total = histogram.sum
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, histogram.cumulative(), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=total)


class Process(Collector):
    """This process, under the names of Prometheus' own clients. What the system does not report is left out.

    The collector of prometheus_client reads /proc/stat, which a hardened unit hides (ProcSubset=pid); then it reports
    nothing at all. This one reads the files of the process itself.
    """

    def __init__(self) -> None:
        self._started: float | None = None
        with suppress(OSError):
            fields = (_SELF / "stat").read_bytes().rpartition(b")")[2].split()
            booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
            # Computed once, so that setting the clock does not look like a restart.
            self._started = booted + int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")

    def collect(self) -> Iterable[Metric]:
        """The families with their present values."""
        if self._started is not None:
            text = "Start time of the process since unix epoch in seconds."
            yield GaugeMetricFamily("process_start_time_seconds", text, value=self._started)
        times = os.times()
        text = "Total user and system CPU time spent in seconds."
        yield CounterMetricFamily("process_cpu_seconds", text, value=times.user + times.system)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = float("inf") if limit == resource.RLIM_INFINITY else limit
        yield GaugeMetricFamily("process_max_fds", "Maximum number of open file descriptors.", value=most)
        with suppress(OSError):
            virtual, resident = map(int, (_SELF / "statm").read_bytes().split()[:2])
            page, text = resource.getpagesize(), "memory size in bytes."
            yield GaugeMetricFamily("process_virtual_memory_bytes", f"Virtual {text}", value=virtual * page)
            yield GaugeMetricFamily("process_resident_memory_bytes", f"Resident {text}", value=resident * page)
            open_ones = sum(1 for _ in (_SELF / "fd").iterdir())
            yield GaugeMetricFamily("process_open_fds", "Number of open file descriptors.", value=open_ones)
