"""The queue in memory for coroutines: while one of them waits for a reply, the tasks that are due are executed in its
thread, and the clock goes on as far as that takes. Nothing else runs meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Unpack

from titanic.protocol.answers import Ended
from titanic.protocol.submit_options import Span, SubmitOptions
from titanic.tasks.memory import MemoryQueue


class AioMemory:
    """What `titanic.aio.Client` is for a server."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def submit(self, service: str, *body: bytes, **options: Unpack[SubmitOptions]) -> str:
        return self._queue.submit(service, *body, **options)

    async def submit_many(
        self,
        service: str,
        bodies: Iterable[bytes],
        *,
        keys: Iterable[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> list[str]:
        return self._queue.submit_many(service, bodies, keys=keys, **options)

    async def wait(self, uuid: str, timeout: Span | None = None) -> list[bytes]:
        return self._queue.wait(uuid, timeout)

    async def replies(
        self, uuids: Iterable[str], timeout: Span | None = None
    ) -> AsyncGenerator[tuple[str, Ended], None]:
        for found in self._queue.replies(uuids, timeout):
            yield found

    async def close(self, *uuids: str) -> None:
        self._queue.close(*uuids)

    async def close_many(self, uuids: Iterable[str]) -> None:
        self._queue.close_many(uuids)
