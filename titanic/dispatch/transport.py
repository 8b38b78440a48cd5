"""How requests travel from the dispatcher to a broker and their replies back.

    LocalTransport    to the broker in this process, without a socket
    SocketTransport   to a broker of this project elsewhere: any number in flight on one connection
    ForeignTransport  to any other MDP broker: one in flight per connection, many connections (transport_foreign.py)

The first two ask `mmi.workers` about all services at once. The third has only RFC 8's `mmi.service`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from broker import CLIENT_QUEUE, ClientConfig, ClientSession, ErrorReply, EventKind, LocalPeer, Loop, read_error
from titanic.dispatch.actions import Send
from titanic.dispatch.connection import Connection
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.discovery import BrokerDiscovery
from titanic.protocol.tsp import Frames

MMI_TIMEOUT = 2.5
FOR_EVER = 1 << 30

Key = TypeVar("Key", bound=Hashable)


class Transport(Protocol):
    """Carries requests, questions about presence, and what comes back."""

    most_ahead: int
    """Requests of a service that may wait at the broker for its workers."""

    surveys: bool
    """Whether it can ask for all services at once."""

    def send_requests(self, sends: Sequence[Send], now: float) -> None:
        """Send requests."""

    def recall_request(self, uuid: bytes, now: float) -> None:
        """Take a request back from the broker, if it can do that and no worker has it yet. Its reply comes then."""

    def ask_presence(self, names: Sequence[bytes], now: float) -> None:
        """Ask for the presence of services."""

    def survey(self, now: float) -> None:
        """Ask for all services that have workers."""

    def push(self, now: float) -> None:
        """Let go out what was sent and asked."""

    def deliver_results(self, now: float) -> None:
        """Tell what has come."""

    def dismiss(self, now: float) -> None:
        """End: another kind of broker has come. All that is in flight goes back, and all questions are answered."""


class PartialReplies(Generic[Key]):
    """PARTIALs of replies, until the FINAL of the same worker comes. Without that they count for nothing."""

    MOST = 256 << 20
    """Bytes of one reply that are kept; a worker that goes on for ever must not fill the memory."""

    def __init__(self) -> None:
        self._frames: dict[Key, Frames] = {}
        self._sizes: dict[Key, int] = {}

    def __len__(self) -> int:
        """Replies of which a part has come."""
        return len(self._sizes)

    @property
    def bytes_kept(self) -> int:
        return sum(len(frame) for frames in self._frames.values() for frame in frames)

    def add(self, key: Key, body: Frames) -> None:
        """A part of the reply came."""
        size = self._sizes[key] = self._sizes.get(key, 0) + sum(map(len, body)) + len(body)
        frames = self._frames.setdefault(key, [])
        if size <= self.MOST:
            frames += body
        else:
            frames.clear()

    def drop(self, key: Key) -> None:
        """There is no FINAL to come for these."""
        self._frames.pop(key, None)
        self._sizes.pop(key, None)

    def complete(self, key: Key, body: Frames) -> Frames | ErrorReply:
        """The FINAL came: the whole reply, or the error that it is, or that it was too large."""
        frames, size = self._frames.pop(key, []), self._sizes.pop(key, 0)
        if (error := read_error(body)) is not None:
            return error
        if size > self.MOST:
            return ErrorReply(413, f"the parts of the reply passed {self.MOST} bytes", [])
        return frames + body


def deliver_reply(core: DispatchCore, uuid: bytes, came: Frames | ErrorReply, now: float) -> None:
    """Tell of what a worker has said."""
    if isinstance(came, ErrorReply):
        core.failed(uuid, came, now)
    else:
        core.replied(uuid, came, now)


def refusal(status: int, text: str) -> ErrorReply:
    """What a broker or transport says in place of a reply."""
    return ErrorReply(status, text, [])


class _OwnBrokerTransport:
    """What the two transports for our own broker have in common: one session with any number in flight."""

    most_ahead = 256
    surveys = True

    def __init__(self, core: DispatchCore) -> None:
        self.session = ClientSession(ClientConfig(timeout=None), correlated=True, dialect=CLIENT_QUEUE)
        self._core = core
        self._sends: dict[int, Send] = {}
        """What is in flight, by ticket."""
        self._tickets: dict[bytes, int] = {}
        """Their tickets, by UUID."""
        self._parts: PartialReplies[int] = PartialReplies()
        self._names: set[bytes] = set()
        self._question = 0
        self._recalls: dict[int, int] = {}
        """Tickets of questions to have something back, and the tickets of what is to come back."""
        self._recalled: set[int] = set()
        """What was asked back, and is still in flight."""
        self._abandoned: dict[int, bytes] = {}
        """Services of what is in flight and not wanted any more, by ticket."""

    @property
    def in_flight(self) -> list[bytes]:
        """UUIDs of what was sent and is not answered."""
        return list(self._tickets)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept of any request."""
        return not (self._sends or self._tickets or self._parts or self._recalls or self._recalled or self._abandoned)

    def send_requests(self, sends: Sequence[Send], now: float) -> None:
        for send in sends:
            ticket = self._tickets[send.uuid] = self.session.request(send.service, send.body, now)
            self._sends[ticket] = send

    def recall_request(self, uuid: bytes, now: float) -> None:
        if ticket := self._tickets.get(uuid):
            self._recall(ticket, now)
            self._recalled.add(ticket)

    def ask_presence(self, names: Sequence[bytes], now: float) -> None:
        self._names.update(names)
        self.survey(now)

    def survey(self, now: float) -> None:
        if not self._question:
            self._question = self.session.request(b"mmi.workers", [b""], now, timeout=MMI_TIMEOUT, retries=FOR_EVER)

    def deliver_results(self, now: float) -> None:
        for ticket, kind, body in self.session.take_events():
            if ticket in self._recalls:
                self._recall_answered(self._recalls.pop(ticket), body, now)
            elif ticket in self._abandoned:
                if kind in (EventKind.FINAL, EventKind.REFUSED):
                    self._core.left(self._abandoned.pop(ticket))
            elif ticket == self._question:
                self._question = 0
                self._tell_presence(body, now)
            elif kind is EventKind.PARTIAL:
                self._parts.add(ticket, body)
            elif kind is EventKind.ANEW:
                self._parts.drop(ticket)
            elif kind is EventKind.REFUSED:
                error = read_error(body) or refusal(500, "the broker refused it and did not say why")
                self._refuse(ticket, error, now)
            else:
                deliver_reply(self._core, self._take(ticket).uuid, self._parts.complete(ticket, body), now)

    def _recall(self, ticket: int, now: float) -> None:
        if not self.session.is_pending(ticket):
            return  # its answer is here, and is told next
        what = [self._sends[ticket].service, self.session.mark(ticket)]
        question = self.session.request(b"mmi.cancel", what, now, timeout=MMI_TIMEOUT, retries=0)
        self._recalls[question] = ticket

    def _recall_answered(self, ticket: int, body: Frames, now: float) -> None:
        """A worker has it, it was given back (which its own answer says), or nobody has said anything."""
        send = self._sends.get(ticket)
        if send is None or body == [b"200"]:
            return
        if body != [b"404"]:
            self._recall(ticket, now)
        elif self._core.kept(send.uuid):
            self._abandoned[ticket] = send.service
            self._parts.drop(ticket)
            self._take(ticket)

    def _refuse(self, ticket: int, error: ErrorReply, now: float) -> None:
        """There is no reply, and who has in hand what is in between says why."""
        self._parts.drop(ticket)
        self._core.refused(self._take(ticket).uuid, error, now)

    def _take(self, ticket: int) -> Send:
        """Not in flight any more."""
        send = self._sends.pop(ticket)
        self._recalled.discard(ticket)
        del self._tickets[send.uuid]
        return send

    def _tell_presence(self, body: Frames, now: float) -> None:
        try:
            workers = {name.encode(): int(count) for name, count in json.loads(body[0]).items()}
        except (ValueError, TypeError, AttributeError, IndexError):  # no such answer: as if none were there
            workers = {}
        names, self._names = self._names, set()
        for name in names:
            self._core.present(name, workers.get(name, 0), now)
        self._core.surveyed(workers, now)


