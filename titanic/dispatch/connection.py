"""A dispatcher's connections to a broker elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from broker import ClientSession, Dealer, OutOfSockets, SessionChannel, earliest
from titanic.dispatch.discovery import BrokerDiscovery, Shortage


class Connection(SessionChannel[ClientSession]):
    """A session on a socket of its own. It speaks only while it is known which broker is there."""

    def __init__(
        self,
        session: ClientSession,
        endpoint: str,
        discovery: BrokerDiscovery,
        *,
        watch: bool = False,
        lost: Callable[[float], None] | None = None,
    ) -> None:
        """When the connection breaks, everything unanswered is sent again on a new one: the broker has died or lost us,
        and will not answer what it was sent. `lost` is told before. `watch`: notice also the shortest break."""
        super().__init__(session, Dealer(zmq.Context.instance(), endpoint, watch=watch, hold=True))
        self._discovery = discovery
        self._tell_lost = lost
        self._silenced = False
        """Whether something was held back because it was not known which broker is there."""
        self._shortage = Shortage()

    @property
    def open(self) -> bool:
        """Whether there is a socket."""
        return self._dealer.socket is not None

    @property
    def away(self) -> bool:
        """Whether no broker has what is unanswered: it is sent when it is known which broker is there."""
        return self._silenced

    @property
    def waits(self) -> bool:
        """Whether nothing was sent on the present connection because it is not made yet."""
        return self._dealer.waits

    def lose(self) -> None:
        """Close the connection; what is unanswered is sent again when it is known which broker is there."""
        self._dealer.close(linger=0)
        self._silenced = True

    def next_deadline(self) -> float | None:
        return earliest(self.session.next_deadline(), self._shortage.ends)

    def flush(self, now: float) -> None:
        if self._shortage.lasts(now):
            return
        if self._discovery.kind is None:
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
            self._silenced = True  # all of it is sent again when there is a socket

    def _lost(self, now: float) -> None:
        self._discovery.doubt(now)
        self.lose()
        if self._tell_lost is not None:
            self._tell_lost(now)
