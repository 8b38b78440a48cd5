"""How requests travel from the dispatcher to a broker, and their replies back.

    LocalTransport    to the broker in this process, without a socket
    SocketTransport   to a broker of this project elsewhere: any number in flight on one connection
    ForeignTransport  to any other MDP broker: one in flight per connection, many connections (transport_foreign.py)

The first two ask about the workers of all services at once. The third has only RFC 8's `mmi.service`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from broker import (
    CLIENT_QUEUE,
    MALFORMED,
    MOST_BODY_FRAMES,
    Channel,
    ClientConfig,
    ClientSession,
    ErrorReply,
    EventKind,
    Expected,
    LocalPeer,
    Loop,
    WorkerHold,
    WorkerIdentity,
    read_error,
    read_json,
)
from titanic.dispatch.attempts import Send
from titanic.dispatch.broker_connection import BrokerConnection, BrokerDiscovery
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.deliveries import Deliveries
from titanic.logs import event
from titanic.protocol.tsp import Frames

log = logging.getLogger(__name__)

MMI_TIMEOUT = 2.5
FOR_EVER = 1 << 30
MAX_REPLY = 256 << 20
"""Bytes of a stored reply, unless its broker takes larger messages, or only smaller ones."""
ENVELOPE = 64 << 10
"""Bytes for what goes around a reply in a message."""
MAX_WORKERS = 1 << 20
"""Of a service. An answer that says more makes no sense."""

Key = TypeVar("Key", bound=Hashable)


class WorkerClaim(NamedTuple):
    """What a worker says that it has, given out by another node, or by this one before a restart."""

    services: Iterable[bytes]
    """Those of the worker: only of these it may have requests."""
    keeper: bytes = b""
    """As in `broker.core.missing`; empty: the broker knows it."""
    has_reply: bool = False
    """Whether the worker has finished it."""
    goes_on: bool = False
    """Whether the worker is at this broker, and works on it."""


class Transport(Protocol):
    """Carries requests and questions to a broker, and reports the answers to the core. `now` is monotonic seconds."""

    most_ahead: int
    """Requests of a service that may wait at the broker for a free worker."""

    surveys: bool
    """Whether it can ask for the workers of all services at once."""

    def send_requests(self, sends: Sequence[Send], now: float) -> None:
        """Send requests."""

    def recall_request(self, uuid: bytes, now: float) -> None:
        """Take a request back from the broker if it can do that and no worker has it yet. The request is refused
        then."""

    def ask_presence(self, names: Sequence[bytes], now: float) -> None:
        """Ask whether services have workers."""

    def survey(self, now: float) -> None:
        """Ask for the workers of all services."""

    def worker_of(self, uuid: bytes) -> WorkerHold | None:
        """Which worker has a request; None: none has it, or that is unknown. Any thread may ask."""

    def push(self, now: float) -> None:
        """Let out what was sent and asked."""

    def deliver_results(self, now: float) -> None:
        """Report to the core what has come."""

    def dismiss(self, now: float) -> None:
        """End, because another broker has come: refuse what is in flight and answer all questions."""


class PartialReplies(Generic[Key]):
    """PARTIALs of replies, kept until the FINAL of the same worker comes. Without that they count for nothing."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of a reply, with all its parts. One that is larger, or has more frames than fit into a message,
        is an error: what is stored must be deliverable, and a worker that never ends must not fill the memory."""
        self._max_bytes = max_bytes
        self._frames: dict[Key, Frames] = {}
        self._sizes: dict[Key, tuple[int, int]] = {}

    def add(self, key: Key, body: Frames) -> None:
        """A part of the reply came."""
        frames = self._frames.setdefault(key, [])
        if self._grow(key, body):
            frames.clear()
        else:
            frames += body

    def drop(self, key: Key) -> bool:
        """No FINAL will come for these parts. Return whether there were any."""
        self._frames.pop(key, None)
        return self._sizes.pop(key, None) is not None

    def complete(self, key: Key, body: Frames) -> Frames | ErrorReply:
        """The FINAL came: the whole reply, or the error reply that it is, or an error that it was too large."""
        excess, frames = self._grow(key, body), self._frames.pop(key, [])
        del self._sizes[key]
        if excess:
            return ErrorReply(413, excess, [])
        return read_error(body) or frames + body

    def _grow(self, key: Key, body: Frames) -> str:
        """Count a part; what is too much now, or nothing."""
        count, size = self._sizes.get(key, (0, 0))
        count, size = self._sizes[key] = count + len(body), size + sum(map(len, body))
        if count > MOST_BODY_FRAMES:
            return f"the reply has {count} frames; at most {MOST_BODY_FRAMES} can be stored"
        return f"the reply has {size} bytes; at most {self._max_bytes} can be stored" if size > self._max_bytes else ""


def deliver_reply(core: DispatchCore, uuid: bytes, came: Frames | ErrorReply, now: float) -> None:
    """Report a worker's reply to the core."""
    if isinstance(came, ErrorReply):
        if came.text.startswith(MALFORMED):
            log.warning("the worker of %s sent a %s", uuid.hex(), came.text, extra=event("message-failed", uuid=uuid))
        core.failed(uuid, came, now)
    else:
        core.replied(uuid, came, now)


