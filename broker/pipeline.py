"""A client with many requests in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from broker.client import Body, MdpClient, body_frames, service_name
from broker.core.client import EventKind, ReplyEvent
from broker.core.mdp import Frames
from broker.errors import BrokerError, KeyRefused, RemoteError, TimedOut, UsageError

GREETING = 1.0
"""Seconds for which the first `send` on a connection waits for the broker's version."""

TOGETHER = 100
"""Requests that are sent at once: a sixth less of the processor than one by one. For more, a broker would wait."""


class Reply(NamedTuple):
    """An answer to a request of a `Pipeline`."""

    ticket: int
    body: Frames
    final: bool
    """Whether it is the last part."""
    error: TimedOut | RemoteError | KeyRefused | None = None
    """Why there is no reply; `final` is true then."""


class Pipeline(MdpClient):
    """Many requests in flight on one connection; replies come in whatever order they are ready.

    Needs a broker that keeps envelope stacks, as RFC 7 and 18 want (this one does; the Guide's do not).

        with Pipeline() as pipeline:
            for frames in pipeline.map("echo", bodies):
                ...
    """

    _correlated = True
    _greeted = 0
    """The connection on which `send` has waited for the broker's version."""

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._session)

    def send(self, service: Body, *body: Body, timeout: float | None = None, retries: int | None = None) -> int:
        """Send a request without waiting for its reply; its ticket comes back.

        On a new connection the broker is asked first which version it speaks, if none was given: for a second at most.
        What could not be sent by then goes out while events are waited for.
        """
        ticket = self._ask(service_name(service), body, timeout, retries)
        if self._session.asking and self._greeted != self._session.connection:
            self._greeted = self._session.connection
            until = time.monotonic() + GREETING
            with suppress(BrokerError):  # `events` raises it
                while self._session.asking and self._pump(until):
                    pass
        return ticket

    def cancel(self, ticket: int) -> None:
        """Forget a request; its reply will be dropped."""
        self._session.cancel(ticket)
        self._events = deque(event for event in self._events if event.ticket != ticket)

    def events(self, timeout: float | None = None) -> list[ReplyEvent]:
        """All events there are: waits for some, for `timeout` seconds at most (None: for ever).

        An empty list means that the time is over, or that no request is in flight.
        """
        until = None if timeout is None else time.monotonic() + timeout
        events = [*self._events, *self._session.take_events()]
        self._events.clear()
        while not events and len(self._session) and self._pump(until):
            events = self._session.take_events()
        return events or self._session.take_events()

    def receive(self, timeout: float | None = None) -> Reply | None:
        """The next (part of a) reply, or why there is none.

        None after `timeout` seconds (None: wait for ever), or when no request is in flight.
        """
        if not self._events:
            self._events.extend(self.events(timeout))
        if not self._events:
            return None
        event = self._events.popleft()
        try:
            return Reply(event.ticket, self._body_of(event), event.kind is EventKind.FINAL)
        except (TimedOut, RemoteError, KeyRefused) as error:
            return Reply(event.ticket, [], True, error)

    def map(self, service: Body, bodies: Iterable[Body | Iterable[Body]], *, window: int = 1000) -> Iterator[Frames]:
        """Send one request per body, at most `window` in flight, and yield the replies in the bodies' order.

        Raises TimedOut or RemoteError at the first request that has no reply; the later ones are cancelled then.
        Events of other requests are kept for `receive`.
        """
        if window < 1:
            raise UsageError(f"window is {window}; it must be 1 or more")
        name, source = service_name(service), iter(bodies)
        # What is there already is sent together; what is made one by one is not kept waiting for the next.
        together = TOGETHER if isinstance(bodies, Sequence) else 1
        order: deque[int] = deque()
        parts: dict[int, Frames] = {}
        ended: dict[int, ReplyEvent] = {}
        others: list[ReplyEvent] = []
        try:
            while True:
                while batch := list(islice(source, min(together, window - len(order)))):
                    frames = [body_frames([body] if isinstance(body, (bytes, str)) else body) for body in batch]
                    tickets = self._ask_all(name, frames, None, None)
                    order += tickets
                    parts |= {ticket: [] for ticket in tickets}
                if not order:
                    return
                if not (events := self.events()):
                    raise UsageError("another caller has received replies that belong to this map")
                for event in events:
                    if event.ticket not in parts:
                        others.append(event)
                    elif event.kind is EventKind.PARTIAL:
                        parts[event.ticket] += event.body
                    else:
                        ended[event.ticket] = event
                while order and order[0] in ended:
                    ticket = order.popleft()
                    last = self._body_of(ended.pop(ticket))
                    yield parts.pop(ticket) + last
        finally:
            for ticket in order:
                self.cancel(ticket)
            self._events.extendleft(reversed(others))
