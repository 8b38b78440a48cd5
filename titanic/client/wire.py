"""How a client reaches its broker: what procedures await. Here it blocks; `titanic.aio` has the other one."""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from broker import Client, Curve, Pipeline, each
from titanic.protocol.tsp import Frames

Body = bytes | str


class Lane(Protocol):
    """Many messages on their way at once."""

    timeout: float
    retries: int

    def map(
        self, service: bytes, messages: AsyncGenerator[Sequence[Body], None], window: int
    ) -> AsyncGenerator[Frames, None]:
        """Send messages, `window` on their way at once; yield the answers in the order of the messages."""

    def close(self) -> None:
        """Nothing more is sent this way."""


class Wire(Protocol):
    """Messages to one broker, or to one of several. Errors are those of `broker`."""

    endpoint: str

    @property
    def sent_again(self) -> int:
        """How often a request was sent that had been sent before."""

    async def call(self, service: Body, body: Sequence[Body], timeout: float | None, retries: int | None) -> Frames:
        """Send a message and wait for its answer."""

    async def is_foreign(self, timeout: float) -> bool | None:
        """Whether the broker is not one of this project; None: nobody said so within `timeout` seconds."""

    def lane(self, tries: tuple[float, int] | None = None) -> Lane:
        """A way for many messages; the caller closes it. `tries`: a time-out and retries instead of the usual ones."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    def close(self) -> None:
        """Close the connections."""


class BlockingLane:
    """A `broker.Pipeline`."""

    def __init__(self, pipeline: Pipeline, timeout: float, retries: int, *, shared: bool) -> None:
        """`shared`: the pipeline goes on when the lane is closed."""
        self.timeout = timeout
        self.retries = retries
        self._pipeline = pipeline
        self._shared = shared

    async def map(
        self, service: bytes, messages: AsyncGenerator[Sequence[Body], None], window: int
    ) -> AsyncGenerator[Frames, None]:
        for answer in self._pipeline.map(service, each(messages), window=window):
            yield answer

    def close(self) -> None:
        if not self._shared:
            self._pipeline.close()


class BlockingWire:
    """Connections of one thread."""

    def __init__(
        self, endpoint: str | Sequence[str], timeout: float, retries: int, version: str | None, curve: Curve | None
    ) -> None:
        self._endpoints = endpoint
        self._settings: dict[str, Any] = {"version": version, "key": curve}
        self._usual = timeout, retries
        self._single = Client(endpoint, timeout=timeout, retries=retries, **self._settings)
        self._many: Pipeline | None = None
        self._closed = False
        self.endpoint = self._single.endpoint
        # Not __del__: of objects that refer to each other the sockets may be finalized first, and complain.
        self._connections: list[Client | Pipeline] = [self._single]
        weakref.finalize(self, _close_all, self._connections).atexit = False

    @property
    def sent_again(self) -> int:
        return self._single.sent_again + (self._many.sent_again if self._many is not None else 0)

    async def call(self, service: Body, body: Sequence[Body], timeout: float | None, retries: int | None) -> Frames:
        return self._single.call(service, *body, timeout=timeout, retries=retries)

    async def is_foreign(self, timeout: float) -> bool | None:
        return self._single.is_foreign(timeout)

    def lane(self, tries: tuple[float, int] | None = None) -> BlockingLane:
        """With the usual ones it shares a connection with others like it."""
        if tries is not None:
            return BlockingLane(self._pipeline(*tries), *tries, shared=False)
        if self._many is None:
            self._many = self._pipeline(*self._usual)
            self._connections.append(self._many)
            if self._closed:
                self._many.close()
        return BlockingLane(self._many, *self._usual, shared=True)

    def _pipeline(self, timeout: float, retries: int) -> Pipeline:
        return Pipeline(self._endpoints, timeout=timeout, retries=retries, **self._settings)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        """Close the connections. Any thread may ask."""
        self._closed = True
        _close_all(self._connections)


def _close_all(connections: list[Client | Pipeline]) -> None:
    for one in list(connections):
        one.close()
