"""What a handler knows about its request (`titanic.current()`), and the errors it raises to end an attempt: `Failed`,
`Retry`, `Cancelled`. On the wire these are words in the detail of an error reply (`titanic.protocol.tsp`).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from broker import DELIVERY, Delivery, RemoteError, UsageError, read_json
from titanic.errors import NoRequest
from titanic.protocol.submit_options import MOST_SECONDS
from titanic.protocol.tsp import AGAIN, FATAL, MOST_PROGRESS, RETRY, UNREADY, read_progress
from titanic.util.text import quoted


class Failed(RemoteError):
    """Fail the request for good: it is not retried. `detail` is kept with it."""

    def __init__(self, text: str, *detail: bytes | str) -> None:
        super().__init__(500, text, [FATAL, *_frames(detail)])


class Retry(RemoteError):
    """Retry the request `after` this time, seconds or a timedelta; None: after the usual back-off.

    It counts as a failed attempt; after the last attempt the request has failed. With `count=False` it does not count,
    for work that must wait for something; then `after` is required.
    """

    def __init__(
        self, text: str = "", *detail: bytes | str, after: float | timedelta | None = None, count: bool = True
    ) -> None:
        if isinstance(after, timedelta):
            after = after.total_seconds()
        if after is None and not count:
            raise UsageError("Retry(count=False) needs after=: a retry that is not counted has no default delay")
        if after is not None and (math.isnan(after) or not 0 <= after <= MOST_SECONDS):
            raise UsageError(f"after is {after}; it must be from 0 seconds to ten years")
        self.is_counted = count
        word = [] if after is None else [(RETRY if count else AGAIN) + b"%.3f" % after]
        super().__init__(500, text or "to be retried", [*word, *_frames(detail)])


class Unready(RemoteError):
    """This worker cannot execute the request, and another version of it can, perhaps: the request is given back, which
    is no attempt. It has failed when no worker was ready for so long as the server's `unready_timeout` says."""

    def __init__(self, text: str, *detail: bytes | str) -> None:
        super().__init__(500, text, [UNREADY, *_frames(detail)])


class Cancelled(RemoteError):
    """The reply is no longer wanted, and the handler ends."""

    def __init__(self, text: str = "cancelled") -> None:
        super().__init__(500, text)


def _frames(detail: Iterable[bytes | str]) -> list[bytes]:
    return [frame.encode(errors="replace") if isinstance(frame, str) else frame for frame in detail]


@dataclass(slots=True, frozen=True)
class RequestContext:
    """The request that is being handled. It is false when no queue has stored it: for a plain call, and behind a
    broker that is not of this project. Then `uuid`, `attempt`, `delivery` and `key` raise NoRequest."""

    uuid: str = ""
    attempt: int = 0
    """1 for the first."""
    attempts: int = 0
    """How many there may be."""
    deadline: float | None = None
    """When this attempt is over, in seconds since the epoch: later, its reply is dropped. None: it may take any
    time."""
    submitted: datetime | None = None
    priority: int = 0
    key: str = ""
    """Its idempotency key, if it has one."""
    trace: str = ""
    """The `traceparent` that it was submitted with."""
    type: str = ""
    """The content type that it was submitted with."""
    delivery: int = 0
    """1 for the first time that a worker has the request, as far as the queue knows. It is more than `attempt` when a
    delivery was no attempt: a worker left, was killed by another request, or was at it when the server stopped."""
    service: str = ""
    """What it was submitted to: of a task its name, shop.resize."""
    retry_in: float | None = None
    """Seconds from the failure of this attempt until the next one, ± 10 %; None: it is the last."""
    tracestate: str = ""
    """The `tracestate` beside its `trace`."""
    _handle: Delivery | None = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.uuid)

    @property
    def cancelled(self) -> bool:
        """Whether the reply is no longer wanted: the request was closed, or this attempt exceeded its limit."""
        return self._handle is not None and self._handle.is_cancelled

    @property
    def traced(self) -> dict[str, str]:
        """Its trace as options of what is submitted because of it."""
        return {name: text for name in ("trace", "tracestate") if (text := getattr(self, name))}

    def check(self) -> None:
        """Raise Cancelled if this is cancelled. Call it now and then in long handlers."""
        if self.cancelled:
            raise Cancelled("cancelled")

    def progress(self, done: float, of: float | None = None, text: str = "") -> None:
        """Report progress: `done`, `of` how much if that is known, and a text for people.

        `titanic show`, `titanic ls`, `Client.list` and `Client.wait(on_progress=…)` show it while the request runs.
        Call it as often as you like: five a second are sent. It does nothing if the broker cannot pass it on.
        """
        if self._handle is not None:
            self._handle.progress(_progress(done, of, text))


