"""Functions that ask the queue step by step, as programs with a blocking client do, run in a thread beside the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, Unpack

from titanic.aio import Client
from titanic.client.wire import Body
from titanic.errors import TimedOut
from titanic.protocol.answers import RequestInfo
from titanic.protocol.submit_options import SubmitOptions

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that such a function may take in all."""


class Blocking:
    """A visitor's client for one function in a thread: what it asks is asked in the loop, which goes on meanwhile."""

    def __init__(self, client: Client, patience: float) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._until = time.monotonic() + patience

    def find(self, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """As `titanic.Client.find`."""
        return self._ask(self._client.find(keys))

    def show(self, uuid: str) -> RequestInfo:
        """As `titanic.Client.show`."""
        return self._ask(self._client.show(uuid))

    def submit(self, service: Body, *body: Body, **options: Unpack[SubmitOptions]) -> str:
        """As `titanic.Client.submit`."""
        return self._ask(self._client.submit(service, *body, **options))

    def close(self, *uuids: str) -> None:
        """As `titanic.Client.close`."""
        return self._ask(self._client.close(*uuids))

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(question, self._loop)
        try:
            return future.result(max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            future.cancel()
            raise TimedOut("this takes too long", f"more than {self._patience:g} s", "try again") from None


async def beside(client: Client, function: Callable[..., T], *given: Any, patience: float = PATIENCE) -> T:
    """What `function` returns, called with a client and `given`. Raises TimedOut after `patience` seconds."""
    return await asyncio.to_thread(function, Blocking(client, patience), *given)
