"""What a program in asyncio uses to hand requests to Titanic and to come back for the replies.

    async with Client() as titanic:
        uuid = await titanic.submit("resize", picture)
        thumbnail, = await titanic.wait(uuid, timeout=60)
        await titanic.close(uuid)

Any number of coroutines share one, and its one connection: ten thousand may wait. A coroutine that is cancelled leaves
the stored request as it is.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Self

from broker import DEFAULT_ENDPOINT, Key, named
from broker.aio import Client as BrokerClient
from titanic.aio.together import Together
from titanic.aio.wire import AsyncWire
from titanic.client import methods
from titanic.client.calls import Calls, tries_of
from titanic.client.methods import Methods
from titanic.protocol.answers import Ended
from titanic.protocol.progress import Progress
from titanic.protocol.submit_options import Span, seconds
from titanic.protocol.tsp import Frames
from titanic.util import ids

MOST_WAITS = 20_000
"""Waits that the server holds for one client. It takes 100,000 of all clients together, and a quarter of one user's."""

MANY_WAITS = 1_000
"""With more of them, each lasts longer: so that no more than a hundred a second ask again."""

AWAY = 60.0
"""Seconds after which a wait that the server did not hold asks for that again."""


class Client(Methods):
    """One client of one Titanic; each method is a coroutine, and does what that of `titanic.Client` does.

    A message that gets no answer is sent again, and at once when the connection breaks.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout: Span = 15.0,
        retries: int | None = None,
        version: str | None = None,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """As `titanic.Client`. It may be made outside a loop; the first one in which it is used is its own, until that
        one is closed."""
        tries = tries_of(timeout, retries)
        connection = BrokerClient(
            endpoint, timeout=tries[0], retries=tries[1], version=version, key=key, server_key=server_key
        )
        super().__init__(Calls(self._new_wire(connection, *tries), *tries), deque(), several=len(named(endpoint)) > 1)
        self.endpoint = connection.endpoint
        self._together = Together(self.calls)
        self._waits = 0
        """Coroutines whose waits the server holds."""

    def _new_wire(self, connection: BrokerClient, timeout: float, retries: int) -> AsyncWire:
        return AsyncWire(connection, timeout, retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection. What was submitted lives on. Coroutines that wait for an answer get an
        InvalidRequest."""
        self.calls.wire.close()

    async def wait(
        self, uuid: str, timeout: Span | None = None, *, on_progress: Callable[[Progress], object] | None = None
    ) -> Frames:
        """The reply's frames, as soon as they are there. Raises as `reply`, and TimedOut after `timeout` (seconds, or a
        timedelta)."""
        if self._waits >= MOST_WAITS:
            began, most = time.monotonic(), math.inf if timeout is None else seconds("timeout", timeout)
            while self._waits >= MOST_WAITS and (left := began + most - time.monotonic()) > 0:
                ended = await self._sent_away(ids.plain(uuid), left)
                if isinstance(ended, Exception):
                    raise ended
                if ended is not None:
                    return ended
            timeout = None if timeout is None else max(0.0, left)
        self._waits += 1
        try:
            return await super().wait(uuid, timeout, on_progress=on_progress)
        finally:
            self._waits -= 1

    def _wait_most(self) -> float:
        return methods.WAIT_MOST * max(1.0, self._waits / MANY_WAITS)

    async def _sent_away(self, uuid: str, left: float) -> Ended | None:
        return await self._together.outcome(uuid, min(left, AWAY))

    async def replies(
        self, uuids: Iterable[str], timeout: Span | None = None, *, window: int = 1000
    ) -> AsyncGenerator[tuple[str, Ended], None]:
        """Each UUID with its reply, as they come in; with an error for those that will never have a reply.

            async for uuid, outcome in client.replies(uuids, timeout=60):
                ...

        Raises TimedOut after `timeout` (as for `wait`) when some are still pending.
        """
        async with aclosing(self.some_replies(uuids, timeout, window)) as rounds:
            async for some in rounds:
                for found in some:
                    yield found
