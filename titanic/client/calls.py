"""How a client asks Titanic: one message at a time, or many on their way. What gets no answer is sent again.

Large bodies are measured before they are sent. A frame of more than 2 MiB, and twice the broker's `max_body`, ends the
connection at the transport: no answer comes, and the sender would believe that nobody is there. A body that is smaller
and still too large gets an answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import broker
from broker import Curve, Pipeline
from titanic.errors import InvalidRequest, TitanicError
from titanic.protocol import tsp
from titanic.protocol.answers import server_died, translate
from titanic.protocol.tsp import Frames

Body = bytes | str

LARGE = 1 << 20
"""Bytes of a body up to which the broker is not asked for its limit."""

LONGEST_TRY = 86_400.0
"""Seconds that stand for "for ever" where only a number will do."""

LEAST_LOOK = 1.0
"""Seconds that one try may take, even when less is left of the caller's time: a slow network is not an absent reply."""

PAUSE = 0.01
"""Seconds before a request is sent again that died with the server."""


class Calls:
    """Requests to one Titanic and their answers. One thread at a time may use it."""

    def __init__(
        self, endpoint: str | Sequence[str], timeout: float, retries: int, version: str, curve: Curve | None
    ) -> None:
        self.timeout = timeout
        self.patience = timeout * (1 + retries)
        """Seconds that a call takes at most."""
        self._endpoints = endpoint
        self.several = len(broker.named(endpoint)) > 1
        """Whether there are several endpoints."""
        self._settings: dict[str, Any] = {"timeout": timeout, "retries": retries, "version": version, "key": curve}
        self._single = broker.Client(endpoint, **self._settings)
        self._many: Pipeline | None = None
        self._closed = False
        self.limits = BrokerLimits(self._single)
        self._asked_again = 0
        self.endpoint = self._single.endpoint

    def close(self) -> None:
        """Close the connections. Any thread may ask."""
        self._closed = True
        self._single.close()
        if self._many is not None:
            self._many.close()

    def __del__(self) -> None:
        if hasattr(self, "limits"):  # it was made
            self.close()

    @property
    def sent_again(self) -> int:
        """How often a request was sent that had been sent before."""
        return self._asked_again + self._single.sent_again + (self._many.sent_again if self._many else 0)

    def ask(self, service: bytes, *body: Body, within: float | None = None) -> Frames:
        """Ask a service of Titanic, for `within` seconds instead of the usual time."""
        tries = self._settings if within is None else self._tries(within)
        began = time.monotonic()
        until = began + tries["timeout"] * (1 + tries["retries"])
        while True:
            try:
                self._check(service, body)
                return self._single.call(service, *body, timeout=tries["timeout"], retries=tries["retries"])
            except broker.BrokerError as error:
                if not server_died(error) or time.monotonic() >= until:
                    raise self._fault(error, service, time.monotonic() - began) from error
                self._asked_again += 1
                time.sleep(PAUSE)  # until it is noticed to be gone; then the broker keeps what is asked

    def ask_once(self, service: bytes, *body: Body, seconds: float) -> Frames | None:
        """Ask a service that may take so many seconds for its answer; None when there is no answer."""
        timeout = self.timeout + seconds
        try:
            return self._single.call(service, *body, timeout=timeout, retries=0)
        except broker.TimedOut:
            return None
        except broker.BrokerError as error:
            if server_died(error):
                return None
            raise translate(error, service, self.endpoint, timeout) from error

    def plain(self, service: Body, *body: Body) -> Frames:
        """Call a service that is not Titanic's."""
        try:
            self.limits.check(body)
            return self._single.call(service, *(body or (b"",)))
        except broker.RemoteError:
            raise
        except broker.BrokerError as error:
            raise translate(error, b"", self.endpoint, self.patience) from error

    def pipeline(self, within: float | None = None) -> Pipeline:
        """The connection for many messages; a new one, to be closed by the caller, if it is to try for `within`
        seconds."""
        if within is not None:
            return Pipeline(self._endpoints, **self._tries(within))
        if self._many is None:
            self._many = Pipeline(self._endpoints, **self._settings)
            if self._closed:
                self._many.close()
        return self._many

    def map(
        self, pipeline: Pipeline, service: bytes, messages: Iterable[Sequence[Body]], window: int
    ) -> Iterator[Frames]:
        """Send messages, `window` on their way at once; yield the answers in the order of the messages."""
        timeout, retries = pipeline.config.timeout, pipeline.config.retries
        try:
            # Other brokers need not be able to tell one client's requests apart: with them it goes one at a time.
            if self.limits.is_ours(timeout, retries):
                yield from pipeline.map(service, (self._check(service, message) for message in messages), window=window)
                return
            for message in messages:
                yield self._single.call(service, *message, timeout=timeout, retries=retries)
        except broker.BrokerError as error:
            raise self._fault(error, service, (timeout or 0.0) * (1 + retries)) from error

    def _fault(self, error: broker.BrokerError, service: bytes, waited: float) -> TitanicError:
        """The error of this package. When somebody is there and does not answer, it may be a broker that no queue
        serves. Only then it is asked."""
        reason = ""
        if isinstance(error, broker.TimedOut) and not error.reason:
            with suppress(broker.BrokerError):
                found = self._single.call("mmi.service", service, timeout=min(LEAST_LOOK, self.timeout), retries=0)
                if found == [b"404"]:
                    reason = f"the broker there has no queue (no worker of {service.decode()})"
        return translate(error, service, self.endpoint, waited, reason)

    def _check(self, service: bytes, message: Sequence[Body]) -> Sequence[Body]:
        """The message, if the broker takes its bodies; the options and service of a titanic.submit do not count."""
        self.limits.check(message[2:] if service == tsp.SUBMIT else message)
        return message

    def _tries(self, within: float) -> dict[str, Any]:
        """How long and how often to try when the answer is wanted within so many seconds."""
        within = min(within, LONGEST_TRY)
        timeout = min(self.timeout, max(within, LEAST_LOOK))
        return {**self._settings, "timeout": timeout, "retries": max(0, int(within / timeout) - 1)}


