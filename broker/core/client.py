"""A client's side of MDP without sockets: requests out, replies matched, sent again when no answer comes.

This is the Guide's Lazy Pirate for any number of requests at once. Two ways to distinguish replies:

- correlated: an address frame of our own and a `''` go in front of each request and come back with its reply
  (an envelope stack, which a broker must keep). Any number of requests may be in flight on one connection.
- not correlated: for brokers that do not keep the stack. One request in flight, and a new connection after
  each one that failed, so that a late reply cannot be taken for another's.

The correlation frame is the request's number and the try, so parts of an earlier try are distinguished as well. An
earlier try's reply is as good as the present one's; its error is not, as long as the present one has no answer. When a
request had no answer in time: if nothing at all came on this connection since it was sent, the connection is given up
and all that is unanswered is sent again on a new one; else only this one is sent again. A connection on which a request
waits for ever is kept: only `lost` reports that its answer can no longer come.

A session that is given no version finds it out on each connection (`broker.core.protocol_detection`). What is asked for
meanwhile is sent when the version is known. After a connection that was silent the shell makes a `careful` one.

Where there are several servers, an answer that sends the client away (`is_sent_away`) is none: the shell goes to
another server (`sent_away`, then `lost`). It counts when the time is over and no other has answered.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, Protocol, SupportsFloat, SupportsInt, TypeVar

from broker.config import ClientConfig
from broker.core.mdp import (
    CLIENT_VERSIONS,
    EMPTY,
    GIVEN,
    ClientDialect,
    Core,
    Frames,
    Peer,
    ReplyMessage,
    is_sent_away,
    read_error,
)
from broker.core.protocol_detection import ANSWER_TIMEOUT, ProtocolDetection
from broker.core.timers import Timers, earliest

DETECTED = ("0.2", "0.1")
"""The versions that are found out, the best one first."""

_CORRELATION = struct.Struct(">QI")  # number of the request, number of the try


class RequestDialect(Protocol):
    """What a session has to know of the protocol that it speaks."""

    def encode_request(self, stack: Frames, service: bytes, body: Frames) -> Frames:
        """Frames of a request."""

    def parse_reply(self, frames: Frames) -> ReplyMessage | None:
        """Read (a part of) a reply; None when it is none."""


class EventKind(Enum):
    """What became of a request."""

    PARTIAL = "partial"
    FINAL = "final"
    GAVE_UP = "gave up"
    RESTART = "restart"
    """For a queue: a worker begins, and the parts so far don't count."""
    PROGRESS = "progress"
    """For a queue: the worker's progress, no part of the reply."""
    GIVEN = "given"
    """For a queue: a worker has it that keeps its requests, or, without a keeper, another one."""
    REFUSED = "refused"
    """For a queue: an error of the broker. In other dialects it is a FINAL."""


class ReplyEvent(NamedTuple):
    """News of a request: a part of its reply, the rest of it, or that there will be none.

    The body of a FINAL that only ends a stream of parts is no frames.
    """

    ticket: int
    kind: EventKind
    body: Frames
    sent: bool = True
    """False of a request that was given up before anything of it was sent."""


@dataclass(slots=True, eq=False, repr=False)
class Unanswered:
    """A request that is not answered yet."""

    body: Frames
    timeout: float | None
    """Seconds."""
    retries: int


Pending = TypeVar("Pending", bound=Unanswered)