def fail_delivery(core: DispatchCore, send: Send, error: Exception, now: float) -> None:
    """Fail the attempt of a request, because a message about it raised an exception here."""
    extra = event("message-failed", uuid=send.uuid, service=send.service)
    text = "a bug in this program: a message about %s of %s could not be handled; the attempt has failed"
    log.error(text, send.uuid.hex(), send.service.decode(errors="replace"), exc_info=error, extra=extra)
    said = f"the server could not handle the worker's message: {type(error).__name__}: {error}"
    core.failed(send.uuid, ErrorReply(500, said, []), now)


class OwnBrokerTransport:
    """To a broker of this project: one session with any number of requests in flight."""

    most_ahead = 256
    surveys = True

    def __init__(self, core: DispatchCore, max_reply: int, deliveries: Deliveries | None = None) -> None:
        """`max_reply`: bytes of a reply that can be delivered. `deliveries`: what workers have."""
        self._deliveries = deliveries
        self.session = ClientSession(ClientConfig(timeout=None), correlated=True, dialect=CLIENT_QUEUE)
        self._core = core
        self._sends: dict[int, Send] = {}
        """What is in flight, by ticket."""
        self._tickets: dict[bytes, int] = {}
        """Their tickets, by UUID."""
        self._parts: PartialReplies[int] = PartialReplies(max_reply)
        self._names: set[bytes] = set()
        self._survey = b"mmi.workers"
        """The question about the workers of all services."""
        self._question = 0
        self._recalls: dict[int, int] = {}
        """Tickets of questions to have a request back, and the ticket of that request."""
        self._recalled: set[int] = set()
        """Tickets of what was asked back and is still in flight."""
        self._reasons: Collection[bytes] = (b"running", b"limit", b"kill")
        """For what the broker notifies workers that a request they have is not wanted any more."""
        self._abandoned: dict[int, bytes] = {}
        """Services of what is with a worker and not wanted any more, by ticket."""
        self._keeping: set[bytes] = set()
        self._claims: dict[bytes, WorkerClaim] = {}
        """As the broker said last."""

    def send_requests(self, sends: Sequence[Send], now: float) -> None:
        for send in sends:
            ticket = self._tickets[send.uuid] = self.session.request(send.service, send.body, now, context=send.context)
            self._sends[ticket] = send

    def recall_request(self, uuid: bytes, now: float) -> None:
        if ticket := self._tickets.get(uuid):
            self._recall(ticket, now)
            self._recalled.add(ticket)

    def ask_presence(self, names: Sequence[bytes], now: float) -> None:
        self._names.update(names)
        self.survey(now)

    def worker_of(self, uuid: bytes) -> WorkerHold | None:
        ticket = self._tickets.get(uuid)
        return WorkerHold("") if ticket is not None and self.session.is_given(ticket) else None

    def survey(self, now: float) -> None:
        if not self._question:
            survey = self._survey
            self._question = self.session.request(survey, [survey], now, timeout=MMI_TIMEOUT, retries=FOR_EVER)

    def deliver_results(self, now: float) -> None:
        for ticket, kind, body, _ in self.session.take_events():
            send = self._sends.get(ticket)
            try:
                self._deliver(ticket, send, kind, body, now)
                if send is not None and self._deliveries is not None and send.uuid not in self._core.flights:
                    self._deliveries.drop(send.uuid)  # it has no outcome that is to be stored
            except Exception as error:
                if send is None:
                    raise
                self._parts.drop(ticket)
                if ticket in self._sends:
                    self.session.cancel(ticket)
                    self._take(ticket)
                fail_delivery(self._core, send, error, now)

    def _deliver(self, ticket: int, send: Send | None, kind: EventKind, body: Frames, now: float) -> None:
        """Handle one event. `send`: the request in flight that it is about, if it is about one."""
        if ticket in self._recalls:
            self._recall_answered(self._recalls.pop(ticket), body, now)
        elif ticket in self._abandoned:
            if kind in (EventKind.FINAL, EventKind.REFUSED):
                self._core.left(self._abandoned.pop(ticket))
        elif ticket == self._question:
            self._question = 0
            self._report_presence(body, now)
        elif send is None:
            pass  # its delivery has failed before this came
        elif kind is EventKind.PARTIAL:
            self._parts.add(ticket, body)
        elif kind is EventKind.RESTART:
            returns = self._parts.drop(ticket) and send.uuid in (self._deliveries or ())
            if not returns:  # a worker that does sends its parts again
                self._core.started(send.uuid, now)
        elif kind is EventKind.GIVEN:
            self._note(send, *body)
        elif kind is EventKind.PROGRESS:
            self._core.progressed(send.uuid, b"".join(body[:1]))
        elif kind is EventKind.REFUSED:
            error = read_error(body) or ErrorReply(500, "the broker refused it and did not say why", [])
            self._note_worker(send)
            self._refuse(ticket, error, now)
        else:
            self._note_worker(send)
            deliver_reply(self._core, self._take(ticket).uuid, self._parts.complete(ticket, body), now)

    def _recall(self, ticket: int, now: float) -> None:
        if not self.session.is_pending(ticket):
            return  # its answer is here, and is reported next
        send = self._sends[ticket]
        what = [send.service, self.session.mark(ticket)]
        if self._reasons and (reason := self._core.reason(send.uuid)):
            what.append(reason if reason in self._reasons else b"running")
        question = self.session.request(b"mmi.cancel", what, now, timeout=MMI_TIMEOUT, retries=0)
        self._recalls[question] = ticket

    def _recall_answered(self, ticket: int, body: Frames, now: float) -> None:
        """404: a worker has it. 202: the same, and it ends the process. 200: it is given back, and refused by a message
        of its own. Anything else: ask again."""
        send = self._sends.get(ticket)
        if send is None or body == [b"200"]:
            return
        if body not in ([b"404"], [b"202"]):
            self._recall(ticket, now)
        else:
            self._keep(ticket, send, ends=body == [b"202"])

    def _keep(self, ticket: int, send: Send, *, ends: bool) -> None:
        """A worker keeps what was asked back."""
        if hold := self.worker_of(send.uuid):
            self._core.failed_at(send.uuid, WorkerIdentity(hold.worker))
        if self._core.kept(send.uuid, ends=ends):
            self._abandoned[ticket] = send.service
            self._parts.drop(ticket)
            self._take(ticket)

    def _refuse(self, ticket: int, error: ErrorReply, now: float) -> None:
        self._parts.drop(ticket)
        self._core.refused(self._take(ticket).uuid, error, now)

    def _take(self, ticket: int) -> Send:
        """It is not in flight any more."""
        send = self._sends.pop(ticket)
        self._recalled.discard(ticket)
        del self._tickets[send.uuid]
        return send

    def keeps(self, service: bytes) -> bool:
        """Return whether workers of a service keep their requests."""
        return service in self._keeping

    def claims(self) -> Mapping[bytes, WorkerClaim]:
        """Return what workers have by their own word, by its `client` frame or context: have each taken back by
        `resume`, or refuse it."""
        return self._claims

    def refuse(self, token: bytes) -> None:
        """Note that a worker has a request no longer that it claims."""
        self._claims.pop(token, None)

    def await_decision(self, token: bytes, now: float) -> None:
        """Have the broker keep what a worker claims for as long again."""

    def await_worker(self, uuid: bytes, now: float) -> None:
        """Have the broker wait for the worker that had a request for as long again, if it waits."""

    def resume(self, send: Send, expected: Expected, now: float) -> None:
        """Have the broker wait for the worker that has a request."""
        raise NotImplementedError

    def push(self, now: float) -> None:
        """Let out what was sent and asked."""
        raise NotImplementedError

    def _note_worker(self, send: Send) -> None:
        """Report to the core at which worker the attempt has failed, if that is known."""

    def _note(self, send: Send, delivery: bytes, keeper: bytes) -> None:
        """Note that a worker gets a request; without a keeper it is one that does not keep it."""
        if self._deliveries is None:
            return
        if keeper:
            self._deliveries.note(send.uuid, bytes.fromhex(delivery.decode()), keeper)
        else:
            self._deliveries.drop(send.uuid)

    def _report_presence(self, body: Frames, now: float) -> None:
        held: dict[bytes, int] = {}
        try:
            said: Any = read_json(body[0])
            if self._survey == b"mmi.services":
                self._core.backlogs.joint = {one["name"].encode() for one in said if one["joint"] is True}
                self._core.backlogs.queued = {one["name"].encode() for one in said if one.get("waiting")}
                held = _counts({one["name"]: one["held"] for one in said if one.get("held")})
                self._keeping = {one["name"].encode() for one in said if one.get("keeps")}
                away = {one["name"]: [*map(str.encode, one["away"])] for one in said if one.get("away")}
                self._claims = {of: WorkerClaim([name.encode()]) for name in away for of in away[name]}
                said = {one["name"]: one["workers"] for one in said if one["workers"] != 0}
                said |= {name: max(0, said[name] - len(away[name])) for name in away if name in said}
            workers = _counts(said)
        except (ValueError, TypeError, AttributeError, LookupError):  # no such answer counts as no workers
            workers = {}
        self._present(workers, held, now)

    def _present(self, workers: Mapping[bytes, int], held: Mapping[bytes, int], now: float) -> None:
        """Report the workers of services. `held`: how many requests take no place of theirs, because the workers that
        have them leave or are away."""
        names, self._names = self._names, set()
        places = {name: workers.get(name, 0) + held.get(name, 0) for name in {*workers, *held}}
        for name in names:
            self._core.present(name, places.get(name, 0), now)
        self._core.surveyed(places, now, workers)


