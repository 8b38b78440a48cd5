"""Freelance without sockets (Guide, chapter 4, "Brokerless Reliability"; RFC 10, FLP): clients that know all servers.

Model 1 tries one server after another: that is Lazy Pirate with several endpoints. Model 2 asks all and takes the
first answer. Model 3 pings all, and asks one that lives. Their
frames are in the table of `broker.patterns.request_reply.core`.

A number is text. A control frame is opaque to the server; here it is the number of the request, 8 bytes big-endian.

What the agent of model 3 does (`broker.core.endpoints` has the states of a server):

    server     PONG or reply    silence, unreachable        ping due    a request comes
    ---------  ---------------  --------------------------  ----------  ---------------
    untried    live             dead                        ping        wait
    live       keep             dead, its requests move     ping        send
    dead       live             keep                        ping        wait

Requests that wait are sent as soon as any server lives. A request without an answer in time is sent to another live
server, if there is one: so it may be executed twice, and the first reply wins.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any, SupportsFloat, SupportsInt

from broker.config import check, check_heartbeats
from broker.core.client import EventKind, RequestSession, Unanswered
from broker.core.endpoints import Health, Servers
from broker.core.mdp import Frames, Peer
from broker.core.timers import Backoff, Timers, earliest
from broker.patterns.request_reply.core import PING, PONG, open_envelope

_CONTROL = struct.Struct(">Q")

PING_FIRST = 0.05
"""Seconds after which a server that could not be reached is pinged again, for the first time."""


@dataclass(frozen=True, slots=True)
class FreelanceConfig:
    """How a client of several servers keeps in touch with them. Times are seconds."""

    ping_interval: float = 2.0
    """A server that said nothing for this long is pinged (model 3)."""
    liveness: int = 3
    """A server is dead when nothing came from it for this many intervals (model 3)."""
    timeout: float = 2.5
    """Without an answer for this long a request is sent again, in model 3 to another live server."""
    retries: int = 3
    """How often a request is sent again before the client gives up."""

    def __post_init__(self) -> None:
        check_heartbeats(self.ping_interval, self.liveness)
        check(self.timeout > 0, f"timeout is {self.timeout}; it must be more than 0")
        check(self.retries >= 0, f"retries is {self.retries}; it must be 0 or more")

    def __reduce__(self) -> tuple[Any, ...]:  # a compiled frozen class cannot be filled after it was created
        return type(self), astuple(self)


@dataclass(slots=True, eq=False)
class _Question(Unanswered):
    """A request without an answer."""

    server: str | None = None
    """The server that has it; None: it waits for a live one."""


class FreelanceSession(RequestSession[_Question], ABC):
    """What models 2 and 3 have in common: requests, and servers. Peers are endpoints."""

    def __init__(self, endpoints: str | Iterable[str], config: FreelanceConfig | None = None) -> None:
        super().__init__()
        self.config = config or FreelanceConfig()
        self.servers = Servers(endpoints)

    def request(
        self, body: Frames, now: float, *, timeout: SupportsFloat | None = None, retries: SupportsInt | None = None
    ) -> int:
        """Ask; the ticket that the event will carry comes back."""
        span = self.config.timeout if timeout is None else float(timeout)
        pending = _Question(body, span, self.config.retries if retries is None else int(retries))
        ticket = self._add(pending)
        self._deadlines.set(ticket, now + span)
        self._ask(ticket, pending)
        return ticket

    def tick(self, now: float) -> None:
        for ticket, pending in self._take_late(now).items():
            self._deadlines.set(ticket, now + (pending.timeout or 0))
            self._ask(ticket, pending)

    @abstractmethod
    def _ask(self, ticket: int, pending: _Question) -> None:
        """Send a request, for the first time or again."""

    def _answer(self, ticket: int, body: Frames) -> None:
        if ticket in self._pending:
            self._finish(ticket, EventKind.FINAL, body)
        else:
            self.unmatched += 1


class ShotgunCore(FreelanceSession):
    """Model 2: each request goes to all servers."""

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        opened = open_envelope(frames)
        number = opened[1][0] if opened else b""
        self._answer(int(number) if number.isdigit() and len(number) < 20 else 0, opened[1][1:] if opened else [])

    def _ask(self, ticket: int, pending: _Question) -> None:
        self._output += [(name, [b"", b"%d" % ticket, *pending.body]) for name in self.servers.names]


class FreelanceAgent(FreelanceSession):
    """Model 3: each request goes to one server that lives."""

    def __init__(
        self, endpoints: str | Iterable[str], config: FreelanceConfig | None = None, *, now: float = 0.0
    ) -> None:
        super().__init__(endpoints, config)
        self._silence: Timers[str] = Timers()
        self._pings: Timers[str] = Timers()
        self._backoffs: dict[str, Backoff] = {}
        self._waiting: dict[int, None] = {}
        """Requests that no server has been sent."""
        for name in self.servers.names:
            self._pings.set(name, now)
            self._backoffs[name] = Backoff(min(PING_FIRST, self.config.ping_interval), self.config.ping_interval)

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        assert isinstance(peer, str)
        if peer not in self._backoffs:
            self.unmatched += 1
            return
        self.servers.answered(peer)
        self._backoffs[peer].reset()
        self._silence.set(peer, now + self.config.ping_interval * self.config.liveness)
        self._pings.set(peer, now + self.config.ping_interval)
        if frames != [PONG]:
            control = frames[0] if len(frames) > 1 else b""
            self._answer(_CONTROL.unpack(control)[0] if len(control) == _CONTROL.size else 0, frames[1:])
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting:
            if ticket in self._pending:
                self._ask(ticket, self._pending[ticket])

    def tick(self, now: float) -> None:
        """Ping, notice silent servers, ask again."""
        for name in self._silence.due(now):
            self._lost(name)
        for name in self._pings.due(now):
            self._output.append((name, [PING]))
            self._pings.set(name, now + self.config.ping_interval)
        super().tick(now)

    def next_deadline(self) -> float | None:
        return earliest(self._silence.next(), self._pings.next(), super().next_deadline())

    def undeliverable(self, peer: Peer, frames: Frames, now: float) -> None:
        """The transport cannot reach a server now."""
        assert isinstance(peer, str)
        self._pings.set(peer, now + self._backoffs[peer].take())
        self._lost(peer)

    def _lost(self, name: str) -> None:
        """A server is gone: send its requests to another."""
        self._silence.cancel(name)
        if self.servers.health(name) is Health.DEAD:
            return
        self.servers.failed(name)
        for ticket, pending in self._pending.items():
            if pending.server == name:
                self._ask(ticket, pending)

    def _ask(self, ticket: int, pending: _Question) -> None:
        pending.server = self.servers.live(avoid=pending.server)
        if pending.server is None:
            self._waiting[ticket] = None
        else:
            self._output.append((pending.server, [_CONTROL.pack(ticket), *pending.body]))
