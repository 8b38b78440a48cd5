"""A client for asyncio: any number of coroutines may use one, in one loop.

Their requests are on their way at once, on one connection, as those of a `broker.Pipeline`. A broker that is not of
this project need not be able to distinguish them: there it is one at a time, and the others wait. Which it is, is asked
once, before the first request.

A connection that breaks is made again at once, and what had no answer is sent again.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from broker.aio.exchange import Exchange
from broker.client import Body, about_broker, service_name
from broker.config import DEFAULT_ENDPOINT, ClientConfig
from broker.core.endpoints import Servers
from broker.core.mdp import Frames
from broker.core.protocol_detection import ANSWER_TIMEOUT
from broker.errors import RemoteError, TimedOut, UsageError
from broker.io.curve import Key, credentials

Item = TypeVar("Item")


class Client:
    """Calls services of any MDP broker.

    async with Client("tcp://127.0.0.1:5555") as client:
        frames = await client.call("echo", b"hello")

    A coroutine that is cancelled gets no reply; what it has sent may be executed all the same.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout: float | None = 2.5,
        retries: int = 3,
        version: str | None = None,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """As `broker.Client`. It may be made outside a loop; the first one in which it is used is its own, until that
        one is closed."""
        self.endpoint = str(Servers(endpoint))
        self._endpoints = endpoint
        self._config = ClientConfig(timeout, retries, version)
        self._curve = credentials(key, server_key)
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exchange: Exchange | None = None
        self._turn: asyncio.Lock | None = None
        """Of a broker at which requests go one at a time."""
        self._detection: asyncio.Task[bool] | None = None
        """Finds out which kind of broker it is, while anybody waits for that."""
        self._asking = 0
        """How many wait for it."""
        self._known = False
        """Whether that is known."""
        self._sent_again = 0
        """By connections that are closed."""

    def close(self) -> None:
        """Close the connection. Call this in the loop. Requests on their way get a UsageError here; the broker may
        still work on them."""
        self._closed = True
        self._drop()

    @property
    def sent_again(self) -> int:
        """How often a request was sent that had been sent before."""
        return self._sent_again + (self._exchange.sent_again if self._exchange is not None else 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def call(
        self, service: Body, *body: Body, timeout: float | None = None, retries: int | None = None
    ) -> Frames:
        """The whole reply: the frames of all its parts. Raises TimedOut, RemoteError or KeyRefused."""
        name = service_name(service)
        exchange = self._ready() or await self._detect(timeout, retries)
        if self._turn is None:
            return await exchange.call(name, body, timeout, retries)
        async with self._turn:
            return await exchange.call(name, body, timeout, retries)

    async def stream(
        self, service: Body, *body: Body, timeout: float | None = None, retries: int | None = None
    ) -> AsyncGenerator[Frames, None]:
        """The reply part by part, as the parts arrive. The last part is left out when it is empty.

        To stop reading early is fine: the rest is dropped.
        """
        name = service_name(service)
        exchange = self._ready() or await self._detect(timeout, retries)
        if self._turn is not None:
            await self._turn.acquire()
        parts = exchange.stream(name, body, timeout, retries)
        try:
            async for part in parts:
                yield part
        finally:
            await parts.aclose()
            if self._turn is not None:
                self._turn.release()

    async def map(
        self,
        service: Body,
        bodies: Iterable[Body | Iterable[Body]] | AsyncIterable[Body | Iterable[Body]],
        *,
        window: int = 1000,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> AsyncGenerator[Frames, None]:
        """Send one request per body, at most `window` on their way, and yield the replies in the bodies' order.

        Raises as `call` at the first request that has no reply; the later ones are cancelled then.
        """
        if window < 1:
            raise UsageError(f"window is {window}; it must be 1 or more")
        source = aiter(bodies) if isinstance(bodies, AsyncIterable) else _each(bodies)
        order: deque[asyncio.Task[Frames]] = deque()
        try:
            more = True
            while more or order:
                while more and len(order) < window and not (order and order[0].done()):
                    if (body := await anext(source, None)) is None:
                        more = False
                        break
                    frames = [body] if isinstance(body, (bytes, str)) else body
                    order.append(asyncio.create_task(self.call(service, *frames, timeout=timeout, retries=retries)))
                if order:
                    yield await order[0]
                    order.popleft()
        finally:
            for task in order:
                task.cancel()
            await asyncio.gather(*order, return_exceptions=True)

    async def present(self, service: Body) -> bool:
        """Whether a worker of the service is registered now (RFC 8, mmi.service)."""
        return await self.call("mmi.service", service) == [b"200"]

    async def is_foreign(self, timeout: float) -> bool | None:
        """Return whether the broker is not of this project; None: no answer within `timeout` seconds."""
        try:
            if self._ready() is None:
                await self._detect(timeout, 0)
        except TimedOut:
            return None
        return self._turn is not None

    def _ready(self) -> Exchange | None:
        """The connection, if it is known what may be sent there."""
        if self._closed:
            raise UsageError("the client is closed")
        if self._loop is not asyncio.get_running_loop():
            self._move_in()
        return self._exchange if self._known else None

    def _move_in(self) -> None:
        """This is the loop from now on."""
        if self._loop is not None and not self._loop.is_closed():
            raise UsageError("another event loop is using this client; create one client for each loop")
        self._drop()
        self._loop = asyncio.get_running_loop()

    def _drop(self) -> None:
        """Close the connection; the next request makes another one."""
        if self._detection is not None and self._loop is not None and not self._loop.is_closed():
            self._detection.cancel()
        self._replace(None)
        self._known, self._turn, self._detection = False, None, None

    def _replace(self, exchange: Exchange | None) -> None:
        before, self._exchange = self._exchange, exchange
        if before is not None:
            self._sent_again += before.sent_again
            before.close()

    async def _detect(self, timeout: float | None, retries: int | None) -> Exchange:
        """The connection, once it is known which kind of broker is there. Takes no longer than a call would."""
        timeout = self._config.timeout if timeout is None else timeout
        patience = math.inf if timeout is None else timeout
        if self._detection is None:
            self._replace(Exchange(self._endpoints, self._config, self._curve, correlated=False))
            self._detection = asyncio.create_task(self._is_ours(min(patience, ANSWER_TIMEOUT)))
        detection, exchange = self._detection, self._exchange
        assert exchange is not None
        patience *= 1 + (self._config.retries if retries is None else retries)
        self._asking += 1
        try:
            await asyncio.wait({detection}, timeout=None if patience == math.inf else patience)
            if not detection.done():
                raise await exchange.no_answer(sent=False)
        finally:
            self._asking -= 1
            if detection.done() or not self._asking:
                detection.cancel()
                self._detection = None
        if detection.cancelled():
            raise UsageError("the client is closed")
        return self._decided(detection.result())

    def _decided(self, ours: bool) -> Exchange:
        """It is known which kind of broker it is."""
        if not self._known:
            self._known = True
            if ours:
                self._replace(Exchange(self._endpoints, self._config, self._curve, correlated=True))
            else:
                self._turn = asyncio.Lock()
        assert self._exchange is not None
        return self._exchange

    async def _is_ours(self, timeout: float) -> bool:
        """Return whether the broker is of this project, when it answers."""
        assert self._exchange is not None
        ask: Any = self._exchange.call
        while True:
            try:
                return bool(about_broker(await ask(b"mmi.broker", [b"mmi.broker"], timeout, 0)))
            except RemoteError:
                return False
            except TimedOut:  # no broker is there, or it does not answer this
                pass
            try:
                await ask(b"mmi.service", [b"mmi.service"], timeout, 0)
            except TimedOut:
                continue
            except RemoteError:
                pass
            return False


async def _each(items: Iterable[Item]) -> AsyncGenerator[Item, None]:
    for item in items:
        yield item
