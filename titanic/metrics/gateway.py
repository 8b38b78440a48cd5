"""Metrics of `titanic web`: what it answered, how long that took, and what its clients hold of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from titanic.metrics import families

HELD = {
    "event_streams": "Open event streams.",
    "leases": "Leases of workers over HTTP, and calls that wait for one.",
    "body_bytes": "Memory used by bodies of requests.",
}
"""What clients hold of a gateway."""


@dataclass(frozen=True, eq=False)
class GatewayFigures(Collector):
    """The figures of a gateway."""

    answers: Mapping[tuple[str, int], tuple[Sequence[int], float]]
    """By class of route and status: the answers in each bucket of BOUNDS, and the sum of their times."""
    refused: Mapping[str, int]
    """Refusals, by what the client lacked."""
    held: Mapping[str, int]
    """How many of HELD."""

    def collect(self) -> Iterator[Metric]:
        """The families with their present values."""
        yield families.about()
        text = "Time until the end of an answer, by class of route; 499: the client did not wait for it."
        times = [((route, str(status)), *counted) for (route, status), counted in self.answers.items()]
        yield families.durations("titanic_web_request_seconds", text, ("route", "status"), times)
        text = "Refusals for lack of valid credentials, or of a permission that the gateway itself checks."
        yield families.labelled("titanic_web_refusals", text, "lacking", self.refused, CounterMetricFamily)
        for name, text in HELD.items():
            yield GaugeMetricFamily(f"titanic_web_{name}", text, value=self.held[name])

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """These figures and those of the process, in a format that the client accepts; and its content type."""
        registry = CollectorRegistry(auto_describe=False)
        for collector in (self, families.Process(), PLATFORM_COLLECTOR, GC_COLLECTOR):
            registry.register(collector)
        encode, kind = choose_encoder(accept)
        return encode(registry), kind
