"""Clients' requests while they are with the broker: one, the queue for one service, and all that wait."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import count

from broker.access.users import Permission, User
from broker.config import BrokerConfig
from broker.core.json_reader import read_json
from broker.core.mdp import (
    CLIENT_DIALECTS,
    CLIENT_QUEUE,
    EMPTY,
    ERROR,
    GIVEN,
    HEADERS,
    MAX_STACK,
    ClientDialect,
    Frames,
    Output,
    Peer,
    joined,
    read_error,
)

_FRAME = 64
"""Bytes of memory that a frame takes besides its content, roughly."""


Unwanted = Callable[["Request"], bool]
"""Whether a request is to be taken out."""

MOST_CONTEXT = 4096
"""Bytes of what a queue may say of a request to its worker; more is not handed on."""


OF_A_QUEUE = b"titanic.request"
"""A user that may work for this is a queue."""

ALONE = b'"alone":true'
"""In that: see `Request.alone`."""

DEADLINE = b'"deadline":'
"""In that: when its limit is over, in seconds since 1970."""

PRIORITY = b'"priority":'
"""In that: see `Request.priority`."""

LATE = 0.25
"""Seconds of waiting from which a queue is notified when a worker begins."""

MOST_PROGRESS = 1024
"""Bytes of a worker's progress message."""

PROGRESS_EVERY = 0.05
"""Seconds between two of these about a request that are forwarded. Workers of this project leave 0.2 s."""


def footprint(frames: Frames) -> int:
    """Bytes of memory that frames take, roughly: a million empty ones are not free."""
    return sum(map(len, frames)) + _FRAME * len(frames)


