"""Which broker is at an endpoint elsewhere, and the connections to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import zmq

from broker import (
    ANSWER_TIMEOUT,
    UNANSWERING,
    BrokerKind,
    Channel,
    ClientSession,
    Curve,
    Dealer,
    OutOfSockets,
    ProtocolDetection,
    SessionChannel,
    earliest,
)
from titanic.logs import Incident

log = logging.getLogger(__name__)

PAUSE = 0.1
"""Seconds from the loss of a connection to the next question."""

SHORTAGE_PAUSE = 0.5
"""Seconds until a socket is tried again that could not be had."""


class Shortage:
    """For one socket that wants to be opened when the process may have no more sockets or files: it does without for a
    while, then tries again. The broker is no less there than before, and other connections go on. `incident` reports
    all sockets together."""

    incident = Incident(log, "reach the broker")

    def __init__(self) -> None:
        self.ends: float | None = None
        """When to try again; None: there is a socket, or none is wanted."""

    def lasts(self, now: float) -> bool:
        """Whether it is too soon to try again."""
        return self.ends is not None and now < self.ends

    def failed(self, error: OutOfSockets, now: float) -> None:
        """No socket could be had."""
        self.incident.failed(error)
        self.ends = now + SHORTAGE_PAUSE

    def recovered(self) -> None:
        """There is a socket, or none is wanted."""
        if self.ends is not None:
            self.ends = None
            self.incident.recovered()


class DiscoveryOwner(Protocol):
    """The owner of a BrokerDiscovery."""

    def found(self, kind: BrokerKind) -> None:
        """Serve the broker that was discovered. Called after each discovery."""


class BrokerDiscovery(Channel):
    """Asks on a connection of its own. When any connection to the broker breaks, another broker may have taken its
    place."""

    def __init__(
        self, endpoint: str, versions: Sequence[str], owner: DiscoveryOwner, curve: Curve | None = None
    ) -> None:
        """`versions`: the allowed versions of MDP. `curve`: the keys of all connections to this broker."""
        self.curve = curve
        self.kind: BrokerKind | None = None
        """Which broker it is; None: not known yet, or not any more."""
        self._dealer = Dealer(zmq.Context.instance(), endpoint, watch=True, hold=True, curve=curve)
        self._owner = owner
        self._detection = ProtocolDetection(versions)
        self._asks = tuple(versions) != (UNANSWERING,)
        """Whether the broker is asked; else it is what it was said to be, as soon as there is a connection."""
        self._number = 0
        self._ask_at: float | None = 0.0
        """When the next questions are due; None: they are on their way, or not needed."""
        self._shortage = Shortage()

    def start(self, now: float) -> None:
        """Ask for the first time. An endpoint that cannot be right raises broker.EndpointError here, not in the
        loop."""
        self.flush(now)

    def doubt(self, now: float) -> None:
        """Another connection to the broker broke: ask again, on a new one."""
        if self.kind is not None:
            self._begin(now + PAUSE)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        return self._dealer.sockets()

    def changed(self) -> bool:
        return self._dealer.changed()

    def drain(self, now: float) -> bool:
        while (frames := self._dealer.receive()) is not None:
            if self.kind is None and (kind := self._detection.learn(frames)) is not None:
                self.kind, self._ask_at = kind, None
                self._owner.found(kind)
        if self._dealer.broke():
            self._begin(now + PAUSE)
        return False

    def next_deadline(self) -> float | None:
        return self._ask_at if self._shortage.ends is None else self._shortage.ends

    def flush(self, now: float) -> None:
        """Does what is due, too: it needs no `tick`."""
        if self.kind is not None or self._shortage.lasts(now):
            return
        try:
            if self._ask_at is not None and now >= self._ask_at:
                self._ask(now)
            else:
                self._dealer.send([])
            self._shortage.recovered()
        except OutOfSockets as error:
            self._shortage.failed(error, now)
            self._begin(now)
        if self._ask_at is None and self._dealer.linked:
            if self._asks:
                self._ask_at = now + ANSWER_TIMEOUT
            else:
                self.kind = BrokerKind(UNANSWERING, ours=False)
                self._owner.found(self.kind)

    def close(self) -> None:
        self._dealer.close()

    def _begin(self, when: float) -> None:
        self._dealer.close(linger=0)
        self.kind, self._ask_at = None, when

    def _ask(self, now: float) -> None:
        if not self._asks:
            self._number += 1
            self._ask_at = None
            self._dealer.open(self._number)
            return
        questions = self._detection.ask() if self._dealer.socket is not None else []
        if not questions:  # it is a new connection, or has to be one
            self._begin(now)
            self._number += 1
            self._detection.begin()
            questions = self._detection.ask()
        self._ask_at = None
        self._dealer.send([(self._number, frames) for frames in questions])


class ConnectionOwner(Protocol):
    """The transport that has a BrokerConnection."""

    def heard(self) -> None:
        """The session may have events."""

    def connection_lost(self, connection: BrokerConnection, now: float) -> None:
        """The connection broke. Called before everything unanswered is sent again."""


class BrokerConnection(SessionChannel[ClientSession]):
    """A session on a socket of its own. It speaks only while it is known which broker is there."""

    def __init__(
        self,
        session: ClientSession,
        endpoint: str,
        discovery: BrokerDiscovery,
        owner: ConnectionOwner,
        *,
        watch: bool = False,
    ) -> None:
        """When the connection breaks, everything unanswered is sent again on a new one: the broker has died or lost us,
        and will not answer what it was sent. `watch`: notice also the shortest break."""
        dealer = Dealer(zmq.Context.instance(), endpoint, watch=watch, hold=True, curve=discovery.curve)
        super().__init__(session, dealer)
        self._discovery = discovery
        self._owner = owner
        self.away = False
        """Whether no broker has what is unanswered: it is sent when it is known which broker is there."""
        self._shortage = Shortage()

    @property
    def open(self) -> bool:
        """Whether there is a socket."""
        return self._dealer.socket is not None

    @property
    def waits(self) -> bool:
        """Whether nothing was sent on the present connection because it is not made yet."""
        return self._dealer.waits

    def lose(self) -> None:
        """Close the connection; what is unanswered is sent again when it is known which broker is there."""
        self._dealer.close(linger=0)
        self.away = True

    def drain(self, now: float) -> bool:
        self._owner.heard()
        return super().drain(now)

    def tick(self, now: float) -> None:
        super().tick(now)
        if self.session.has_events:
            self._owner.heard()

    def next_deadline(self) -> float | None:
        return earliest(self.session.next_deadline(), self._shortage.ends)

    def flush(self, now: float) -> None:
        if self._shortage.lasts(now):
            return
        if self._discovery.kind is None:
            if not self.open and self.session.take_output():
                self.away = True
            return
        if self.away:
            self.away = False
            self.session.lost(now)
            self._owner.heard()
        try:
            self._dealer.send(self.session.take_output())
            self._shortage.recovered()
        except OutOfSockets as error:
            self._shortage.failed(error, now)
            self.away = True  # all of it is sent again when there is a socket

    def _lost(self, now: float) -> None:
        self._discovery.doubt(now)
        self.lose()
        self._owner.connection_lost(self, now)
