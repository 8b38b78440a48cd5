"""The wire of a client in asyncio: one connection, whose coroutines share it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from broker.aio import Client as BrokerClient
from titanic.client.wire import Body
from titanic.protocol.tsp import Frames


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