class RequestSession(Core, Generic[Pending]):
    """What clients have in common, whatever they speak: requests, when they are due, what became of them."""

    def __init__(self) -> None:
        super().__init__()
        self.unmatched = 0
        """Messages that belonged to nothing in flight: late replies, or ones from a broker that lost the stack."""
        self._next_ticket = 1
        self._pending: dict[int, Pending] = {}
        self._deadlines: Timers[int] = Timers()
        self._events: list[ReplyEvent] = []

    def __len__(self) -> int:
        """How many requests are unanswered."""
        return len(self._pending)

    def next_deadline(self) -> float | None:
        return self._deadlines.wake_at

    @property
    def has_events(self) -> bool:
        """Whether `take_events` would return any."""
        return bool(self._events)

    def take_events(self) -> list[ReplyEvent]:
        """News since the last call, in order."""
        events, self._events = self._events, []
        return events

    def cancel(self, ticket: int) -> None:
        """Forget a request; its reply will be dropped, and what came of it already."""
        self._events = [event for event in self._events if event.ticket != ticket]
        if self._pending.pop(ticket, None) is not None:
            self._deadlines.cancel(ticket)
            self._abandoned()

    def _add(self, pending: Pending) -> int:
        """A new request; its ticket comes back."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._pending[ticket] = pending
        return ticket

    def _finish(self, ticket: int, kind: EventKind, body: Frames, *, sent: bool = True) -> None:
        """A request has its answer, or is given up."""
        del self._pending[ticket]
        self._deadlines.cancel(ticket)
        self._events.append(ReplyEvent(ticket, kind, body, sent))

    def _take_late(self, now: float) -> dict[int, Pending]:
        """The requests that are to be sent again by now. Those that were sent often enough are given up."""
        late: dict[int, Pending] = {}
        for ticket in self._deadlines.due(now):
            pending = self._pending[ticket]
            pending.retries -= 1
            if pending.retries >= 0:
                late[ticket] = pending
            else:
                self._tried_enough(ticket, pending)
                self._abandoned()
        return late

    def _tried_enough(self, ticket: int, pending: Pending) -> None:
        """A request was sent often enough."""
        self._finish(ticket, EventKind.GAVE_UP, [])

    def _abandoned(self) -> None:
        """A request was cancelled or given up: an answer to it may still come."""


@dataclass(slots=True, eq=False, repr=False)
class _SentRequest(Unanswered):
    """A request that was sent to a broker, perhaps several times."""

    service: bytes
    context: bytes = b""
    """What a queue says of the request to its worker."""
    tries: int = 0
    sent_at: float = 0.0
    parts_reported: int = 0
    parts_seen: dict[int, int] = field(default_factory=dict)
    """By try: each starts over, and no part is reported twice."""
    given: tuple[bytes, float, bytes] | None = None
    """Which worker of a queue's broker has it: the delivery, since when, and the keeper."""
    farewell: Frames | None = None
    """What a server answered that sent us away."""


