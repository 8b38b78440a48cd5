"""A dispatcher's connections to a broker elsewhere, and how it finds out what broker that is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import zmq

from broker import ClientConfig, ClientSession, Dealer, EventKind, OutOfSockets
from titanic.dispatch.shortage import Shortage, first
from titanic.tsp import Frames


class Connection:
    """A session on its own socket, as a channel of a loop."""

    rests = False

    def __init__(
        self, session: ClientSession, endpoint: str, *, watch: bool = False, lost: Callable[[float], None] | None = None
    ) -> None:
        """`watch`: learn at once when the connection breaks. Then all that is unanswered is sent again on a new
        one: the broker has died or lost us, and will not answer what it was sent. `lost` is told before."""
        self.session = session
        self._dealer = Dealer(zmq.Context.instance(), endpoint, watch=watch)
        self._lost = lost
        self._shortage = Shortage()

    @property
    def open(self) -> bool:
        """Whether there is a socket."""
        return self._dealer.socket is not None

    def sockets(self) -> list[zmq.Socket[bytes]]:
        return self._dealer.sockets()

    def changed(self) -> bool:
        return self._dealer.changed()

    def drain(self, now: float) -> bool:
        while (frames := self._dealer.receive()) is not None:
            self.session.receive(self._dealer.number, frames, now)
        if self._dealer.broke():
            if self._lost is not None:
                self._lost(now)
            self.session.lost(now)
        return False

    def tick(self, now: float) -> None:
        self.session.tick(now)

    def next_deadline(self) -> float | None:
        return first(self.session.next_deadline(), self._shortage.ends)

    def flush(self, now: float) -> None:
        if self._shortage.lasts(now):
            return
        try:
            self._dealer.send(self.session.take_output())
            self._shortage.over()
        except OutOfSockets as error:
            self._shortage.met(error, now)
            self.session.lost(now)  # what could not go out goes out when there is one

    def close(self) -> None:
        self._dealer.close()


class Scout:
    """Asks until a broker answers, then tells `found` the version of MDP that it speaks, and whether it is one of
    this project. A channel of a loop, so that it can be stopped at any time."""

    rests = False

    TRIES = (("0.2", b"mmi.broker"), ("0.1", b"mmi.broker"), ("0.2", b"mmi.service"), ("0.1", b"mmi.service"))
    """A broker that does not know mmi.broker may not answer it at all. mmi.service is a must for all."""

    TIMEOUT = 0.5

    def __init__(self, endpoint: str, found: Callable[[str, bool], None]) -> None:
        self._dealer = Dealer(zmq.Context.instance(), endpoint)
        self._found = found
        self._tries = cycle(self.TRIES)
        self._session: ClientSession | None = None
        self._done = False
        self._shortage = Shortage()

    def start(self, now: float) -> None:
        """Ask for the first time. An endpoint that cannot be right raises broker.EndpointError here, not there."""
        self.flush(now)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        return self._dealer.sockets()

    def changed(self) -> bool:
        return self._dealer.changed()

    def drain(self, now: float) -> bool:
        while self._session is not None and (frames := self._dealer.receive()) is not None:
            self._session.receive(self._dealer.number, frames, now)
            for _, kind, body in self._session.take_events():
                if kind is EventKind.FINAL:
                    self._finish(self._session.config.version, body)
                    return False
        return False

    def tick(self, now: float) -> None:
        if self._session is not None:
            self._session.tick(now)

    def next_deadline(self) -> float | None:
        return first(self._session.next_deadline() if self._session is not None else None, self._shortage.ends)

    def flush(self, now: float) -> None:
        if self._done or self._shortage.lasts(now):
            return
        if self._session is None or not len(self._session):  # nobody answered
            self._dealer.close()
            version, question = next(self._tries)
            self._session = ClientSession(ClientConfig(timeout=self.TIMEOUT, retries=0, version=version))
            self._session.request(question, [b"titanic.request"], now)
        try:
            self._dealer.send(self._session.take_output())
            self._shortage.over()
        except OutOfSockets as error:
            self._shortage.met(error, now)
            self._session = None

    def close(self) -> None:
        self._dealer.close()

    def _finish(self, version: str, body: Frames) -> None:
        self._done = True
        self._session = None
        self._dealer.close()
        self._found(version, body[:1] != [] and body[0].startswith(b"{"))
