"""A dispatcher's connections to a broker elsewhere, and how it finds out what broker that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import zmq

from broker import ANSWER, ClientSession, Dealer, Kind, OutOfSockets, Recognition
from titanic.dispatch.socket_shortage import Shortage, first

PAUSE = 0.1
"""Seconds from the loss of a connection to the next question."""


class Scout:
    """Finds out which broker is at an endpoint, whenever it comes, and anew when its connection breaks: another one may
    have taken its place. A channel of a loop, with a connection of its own."""

    rests = False

    def __init__(self, endpoint: str, versions: Sequence[str], found: Callable[[Kind], None]) -> None:
        """`versions`: of MDP, that may be spoken. `found` is told each time."""
        self.kind: Kind | None = None
        """Which broker it is; None: not known yet, or not any more."""
        self._dealer = Dealer(zmq.Context.instance(), endpoint, watch=True, hold=True)
        self._versions = versions
        self._found = found
        self._recognition = Recognition(versions)
        self._number = 0
        self._ask_at: float | None = 0.0
        """When the next questions are due; None: they are on their way, or not needed."""
        self._shortage = Shortage()

    def start(self, now: float) -> None:
        """Ask for the first time. An endpoint that cannot be right raises broker.EndpointError here, not there."""
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
            if self.kind is None and (kind := self._recognition.learn(frames)) is not None:
                self.kind, self._ask_at = kind, None
                self._found(kind)
        if self._dealer.broke():
            self._begin(now + PAUSE)
        return False

    def tick(self, now: float) -> None:
        """Nothing: `flush` looks at the time."""

    def next_deadline(self) -> float | None:
        return self._ask_at if self._shortage.ends is None else self._shortage.ends

    def flush(self, now: float) -> None:
        if self.kind is not None or self._shortage.lasts(now):
            return
        try:
            if self._ask_at is not None and now >= self._ask_at:
                self._ask(now)
            else:
                self._dealer.send([])
            self._shortage.over()
        except OutOfSockets as error:
            self._shortage.met(error, now)
            self._begin(now)
        if self._ask_at is None and self._dealer.linked:
            self._ask_at = now + ANSWER

    def close(self) -> None:
        self._dealer.close()

    def _begin(self, when: float) -> None:
        self._dealer.close(linger=0)
        self._recognition = Recognition(self._versions)
        self.kind, self._ask_at = None, when

    def _ask(self, now: float) -> None:
        questions = self._recognition.ask()
        if not questions:  # nobody has answered in any version
            self._begin(now)
            questions = self._recognition.ask()
        if self._dealer.socket is None:
            self._number += 1
        self._ask_at = None
        self._dealer.send([(self._number, frames) for frames in questions])


class Connection:
    """A session on its own socket, as a channel of a loop. It speaks only while it is known which broker is there."""

    rests = False

    def __init__(
        self,
        session: ClientSession,
        endpoint: str,
        scout: Scout,
        *,
        watch: bool = False,
        lost: Callable[[float], None] | None = None,
    ) -> None:
        """When the connection breaks, all that is unanswered is sent again on a new one: the broker has died or lost
        us, and will not answer what it was sent. `lost` is told before. `watch`: notice also the shortest break."""
        self.session = session
        self._scout = scout
        self._dealer = Dealer(zmq.Context.instance(), endpoint, watch=watch, hold=True)
        self._lost = lost
        self._silenced = False
        """Whether something was not sent because it was not known to whom."""
        self._shortage = Shortage()

    @property
    def open(self) -> bool:
        """Whether there is a socket."""
        return self._dealer.socket is not None

    @property
    def away(self) -> bool:
        """Whether no broker has anything of what is unanswered: it goes out when it is known to whom."""
        return self._silenced

    @property
    def waits(self) -> bool:
        """Whether nothing was sent on the present connection, because it is not made yet."""
        return self._dealer.waits

    def lose(self) -> None:
        """Close the connection; what is unanswered is sent again when it is known to whom."""
        self._dealer.close(linger=0)
        self._silenced = True

    def sockets(self) -> list[zmq.Socket[bytes]]:
        return self._dealer.sockets()

    def changed(self) -> bool:
        return self._dealer.changed()

    def drain(self, now: float) -> bool:
        while (frames := self._dealer.receive()) is not None:
            self.session.receive(self._dealer.number, frames, now)
        if self._dealer.broke():
            self._scout.doubt(now)
            self.lose()
            if self._lost is not None:
                self._lost(now)
        return False

    def tick(self, now: float) -> None:
        self.session.tick(now)

    def next_deadline(self) -> float | None:
        return first(self.session.next_deadline(), self._shortage.ends)

    def flush(self, now: float) -> None:
        if self._shortage.lasts(now):
            return
        if self._scout.kind is None:
            if not self.open and self.session.take_output():
                self._silenced = True
            return
        if self._silenced:
            self._silenced = False
            self.session.lost(now)
        try:
            self._dealer.send(self.session.take_output())
            self._shortage.over()
        except OutOfSockets as error:
            self._shortage.met(error, now)
            self._silenced = True  # what could not go out goes out when there is one

    def close(self) -> None:
        self._dealer.close()