def _counts(said: Mapping[str, Any]) -> dict[bytes, int]:
    return {name.encode(): n for name, n in said.items() if type(n) is int and 0 <= n <= MAX_WORKERS}


class GuardingDispatcher(Protocol):
    """The dispatcher."""

    def guard(self, function: Callable[..., None], *args: Any) -> None:
        """See `Dispatcher`."""


class LocalTransport(OwnBrokerTransport):
    """To the broker in this process."""

    def __init__(
        self,
        core: DispatchCore,
        dispatcher: GuardingDispatcher,
        max_message: int = 0,
        deliveries: Deliveries | None = None,
    ) -> None:
        """`max_message`: bytes of a message that the broker takes. `deliveries`: what workers have."""
        super().__init__(core, max(MAX_REPLY, max_message), deliveries)
        self._dispatcher = dispatcher
        self.peer: LocalPeer
        """Of the broker, as `Broker.connect_local` makes it. It calls `deliver`."""

    def deliver(self, messages: Sequence[Frames]) -> None:
        """Take messages from the broker. Called in the loop that also runs the dispatcher."""
        self._dispatcher.guard(self.receive, messages, time.monotonic())

    def keeps(self, service: bytes) -> bool:
        return self.peer.keeps(service)

    def claims(self) -> Mapping[bytes, WorkerClaim]:
        named = self.peer.named().items()
        return {token: WorkerClaim(one.services, one.worker.keeper, one.has_reply, one.goes_on) for token, one in named}

    def await_decision(self, token: bytes, now: float) -> None:
        self.peer.await_decision(token, now)

    def await_worker(self, uuid: bytes, now: float) -> None:
        if (ticket := self._tickets.get(uuid)) is not None and self.session.is_pending(ticket):
            self.peer.await_worker(self.session.mark(ticket), now)

    def refuse(self, token: bytes) -> None:
        self.peer.refuse(token)

    def resume(self, send: Send, expected: Expected, now: float) -> None:
        self.peer.expect(send.context, expected)
        self.send_requests([send], now)

    def _note_worker(self, send: Send) -> None:
        if (worker := self.peer.failed_at(send.context)) is not None:
            self._core.failed_at(send.uuid, worker)

    def worker_of(self, uuid: bytes) -> WorkerHold | None:
        try:
            return self.peer.worker_of(self.session.mark(self._tickets[uuid]))
        except KeyError:  # it has just been answered
            return None

    def ask_presence(self, names: Sequence[bytes], now: float) -> None:
        """No question need be sent: the broker is here."""
        workers, held = self.peer.workers(names), self.peer.held()
        self._core.backlogs.joint.difference_update(names)
        self._core.backlogs.joint |= self.peer.joint(names)
        for name in names:
            self._core.present(name, workers.get(name, 0) + held.get(name, 0), now)

    def survey(self, now: float) -> None:
        self._core.backlogs.joint, self._core.backlogs.queued = self.peer.joint(), self.peer.queued()
        self._present(self.peer.workers(), self.peer.held(), now)

    def dismiss(self, now: float) -> None:
        """Not called: no other broker will come."""

    def receive(self, messages: Sequence[Frames], now: float) -> None:
        """Take messages from the broker."""
        for frames in messages:
            self.session.receive(self.session.connection, frames, now)

    def push(self, now: float) -> None:
        if output := self.session.take_output():
            self.peer.send([frames for _, frames in output if frames is not None])


