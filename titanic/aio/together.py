"""Coroutines whose waits the server does not hold: their replies are looked for together, a hundred in a message.

`titanic.wait` costs nothing, and tells at once. But a server takes only so many, those with a broker elsewhere few. So
a client that waits for very many requests holds the first ones there, and looks for the rest in here.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing

from titanic.client.batching import look_for
from titanic.client.calls import Calls
from titanic.errors import TitanicError
from titanic.protocol.answers import Ended

WINDOW = 1000
"""Requests that are asked for at once."""


class Together:
    """Looks again and again for the replies that somebody waits for, as long as there is one."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._pending: dict[str, None] = {}
        self._waiting: dict[str, set[asyncio.Future[Ended]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def outcome(self, uuid: str, seconds: float) -> Ended | None:
        """How a request has ended, as soon as that is known; None after so many seconds."""
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
