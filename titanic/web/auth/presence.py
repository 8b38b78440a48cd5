"""Whether anybody is at the server's address: so that nobody waits for an answer that cannot come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from broker import named, unreachable
from titanic.aio import Client
from titanic.aio.client import AsyncWire
from titanic.client.calls import Body
from titanic.errors import Refused
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames

LATE = 1.0
"""Seconds without an answer after which somebody looks whether anybody is there."""

PATIENCE = 1.5
"""Seconds that a connection may take to be made: a system that has too much to do lets one wait for a second."""

HOLDS = 0.5
"""Seconds for which it holds that nobody is there."""

READS = (tsp.LIST, tsp.STATS, tsp.REPLY)
"""What is given up when nobody is there. What changes something goes on: it may have been done already, and of what is
sent again on the same connection nothing is done twice. What waits for a reply goes on, too, however long that is."""


class Presence:
    """What is known of one server, or of several that stand for each other, to all who ask them."""

    def __init__(self, endpoint: Sequence[str]) -> None:
        self._names = named(endpoint)
        self._reason = ""
        """Why nobody can be connected to; empty: somebody may be there."""
        self._looked = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._numbers = count()
        self._asked: dict[int, tuple[float, asyncio.Timeout | None]] = {}
        """When what has no answer yet was asked, and for reads, how they are given up."""
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def is_away(self) -> bool:
        """Whether nobody was there when it was last looked."""
        return self._reason != ""

    @property
    def error(self) -> Refused:
        """Tells who asks."""
        return Refused("the server is away", self._reason, "try again when it has been started")

    async def check(self) -> None:
        """Raise Refused when nobody is there, now."""
        if time.monotonic() - self._looked > HOLDS:
            await asyncio.shield(self._look_soon())
        if self.is_away:
            raise self.error

    def begin(self, limit: asyncio.Timeout | None) -> int:
        """Something is asked; `limit`: how it is given up. Returns what `end` takes."""
        number = next(self._numbers)
        self._asked[number] = time.monotonic(), limit
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(LATE, self._ring)
        return number

    def end(self, number: int) -> None:
        """It was answered, or given up."""
        del self._asked[number]

    def _ring(self) -> None:
        """Look when the oldest question waits for too long."""
        self._alarm = None
        if not self._asked:
            return
        left = next(iter(self._asked.values()))[0] + LATE - time.monotonic()
        if left <= 0:
            self._look_soon()
        self._alarm = asyncio.get_running_loop().call_later(left if left > 0 else LATE, self._ring)

    def _look_soon(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._looking

    async def _look(self) -> None:
        self._reason = await self._reason_now()
        self._looked = time.monotonic()
        if self.is_away:
            now = asyncio.get_running_loop().time()
            for _, limit in self._asked.values():
                if limit is not None and not limit.expired():
                    limit.reschedule(now)

    async def _reason_now(self) -> str:
        """Look at all places at the same time: one that is silent takes all of PATIENCE."""
        looks = [asyncio.to_thread(unreachable, [name], PATIENCE) for name in self._names]
        reasons = []
        for look in asyncio.as_completed(looks):
            reasons.append(await look)
            if not reasons[-1]:  # somebody may be there: the others do not matter
                return ""
        return ", ".join(sorted(reasons))


class WatchedWire(AsyncWire):
    """Asks nobody who is away."""

    def __init__(self, presence: Presence, *given: Any) -> None:
        super().__init__(*given)
        self._presence = presence

    async def is_foreign(self, timeout: float) -> bool | None:
        """Whether a queue of another project is there: a gateway is for one of this project, and to ask takes long when
        nobody is there."""
        return False

    async def call(self, service: Body, body: Sequence[Body], timeout: float | None, retries: int | None) -> Frames:
        if self._presence.is_away:
            await self._presence.check()
        if service == tsp.WAIT:
            return await super().call(service, body, timeout, retries)
        if service not in READS:
            return await self._ask(None, service, body, timeout, retries)
        try:
            async with asyncio.timeout(None) as limit:
                return await self._ask(limit, service, body, timeout, retries)
        except TimeoutError:
            if not limit.expired():  # somebody is there, and takes too long
                raise
            raise self._presence.error from None

    async def _ask(self, limit: asyncio.Timeout | None, *given: Any) -> Frames:
        number = self._presence.begin(limit)
        try:
            return await super().call(*given)
        finally:
            self._presence.end(number)


class WatchedClient(Client):
    """A client whose wire is a WatchedWire."""

    def __init__(self, presence: Presence, endpoint: Sequence[str], **more: Any) -> None:
        """`more`: as for the `Client`."""
        self._presence = presence
        super().__init__(endpoint, retries=2, **more)

    def _new_wire(self, *given: Any) -> AsyncWire:
        return WatchedWire(self._presence, *given)
