"""The part of `titanic.Client` that flows, schedules and tasks need: a queue in memory provides it as well."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Protocol, Unpack

from titanic.client.calls import Body
from titanic.protocol.answers import Ended
from titanic.protocol.documents import RequestInfo
from titanic.protocol.submit_options import ManyOptions, Span, SubmitOptions


class Found(str):
    """The UUID of an earlier request, which a unique one has found: nothing was stored."""

    __slots__ = ()


class RequestQueue(Protocol):
    """A queue of requests."""

    def submit(self, service: str, *body: Body, **options: Unpack[SubmitOptions]) -> str:
        """Store a request; return its UUID."""

    def submit_many(
        self,
        service: str,
        bodies: Iterable[bytes],
        *,
        keys: Iterable[str] | None = None,
        uniques: Iterable[str | None] | None = None,
        **options: Unpack[ManyOptions],
    ) -> list[str]:
        """Store one request per body; return their UUIDs."""

    def reply(self, uuid: str) -> list[bytes] | None:
        """Return the reply's frames; None while it is pending."""

    def wait(self, uuid: str, timeout: Span | None = None) -> list[bytes]:
        """Wait for the reply; return its frames."""

    def replies(self, uuids: Iterable[str], timeout: Span | None = None) -> Iterator[tuple[str, Ended]]:
        """Yield each UUID with the outcome of its request, as requests end."""

    def close(self, *uuids: str) -> object:
        """Delete requests and their replies."""

    def close_many(self, uuids: Iterable[str]) -> None:
        """Delete any number of requests and their replies."""

    def find(self, keys: Sequence[str], flow: str | None = None) -> tuple[dict[str, str], dict[str, str]]:
        """Return the UUID of each key, and the state of each of these requests that is not closed."""

    def show(self, uuid: str) -> RequestInfo:
        """Return all that is known about a request."""


class AioQueue(Protocol):
    """The same for asyncio: the part of `titanic.aio.Client` that tasks need."""

    async def submit(self, service: str, *body: bytes, **options: Unpack[SubmitOptions]) -> str:
        """Store a request; return its UUID."""

    async def submit_many(
        self,
        service: str,
        bodies: Iterable[bytes],
        *,
        keys: Iterable[str] | None = None,
        uniques: Iterable[str | None] | None = None,
        **options: Unpack[ManyOptions],
    ) -> list[str]:
        """Store one request per body; return their UUIDs."""

    async def wait(self, uuid: str, timeout: Span | None = None) -> list[bytes]:
        """Wait for the reply; return its frames."""

    def replies(self, uuids: Iterable[str], timeout: Span | None = None) -> AsyncGenerator[tuple[str, Ended], None]:
        """Yield each UUID with the outcome of its request, as requests end."""

    async def close(self, *uuids: str) -> object:
        """Delete requests and their replies."""

    async def close_many(self, uuids: Iterable[str]) -> None:
        """Delete any number of requests and their replies."""


class AppQueues(Protocol):
    """The queue of an app, for threads and for asyncio."""

    @property
    def client(self) -> RequestQueue:
        """The queue for this thread."""

    @property
    def aio_client(self) -> AioQueue:
        """The queue for the running event loop."""
