"""How far workers are with requests, between nodes that share a store: each tells the others of its own about once a
second, as news, and remembers what it hears. It is a courtesy: nothing is stored, and what is lost comes again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from json import dumps

from titanic.dispatch.attempts import Flight
from titanic.protocol.tsp import Progress, read_progress
from titanic.store import Notification, NotificationChannel

TELL_EVERY = 1.0
"""Seconds, at least, between two times that others are told."""

MOST = 10_000
"""Requests of others that are remembered; of more, the oldest are forgotten."""

_OVER = b""


class ProgressElsewhere:
    """Methods are called in the loop's thread, `get` in any."""

    def __init__(self, line: NotificationChannel, flights: Mapping[bytes, Flight]) -> None:
        self._line = line
        self._flights = flights
        self._told: dict[bytes, Progress] = {}
        self._tell_at = 0.0
        self._heard: dict[bytes, Progress] = {}

    def tell(self, now: float) -> None:
        """Tell others what is new, if that is due."""
        if now < self._tell_at or self._line.alone:
            return
        self._tell_at = now + TELL_EVERY
        far = {uuid: one.progress for uuid, one in self._flights.items() if one.progress is not None}
        news = {uuid: dumps(said).encode() for uuid, said in far.items() if self._told.get(uuid) is not said}
        news |= {uuid: _OVER for uuid in self._told if uuid not in far}
        self._told = far
        if news:
            self._line.publish(Notification(progress=news))

    def heard(self, news: Mapping[bytes, bytes]) -> None:
        """Another node tells."""
        for uuid, text in news.items():
            self._heard.pop(uuid, None)
            if (progress := read_progress(text)) is not None:
                self._heard[uuid] = progress
        while len(self._heard) > MOST:
            del self._heard[next(iter(self._heard))]

    def ended(self, uuids: Collection[bytes]) -> None:
        """These have ended."""
        for uuid in uuids:
            self._heard.pop(uuid, None)

    def get(self, uuid: bytes) -> Progress | None:
        """How far another node's worker is with this one, as far as was heard."""
        return self._heard.get(uuid)


def known_progress(
    uuids: Collection[bytes], flights: Mapping[bytes, Flight], elsewhere: ProgressElsewhere | None
) -> dict[bytes, Progress]:
    """How far those of these are that are running, here or at other nodes. Any thread may ask."""
    found = {}
    for uuid in uuids:
        if (flight := flights.get(uuid)) is not None:
            said = flight.progress
        else:
            said = None if elsewhere is None else elsewhere.get(uuid)
        if said is not None:
            found[uuid] = said
    return found