class BrokerLimits:
    """What one broker says of itself. Brokers that are not of this project need not say anything."""

    def __init__(self, client: broker.Client) -> None:
        self._client = client
        self._document: dict[str, Any] | None = None
        """What `mmi.broker` answered; empty when the broker is not of this project."""

    def is_ours(self, timeout: float | None = None, retries: int | None = None) -> bool:
        """Whether the broker is one of this project. Raises broker.TimedOut."""
        if self._document is None:
            self._document = self._ask(timeout, retries)
        return bool(self._document)

    @property
    def max_body(self) -> int:
        """The largest body that the broker takes, in bytes; 0: it is not known yet."""
        limits = (self._document or {}).get("limits")
        most = limits.get("max_body") if isinstance(limits, dict) else None
        return most if isinstance(most, int) else 0

    def check(self, body: Sequence[Body]) -> None:
        """Raise InvalidRequest for a body that the broker would not take. When nobody answers, that is found out by
        sending it."""
        size = sum(map(frame_size, body))
        if size <= LARGE or not self._passes(size):
            return
        self._document = None  # it may have been started anew, with another limit
        if most := self._passes(size):
            raise InvalidRequest(
                f"body has {size} bytes",
                f"the broker at {self._client.endpoint} takes at most {most}",
                "send it in parts, or start the broker with a larger --max-body",
            )

    def _passes(self, size: int) -> int:
        """The broker's limit, if a body of this size is larger, else 0."""
        try:
            if not self.is_ours(retries=0):
                return 0
        except broker.TimedOut:
            return 0
        return self.max_body if size > self.max_body else 0

    def _ask(self, timeout: float | None, retries: int | None) -> dict[str, Any]:
        try:
            return broker.about_broker(self._client.call(b"mmi.broker", b"", timeout=timeout, retries=retries))
        except broker.RemoteError:
            return {}


def frame_size(frame: Any) -> int:
    """Bytes of a frame. What is none is found out by sending it, too."""
    if isinstance(frame, str):
        return len(frame.encode())
    return len(frame) if isinstance(frame, (bytes, bytearray, memoryview)) else 0