class LocalTransport(_OwnBrokerTransport):
    """To the broker in this process."""

    def __init__(
        self,
        core: DispatchCore,
        connect: Callable[[Callable[[list[Frames]], None]], LocalPeer],
        call: Callable[..., None],
    ) -> None:
        """`connect`: to the broker, as `Broker.connect_local`. `call`: has a function called in the dispatcher's
        thread."""
        super().__init__(core)
        self._peer = connect(lambda messages: call(lambda: self.receive(messages, time.monotonic())))

    def dismiss(self, now: float) -> None:
        """No other broker will come."""

    def receive(self, messages: Sequence[Frames], now: float) -> None:
        """Messages from the broker; to be called in the dispatcher's thread."""
        for frames in messages:
            self.session.receive(self.session.connection, frames, now)

    def push(self, now: float) -> None:
        if output := [frames for _, frames in self.session.take_output() if frames is not None]:
            self._peer.send(output)


class SocketTransport(_OwnBrokerTransport):
    """To a broker of this project elsewhere."""

    def __init__(self, core: DispatchCore, loop: Loop, endpoint: str, discovery: BrokerDiscovery) -> None:
        super().__init__(core)
        self._loop = loop
        self._connection = Connection(self.session, endpoint, discovery, watch=True, lost=self._lost)
        loop.add(self._connection)

    def dismiss(self, now: float) -> None:
        self.deliver_results(now)
        self._give_back(set(self._sends), now)
        self._loop.remove(self._connection)
        if self._question:
            self._question = 0
            self._tell_presence([], now)

    def recall_request(self, uuid: bytes, now: float) -> None:
        ticket = self._tickets.get(uuid)
        if ticket is None or not self._connection.away:
            super().recall_request(uuid, now)
        elif self.session.is_pending(ticket):
            # Nobody has it. The next broker would not know it by the name that it is asked by now.
            self.session.cancel(ticket)
            self._refuse(ticket, refusal(499, "there is no broker"), now)

    def _lost(self, now: float) -> None:
        """The broker has died: it will not answer. What is not wanted must not be sent to the next one, and what has an
        end of its time not without a look at the clock."""
        self.deliver_results(now)
        self._give_back(self._recalled | {ticket for ticket, send in self._sends.items() if send.mortal}, now)

    def _give_back(self, back: Collection[int], now: float) -> None:
        """Have none of these done by this broker or the next, nor what is not wanted any more."""
        for ticket in {*self._abandoned, *back}:
            self.session.cancel(ticket)
        for ticket in back:
            self._refuse(ticket, refusal(503, "the broker has died"), now)
        for service in self._abandoned.values():
            self._core.left(service)
        self._recalled.clear()
        self._abandoned.clear()

    def deliver_results(self, now: float) -> None:
        self._connection.tick(now)  # the loop does it after this, and what is given up then would be seen too late
        super().deliver_results(now)

    def push(self, now: float) -> None:
        self._connection.flush(now)