class SocketTransport(OwnBrokerTransport):
    """To a broker of this project elsewhere."""

    def __init__(
        self,
        core: DispatchCore,
        loop: Loop,
        endpoint: str,
        discovery: BrokerDiscovery,
        dispatcher: Channel,
        deliveries: Deliveries | None = None,
    ) -> None:
        """`dispatcher`: gets a turn when something has come. `deliveries`: what workers have."""
        kind = discovery.kind
        most = kind.max_message - ENVELOPE if kind is not None and kind.max_message else MAX_REPLY
        super().__init__(core, most, deliveries)
        self.session.wants_given = True
        needs = {b"running": b"titanic:1", b"limit": b"titanic:children", b"kill": b"titanic:kill"}
        self._reasons = [] if kind is None else [reason for reason, word in needs.items() if word in kind.knows]
        if kind is not None and kind.knows_slots:
            self._survey = b"mmi.services"
        self._recalled_on = self.session.connection
        self._loop = loop
        self._dispatcher = dispatcher
        self._connection = BrokerConnection(self.session, endpoint, discovery, self, watch=True)
        loop.add(self._connection)

    def dismiss(self, now: float) -> None:
        self.deliver_results(now)
        self._give_back(set(self._sends), now)
        self._loop.remove(self._connection)
        if self._question:
            self._question = 0
            self._report_presence([], now)

    def recall_request(self, uuid: bytes, now: float) -> None:
        ticket = self._tickets.get(uuid)
        if ticket is None or not self._connection.away:
            super().recall_request(uuid, now)
        elif self.session.is_given(ticket):
            self._recalled.add(ticket)
            self._keep(ticket, self._sends[ticket], ends=False)
        elif self.session.is_pending(ticket):
            # No broker has it, and the next one would not know it by the name that a recall uses.
            self.session.cancel(ticket)
            self._refuse(ticket, ErrorReply(499, "there is no broker", []), now)

    def heard(self) -> None:
        self._loop.touch(self._dispatcher)

    def connection_lost(self, connection: BrokerConnection, now: float) -> None:
        """Handle a broker that has died and will not answer. Requests that are not wanted must not be sent to the next
        one, and requests that may expire only after a check of the clock, if no worker has them."""
        self.deliver_results(now)
        self._claims.clear()
        back = self._recalled | {ticket for ticket, send in self._sends.items() if send.has_ttl}
        unwanted, is_given = self._core.reason, self.session.is_given
        self._give_back([one for one in back if not is_given(one) or unwanted(self._sends[one].uuid)], now)

    def resume(self, send: Send, expected: Expected, now: float) -> None:
        if not expected.keeper:  # the broker knows it
            self.send_requests([send], now)
            return
        given = expected.delivery, now - expected.seconds, expected.keeper
        ticket = self.session.request(send.service, send.body, now, context=send.context, given=given)
        self._tickets[send.uuid], self._sends[ticket] = ticket, send

    def _give_back(self, back: Collection[int], now: float) -> None:
        """Withdraw these from this broker and the next, and what is not wanted any more."""
        for ticket in {*self._abandoned, *back}:
            self.session.cancel(ticket)
        for ticket in back:
            self._refuse(ticket, ErrorReply(503, "the broker has died", []), now)
        for service in self._abandoned.values():
            self._core.left(service)
        self._abandoned.clear()

    def deliver_results(self, now: float) -> None:
        self._connection.tick(now)  # the loop does it later in the round: too late for what is given up now
        if self.session.connection != self._recalled_on and not self._connection.away:
            self._recalled_on = self.session.connection
            for ticket in self._recalled:  # what workers keep was sent again, as if it was still wanted
                self._recall(ticket, now)
        super().deliver_results(now)

    def push(self, now: float) -> None:
        self._connection.flush(now)
