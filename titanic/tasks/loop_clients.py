"""The clients of an app in asyncio: one for each event loop, which closes when the loop ends."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable

from broker import finish
from titanic.aio import Client
from titanic.tasks.aio_ticket import Reach


class LoopClients:
    """Makes a client when a loop has none yet."""

    def __init__(self, reach: Callable[[], Reach]) -> None:
        self._reach = reach
        self._clients: dict[asyncio.AbstractEventLoop, Client] = {}
        self._ends: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}
        self._process = os.getpid()
        self._guard = threading.Lock()

    @property
    def client(self) -> Client:
        """That of the loop that runs here."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        return client if client is not None and self._process == os.getpid() else self._new(loop)

    def _new(self, loop: asyncio.AbstractEventLoop) -> Client:
        with self._guard:
            if self._process != os.getpid():  # what a fork has inherited is its parent's
                self._process, self._clients, self._ends = os.getpid(), {}, {}
            for other in [other for other in self._clients if other.is_closed()]:
                self._drop(other)
            endpoint, timeout, curve = self._reach()
            client = self._clients[loop] = Client(endpoint, timeout=timeout, key=curve)
            end = self._ends[loop] = self._end(loop)
        finish(anext(end))
        return client

    async def _end(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """A loop that ends, as with `asyncio.run`, closes generators that have begun: this one tells of it."""
        try:
            yield
        finally:
            self._drop(loop)

    def _drop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ends.pop(loop, None)
        if (client := self._clients.pop(loop, None)) is not None:
            client.disconnect()
