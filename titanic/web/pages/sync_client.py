"""Runs functions that need a synchronous client in a thread, with their calls made by the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, Unpack

from titanic.aio import Client
from titanic.client.calls import Body
from titanic.errors import TimedOut
from titanic.protocol.answers import RequestInfo
from titanic.protocol.submit_options import SubmitOptions

T = TypeVar("T")

TIMEOUT = 5.0
"""Seconds that a function may take in all."""


class SyncClient:
    """The methods of `titanic.Client` that such functions call, in one thread beside the event loop."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout

    def find(self, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """As `titanic.Client.find`."""
        return self._call(self._client.find(keys))

    def show(self, uuid: str) -> RequestInfo:
        """As `titanic.Client.show`."""
        return self._call(self._client.show(uuid))

    def submit(self, service: Body, *body: Body, **options: Unpack[SubmitOptions]) -> str:
        """As `titanic.Client.submit`."""
        return self._call(self._client.submit(service, *body, **options))

    def close(self, *uuids: str) -> None:
        """As `titanic.Client.close`."""
        return self._call(self._client.close(*uuids))

    def _call(self, call: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            future.cancel()
            raise TimedOut("this takes too long", f"more than {self._timeout:g} s", "try again") from None


async def call_sync(client: Client, function: Callable[..., T], *arguments: Any, timeout: float = TIMEOUT) -> T:
    """Call `function` in a thread with a client and `arguments`. Raises TimedOut."""
    return await asyncio.to_thread(function, SyncClient(client, timeout), *arguments)
