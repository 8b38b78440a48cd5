"""Metrics of `titanic work` and `titanic worker`: what they do with the requests that they get.

An upgrade starts a new worker while the old one finishes its requests, with the same settings. So a worker that stops
gives up its address at once, and one that finds it in use tries again until it is free.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from broker import Delivery, WorkerBase, read_error
from titanic.errors import CallerError
from titanic.facts.counts import BUCKETS, bucket
from titanic.metrics import families
from titanic.metrics.listener import MetricsListener
from titanic.protocol.tsp import AGAIN, UNREADY, Frames

BEAT, LATE = 1.0, 10.0
"""Seconds between two signs of life of a worker's loop, and without one after which it counts as stuck."""

BIND_INTERVAL = 1.0
"""Seconds between two attempts to get an address that is in use."""

SUCCEEDED, FAILED, RETURNED = "succeeded", "failed", "returned"


log = logging.getLogger("titanic.metrics")


class WorkerMetrics:
    """Counts requests, and serves the counts. The loops of workers call `begun` and `ended`, any thread the rest."""

    def __init__(self) -> None:
        self._workers: list[WorkerBase] = []
        """Also those that have ended."""
        self._processes: tuple[int, int, int] | None = None
        """Those of a pool: how many work, how many died, and their memory."""
        self._begun: dict[Delivery, float] = {}
        """The requests in hand."""
        self._outcomes: Counter[tuple[str, str]] = Counter()
        """By service and outcome."""
        self._runs: dict[str, list[int]] = {}
        """Run times, in the buckets of BOUNDS."""
        self._seconds: dict[str, float] = {}
        """Their sums."""
        self._beat_at: float | None = None
        self._listener: MetricsListener | None = None
        self._closed = threading.Event()

    def serve(self, host: str, port: int) -> None:
        """Serve the metrics, as soon as the address is free. Raises CallerError when it cannot be bound."""
        try:
            self._listen(host, port)
        except CallerError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
                raise
            log.warning("%s; trying again until it is free", error)
            threading.Thread(target=self._listen_later, args=(host, port), name="metrics", daemon=True).start()

    def close(self) -> None:
        """Serve them no longer: the worker stops."""
        self._closed.set()
        if (listener := self._listener) is not None:
            self._listener = None
            listener.stop()

    def watch(self, worker: WorkerBase) -> None:
        """Observe a worker, which does not run yet."""
        self._workers.append(worker)
        worker.observer = self
        worker.every(BEAT, self._beat)

    def begun(self, delivery: Delivery) -> None:
        """A worker has a request."""
        self._begun[delivery] = time.monotonic()

    def ended(self, delivery: Delivery, body: Frames, outcome: str) -> None:
        """The worker has it no more."""
        ran, name = time.monotonic() - self._begun.pop(delivery), delivery.service.decode(errors="replace")
        outcome = outcome or _outcome(body)
        self._outcomes[name, outcome] += 1
        if outcome != RETURNED:
            self._seconds[name] = self._seconds.get(name, 0.0) + ran  # first: `collect` finds it by the name of a run
            self._runs.setdefault(name, [0] * BUCKETS)[bucket(ran)] += 1

    def processes(self, ready: int, died: int, memory: int) -> None:
        """Note what a pool says of its processes."""
        self._processes = ready, died, memory

    def unhealthy(self) -> str:
        """Why the worker cannot go on; empty: it can."""
        stuck = self._beat_at is not None and time.monotonic() > self._beat_at + LATE
        return f"stuck for {LATE:g} s or more" if stuck else ""

    def unready(self) -> str:
        """Why the worker gets no requests; empty: it does."""
        return self.unhealthy() or ("" if self._slots() else "it is not registered with a broker")

    def collect(self) -> Iterable[Metric]:
        """The families with their present values."""
        yield families.about()
        text = "Requests that the worker had, by outcome."
        yield families.counts_by("titanic_worker_attempts", text, ("service", "outcome"), self._outcomes.copy())
        times = [((name,), buckets, self._seconds[name]) for name, buckets in self._runs.copy().items()]
        text = "Time of an attempt at the worker."
        yield families.durations("titanic_worker_run_seconds", text, ("service",), times)
        running = Counter(one.service.decode(errors="replace") for one in [*self._begun])
        yield families.labelled("titanic_worker_running", "Requests that the worker has.", "service", running)
        text = "Requests that the worker's brokers may send at a time; 0: it is not registered."
        yield GaugeMetricFamily("titanic_worker_slots", text, value=self._slots())
        lost = sum(one.reconnects for one in [*self._workers])
        yield CounterMetricFamily("titanic_worker_reconnects", "Times that a broker was lost.", value=lost)
        if self._processes is not None:
            working, died, memory = self._processes
            text = "Processes that execute requests."
            yield GaugeMetricFamily("titanic_worker_processes", text, value=working)
            text = "Processes that died, or were killed because of a request."
            yield CounterMetricFamily("titanic_worker_processes_died", text, value=died)
            yield GaugeMetricFamily("titanic_worker_processes_memory_bytes", "Memory of these processes.", value=memory)

    def _slots(self) -> int:
        return sum(one.registered for one in [*self._workers])

    def _listen(self, host: str, port: int) -> None:
        listener = MetricsListener(
            host, port, self.collect, unhealthy=self.unhealthy, unready=self.unready, ready=families.worker_ready
        )
        self._listener = listener
        where = f"[{host}]" if ":" in host else host
        log.info("metrics at http://%s:%d/metrics", where, listener.port)

    def _listen_later(self, host: str, port: int) -> None:
        while not self._closed.wait(BIND_INTERVAL):
            with suppress(CallerError):
                self._listen(host, port)
                break
        if self._closed.is_set():
            self.close()

    def _beat(self) -> None:
        self._beat_at = time.monotonic()


def _outcome(body: Frames) -> str:
    error = read_error(body)
    if error is None:
        return SUCCEEDED
    word = error.detail[0] if error.detail else b""
    return RETURNED if word.startswith((UNREADY, AGAIN)) else FAILED
