"""Tickets whose methods are awaited: those of `Task.aio`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar, Unpack

from broker import Curve
from titanic.errors import RequestFailed
from titanic.protocol.answers import Ended
from titanic.protocol.submit_options import Span, SubmitOptions
from titanic.tasks.ticket import Answering, AnyTicket, AnyTickets

R = TypeVar("R", covariant=True)

Reach = tuple[str | Sequence[str], Span, Curve | None]
"""Where Titanic is, how long an answer may take, with which keys."""


class AioQueue(Protocol):
    """What tasks want of a queue in asyncio: some methods of `titanic.aio.Client`."""

    async def submit(self, service: str, *body: bytes, **options: Unpack[SubmitOptions]) -> str:
        """The UUID of a request that is stored now."""

    async def submit_many(
        self,
        service: str,
        bodies: Iterable[bytes],
        *,
        keys: Iterable[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> list[str]:
        """The UUIDs of requests that are stored now, one for each body."""

    async def wait(self, uuid: str, timeout: Span | None = None) -> list[bytes]:
        """The reply's frames, as soon as they are there."""

    def replies(self, uuids: Iterable[str], timeout: Span | None = None) -> AsyncGenerator[tuple[str, Ended], None]:
        """Each UUID with how its request ended, as they end."""

    async def close(self, *uuids: str) -> None:
        """Delete requests and their replies."""

    async def close_many(self, uuids: Iterable[str]) -> None:
        """Delete any number of requests and their replies."""


class AioQueues(Protocol):
    """Where an app's queue is."""

    @property
    def aio_client(self) -> AioQueue:
        """The queue of the loop that runs here, now."""


class AioClients(Protocol):
    """A queue for each event loop."""

    @property
    def client(self) -> AioQueue:
        """That of the loop that runs here."""


class AioTicket(AnyTicket[R]):
    """As `Ticket`; what takes time is awaited."""

    __slots__ = ("_queues",)

    def __init__(self, task: Answering, queues: AioQueues, uuid: str) -> None:
        super().__init__(task, uuid)
        self._queues = queues

    async def reply(self, timeout: Span | None = None) -> R:
        """As of `Ticket`. A coroutine that is cancelled here leaves the request alone."""
        try:
            return self._read(await self._queues.aio_client.wait(self.uuid, timeout))
        except RequestFailed as error:
            failed = error
        raise self.task.failure(failed)

    async def close(self) -> None:
        """As of `Ticket`."""
        await self._queues.aio_client.close(self.uuid)


class AioTickets(AnyTickets[R, AioTicket[R]]):
    """As `Tickets`; what takes time is awaited."""

    def __init__(self, task: Answering, queues: AioQueues, uuids: Iterable[str]) -> None:
        super().__init__([AioTicket(task, queues, uuid) for uuid in uuids])
        self._queues = queues

    async def ended(self, timeout: Span | None = None) -> AsyncGenerator[tuple[AioTicket[R], R | Exception], None]:
        """As of `Tickets`: `async for ticket, outcome in tickets.ended()`."""
        tickets = {ticket.uuid: ticket for ticket in self}
        async with aclosing(self._queues.aio_client.replies(tickets, timeout)) as replies:
            async for uuid, ended in replies:
                yield tickets[uuid], tickets[uuid].outcome(ended)

    async def replies(self, timeout: Span | None = None) -> list[R]:
        """As of `Tickets`."""
        return self._in_order({ticket.uuid: outcome async for ticket, outcome in self.ended(timeout)})

    async def close(self) -> None:
        """Delete all of them."""
        await self._queues.aio_client.close_many(self.uuids)
