"""Generaldomo on the wire: Majordomo over CLIENT and SERVER sockets, which carry single frames only.

The frames of a message of MDP 0.1 (`broker.core.mdp`), without the `''` in front, are packed into one, as CZMQ's
`zmsg_encode` does:

    each frame          size  data
    size below 255      one byte
    size of 255 or more FF, and four bytes big-endian

Messages with an address stack, and those of MDP 0.2, which have no `''` in front, are packed as they are.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, cast

from broker.config import ClientConfig
from broker.core.client import VERSIONS, ClientSession, Event, EventKind
from broker.core.mdp import CLIENT_01, WORKER_01, Core, Frames, Output, Peer

_LONG = struct.Struct(">BI")

MOST_FRAMES = 100_000
"""Frames of a message."""

QUESTION_TIMEOUT = 2.5
"""Seconds without an answer after which `mmi.broker` is asked again, for clients that wait for ever."""

_MARKED, _QUESTIONS = 0, 1
"""Lanes: that of requests with marks, and that of the question who the broker is."""


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


class _Ask(NamedTuple):
    """A request that waits for a connection, and what was asked for it."""

    ticket: int
    service: bytes
    body: Frames
    since: float
    timeout: float | None
    retries: int


class DomoSession(Core):
    """A client's side: many requests in flight with a broker of this project, one on each connection with any other.

    Ours keeps the address frames in front of a request, and so a mark that tells replies apart. Others read the frames
    strictly: there a request needs a connection to itself, and what finds none free waits. Which one it is, is asked of
    `mmi.broker`, that only ours knows, beside the first requests:

        the broker is     a request comes               the answer to mmi.broker    a request is given up
        ----------------  ----------------------------  --------------------------  ---------------------
        unknown           ask; as with another          JSON: ours; else another    –
        ours              send it with a mark           –                           unknown
        another           send it, or have it wait      –                           unknown

    The peers are lanes and the numbers of their connections. When nobody answers, requests that wait are given up with
    the others: as soon as they have waited for as long as all their tries would take, without a word of the broker.
    """

    LANES = 16
    """Connections, with a broker that is not ours."""

    def __init__(self, config: ClientConfig) -> None:
        super().__init__()
        self.ours: bool | None = None
        """Whether the broker is of this project; None: unknown."""
        self._config = config
        self._sessions = {_MARKED: self._session(correlated=True), _QUESTIONS: self._session(correlated=False)}
        self._free: list[int] = []
        self._waiting: deque[_Ask] = deque()
        self._tickets: dict[tuple[int, int], int] = {}
        self._made = 0
        self._heard_at = float("-inf")
        self._events: list[Event] = []

    # -- the contract of a core ------------------------------------------------------------------------------

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        """Take a message that came on a lane's connection."""
        lane, number = cast("tuple[int, int]", peer)
        self._heard_at = now
        self._sessions[lane].receive(number, frames, now)
        self._settle(lane, now)

    def tick(self, now: float) -> None:
        """Send again what had no answer in time, or give it up."""
        for lane, session in list(self._sessions.items()):  # one may make another
            session.tick(now)
            self._settle(lane, now)

    def next_deadline(self) -> float | None:
        """When the next request is due to be sent again."""
        times = (session.next_deadline() for session in self._sessions.values())
        return min((time for time in times if time is not None), default=None)

    def take_output(self) -> list[Output]:
        """Messages for the lanes' connections; a new number asks for a new connection."""
        return [
            ((lane, number), frames)
            for lane, session in self._sessions.items()
            for number, frames in session.take_output()
        ]

    # -- what a shell does with it ---------------------------------------------------------------------------

    def request(
        self, service: bytes, body: Frames, now: float, *, timeout: float | None = None, retries: int | None = None
    ) -> int:
        """Send a request as soon as that is possible; the ticket that its event will carry comes back. `timeout` and
        `retries` stand in for the configuration's."""
        self._made += 1
        patience = self._config.timeout if timeout is None else timeout
        tries = self._config.retries if retries is None else retries
        self._waiting.append(_Ask(self._made, service, body, now, patience, tries))
        self._send(now)
        return self._made

    def take_events(self) -> list[Event]:
        """What has become of requests since the last call."""
        events, self._events = self._events, []
        return events

    # -- inside ----------------------------------------------------------------------------------------------

    def _session(self, *, correlated: bool) -> ClientSession:
        return ClientSession(self._config, correlated=correlated, dialect=VERSIONS["0.1"])

    def _send(self, now: float) -> None:
        question = self._sessions[_QUESTIONS]
        if self.ours is None and self._waiting and not len(question):
            question.request(b"mmi.broker", [b""], now, timeout=self._config.timeout or QUESTION_TIMEOUT, retries=0)
        while self._waiting and (lane := _MARKED if self.ours else self._free_lane()) is not None:
            ask = self._waiting.popleft()
            ticket = self._sessions[lane].request(ask.service, ask.body, now, timeout=ask.timeout, retries=ask.retries)
            self._tickets[lane, ticket] = ask.ticket

    def _free_lane(self) -> int | None:
        if self._free:
            return self._free.pop()
        lane = len(self._sessions)
        if lane >= self.LANES + 2:
            return None
        self._sessions[lane] = self._session(correlated=False)
        return lane

    def _settle(self, lane: int, now: float) -> None:
        """Tell what became of a lane's requests, and send what that makes room for."""
        events = self._sessions[lane].take_events()
        if not events:
            return
        for inner, kind, body in events:
            if lane == _QUESTIONS:
                if kind is EventKind.FINAL:
                    self.ours = body[:1] != [] and body[0].startswith(b"{")
                continue
            self._events.append(Event(self._tickets.pop((lane, inner)), kind, body))
            if lane != _MARKED:
                self._free.append(lane)
            if kind is EventKind.GAVE_UP:
                self.ours = None
                self._give_up(now)
        self._send(now)
        if self.ours and lane != _MARKED:  # the others have no more to do
            for idle in {lane, *self._free}:
                self._sessions[idle].lost(now)

    def _give_up(self, now: float) -> None:
        """Nobody waits for a connection when nobody is there."""
        waiting, self._waiting = self._waiting, deque()
        for ask in waiting:
            end = float("inf") if ask.timeout is None else ask.since + ask.timeout * (1 + ask.retries)
            if now >= end and self._heard_at < ask.since:
                self._events.append(Event(ask.ticket, EventKind.GAVE_UP, []))
            else:
                self._waiting.append(ask)
