"""What every process tells of itself, under the names that Prometheus' own clients use.

The one that comes with prometheus_client wants /proc/stat, which a hardened unit hides (ProcSubset=pid); then it says
nothing at all. What is here comes from the process' own files.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_SELF = Path("/proc/self")
_STARTED = 19
"""The field of /proc/self/stat behind the name in brackets that has the start, in ticks since the machine booted."""


class Process(Collector):
    """This process. What the system does not tell is left out."""

    def __init__(self) -> None:
        self._started: float | None = None
        with suppress(OSError):
            fields = (_SELF / "stat").read_bytes().rpartition(b")")[2].split()
            booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
            # Looked at once: a clock that is set must not look like another start.
            self._started = booted + int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")

    def collect(self) -> Iterable[Metric]:
        """The figures as they are now."""
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
