"""Messages from a client to Titanic: one at a time, or many in flight. A message without an answer is sent again.

Large bodies are checked against the broker's limit before they are sent. A frame of more than 2 MiB and twice the
broker's `max_body` breaks the connection: the sender would see no answer. A smaller frame that is still too large gets
an answer.

`Wire` and `CallLane` are what the procedures await. Here they block; `titanic.aio` has those for asyncio.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol

import broker
from broker import Client, Curve, Pipeline, each
from titanic.errors import InvalidRequest, TitanicError
from titanic.protocol import tsp
from titanic.protocol.answers import server_died, translate
from titanic.protocol.submit_options import Span, seconds
from titanic.protocol.tsp import Frames

Body = bytes | str


class CallLane(Protocol):
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
        """Whether the broker is not one of this project; None: unknown after `timeout` seconds."""

    def lane(self, tries: tuple[float, int] | None = None) -> CallLane:
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
        self._process = os.getpid()
        self.endpoint = self._single.endpoint
        # Not __del__: of objects that refer to each other the sockets may be finalized first, and complain.
        self._connections: list[Client | Pipeline] = [self._single]
        weakref.finalize(self, _close_all, self._connections, self._process).atexit = False

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
        _close_all(self._connections, self._process)


def _close_all(connections: list[Client | Pipeline], process: int) -> None:
    for one in list(connections) if process == os.getpid() else ():  # a fork has inherited its parent's
        one.close()


LARGE = 1 << 20
"""Bytes of a body up to which the broker is not asked for its limit."""

LONGEST_TRY = 86_400.0
"""Seconds that stand for "for ever" where only a number will do."""

LEAST_LOOK = 1.0
"""Seconds that one try may take, even when less is left of the caller's time: a slow network is not an absent reply."""

SETTLING = 0.2
"""Seconds in which a queue has registered all its services that has registered one."""

VIA: ContextVar[str] = ContextVar("via", default="")
"""How a user came to this client, as tsp.VIA says; empty: calls do not state it."""

RFC9 = (tsp.REQUEST, tsp.REPLY, tsp.CLOSE)
"""The services that every Titanic has."""

MOST_TRIES = 3
"""Of a call, when the caller does not say how many."""

PAUSE = 0.01
"""Seconds before a request is sent again that died with the server."""


ENDING_PAUSE = 0.2
"""Seconds before a submission is sent again that a server refused because it ends: another may begin there."""


def tries_of(timeout: Span, retries: int | None) -> tuple[float, int]:
    """Seconds of a try, and how often to try again, as a caller says it: without `retries`, `timeout` is for all tries
    together."""
    span = seconds("timeout", timeout)
    if retries is not None:
        return span, retries
    count = int(min(MOST_TRIES, max(1.0, span / LEAST_LOOK)))
    return span / count, count - 1