class Request:
    """A request with its client, its dialect, and what has been sent of its reply."""

    __slots__ = (
        "answered",
        "arrived",
        "body",
        "collected",
        "collected_size",
        "deliveries",
        "dialect",
        "holder",
        "is_kept",
        "mark",
        "partials_seen",
        "partials_sent",
        "peer",
        "progress_at",
        "reason",
        "received",
        "sent",
        "sent_at",
        "service",
        "shared",
        "size",
        "stack",
        "token",
        "user",
        "wanted",
    )

    def __init__(
        self,
        peer: Peer,
        stack: Frames,
        dialect: ClientDialect,
        service: bytes,
        body: Frames,
        arrived: float,
        user: User | None = None,
    ) -> None:
        self.peer = peer
        self.stack = stack
        self.dialect = dialect
        self.service = service
        self.body = body
        self.arrived = arrived
        """When it began to wait."""
        self.received = arrived
        self.user = user
        """Its user; None without access control, and for requests of this process itself. While it waits, its user
        cannot be replaced: it is counted under that name."""
        self.mark: tuple[Peer, bytes] | None = (peer, stack[-2]) if len(stack) > 1 else None
        """The client, and the last address frame of its request, which name the request when it is cancelled. None: it
        has no address frame."""
        self.size = 0
        """Its footprint, address stack included; set when it is to wait."""
        self.token = b""
        """The worker's `client` frame; new at each delivery, so that stale replies can be distinguished."""
        self.holder: Peer | None = None
        """The worker that has it; None: none has."""
        self.progress_at = -math.inf
        """When the last progress message about it was forwarded."""
        self.deliveries = 0
        """Deliveries to workers that have it, or died with it."""
        self.sent = 0
        """Deliveries to all workers."""
        self.sent_at = 0.0
        """When it was sent to the worker that has it."""
        self.shared = False
        """Whether other requests were in hand when its worker died, or another one of the same process: each of them
        may be the cause."""
        self.partials_sent = 0
        self.partials_seen = 0
        """PARTIALs of the present delivery."""
        self.collected: Frames | None = None
        """For clients whose version has no PARTIAL: the frames so far, to go out with FINAL."""
        self.collected_size = 0
        self.answered = False
        """Whether it has its answer: what an integrated service or its worker still says is dropped."""
        self.is_kept = False
        """Whether the last worker that got it keeps its requests."""
        self.wanted = True
        """False after its client withdrew it while a worker had it: no second worker gets it."""
        self.reason = b""
        """Why the client did: the last frame of its `mmi.cancel`."""

    @property
    def context(self) -> bytes:
        """What a queue reports to its worker about the request: a JSON object before the queue's address frame, so it
        begins with `{`. Empty: nothing. Titanic's own services get none: there the broker sends the user. Nor do
        users that are no queue send any: they could have a worker take one request for another."""
        stack = self.stack
        if self.dialect is not CLIENT_QUEUE or len(stack) < 3 or not stack[-3].startswith(b"{"):
            return b""
        if len(stack[-3]) > MOST_CONTEXT or self.service.startswith(b"titanic."):
            return b""
        return stack[-3] if self.user is None or self.user.may(Permission.WORK, OF_A_QUEUE) else b""

    @property
    def given(self) -> bytes | None:
        """What its queue says behind GIVEN; None: it says nothing of that."""
        stack = self.stack
        if len(stack) < 4 or not stack[-4].startswith(GIVEN) or not self.context:
            return None
        return stack[-4][len(GIVEN) + 1 :]

    def given_to(self, keeper: bytes) -> list[Output]:
        """Return the message for its queue that a worker gets it."""
        if self.dialect.given is None or self.given is None:
            return []
        return [(self.peer, self._message(self.dialect.given, [self.token.partition(b"{")[0], keeper]))]

    @property
    def priority(self) -> int:
        """0 to 9, as its queue says in the context; 0: it says none. (In a text the quotes would be escaped.)"""
        _, found, rest = self.context.partition(PRIORITY)
        return int(rest[:1]) if found and rest[:1].isdigit() else 0

    @property
    def alone(self) -> bool:
        """Whether its queue wants it to run in a process that does nothing else meanwhile. (In a text of the context
        the quotes would be escaped.)"""
        return self.dialect is CLIENT_QUEUE and ALONE in self.context

    def partial(self, body: Frames) -> Frames | None:
        """Return the PARTIAL message for the client; None when there is nothing to send (yet)."""
        self.partials_seen += 1
        if self.partials_seen <= self.partials_sent:
            return None
        self.partials_sent += 1
        body = body or EMPTY
        if self.dialect.partial is None:
            if self.collected is None:
                self.collected = []
            self.collected += body
            self.collected_size += footprint(body)
            return None
        return self._message(self.dialect.partial, body)

    def begins(self) -> list[Output]:
        """Return the message for its queue that a worker begins now, after a wait."""
        return [] if self.dialect.restart is None else [(self.peer, self._message(self.dialect.restart, []))]

    def restart(self) -> Frames | None:
        """Start over with another worker. Return the message that announces it to the client, if its dialect has one.

        Parts that were not sent are dropped. A client without that message keeps the PARTIALs that it has: as many of
        the next worker's are skipped.
        """
        self.partials_seen = 0
        if self.dialect.partial is None:
            self.collected, self.collected_size, self.partials_sent = None, 0, 0
        elif self.dialect.restart is not None and self.partials_sent:
            self.partials_sent = 0
            return self._message(self.dialect.restart, [])
        return None

    def progress(self, said: Frames, now: float) -> list[Output]:
        """Return the progress message for the client; none if its dialect has no such message, or it is not one small
        frame, or comes too soon after the last."""
        dialect = self.dialect
        if len(said) != 1 or len(said[0]) > MOST_PROGRESS or now < self.progress_at + PROGRESS_EVERY:
            return []
        self.progress_at = now
        return [] if dialect.progress is None else [(self.peer, self._message(dialect.progress, said))]

    def refusal(self, error: Frames) -> Frames:
        """Return the last message for the client: the broker's own."""
        return self._message(self.dialect.refused or self.dialect.final, error)

    def final(self, body: Frames) -> Frames:
        """Return the last message for the client. An error goes without the collected parts: behind them it would not
        be recognised."""
        body = body or EMPTY
        if self.collected and read_error(body) is None:
            body = as_workers(joined(self.collected, body))
        return self._message(self.dialect.final, body)

    def _message(self, head: tuple[bytes, ...], body: Frames) -> Frames:
        if self.dialect.echoes_service:
            return [*self.stack, *head, self.service, *body]
        return [*self.stack, *head, *body]


def later_context(context: bytes, sent: int, waited: float) -> bytes:
    """Return the context of a request that was sent to so many workers before, and is sent so many seconds later than
    its queue has sent it: its deadline counts from when a worker begins."""
    try:
        said = read_json(context)
        if sent:
            said["delivery"] = int(said.get("delivery", said["attempt"])) + sent
        if "deadline" in said:
            said["deadline"] = round(said["deadline"] + waited, 3)
        return json.dumps(said, separators=(",", ":")).encode()
    except (LookupError, ValueError, TypeError, AttributeError):  # it is no queue's
        return context


