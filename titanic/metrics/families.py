"""The figures as Prometheus wants them. The names are a contract with dashboards and alerts: see deploy/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from titanic.server.snapshot import ServerSnapshot
from titanic.util.histogram import Histogram
from titanic.version import __version__

REQUESTS = {
    "accepted": "Requests stored: their clients have a UUID.",
    "repeated": "Requests that had come before, by their key.",
    "dispatched": "Attempts begun: a request was sent to a worker.",
    "succeeded": "Requests that ended with a reply.",
    "failed": "Requests that failed for good.",
    "expired": "Requests whose time was over.",
    "retried": "Attempts that failed and are to be repeated.",
    "returned": "Requests that went back to the queue, because no worker took them after all.",
    "closed": "Requests closed by their clients.",
    "replies_given": "Replies handed out.",
}
"""The counters of requests, by the name that they are counted under."""


def queue(snapshot: ServerSnapshot) -> Iterator[Metric]:
    """A server's families."""
    yield about()
    for name, text in REQUESTS.items():
        metric = "titanic_replies_given" if name == "replies_given" else f"titanic_requests_{name}"
        yield CounterMetricFamily(metric, text, value=snapshot.counted[name])
    refused = CounterMetricFamily("titanic_requests_refused", "Requests that were not stored.", labels=["reason"])
    for reason, count in snapshot.refused.items():
        refused.add_metric([reason], count)
    yield refused
    yield from _services(snapshot)
    yield from _store(snapshot)
    yield _histogram("titanic_commit_seconds", "Time of a commit: changes, write and sync.", snapshot.commit_seconds)
    yield _histogram("titanic_commit_changes", "Changes that share a commit.", snapshot.commit_sizes)
    yield GaugeMetricFamily("titanic_waiting_clients", "Clients that wait for a reply.", value=snapshot.waiting_clients)
    yield threads(snapshot.lags)
    if snapshot.broker is not None:
        yield from broker(snapshot.broker)


def about() -> Metric:
    """What runs."""
    return InfoMetricFamily("titanic", "Titanic.", value={"version": __version__})


def threads(lags: Mapping[str, float]) -> Metric:
    """How quick the threads are."""
    text = "Time from a question to a thread until its answer: how far it lags behind."
    family = GaugeMetricFamily("titanic_thread_lag_seconds", text, labels=["thread"])
    for name, lag in lags.items():
        family.add_metric([name], lag)
    return family


def broker(counters: Mapping[str, int]) -> Iterator[Metric]:
    """A broker's families."""
    gauges = {
        "waiting": ("titanic_broker_waiting", "Requests that wait for a worker in the broker's memory."),
        "waiting_bytes": ("titanic_broker_waiting_bytes", "Memory that they take."),
        "workers": ("titanic_broker_workers", "Registered workers."),
        "workers_busy": ("titanic_broker_workers_busy", "Those of them that have a request."),
        "peers": ("titanic_broker_peers", "Connections, of clients and workers; a queue at a broker apart has many."),
        "services": ("titanic_broker_services", "Services that the broker knows."),
    }
    for name, (metric, text) in gauges.items():
        yield GaugeMetricFamily(metric, text, value=counters[name])
    events = CounterMetricFamily("titanic_broker_events", "What the broker counts: see mmi.stats.", labels=["event"])
    for name, count in counters.items():
        if name not in gauges:
            events.add_metric([name], count)
    yield events


def workers(count: Mapping[str, int | None]) -> Metric:
    """Who is there to do it."""
    return _labelled("titanic_workers", "Registered workers of a service, as far as known.", "service", count)


def ready(is_so: bool) -> Metric:
    """Whether it does its work."""
    text = "1 while clients are served, as /readyz has it; 0 also where a broker elsewhere does not answer."
    return GaugeMetricFamily("titanic_ready", text, value=is_so)


def _services(snapshot: ServerSnapshot) -> Iterable[Metric]:
    services = snapshot.services
    yield _labelled(
        "titanic_requests_waiting",
        "Requests that can be executed now, those with workers included.",
        "service",
        {name: load.waiting for name, load in services.items()},
    )
    yield _labelled(
        "titanic_requests_running",
        "Requests that are with workers, or at the broker waiting for one.",
        "service",
        {name: load.running for name, load in services.items()},
    )
    yield _labelled(
        "titanic_requests_oldest_seconds",
        "Age of the request that waits longest.",
        "service",
        {name: load.oldest for name, load in services.items()},
    )
    yield workers({name: load.workers for name, load in services.items()})


def _store(snapshot: ServerSnapshot) -> Iterable[Metric]:
    store = snapshot.store
    gauges = {
        "titanic_requests_delayed": ("Requests that wait for their time.", store.delayed),
        "titanic_replies_stored": ("Requests that have ended and are not closed.", store.replies),
        "titanic_store_capacity_bytes": ("What the store may grow to.", store.capacity),
        "titanic_store_used_bytes": ("What is in use of it.", store.used),
        "titanic_store_free_bytes": ("What is not in use of it.", max(0, store.capacity - store.used)),
        "titanic_store_closed": ("Closed requests that are remembered.", store.closed),
        "titanic_store_full": ("1 while there is no room for a small request.", snapshot.full),
        "titanic_disk_full": ("1 while the disk below the store has no room for what is written.", snapshot.disk_full),
        "titanic_store_usable": ("1 while the store can be used, 0 after its disk failed.", snapshot.usable),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(name, text, value=value)
    text = "Closed requests that were forgotten for want of room before the archive had them."
    yield CounterMetricFamily("titanic_store_lost", text, value=store.lost)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    total = histogram.sum
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, histogram.cumulative(), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=total)