class Calls:
    """Requests to one Titanic and their answers, as procedures on a wire (`broker.client`)."""

    def __init__(self, wire: Wire, timeout: float, retries: int) -> None:
        self.wire = wire
        self.timeout = timeout
        self.patience = timeout * (1 + retries)
        """Seconds that a call takes at most."""
        self._retries = retries
        self.limits = BrokerLimits(wire)
        self._asked_again = 0
        self._only_rfc9: bool | None = None
        self._look_after = float("-inf")
        self._has_audit = False

    @property
    def sent_again(self) -> int:
        """How often a request was sent that had been sent before."""
        return self._asked_again + self.wire.sent_again

    async def knows_only_rfc9(self, within: float | None = None, service: bytes = tsp.SUBMIT) -> bool:
        """Whether the queue there is one of another project, which has `titanic.request` and no `titanic.submit`. That
        is asked once, and only at a broker of another project: our own queue may be there, too. Without `within`,
        raises what asking `service` would raise without an answer in all its time: that would only wait once more."""
        if self._only_rfc9 is None and time.monotonic() >= self._look_after:
            began = time.monotonic()
            timeout = self.timeout if within is None else min(self.timeout, max(within, PAUSE))
            foreign: bool | None = None
            with suppress(broker.BrokerError):  # what is asked for next raises it
                for _ in range(1 + (self._retries if within is None else 0)):
                    if (foreign := await self.wire.is_foreign(timeout)) is not None:
                        break
                if not foreign:
                    self._only_rfc9 = foreign
                elif not await self._lacks_submit(timeout):
                    self._only_rfc9 = False if await self._has(tsp.SUBMIT, timeout) else None
                else:  # a queue of this project registers its services one after another
                    await self.wire.sleep(SETTLING)
                    self._only_rfc9 = True if await self._lacks_submit(timeout) else None
            self._look_after = time.monotonic() + LEAST_LOOK
            if within is None and foreign is None and time.monotonic() >= began + self.patience:
                try:
                    await self.wire.call(b"mmi.broker", [b"mmi.broker"], PAUSE, 0)
                except broker.TimedOut as error:
                    raise await self._fault(error, service, time.monotonic() - began, sent=False) from error
        return bool(self._only_rfc9)

    async def _stated(self, service: bytes, timeout: float) -> list[Body]:
        """The frames behind a body that state how the user came here: none, unless the server records that."""
        via = VIA.get()
        if not via or service not in tsp.STATED or self._only_rfc9 is not False:
            return []
        if not self._has_audit:  # perhaps the queue was not there yet
            with suppress(broker.BrokerError):  # without an answer, the call itself raises it
                self._has_audit = await self._has(tsp.AUDIT, timeout)
        return [tsp.VIA + via.encode()] if self._has_audit else []

    async def _lacks_submit(self, timeout: float) -> bool:
        return await self._has(tsp.REQUEST, timeout) and not await self._has(tsp.SUBMIT, timeout)

    async def _has(self, service: bytes, timeout: float) -> bool:
        return await self.wire.call(b"mmi.service", [service], timeout, 0) == [b"200"]

    async def ask(self, service: bytes, *body: Body, within: float | None = None, once: bool = False) -> Frames:
        """Ask a service of Titanic, for `within` seconds instead of the usual time. `once`: never send it again."""
        began = time.monotonic()
        if self._only_rfc9 is not False and service not in RFC9 and await self.knows_only_rfc9(within, service):
            fact = "it is another project's queue and supports RFC 9 only: submit, reply, wait and close"
            raise InvalidRequest(f"the queue at {self.wire.endpoint} has no {service.decode()}", fact)
        timeout, retries = (self.timeout, self._retries) if within is None else self._tries(within)
        until = began + timeout * (1 + retries)
        body = (*body, *await self._stated(service, timeout))
        if (spent := time.monotonic() - began) >= timeout:  # there was no server
            timeout, retries = self._tries(until - began - spent)
        if once:
            timeout, retries = timeout * (1 + retries), 0
        sent = False
        while True:
            try:
                if sum(map(frame_size, body)) > LARGE:
                    await self.limits.check(self._measured(service, body))
                answer = await self.wire.call(service, body, timeout, retries)
                is_ending = service == tsp.SUBMIT and b"".join(answer[:1]).startswith(tsp.ENDING)
                if not is_ending or time.monotonic() >= until:
                    return answer
                await self.wire.sleep(ENDING_PAUSE)
            except broker.BrokerError as error:
                if once or not server_died(error) or time.monotonic() >= until:
                    raise await self._fault(error, service, time.monotonic() - began, sent=sent) from error
                sent = True
                self._asked_again += 1
                await self.wire.sleep(PAUSE)  # until it is noticed to be gone; then the broker keeps what is asked
            timeout, retries = self._tries(until - time.monotonic())

    async def ask_once(self, service: bytes, *body: Body, seconds: float, spare: float | None = None) -> Frames | None:
        """Ask a service that may take so many seconds for its answer, and `spare` more, instead of the usual time; None
        when there is no answer."""
        timeout = (self.timeout if spare is None else spare) + seconds
        try:
            body = (*body, *await self._stated(service, self.timeout))
            return await self.wire.call(service, body, timeout, 0)
        except broker.TimedOut:
            return None
        except broker.BrokerError as error:
            if server_died(error):
                return None
            raise translate(error, service, self.wire.endpoint, timeout) from error

    async def plain(self, service: Body, *body: Body) -> Frames:
        """Call a service that is not Titanic's."""
        try:
            await self.limits.check(body)
            return await self.wire.call(service, body or (b"",), None, None)
        except broker.RemoteError:
            raise
        except broker.BrokerError as error:
            raise translate(error, b"", self.wire.endpoint, self.patience) from error

    def lane(self, within: float | None = None) -> CallLane:
        """The way for many messages, to be closed by the caller; `within`: one of its own, which tries for so many
        seconds."""
        return self.wire.lane(None if within is None else self._tries(within))

    async def map(
        self, lane: CallLane, service: bytes, messages: AsyncGenerator[Sequence[Body], None], window: int
    ) -> AsyncGenerator[Frames, None]:
        """Send messages, `window` on their way at once; yield the answers in the order of the messages."""

        timeout, retries = lane.timeout, lane.retries
        stated = await self._stated(service, timeout)

        async def checked() -> AsyncGenerator[Sequence[Body], None]:
            async for message in messages:
                await self.limits.check(self._measured(service, message))
                yield [*message, *stated] if stated else message

        sent = False
        try:
            # Other brokers need not distinguish the requests of one client: there they are sent one at a time.
            if await self.limits.is_ours(timeout, retries):
                async for answer in lane.map(service, checked(), window):
                    sent = True
                    yield answer
                return
            async for message in messages:
                sent = True
                yield await self.wire.call(service, [*message, *stated], timeout, retries)
        except broker.BrokerError as error:
            raise await self._fault(error, service, timeout * (1 + retries), sent=sent) from error

    async def _fault(self, error: broker.BrokerError, service: bytes, waited: float, *, sent: bool) -> TitanicError:
        """The error of this package. If a broker does not answer, it may have no queue: only then it is asked."""
        reason = ""
        if isinstance(error, broker.TimedOut) and not error.reason:
            with suppress(broker.BrokerError):
                found = await self.wire.call(b"mmi.service", [service], min(LEAST_LOOK, self.timeout), 0)
                if found == [b"404"]:
                    reason = f"the broker there has no queue (no worker of {service.decode()})"
        return translate(error, service, self.wire.endpoint, waited, reason, sent=sent)

    def _measured(self, service: bytes, message: Sequence[Body]) -> Sequence[Body]:
        """What the broker's limit is for: the options and service of a titanic.submit do not count."""
        return message[2:] if service == tsp.SUBMIT else message

    def _tries(self, within: float) -> tuple[float, int]:
        """How long and how often to try when the answer is wanted within so many seconds."""
        within = min(within, LONGEST_TRY)
        timeout = min(self.timeout, max(within, LEAST_LOOK))
        return timeout, max(0, int(within / timeout) - 1)