def as_workers(body: Frames) -> Frames:
    """Return a worker's reply. The statuses 499, 503 and 504 are the broker's own and say that no worker has the
    request: in a worker's reply they become 500."""
    if body and body[0] == ERROR and len(body) > 1 and body[1][:3] in (b"499", b"503", b"504"):
        return [ERROR, b"500" + body[1][3:], *body[2:]]
    return body


def read_request(peer: Peer, head: Frames) -> Request | None:
    """Read a request from its first frames, without its body; None when they do not begin one."""
    at = next((at for at, frame in enumerate(head[: MAX_STACK + 1]) if frame in HEADERS), len(head))
    for dialect in CLIENT_DIALECTS:
        begin = at + len(dialect.request)
        if tuple(head[at:begin]) == dialect.request and begin < len(head) and (at or not dialect.delimited):
            return Request(peer, head[:at], dialect, head[begin], [], 0.0)
    return None


Key = tuple[Peer, bytes] | int
InOrder = OrderedDict[Key, Request]


DRAINING = "draining: this broker is shutting down and accepts no more requests; use another one"
CUT_OFF = (
    "draining: the queue of this broker cannot reach its database, and its workers have moved to other brokers;"
    " use another one"
)
"""Texts of a 503: clients with several endpoints recognise the first word."""


class FairQueue:
    """Requests in order for each client, clients in turn: a client with a thousand does not delay a client with one.

    What `push_front` puts back comes before all else. Whatever is asked of it costs the same however many wait:
    ordered dicts by the mark of the request, and by the client in the order of their turns.
    """

    __slots__ = ("_front", "_length", "_queues", "_unmarked")

    def __init__(self) -> None:
        self._front: InOrder = OrderedDict()
        self._queues: OrderedDict[Peer, InOrder] = OrderedDict()
        self._length = 0
        self._unmarked = count()

    def __len__(self) -> int:
        return self._length

    @property
    def first(self) -> Request | None:
        """The next request; None: there is none."""
        queue: InOrder | None = self._front or next(iter(self._queues.values()), None)
        return next(iter(queue.values())) if queue else None

    def push(self, request: Request) -> None:
        """Queue a request behind the others of its client."""
        queue = self._queues.get(request.peer)
        if queue is None:
            queue = self._queues[request.peer] = OrderedDict()
        queue[self._key(request, queue)] = request
        self._length += 1

    def push_front(self, request: Request) -> None:
        """Put a request back, before all others."""
        key = self._key(request, self._front)
        self._front[key] = request
        self._front.move_to_end(key, last=False)
        self._length += 1

    def pop(self) -> Request:
        """The next request; KeyError when there is none."""
        if self._front:
            _, request = self._front.popitem(last=False)
        else:
            peer, queue = self._queues.popitem(last=False)
            _, request = queue.popitem(last=False)
            if queue:
                self._queues[peer] = queue  # behind the others
        self._length -= 1
        return request

    def remove(self, peer: Peer, mark: bytes) -> Request | None:
        """Take out a peer's request by the last address frame that the peer put in front of it."""
        key = (peer, mark)
        request = self._front.pop(key, None)
        if request is None and (queue := self._queues.get(peer)) is not None:
            request = queue.pop(key, None)
            if not queue:
                del self._queues[peer]
        if request is not None:
            self._length -= 1
        return request

    def take_all_of(self, peer: Peer) -> list[Request]:
        """Take out all requests of a peer, without checking the others."""
        taken = [self._front.pop(key) for key, request in list(self._front.items()) if request.peer == peer]
        taken += self._queues.pop(peer, {}).values()
        self._length -= len(taken)
        return taken

    def take_older(self, limit: float) -> Iterator[Request]:
        """Take out the requests that arrived at `limit` or before."""
        # Each queue is in the order of arrival, but for the front, where any may be the oldest.
        for key in [key for key, request in self._front.items() if request.arrived <= limit]:
            self._length -= 1
            yield self._front.pop(key)
        emptied = []
        for peer, queue in self._queues.items():
            while queue and next(iter(queue.values())).arrived <= limit:
                self._length -= 1
                yield queue.popitem(last=False)[1]
            if not queue:
                emptied.append(peer)
        for peer in emptied:
            del self._queues[peer]

    def take(self, unwanted: Unwanted) -> list[Request]:
        """Take out some requests; all are examined."""
        taken = []
        for queue in [self._front, *self._queues.values()]:
            for key in [key for key, request in queue.items() if unwanted(request)]:
                taken.append(queue.pop(key))
        for peer in [peer for peer, queue in self._queues.items() if not queue]:
            del self._queues[peer]
        self._length -= len(taken)
        return taken

    def _key(self, request: Request, queue: InOrder) -> Key:
        """The key of a request: its mark, or, should it have none or one that is taken, a number."""
        key = request.mark
        return next(self._unmarked) if key is None or key in queue else key


