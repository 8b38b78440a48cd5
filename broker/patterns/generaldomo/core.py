"""Generaldomo without sockets: messages packed into single frames, and a client with many requests in flight.

CLIENT and SERVER sockets carry single frames only. So the frames of a message of MDP 0.1 (`broker.core.mdp`), without
the `''` in front, are packed into one, as CZMQ's `zmsg_encode` does:

    each frame          size  data
    size below 255      one byte
    size of 255 or more FF, and four bytes big-endian

Messages with an address stack, and those of MDP 0.2, which have no `''` in front, are packed as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsFloat, SupportsInt, cast

from broker.config import ClientConfig
from broker.core.client import ClientSession, EventKind, ReplyEvent, RequestSession, Unanswered
from broker.core.mdp import CLIENT_01, CLIENT_V01, WORKER_01, Frames, Output, Peer
from broker.core.timers import earliest

_LONG = struct.Struct(">BI")

MOST_FRAMES = 100_000
"""Frames of a message."""


def pack(frames: Iterable[bytes]) -> bytes:
    """Many frames as one."""
    parts: list[bytes] = []
    for frame in frames:
        size = len(frame)
        parts.append(bytes((size,)) if size < 255 else _LONG.pack(255, size))
        parts.append(frame)
    return b"".join(parts)


def unpack(data: bytes) -> Frames | None:
    """The frames; None when it is no packed message."""
    frames: Frames = []
    at, end = 0, len(data)
    while at < end:
        size = data[at]
        at += 1
        if size == 255:
            if at + 4 > end:
                return None
            size = int.from_bytes(data[at : at + 4])
            at += 4
        if at + size > end or len(frames) == MOST_FRAMES:
            return None
        frames.append(data[at : at + size])
        at += size
    return frames or None


def pack_mdp(frames: Frames) -> bytes:
    """A message of MDP."""
    return pack(frames[1:] if frames[0] == b"" else frames)


def unpack_mdp(data: bytes) -> Frames | None:
    """A message of MDP; None when it is none."""
    frames = unpack(data)
    if frames is not None and frames[0] in (CLIENT_01, WORKER_01):
        return [b"", *frames]
    return frames


QUESTION_TIMEOUT = 2.5
"""Seconds without an answer after which `mmi.broker` is asked again, for clients that wait for ever."""

_MARKED, _QUESTIONS = 0, 1
"""The connections of requests with marks, and of the question which broker it is."""


@dataclass(slots=True, eq=False)
class _WaitingRequest(Unanswered):
    """A request that waits for a connection."""

    service: bytes
    since: float


class DomoSession(RequestSession[_WaitingRequest]):
    """A client's side: many requests in flight with a broker of this project, one on each connection with any other.

    Ours keeps the address frames in front of a request, and so a mark that identifies a reply. Others read the frames
    strictly: there a request needs a connection to itself, and what finds none free waits. Which one it is, is asked of
    `mmi.broker`, that only ours knows, beside the first requests:

        the broker is     a request comes               the answer to mmi.broker    a request is given up
        ----------------  ----------------------------  --------------------------  ---------------------
        unknown           ask; as with another          JSON: ours; else another    –
        ours              send it with a mark           –                           unknown
        another           send it, or have it wait      –                           unknown

    A peer is a connection, and how often that was made: a new number asks for a new socket. When no answer comes,
    requests that wait are given up with the others: as soon as they have waited for as long as all their tries would
    take, and nothing came from the broker.
    """

    MOST = 16
    """Connections, with a broker that is not ours."""

    def __init__(self, config: ClientConfig) -> None:
        super().__init__()
        self.ours: bool | None = None
        """Whether the broker is of this project; None: unknown."""
        self._config = config
        self._sessions = {_MARKED: self._session(correlated=True), _QUESTIONS: self._session(correlated=False)}
        self._free: list[int] = []
        self._tickets: dict[tuple[int, int], int] = {}
        self._heard_at = float("-inf")

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        connection, number = cast("tuple[int, int]", peer)
        self._heard_at = now
        self._sessions[connection].receive(number, frames, now)
        self._settle(connection, now)

    def tick(self, now: float) -> None:
        for connection, session in list(self._sessions.items()):  # one may make another
            session.tick(now)
            self._settle(connection, now)

    def next_deadline(self) -> float | None:
        return earliest(*(session.next_deadline() for session in self._sessions.values()))

    def take_output(self) -> list[Output]:
        return [
            ((connection, number), frames)
            for connection, session in self._sessions.items()
            for number, frames in session.take_output()
        ]

    # -- what a shell does with it ---------------------------------------------------------------------------

    def request(
        self,
        service: bytes,
        body: Frames,
        now: float,
        *,
        timeout: SupportsFloat | None = None,
        retries: SupportsInt | None = None,
    ) -> int:
        """Send a request as soon as that is possible; the ticket that its event will carry comes back. `timeout` and
        `retries` stand in for the configuration's."""
        span = self._config.timeout if timeout is None else float(timeout)
        tries = self._config.retries if retries is None else int(retries)
        ticket = self._add(_WaitingRequest(body, span, tries, service, now))
        self._send(now)
        return ticket

    def _session(self, *, correlated: bool) -> ClientSession:
        return ClientSession(self._config, correlated=correlated, dialect=CLIENT_V01)

    def _send(self, now: float) -> None:
        question = self._sessions[_QUESTIONS]
        if self.ours is None and self._pending and not len(question):
            # Generaldomo's own broker ends at an empty last frame.
            question.request(
                b"mmi.broker", [b"mmi.broker"], now, timeout=self._config.timeout or QUESTION_TIMEOUT, retries=0
            )
        while self._pending and (connection := _MARKED if self.ours else self._free_connection()) is not None:
            ticket = next(iter(self._pending))
            ask, session = self._pending.pop(ticket), self._sessions[connection]
            inner = session.request(ask.service, ask.body, now, timeout=ask.timeout, retries=ask.retries)
            self._tickets[connection, inner] = ticket

    def _free_connection(self) -> int | None:
        if self._free:
            return self._free.pop()
        connection = len(self._sessions)
        if connection >= self.MOST + 2:
            return None
        self._sessions[connection] = self._session(correlated=False)
        return connection

    def _settle(self, connection: int, now: float) -> None:
        """Report what became of a connection's requests, and send what that makes room for."""
        events = self._sessions[connection].take_events()
        if not events:
            return
        for inner, kind, body, sent in events:
            if connection == _QUESTIONS:
                if kind is EventKind.FINAL:
                    self.ours = body[:1] != [] and body[0].startswith(b"{")
                continue
            self._events.append(ReplyEvent(self._tickets.pop((connection, inner)), kind, body, sent))
            if connection != _MARKED:
                self._free.append(connection)
            if kind is EventKind.GAVE_UP:
                self.ours = None
                self._give_up(now)
        self._send(now)
        if self.ours and connection != _MARKED:  # the other connections are not needed any more
            for idle in {connection, *self._free}:
                self._sessions[idle].lost(now)

    def _give_up(self, now: float) -> None:
        """Give up requests that wait for a connection when no broker is there."""
        for ticket, ask in list(self._pending.items()):
            end = float("inf") if ask.timeout is None else ask.since + ask.timeout * (1 + ask.retries)
            if now >= end and self._heard_at < ask.since:
                self._finish(ticket, EventKind.GAVE_UP, [])
