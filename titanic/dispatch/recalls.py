"""Requests that the broker is asked to give back, because no worker is to begin them that has not begun: their attempt
is beyond its limit, their time to live is over, they were closed, more urgent ones wait behind them, or the node gives
them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker import Timers, earliest
from titanic.dispatch.attempts import Flight
from titanic.dispatch.backlogs import OVERTAKE, Backlog


class Recalls:
    """Those that are due, and when more are. `now` is monotonic seconds."""

    def __init__(self, flights: Mapping[bytes, Flight]) -> None:
        self._flights = flights
        self._limits: Timers[bytes] = Timers()
        """When the attempts pass their limits."""
        self._lapses: Timers[bytes] = Timers()
        """When the time to live of what was sent is over."""
        self._due: list[bytes] = []

    def limit(self, uuid: bytes, when: float) -> None:
        """An attempt has begun that is beyond its limit then."""
        self._limits.set(uuid, when)

    def lapse(self, uuid: bytes, when: float) -> None:
        """The time to live of a request that is sent is over then."""
        self._lapses.set(uuid, when)

    def ended(self, uuid: bytes, flight: Flight) -> None:
        """An attempt has ended."""
        if flight.policy.limit:
            self._limits.cancel(uuid)
        if flight.expires_at:
            self._lapses.cancel(uuid)

    def add(self, uuids: Iterable[bytes]) -> None:
        """Have these back, as far as they are under way."""
        flights = self._flights
        self._due += [uuid for uuid in uuids if uuid in flights and not flights[uuid].settling]

    def tick(self, now: float) -> None:
        """Look at what is due. An attempt beyond its limit has failed if a worker has the request, whatever that worker
        is still doing; whether one has it is asked now."""
        for uuid in self._limits.due(now):
            flight = self._flights.get(uuid)
            if flight is not None and not flight.settling and not flight.closed:
                flight.overdue = True
                self._due.append(uuid)
        for uuid in self._lapses.due(now):
            flight = self._flights.get(uuid)
            if flight is not None and not flight.settling and not flight.closed:
                self._due.append(uuid)  # a worker that has not begun is not to begin

    def overtake(self, backlog: Backlog, now: float) -> None:
        """Take back what was sent ahead and is less urgent than what has arrived since."""
        urgent, backlog.urgent = backlog.urgent, 0
        behind = [
            (uuid, flight)
            for uuid, flight in self._flights.items()
            if flight.backlog is backlog
            and flight.priority < urgent
            and flight.started <= now - OVERTAKE
            and not (flight.settling or flight.closed or flight.recalled)
        ]
        # No worker has those yet that were sent last.
        for uuid, flight in behind[-backlog.surplus :] if backlog.surplus else []:
            flight.recalled = True
            self._due.append(uuid)

    def take(self) -> list[bytes]:
        """Those that are due."""
        due, self._due = self._due, []
        return due

    def next_deadline(self) -> float | None:
        """When more are due."""
        return earliest(self._limits.next(), self._lapses.next())
