"""Titanic's client for asyncio.

    async with Client() as titanic:
        uuid = await titanic.submit("resize", picture)
        thumbnail, = await titanic.wait(uuid, timeout=60)
        await titanic.close(uuid)

Coroutines share a client and its one connection; ten thousand of them may wait. Cancelling a coroutine does not affect
the stored request.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Self

from broker import DEFAULT_ENDPOINT, Key, named
from broker.aio import Client as BrokerClient
from titanic.client import core
from titanic.client.batching import look_for
from titanic.client.calls import Body, Calls, tries_of
from titanic.client.core import ClientCore, OnProgress
from titanic.errors import TitanicError
from titanic.protocol.answers import Ended
from titanic.protocol.submit_options import Span, seconds
from titanic.protocol.tsp import Frames
from titanic.util import ids


class AsyncLane:
    """Many messages on their way at once, with so many tries for each."""

    def __init__(self, client: BrokerClient, timeout: float, retries: int) -> None:
        self.timeout = timeout
        self.retries = retries
        self._client = client

    async def map(
        self, service: bytes, messages: AsyncGenerator[Sequence[Body], None], window: int
    ) -> AsyncGenerator[Frames, None]:
        answers = self._client.map(service, messages, window=window, timeout=self.timeout, retries=self.retries)
        async with aclosing(answers):
            async for answer in answers:
                yield answer

    def close(self) -> None:
        """There is nothing to close: the connection is the client's."""


class AsyncWire:
    """A `broker.aio.Client`."""

    def __init__(self, client: BrokerClient, timeout: float, retries: int) -> None:
        self.endpoint = client.endpoint
        self._client = client
        self._usual = timeout, retries

    @property
    def sent_again(self) -> int:
        return self._client.sent_again

    async def call(self, service: Body, body: Sequence[Body], timeout: float | None, retries: int | None) -> Frames:
        return await self._client.call(service, *body, timeout=timeout, retries=retries)

    async def is_foreign(self, timeout: float) -> bool | None:
        return await self._client.is_foreign(timeout)

    def lane(self, tries: tuple[float, int] | None = None) -> AsyncLane:
        return AsyncLane(self._client, *(tries or self._usual))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def close(self) -> None:
        self._client.close()


WINDOW = 1000
"""Requests that are asked for at once."""


class Together:
    """Polls for the replies that coroutines wait for, as long as there are any."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._pending: dict[str, None] = {}
        self._waiting: dict[str, set[asyncio.Future[Ended]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def outcome(self, uuid: str, seconds: float) -> Ended | None:
        """Return how a request ended, as soon as that is known; None after so many seconds."""
        future = asyncio.get_running_loop().create_future()
        self._pending[uuid] = None
        self._waiting.setdefault(uuid, set()).add(future)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            await asyncio.wait({future}, timeout=None if seconds == math.inf else seconds)
            return future.result() if future.done() else None
        finally:
            self._leave(uuid, future)

    def _leave(self, uuid: str, future: asyncio.Future[Ended]) -> None:
        if (waiting := self._waiting.get(uuid)) is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[uuid]
                self._pending.pop(uuid, None)
        if not self._waiting and self._task is not None:
            self._task.cancel()  # it may be in a long pause
            self._task = None

    async def _look(self) -> None:
        try:
            rounds = look_for(self._calls, self._calls.lane(), self._pending, math.inf, WINDOW)
            async with aclosing(rounds):
                async for found in rounds:
                    for uuid, ended in found:
                        for future in self._waiting.pop(uuid, ()):
                            if not future.done():
                                future.set_result(ended)
        except TitanicError as error:
            for waiting in self._waiting.values():
                for future in waiting:
                    if not future.done():
                        future.set_exception(type(error)(*error.args))


MOST_WAITS = 20_000
"""Waits that the server holds for one client. It takes 100,000 of all clients together, and a quarter of one user's."""

MANY_WAITS = 1_000
"""With more of them, each lasts longer: so that no more than a hundred a second ask again."""

AWAY = 60.0
"""Seconds after which a wait that the server did not hold asks for that again."""


class Client(ClientCore):
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
        super().__init__(
            Calls(self._new_wire(connection, *tries), *tries), deque(), has_other_endpoints=len(named(endpoint)) > 1
        )
        self.endpoint = connection.endpoint
        self._together = Together(self.calls)
        self._waits = 0
        """The number of waits that the server holds."""

    def _new_wire(self, connection: BrokerClient, timeout: float, retries: int) -> AsyncWire:
        return AsyncWire(connection, timeout, retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection. Submitted requests stay. Coroutines that wait for an answer get an
        InvalidRequest."""
        self.calls.wire.close()

    async def wait(self, uuid: str, timeout: Span | None = None, *, on_progress: OnProgress | None = None) -> Frames:
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
        return core.WAIT_MOST * max(1.0, self._waits / MANY_WAITS)

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
