"""Batches concurrent submissions: one message to the server costs it, and this process, a fraction of many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from titanic.aio import Client
from titanic.errors import CallerError, Refused
from titanic.protocol.submit_options import MOST_TOGETHER

SMALL = 4 << 10
"""Bytes of a body that is batched. Larger bodies gain nothing from it."""

IN_FLIGHT = 6
"""Messages of a group in flight; submissions in the meantime form the next one."""

Kind = tuple[Client, str, tuple[tuple[str, Any], ...]]
"""What requests in one message share: client, service and options."""


class Submissions:
    """Batches submissions that differ only in their bodies."""

    def __init__(self) -> None:
        self._groups: dict[Kind, _Group] = {}

    @property
    def is_busy(self) -> bool:
        """Whether any submission is in progress."""
        return bool(self._groups)

    def submit(self, client: Client, service: str, body: bytes, options: dict[str, Any]) -> Awaitable[str]:
        """As `Client.submit`."""
        if len(body) > SMALL or "key" in options:
            return client.submit(service, body, **options)
        kind = client, service, tuple(options.items())
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = _Group(self._groups, kind)
        return group.add(body)


class _Group:
    """Submissions of one kind, while any is in progress."""

    def __init__(self, groups: dict[Kind, _Group], kind: Kind) -> None:
        self._groups = groups
        self._kind = kind
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[bytes, asyncio.Future[str]]] = []
        self._messages: set[asyncio.Task[None]] = set()
        self._due = False
        """Whether a message is sent at the end of this iteration of the loop."""

    def add(self, body: bytes) -> asyncio.Future[str]:
        """Return a future of the UUID, which is set once the request is stored."""
        future = self._loop.create_future()
        self._waiting.append((body, future))
        if not self._due and len(self._messages) < IN_FLIGHT:
            self._due = True
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._due = False
        some, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
        task = self._loop.create_task(self._send(some))
        self._messages.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._messages.discard(task)
        if self._waiting and not self._due:
            self._due = True
            self._loop.call_soon(self._flush)
        elif not self._messages and not self._due:
            del self._groups[self._kind]

    async def _send(self, some: list[tuple[bytes, asyncio.Future[str]]]) -> None:
        client, service, options = self._kind
        try:
            uuids = await client.submit_batch(service, [body for body, _ in some], **dict(options))
        except (CallerError, Refused) as error:
            if len(some) == 1:
                _fail(some, error)
            else:  # none was stored, perhaps because of a single one: try each
                for one in some:
                    await self._send([one])
        except Exception as error:
            _fail(some, error)
        else:
            for (_, future), uuid in zip(some, uuids, strict=True):
                if not future.done():
                    future.set_result(uuid)


def _fail(some: list[tuple[bytes, asyncio.Future[str]]], error: Exception) -> None:
    for _, future in some:
        if not future.done():
            future.set_exception(error)