class ClientSession(RequestSession[_SentRequest]):
    """One client of one broker. Its output is for numbered connections; a new number asks for a new one."""

    def __init__(
        self, config: ClientConfig | None = None, *, correlated: bool = False, dialect: RequestDialect | None = None
    ) -> None:
        """`dialect`: a protocol other than MDP; the configuration's version does not count then."""
        super().__init__()
        self.config = config or ClientConfig()
        self.dialect = dialect or CLIENT_VERSIONS[self.config.version or DETECTED[0]]
        self._detection = ProtocolDetection(DETECTED) if dialect is None and self.config.version is None else None
        self.asking = self._detection is not None
        """Whether it is not known yet what the broker at the other end of the present connection speaks."""
        self.careful = False
        """Whether nothing may be sent before the present connection was made, and nothing after it broke."""
        self.drops_marks = False
        """Whether the session is correlated, and the broker is one that need not keep envelope stacks."""
        self.foreign: bool | None = None
        """Whether the broker that was found out last is one of another project; None: none was."""
        self.asked_on = 0
        """The connection on which the broker was asked what it speaks."""
        self._silent_at: float | None = None
        """When its silence says something."""
        self.correlated = correlated
        self._whole = isinstance(self.dialect, ClientDialect) and self.dialect.restart is not None
        self.connection = 1
        self.sent_again = 0
        """How often a request was sent that had been sent before."""
        self.wants_given = False
        """Whether it is a queue's, and wants to know which workers keep its requests."""
        self.has_other_endpoints = False
        """Whether there are other servers to go to when one sends us away."""
        self.sent_away = False
        """Whether the server did so on the present connection."""
        self._heard_at = float("-inf")

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        """Take a message from the broker; what fits no request is counted and dropped."""
        if peer != self.connection:
            return
        self._heard_at = now
        if self._detection is not None and self._detection.unanswered:
            before = len(self._detection.unanswered)
            kind = self._detection.learn(frames)
            if self.asking:
                self.unmatched += kind is None
                self.foreign = self.foreign if kind is None else not kind.ours
                self.drops_marks = self.drops_marks or (kind is not None and self.correlated and not kind.ours)
                if kind is not None and not self.drops_marks:
                    self._speak(kind.version, now)
                return
            if len(self._detection.unanswered) < before:  # the other answer
                return
        reply = self.dialect.parse_reply(frames)
        ticket, attempt = self._ticket_of(reply.stack) if reply else (0, 0)
        pending = self._pending.get(ticket)
        if reply is None or pending is None or attempt > pending.tries or reply.service not in (None, pending.service):
            self.unmatched += 1
        elif reply.final and attempt < pending.tries and read_error(reply.body) is not None:
            self.unmatched += 1  # the present try may still have an answer, or an error of its own
        elif reply.refused:
            self._finish(ticket, EventKind.REFUSED, reply.body)
        elif reply.progress:
            if attempt == pending.tries:
                self._events.append(ReplyEvent(ticket, EventKind.PROGRESS, reply.body))
        elif reply.given:
            if attempt == pending.tries and len(reply.body) == 2:
                delivery, keeper = reply.body
                pending.given = (delivery, now, keeper) if keeper else None
                self._events.append(ReplyEvent(ticket, EventKind.GIVEN, reply.body))
        elif reply.restart:
            if attempt == pending.tries:
                pending.parts_reported = 0
                pending.parts_seen.clear()
                self._events.append(ReplyEvent(ticket, EventKind.RESTART, []))
        elif reply.final and self.has_other_endpoints and is_sent_away(pending.service, reply.body):
            pending.farewell = reply.body
            self.sent_away = True
        elif reply.final:
            ends_stream = pending.parts_reported and reply.body == EMPTY
            self._finish(ticket, EventKind.FINAL, [] if ends_stream else reply.body)
        else:
            self._set_deadline(ticket, pending, now)
            seen = pending.parts_seen[attempt] = pending.parts_seen.get(attempt, 0) + 1
            if seen > pending.parts_reported:
                pending.parts_reported = seen
                self._events.append(ReplyEvent(ticket, EventKind.PARTIAL, reply.body))

    def tick(self, now: float) -> None:
        """Send again what had no answer in time, or give it up."""
        if self._silent_at is not None and now >= self._silent_at:
            self._meet_silence(now)
        late = self._take_late(now)
        if self.asking:  # nothing was sent yet
            for ticket, pending in late.items():
                self._set_deadline(ticket, pending, now)
        elif late and self._connection_is_dead(late.values()):
            self._resend_all(now, min(pending.timeout or 0 for pending in late.values()))
        else:
            for ticket, pending in late.items():
                self._send(ticket, pending, now)

    def next_deadline(self) -> float | None:
        first = self._deadlines.wake_at
        return first if self._silent_at is None else earliest(first, self._silent_at)

    # -- what a shell does with it ---------------------------------------------------------------------------

    def link(self, there: bool, now: float) -> None:
        """The transport says whether a careful connection was made."""
        if not there:
            self._silent_at = None
        elif self.asking and self._silent_at is None and self.asked_on == self.connection:
            self._silent_at = now + ANSWER_TIMEOUT

    def request(
        self,
        service: bytes,
        body: Frames,
        now: float,
        *,
        timeout: SupportsFloat | None = None,
        retries: SupportsInt | None = None,
        context: bytes = b"",
        given: tuple[bytes, float, bytes] | None = None,
    ) -> int:
        """Send a request; the ticket that its events will carry comes back. `context`: for its worker, from a queue.
        `given`: a worker has it already, with this delivery, since then, by this keeper.

        `timeout` and `retries` stand in for the configuration's when they are given.
        Raises RuntimeError when the session is not correlated and a request is in flight.
        """
        if self._pending and not self.correlated:
            raise RuntimeError("a session without correlation allows one request at a time")
        span = self.config.timeout if timeout is None else float(timeout)
        tries = self.config.retries if retries is None else int(retries)
        pending = _SentRequest(body, span, tries, service, context)
        pending.given = given
        ticket = self._add(pending)
        self._send(ticket, pending, now)
        return ticket

    def is_given(self, ticket: int) -> bool:
        """Whether a worker has an unanswered request that keeps it."""
        return ticket in self._pending and self._pending[ticket].given is not None

    def is_pending(self, ticket: int) -> bool:
        """Whether a request is unanswered. What came of the others is among the events, taken or not."""
        return ticket in self._pending

    def service(self, ticket: int) -> bytes:
        """The service that an unanswered request is for."""
        return self._pending[ticket].service

    def mark(self, ticket: int) -> bytes:
        """The address frame in front of a correlated request, as `mmi.cancel` wants it."""
        return _CORRELATION.pack(ticket, self._pending[ticket].tries)

    def lost(self, now: float) -> None:
        """The transport knows that the connection is gone, or the server has sent us away: all that is unanswered is
        sent again."""
        self._resend_all(now)

    def _tried_enough(self, ticket: int, pending: _SentRequest) -> None:
        if pending.farewell is None:
            self._finish(ticket, EventKind.GAVE_UP, [], sent=pending.tries > 0)
        else:
            self._finish(ticket, EventKind.FINAL, pending.farewell)

    def _ticket_of(self, stack: Frames) -> tuple[int, int]:
        if not self.correlated:
            ticket = next(iter(self._pending), 0)
            return ticket, self._pending[ticket].tries if ticket else 0
        if len(stack) < 2 or len(stack[-2]) != _CORRELATION.size:  # a queue's context may stand before it
            return 0, 0
        ticket, attempt = _CORRELATION.unpack(stack[-2])
        return ticket, attempt

    def greet(self, now: float) -> None:
        """Ask the broker what it speaks, if that is not known and it was not asked on this connection."""
        if self.asking and self.asked_on != self.connection and self._detection is not None:
            self.asked_on = self.connection
            self._detection.begin()
            self._output += [(self.connection, frames) for frames in self._detection.ask()]
            self._silent_at = None if self.careful else now + ANSWER_TIMEOUT

    def _meet_silence(self, now: float) -> None:
        """The broker has not said what it speaks."""
        if self._detection is not None and self._detection.fell_silent() and self.careful:
            self.foreign = True
            self._speak(DETECTED[0], now)
            for ticket, pending in self._pending.items():  # this took long, and would again on the next connection
                self._set_deadline(ticket, pending, now)
        else:
            self._reopen()
            self.careful = True
            self.greet(now)

    def _speak(self, version: str, now: float) -> None:
        self.dialect = CLIENT_VERSIONS[version]
        self.asking, self._silent_at = False, None
        self._send_all(now, 0.0)

    def _send(self, ticket: int, pending: _SentRequest, now: float) -> None:
        if self.asking:
            self._set_deadline(ticket, pending, now)
            self.greet(now)
            return
        if self._whole and pending.parts_reported:
            pending.parts_reported = 0
            pending.parts_seen.clear()
            self._events.append(ReplyEvent(ticket, EventKind.RESTART, []))
        self.sent_again += pending.tries > 0
        pending.tries += 1
        pending.sent_at = now
        self._set_deadline(ticket, pending, now)
        stack = [_CORRELATION.pack(ticket, pending.tries), b""] if self.correlated else []
        if pending.context:
            stack = [pending.context, *stack]
            if pending.given is not None:
                delivery, since, keeper = pending.given
                stack = [GIVEN + b"=%b %d %b" % (delivery, now - since, keeper), *stack]
            elif self.wants_given:
                stack = [GIVEN, *stack]
        self._output.append((self.connection, self.dialect.encode_request(stack, pending.service, pending.body)))

    def _set_deadline(self, ticket: int, pending: _SentRequest, now: float) -> None:
        if pending.timeout is not None:
            self._deadlines.set(ticket, now + pending.timeout)

    def _abandoned(self) -> None:
        if not self.correlated and not self.asking:
            self._reopen()

    def _reopen(self) -> None:
        self.sent_away = self.careful = self.drops_marks = False
        self.asking, self._silent_at = self._detection is not None, None
        self._output.append((self.connection, None))
        self.connection += 1

    def _connection_is_dead(self, late: Collection[_SentRequest]) -> bool:
        if not self.correlated:
            return True
        silent = self._heard_at <= min(pending.sent_at for pending in late)
        return silent and all(pending.timeout is not None for pending in self._pending.values())

    def _resend_all(self, now: float, grace: float = 0.0) -> None:
        """Send all again on a new connection. Those that are not late yet keep their deadline, but have `grace` at
        least: so they come to be late together, and not each with a new connection of its own."""
        self._reopen()
        self._send_all(now, grace)

    def _send_all(self, now: float, grace: float) -> None:
        for ticket, pending in self._pending.items():
            deadline = self._deadlines.get(ticket)
            self._send(ticket, pending, now)
            if deadline is not None:
                self._deadlines.set(ticket, max(deadline, now + grace))