class BrokerLimits:
    """What one broker says of itself. Brokers that are not of this project need not say anything."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._document: dict[str, Any] | None = None
        """What `mmi.broker` answered; empty when the broker is not of this project."""

    async def is_ours(self, timeout: float | None = None, retries: int | None = None) -> bool:
        """Whether the broker is one of this project. Raises broker.TimedOut."""
        if self._document is None:
            self._document = await self._ask(timeout, retries)
        return bool(self._document)

    @property
    def max_body(self) -> int:
        """The largest body that the broker takes, in bytes; 0: it is not known yet."""
        limits = (self._document or {}).get("limits")
        most = limits.get("max_body") if isinstance(limits, dict) else None
        return most if isinstance(most, int) else 0

    async def check(self, body: Sequence[Body]) -> None:
        """Raise InvalidRequest for a body that the broker would not take. Without an answer, sending it
        shows that."""
        size = sum(map(frame_size, body))
        if size <= LARGE or not await self._passes(size):
            return
        self._document = None  # it may have been restarted, with another limit
        if most := await self._passes(size):
            raise InvalidRequest(
                f"body has {size} bytes",
                f"the broker at {self._wire.endpoint} accepts at most {most}",
                "send it in parts, or start the broker with a larger --max-body",
            )

    async def _passes(self, size: int) -> int:
        """The broker's limit, if a body of this size is larger, else 0."""
        try:
            if not await self.is_ours(retries=0):
                return 0
        except broker.TimedOut:
            return 0
        return self.max_body if size > self.max_body else 0

    async def _ask(self, timeout: float | None, retries: int | None) -> dict[str, Any]:
        try:
            return broker.about_broker(await self._wire.call(b"mmi.broker", [b"mmi.broker"], timeout, retries))
        except broker.RemoteError:
            return {}


def frame_size(frame: Any) -> int:
    """Bytes of a frame. What is none is found out by sending it, too."""
    if isinstance(frame, str):
        return len(frame.encode())
    return len(frame) if isinstance(frame, (bytes, bytearray, memoryview)) else 0
