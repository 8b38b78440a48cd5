"""One service's part of the dispatcher's knowledge."""

from __future__ import annotations


class Backlog:
    """A service with requests that wait or are in flight."""

    __slots__ = ("ask_at", "asked", "cursor", "in_flight", "known", "name", "pause", "room", "waiting")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.waiting = True
        """Whether the store may hold requests beyond `cursor`."""
        self.cursor: bytes | None = None
        """Where in the store's queue the last one that was fetched stood; None: fetch from the front."""
        self.in_flight = 0
        """Requests sent and not answered."""
        self.known = 0
        """Those, and the ones whose outcome is not on disk yet."""
        self.room: int | None = None
        """How many may be in flight: as many as there are workers, 0 when there is none; None: not known yet."""
        self.asked = False
        """Whether a question about its presence is on its way."""
        self.ask_at = 0.0
        """Its presence is not asked for before this time."""
        self.pause = 0.0
        """How long the present wait for that is, in seconds; it doubles with each one in a row."""

    @property
    def free(self) -> int:
        """How many more may be sent."""
        return max(0, (self.room or 0) - self.in_flight)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to remember."""
        return not self.waiting and not self.known

    def rewind(self) -> None:
        """Something was put into the queue, perhaps before the cursor."""
        self.waiting = True
        self.cursor = None
