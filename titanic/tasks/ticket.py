"""Tickets for submitted tasks, with methods that block or are awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar, overload

from broker import Curve
from titanic.client.request_queue import AppQueues, Found
from titanic.errors import RequestFailed
from titanic.protocol.answers import Ended
from titanic.protocol.submit_options import Span

R = TypeVar("R", covariant=True)
T = TypeVar("T", bound="AnyTicket[Any]", covariant=True)


class Answering(Protocol):
    """What knows what replies mean: a task, or a flow."""

    @property
    def service(self) -> str:
        """The service of its requests."""

    def read_reply(self, frames: list[bytes]) -> Any:
        """What was returned."""

    def failure(self, failed: RequestFailed) -> Exception:
        """What is raised for a request that has failed."""


class AnyTicket(Generic[R]):
    """What a ticket is, whether its methods block or are awaited."""

    __slots__ = ("task", "uuid")

    def __init__(self, task: Answering, uuid: str) -> None:
        self.task = task
        """The task, or the flow, that reads its reply."""
        self.uuid = uuid

    @property
    def found(self) -> bool:
        """Whether it is the ticket of an earlier request with the same unique key."""
        return isinstance(self.uuid, Found)

    def outcome(self, ended: Ended) -> R | Exception:
        """What `reply` returns or raises for what a queue has said."""
        if isinstance(ended, RequestFailed):
            return self.task.failure(ended)
        if isinstance(ended, Exception):
            return ended
        try:
            return self._read(ended)
        except Exception as error:
            return error

    def _read(self, frames: list[bytes]) -> R:
        value: R = self.task.read_reply(frames)
        return value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.uuid} of {self.task.service}>"


class Ticket(AnyTicket[R]):
    """A submitted task. Keep `uuid` to fetch the reply in another process, with a ticket from `Task.ticket`."""

    __slots__ = ("_queues",)

    def __init__(self, task: Answering, queues: AppQueues, uuid: str) -> None:
        super().__init__(task, uuid)
        self._queues = queues

    def reply(self, timeout: Span | None = None) -> R:
        """Wait for the task's result and return it; `timeout` as in `Client.wait`.

        If it failed for good, raises the task's exception if that is declared, else TaskFailed; UnknownRequest if it
        was closed; TimedOut.
        """
        try:
            return self._read(self._queues.client.wait(self.uuid, timeout))
        except RequestFailed as error:
            failed = error
        raise self.task.failure(failed)

    def close(self) -> None:
        """Delete the request and its reply: a waiting one is cancelled, a running one's worker is notified."""
        self._queues.client.close(self.uuid)


class AnyTickets(Sequence[T], Generic[R, T]):
    """Tickets of one task, in the order in which it was submitted."""

    def __init__(self, tickets: list[T]) -> None:
        self._tickets = tickets

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._tickets[index]

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def uuids(self) -> list[str]:
        """The UUIDs of all tickets."""
        return [ticket.uuid for ticket in self._tickets]

    def _in_order(self, found: dict[str, R | Exception]) -> list[R]:
        """What was returned, in the order of the tickets. Raises what the first one that has failed has failed with."""
        values = []
        for uuid in self.uuids:
            outcome = found[uuid]
            if isinstance(outcome, Exception):
                raise outcome
            values.append(outcome)
        return values


class Tickets(AnyTickets[R, Ticket[R]]):
    """Tickets of one task, in the order in which it was submitted."""

    def __init__(self, task: Answering, queues: AppQueues, uuids: Iterable[str]) -> None:
        super().__init__([Ticket(task, queues, uuid) for uuid in uuids])
        self._queues = queues

    def ended(self, timeout: Span | None = None) -> Iterator[tuple[Ticket[R], R | Exception]]:
        """Yield each ticket as its task ends, with the result, or with the exception that `reply` would raise.

        Raises TimedOut after `timeout` if some are still pending.
        """
        tickets = {ticket.uuid: ticket for ticket in self._tickets}
        for uuid, ended in self._queues.client.replies(tickets, timeout):
            yield tickets[uuid], tickets[uuid].outcome(ended)

    def replies(self, timeout: Span | None = None) -> list[R]:
        """Return all results, in order. If some tasks failed, raises the exception of the first of them, after all have
        ended."""
        return self._in_order({ticket.uuid: outcome for ticket, outcome in self.ended(timeout)})

    def close(self) -> None:
        """Delete all of them."""
        self._queues.client.close_many(self.uuids)


Reach = tuple[str | Sequence[str], Span, Curve | None]
"""Where Titanic is, how long an answer may take, with which keys."""


class AioTicket(AnyTicket[R]):
    """As `Ticket`; what takes time is awaited."""

    __slots__ = ("_queues",)

    def __init__(self, task: Answering, queues: AppQueues, uuid: str) -> None:
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

    def __init__(self, task: Answering, queues: AppQueues, uuids: Iterable[str]) -> None:
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
