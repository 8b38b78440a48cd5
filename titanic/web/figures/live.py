"""The figures that pages and event streams show, asked for once for all who look, and kept for an hour in memory."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from titanic.aio import Client
from titanic.errors import CallerError, TitanicError
from titanic.web.auth.identity import Visitor
from titanic.web.figures.history import HOUR, History, ServiceCounts, counts_of
from titanic.web.figures.latency import Latencies

EVERY = 2.0
"""Seconds between two looks while somebody looks."""

IDLE = 10.0
"""Seconds between two looks when nobody does; after an hour of that there are none."""

PROVEN = 10.0
"""Seconds for which a user who was given the figures is given those that were asked for with another's key."""

FOR_ADMINS = ("refusals", "refused")
"""What `titanic.stats` tells admins only."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What a server said at a moment, in seconds since 1970."""

    at: float
    stats: dict[str, Any]
    """What `titanic.stats` said."""
    workers: dict[str, int] | None
    """How many each service has; None: the broker does not tell."""
    took: float
    """Seconds until the answer."""

    def services(self) -> dict[str, ServiceCounts]:
        """The counters of the services."""
        rows = self.stats.get("by_service") or {}
        return {name: ServiceCounts(row["waiting"], row["done"], row["failed"]) for name, row in rows.items()}


class Live:
    """One look for all who look at the same time, and one task that goes on looking for an hour after them."""

    def __init__(self) -> None:
        self.history = History()
        self.latencies = Latencies()
        self._last: Sample | None = None
        self._proven: dict[str, float] = {}
        self._looking = asyncio.Lock()
        self._looked_at = 0.0
        self._going_on: asyncio.Task[None] | None = None
        self._visitor: Visitor | None = None
        """The last one who may see the figures: the task asks with his key."""

    async def sample(self, visitor: Visitor) -> Sample:
        """The figures of the last two seconds. Raises what `Client.stats` raises: Forbidden for who may not see
        them."""
        self._looked_at = time.monotonic()
        async with self._looking:
            now = time.monotonic()
            last = self._last
            allowed = now - self._proven.get(visitor.user, -PROVEN) < PROVEN
            if last is not None and allowed and 0 <= time.time() - last.at < EVERY:
                return last
            try:
                sample = await self._look(visitor.client)
            except TitanicError:
                self._proven.pop(visitor.user, None)
                raise
            self._proven[visitor.user] = now
            self._visitor = visitor
        if self._going_on is None or self._going_on.done():
            self._going_on = asyncio.create_task(self._go_on())
        return sample

    def forget(self) -> None:
        """Have the next who asks be told what there is then: something was changed."""
        self._last = None

    def close(self) -> None:
        """Look no more."""
        if self._going_on is not None:
            self._going_on.cancel()

    async def _look(self, client: Client) -> Sample:
        began = time.monotonic()
        answer = await client.stats(services=True)
        took = time.monotonic() - began
        # Others are shown what was asked for with the key of one.
        stats = {name: value for name, value in answer.items() if name not in FOR_ADMINS}
        self._last = sample = Sample(time.time(), stats, _workers(stats), took)
        self.history.add(counts_of(sample.at, stats), sample.services)
        return sample

    async def _go_on(self) -> None:
        while (idle := time.monotonic() - self._looked_at) < HOUR and (visitor := self._visitor):
            await asyncio.sleep(IDLE if idle > IDLE else EVERY)
            async with self._looking:
                if self._last is not None and 0 <= time.time() - self._last.at < EVERY / 2:
                    continue
                try:
                    await self._look(visitor.client)
                except CallerError:  # its user may not any more, or its key is gone
                    self._visitor = None
                except TitanicError:
                    continue  # it is away, and may come back
            with suppress(TitanicError):
                await self.latencies.look(visitor.user, visitor.client)


def _workers(stats: dict[str, Any]) -> dict[str, int] | None:
    """The workers of all services, on all nodes; None when a broker of its own has them: it does not tell."""
    rows = stats.get("by_service") or {}
    if any(row["workers"] is None for row in rows.values()):
        return None
    here = Counter({name: row["workers"] for name, row in rows.items()})
    here.update(stats.get("workers_elsewhere") or {})
    return dict(here)
