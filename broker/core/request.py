"""A client's request while it is with the broker."""

from __future__ import annotations

from broker.core.mdp import (
    CLIENT_DIALECTS,
    EMPTY,
    ERROR,
    HEADERS,
    MAX_STACK,
    ClientDialect,
    Frames,
    Peer,
    joined,
    read_error,
)

_FRAME = 64
"""Bytes of memory that a frame takes besides its content, roughly."""


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
        "partials_seen",
        "partials_sent",
        "peer",
        "service",
        "size",
        "stack",
        "token",
        "wanted",
    )

    def __init__(
        self, peer: Peer, stack: Frames, dialect: ClientDialect, service: bytes, body: Frames, arrived: float
    ) -> None:
        self.peer = peer
        self.stack = stack
        self.dialect = dialect
        self.service = service
        self.body = body
        self.arrived = arrived
        self.size = 0
        """Its footprint, address stack included; set while it waits."""
        self.token = b""
        """The worker's `client` frame; new at each delivery, so that a reply can be told from a stale one."""
        self.deliveries = 0
        self.partials_sent = 0
        self.partials_seen = 0
        """PARTIALs of the present delivery."""
        self.collected: Frames = []
        """For clients whose version has no PARTIAL: the frames so far, to go out with FINAL."""
        self.collected_size = 0
        self.answered = False
        """Whether an integrated service has answered it."""
        self.wanted = True
        """Not any more when its client took it back while a worker had it: no second worker gets it."""

    @property
    def mark(self) -> tuple[Peer, bytes] | None:
        """Whose it is, and the last address frame that its peer put in front of it. None: there is none."""
        return (self.peer, self.stack[-2]) if len(self.stack) >= 2 else None

    def partial(self, body: Frames) -> Frames | None:
        """The PARTIAL message for the client, or None when there is nothing to send (yet)."""
        self.partials_seen += 1
        if self.partials_seen <= self.partials_sent:
            return None
        self.partials_sent += 1
        body = body or EMPTY
        if self.dialect.partial is None:
            self.collected += body
            self.collected_size += footprint(body)
            return None
        return self._message(self.dialect.partial, body)

    def begin_anew(self) -> Frames | None:
        """Its worker is gone, and the next one starts over: what the client is to be told of that.

        Parts that are still here are dropped. A client of a version without a word for it can't unsee those that it
        has: so many of the next worker's are not sent, as if they were the same.
        """
        self.partials_seen = 0
        if self.dialect.partial is None:
            self.collected, self.collected_size, self.partials_sent = [], 0, 0
        elif self.dialect.anew is not None and self.partials_sent:
            self.partials_sent = 0
            return self._message(self.dialect.anew, [])
        return None

    def refusal(self, error: Frames) -> Frames:
        """The last message for the client, which is the broker's own."""
        return self._message(self.dialect.refused or self.dialect.final, error)

    def final(self, body: Frames) -> Frames:
        """The last message for the client. An error goes without the parts: behind them it would not be told as one."""
        body = body or EMPTY
        if self.collected and read_error(body) is None:
            body = as_workers(joined(self.collected, body))
        return self._message(self.dialect.final, body)

    def _message(self, head: tuple[bytes, ...], body: Frames) -> Frames:
        if self.dialect.echoes_service:
            return [*self.stack, *head, self.service, *body]
        return [*self.stack, *head, *body]


def as_workers(body: Frames) -> Frames:
    """A worker's reply. 499, 503 and 504 are the broker's words, they say that nobody is at it: a worker's become
    500."""
    if body and body[0] == ERROR and len(body) > 1 and body[1][:3] in (b"499", b"503", b"504"):
        return [ERROR, b"500" + body[1][3:], *body[2:]]
    return body


def read_request(peer: Peer, head: Frames) -> Request | None:
    """The request that begins with these frames, without its body; None when they do not begin one."""
    at = next((at for at, frame in enumerate(head[: MAX_STACK + 1]) if frame in HEADERS), len(head))
    for dialect in CLIENT_DIALECTS:
        begin = at + len(dialect.request)
        if tuple(head[at:begin]) == dialect.request and begin < len(head) and (at or not dialect.delimited):
            return Request(peer, head[:at], dialect, head[begin], [], 0.0)
    return None