class NotStored(RequestContext):
    """A request that comes from no queue. What identifies a stored one must not be a value here: a program would use
    the same empty key for each."""

    __slots__ = ()
    __eq__, __hash__, __repr__ = object.__eq__, object.__hash__, object.__repr__

    def __bool__(self) -> bool:
        return False

    def __getattribute__(self, name: str) -> Any:
        if name in ("uuid", "attempt", "delivery", "key"):
            fact = "it is a plain call, or its broker is not a titanic broker"
            raise NoRequest(f"this request has no {name}", f"it was not stored: {fact}", "ask `if current():` first")
        return super().__getattribute__(name)


def current() -> RequestContext:
    """The request that is being handled here, in this thread or task. Raises NoRequest outside of a handler."""
    if (found := current_or_none()) is None:
        advice = (
            "use current_or_none(), or copy the context into the threads of a handler: copy_context().run(function)"
        )
        raise NoRequest("there is no request", "no handler is running in this thread or task", advice)
    return found


def current_or_none() -> RequestContext | None:
    """The same; None outside of a handler."""
    delivery = DELIVERY.get()
    if delivery is None:
        return None
    known = delivery.known
    if not isinstance(known, RequestContext):
        known = delivery.known = read_context(delivery)
    return known


def read_context(delivery: Delivery) -> RequestContext:
    """What a delivery says of its request. What makes no sense is left out."""
    service = delivery.service.decode(errors="replace")
    try:
        said = read_json(delivery.context or b"{}")
        uuid = said.get("uuid")
        deadline, retry_in = said.get("deadline"), said.get("retry_in")
        if not uuid or not isinstance(uuid, str):
            return NotStored(service=service, _handle=delivery)
        return RequestContext(
            uuid,
            int(said.get("attempt", 0)),
            int(said.get("of", 0)),
            None if deadline is None else float(deadline),
            _submitted(uuid),
            int(said.get("priority", 0)),
            str(said.get("key", "")),
            str(said.get("trace", "")),
            str(said.get("type", "")),
            int(said.get("delivery", said.get("attempt", 0))),
            service,
            None if retry_in is None else float(retry_in),
            str(said.get("tracestate", "")),
            delivery,
        )
    except (ValueError, TypeError, AttributeError):
        return NotStored(service=service, _handle=delivery)


class JobLogFilter(logging.Filter):
    """Adds `uuid`, `task` (its service), `attempt` and `trace_id` of the request that is being handled to each record,
    as texts; elsewhere empty ones. Add it to a handler. In `titanic worker` the handler of the log has it."""

    def filter(self, record: logging.LogRecord) -> bool:
        request = None if "counted" in vars(record) else current_or_none()  # counts are not about one request
        known = (request.uuid, request.service, f"{request.attempt}", request.trace[3:35]) if request else ("",) * 4
        for name, value in zip(("uuid", "task", "attempt", "trace_id"), known, strict=True):
            vars(record).setdefault(name, value)
        return True


def _submitted(uuid: str) -> datetime | None:
    """When a UUIDv7 was made."""
    return datetime.fromtimestamp(int(uuid[:12], 16) / 1000, UTC) if len(uuid) == 32 else None


def _progress(done: float, of: float | None, text: str) -> bytes:
    said: dict[str, Any] = {"done": done}
    if of is not None:
        said["of"] = of
    while True:
        if text:
            said["text"] = text
        encoded = b""
        with suppress(ValueError, TypeError):
            encoded = json.dumps(said, ensure_ascii=False).encode(errors="replace")
        if len(encoded) <= MOST_PROGRESS or not said.pop("text", ""):
            if read_progress(encoded) is None:
                raise UsageError(f"progress({quoted(done)}, {quoted(of)}); give finite numbers and a string")
            return encoded
        text = text[: len(text) * MOST_PROGRESS // (len(encoded) + 1)]