class WaitingRequests:
    """Counts what waits in the queues of all services: number, size and expiry. A user may have at most half of what
    may wait, in all and for one service; its own limit may be lower."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.count = 0
        self.bytes = 0
        self.of_users: dict[str, tuple[int, int]] = {}
        """The number and bytes of each user's requests, with access control."""
        self.sweep_at: float | None = None
        """When to search for expired ones: ten times per expiry time. That is coarse, but costs nothing per request."""
        self._sweep_every = config.request_expiry / 10

    def full(self, queue: FairQueue | None, request: Request) -> str | None:
        """Return why a request may not wait, in this queue or a new one; None: it may. This measures the request: call
        it before `push`."""
        config, here = self._config, len(queue) if queue is not None else 0
        request.size = _size(request)
        if here >= config.max_waiting_per_service:
            return f"{here} requests are waiting for this service"
        if self.count >= config.max_waiting:
            return f"{self.count} requests are waiting in total"
        if self.bytes + request.size > config.max_waiting_bytes:
            return f"{self.bytes} bytes are waiting in total"
        return None if request.user is None else self._share_used(request, request.user)

    def _share_used(self, request: Request, user: User) -> str | None:
        name = user.name
        count, size = self.of_users.get(name, (0, 0))
        most = min(self._config.max_waiting, self._config.max_waiting_per_service) // 2
        if count and count >= min(most, user.limits.waiting or most):
            return f"{count} requests of user '{name}' are waiting"
        if count and size + request.size > self._config.max_waiting_bytes // 2:
            return f"{size} bytes of user '{name}' are waiting"
        return None

    def push(self, queue: FairQueue, request: Request, now: float) -> None:
        """Queue a request."""
        queue.push(request)
        self._add(request, now)

    def push_front(self, queue: FairQueue, request: Request, now: float) -> None:
        """Queue a request that a worker had. Its expiry starts again."""
        request.arrived = now
        request.size = _size(request)
        queue.push_front(request)
        self._add(request, now)

    def pop(self, queue: FairQueue) -> Request:
        """The next request; KeyError when there is none."""
        request = queue.pop()
        self.count -= 1
        self.bytes -= request.size
        if request.user is not None:
            self._subtract_of_user(request, request.user.name)
        return request

    def remove(self, queue: FairQueue, peer: Peer, mark: bytes) -> Request | None:
        """Take out a peer's request by its mark; None when it does not wait."""
        request = queue.remove(peer, mark)
        if request is not None:
            self._subtract(request)
        return request

    def take(self, queue: FairQueue, unwanted: Unwanted) -> list[Request]:
        """Take out some requests; all are examined."""
        taken = queue.take(unwanted)
        for request in taken:
            self._subtract(request)
        return taken

    def take_all_of(self, queue: FairQueue, peer: Peer) -> list[Request]:
        """Take out all requests of a peer."""
        taken = queue.take_all_of(peer)
        for request in taken:
            self._subtract(request)
        return taken

    def take_expired(self, queue: FairQueue, now: float) -> Iterator[Request]:
        """Take out the requests that have waited for too long. Call `swept` after the last queue."""
        for request in queue.take_older(now - self._config.request_expiry):
            self._subtract(request)
            yield request

    def swept(self, now: float) -> None:
        """Note that all queues were searched."""
        self.sweep_at = now + self._sweep_every if self.count else None

    def _add(self, request: Request, now: float) -> None:
        self.count += 1
        self.bytes += request.size
        if request.user is not None:
            name = request.user.name
            count, size = self.of_users.get(name, (0, 0))
            self.of_users[name] = (count + 1, size + request.size)
        if self.sweep_at is None and self._sweep_every > 0:
            self.sweep_at = now + self._sweep_every

    def _subtract(self, request: Request) -> None:
        self.count -= 1
        self.bytes -= request.size
        if request.user is not None:
            self._subtract_of_user(request, request.user.name)

    def _subtract_of_user(self, request: Request, name: str) -> None:
        count, size = self.of_users.pop(name)
        if count > 1:
            self.of_users[name] = (count - 1, size - request.size)


def _size(request: Request) -> int:
    return footprint(request.body) + footprint(request.stack)
