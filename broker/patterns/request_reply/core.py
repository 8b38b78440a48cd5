"""Request and reply as REQ and REP sockets speak them, without sockets, and the two other ways of servers here.

`''` is an empty frame and `[…]` an address stack, which a REP socket or a server keeps and puts back.

    way         request                 reply                   spoken by
    ----------  ----------------------  ----------------------  ------------------------------------------
    plain       […] '' body…            […] '' body…            REQ clients: Lazy Pirate, Binary Star,
                                                                Freelance model 1
    numbered    […] '' number body…     […] '' number body…     Freelance model 2
    flp         control body…           control body…           Freelance model 3 (RFC 10)
                PING                    PONG

A message that cannot be opened is counted and dropped: there is no client to answer.

A handler may find that a request was asked again since (`broker.patterns.idempotent.core`), and end the earlier one
with an error. The client still waits for the reply to the later one, mostly with the same envelope, and would take that
error for it. So Freelance clients get none: they ask again, or have several connections. Others get one, unless
the same client has asked again with the same envelope.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from broker.core.mdp import MAX_STACK, Core, Frames, Peer, ReplyMessage

PING, PONG = b"PING", b"PONG"

Opened = tuple[Frames, Frames]
"""An envelope, which goes in front of the reply, and a body."""


class PlainDialect:
    """A client's side, for `broker.core.client.ClientSession`: requests without a service, one reply each."""

    def encode_request(self, stack: Frames, service: bytes, body: Frames) -> Frames:
        """Frames of a request; there is no place for a service."""
        return [*(stack or [b""]), *body]

    def parse_reply(self, frames: Frames) -> ReplyMessage | None:
        """Read a reply; None when it has no envelope or no body."""
        opened = open_envelope(frames)
        return None if opened is None else ReplyMessage(opened[0], True, None, opened[1])


def open_envelope(frames: Frames) -> Opened | None:
    """The address stack with its `''`, and the body; None when either is missing or the stack is too high."""
    try:
        at = frames.index(b"", 0, MAX_STACK + 1) + 1
    except ValueError:
        return None
    return (frames[:at], frames[at:]) if len(frames) > at else None


PLAIN = PlainDialect()


def open_numbered(frames: Frames) -> Opened | None:
    """The number belongs to the envelope. A request may have no body but its number."""
    opened = open_envelope(frames)
    return None if opened is None else (frames[: len(opened[0]) + 1], opened[1][1:])


def open_control(frames: Frames) -> Opened | None:
    """One control frame, whatever it holds."""
    return (frames[:1], frames[1:]) if len(frames) > 1 else None


WAYS: dict[str, Callable[[Frames], Opened | None]] = {
    "plain": open_envelope,
    "numbered": open_numbered,
    "flp": open_control,
}


class ClientRequest(NamedTuple):
    """A request to be answered."""

    peer: Peer
    envelope: Frames
    body: Frames


Admit = Callable[[float], bool]
"""Whether to go on at this time. What is refused is dropped."""


class Replier(Core):
    """All clients of one server. It may refuse all of them (see `broker.patterns.binary_star.core`)."""

    def __init__(self, way: str = "plain", admit: Admit = lambda now: True) -> None:
        """`admit` is asked at each request and each reply."""
        super().__init__()
        self._open = WAYS[way]
        self._pings = way == "flp"
        self._reports = way == "plain"
        self._admit = admit
        self._requests: list[ClientRequest] = []
        self.malformed = 0
        self.refused = 0
        self.superseded = 0
        """Requests that were not answered, because they were asked again."""
        self._in_hand: Counter[tuple[Peer, tuple[bytes, ...]]] = Counter()
        """How many unanswered requests each client has, by its envelope."""

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        if self._pings and frames == [PING]:
            self._output.append((peer, [PONG]))
        elif (opened := self._open(frames)) is None:
            self.malformed += 1
        elif self._admit(now):
            request = ClientRequest(peer, *opened)
            self._in_hand[_waiter(request)] += 1
            self._requests.append(request)
        else:
            self.refused += 1

    def take_requests(self) -> list[ClientRequest]:
        """Requests to be answered."""
        requests, self._requests = self._requests, []
        return requests

    def reply(self, request: ClientRequest, body: Frames, now: float) -> None:
        """Answer a request, if it would still be admitted. A reply has a frame at least, if an empty one."""
        self._done(request)
        if self._admit(now):
            self._output.append((request.peer, [*request.envelope, *(body or [b""])]))
        else:
            self.refused += 1

    def supersede(self, request: ClientRequest, body: Frames, now: float) -> None:
        """A request was asked again: `body` says so to clients that get an error for it."""
        if self._reports and self._in_hand[_waiter(request)] == 1:
            self.reply(request, body, now)
        else:
            self._done(request)
            self.superseded += 1

    def _done(self, request: ClientRequest) -> None:
        waiter = _waiter(request)
        self._in_hand[waiter] -= 1
        if self._in_hand[waiter] <= 0:
            del self._in_hand[waiter]


def _waiter(request: ClientRequest) -> tuple[Peer, tuple[bytes, ...]]:
    return request.peer, tuple(request.envelope)
