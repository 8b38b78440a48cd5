"""The figures of services, as pages show them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from titanic.schedules.queue_state import PAUSED
from titanic.web.figures.live import Sample
from titanic.web.hooks.registry import KEPT
from titanic.web.words import service_url


@dataclass(frozen=True, slots=True)
class Service:
    """A service; None: not known, or there is none."""

    name: str
    waiting: int = 0
    delayed: int = 0
    running: int = 0
    workers: int | None = None
    oldest: int | None = None
    """When the request that waits longest was submitted, in microseconds since 1970."""
    done: int = 0
    failed: int = 0
    expired: int = 0
    """Since the start of the server that is asked."""
    paused: bool = False
    on_end: str | None = None
    """Which service is told of each end."""
    limits: Mapping[str, float | None] = field(default_factory=dict)
    """The most that may wait and run, with which bytes, and a second."""

    @property
    def url(self) -> str:
        """Its page."""
        return service_url(self.name)

    @property
    def by_age(self) -> float:
        """For sorting: larger for what has waited longer."""
        return -math.inf if self.oldest is None else -self.oldest

    @property
    def by_workers(self) -> int:
        """For sorting."""
        return self.workers or 0

    @property
    def is_lonely(self) -> bool:
        """Whether requests wait and nobody works, though they could."""
        return self.waiting > 0 and self.workers == 0 and not self.paused


FIGURES = ("waiting", "delayed", "running", "oldest", "done", "failed", "expired", "paused", "on_end")


@lru_cache(maxsize=1)
def services_of(sample: Sample) -> tuple[Service, ...]:
    """All services that have requests or workers, or for which something is set, but Titanic's own, by name. (What
    web hooks send and are told has work to do, and is listed.) Made once for all pages of a moment."""
    names = {*(sample.stats.get("by_service") or sample.stats["services"]), *(sample.workers or ())}
    return tuple(service_of(sample, name) for name in sorted(names) if not is_own(name))


def is_own(service: str) -> bool:
    """Whether this is Titanic's own: answered by the server, or never executed, as its requests only stand for
    something."""
    return service.startswith(("titanic.", "mmi.")) or service in (PAUSED, KEPT)


def service_of(sample: Sample, name: str) -> Service:
    """The figures of one service, known or not."""
    workers = None if sample.workers is None else sample.workers.get(name, 0)
    row = (sample.stats.get("by_service") or {}).get(name)
    if row is None:
        return Service(name, sample.stats["services"].get(name, 0), workers=workers)
    limits = {limit: most for limit, most in row["limits"].items() if most is not None}
    return Service(name, workers=workers, limits=limits, **{figure: row[figure] for figure in FIGURES})
