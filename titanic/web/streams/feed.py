"""What streams tell, who reads them, and the stream of one visitor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from titanic.web.auth.identity import Visitor
from titanic.web.auth.places import Places
from titanic.web.problems import Problem
from titanic.web.stats import StatsPoller
from titanic.web.streams.changes import Numbers
from titanic.web.streams.counts import Counts
from titanic.web.streams.following import End, Following
from titanic.web.streams.stream import Stream, event

MOST_STREAMS = 1000
MOST_EACH = 100
"""Streams at a time, of all visitors and of one."""

MOST_FOLLOWED = 200
"""Requests that one stream follows."""

ALL = "*"
"""As `service`: all of them."""


class Feed:
    """What streams tell, and who reads them."""

    def __init__(self, poller: StatsPoller) -> None:
        self.name = os.urandom(4).hex()
        """Of this process: another one counts from 1 again."""
        self.numbers = Numbers()
        self.counts = Counts(poller, self.numbers)
        self.following = Following(self.numbers)
        self.places = Places("event streams", MOST_STREAMS, MOST_EACH)
        self.streams: set[EventStream] = set()
        self.ending = False

    def end(self) -> None:
        """Have all streams end, now and later: this process is about to."""
        self.ending = True
        for stream in self.streams:
            stream.end()

    def known(self, id_: str, services: bool, requests: bool) -> int | None:
        """The number of the change up to which a reader knows all; None: it is not known what changed since."""
        name, _, digits = id_.rpartition("-")
        if name != self.name or not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
            return None
        number = int(digits)
        if number > self.numbers.last or (services and number < self.counts.rows.reach):
            return None
        return None if requests and number < self.following.ends.reach else number


class EventStream(Stream):
    """The events that one visitor wants."""

    def __init__(
        self, feed: Feed, visitor: Visitor, services: frozenset[str], uuids: Iterable[str], last: str | None
    ) -> None:
        """`services`: whose figures it tells; ALL: of every one. `last`: the id of the last event that was read."""
        super().__init__(visitor)
        self._feed = feed
        self._all = ALL in services
        self._services = frozenset() if self._all else services
        self._counting = bool(services)
        self._following = {*uuids}
        self._ends: dict[str, End] = {}
        """Not told yet."""
        self._places = len(self._following)
        self._fault: Problem | None = None
        known = None if last is None else feed.known(last, self._counting, bool(self._following))
        self._resets = last is not None and known is None
        self._told = self._counted = known or 0
        """The last change of which it has told all; the same of figures alone."""
        feed.places.take(visitor.user)
        try:
            feed.following.places.take(visitor.user, self._places)
        except Problem:
            feed.places.give_back(visitor.user)
            raise

    def begin(self) -> None:
        feed = self._feed
        feed.streams.add(self)
        if feed.ending:
            self.end()
        if self._counting:
            feed.counts.join(self)
        for uuid in [*self._following]:
            end = feed.following.ends.get((self.visitor.user, uuid)) if self._told else None
            if end is None:
                feed.following.follow(self, uuid)
            elif end[0] <= self._told:
                self._following.discard(uuid)
            else:
                self.ended(uuid, end[1])

    def leave(self) -> None:
        feed = self._feed
        feed.streams.discard(self)
        feed.counts.leave(self)
        for uuid in self._following:
            feed.following.leave(self, uuid)
        feed.following.places.give_back(self.visitor.user, self._places)
        feed.places.give_back(self.visitor.user)

    def ended(self, uuid: str, end: End) -> None:
        """A request that it follows has ended."""
        self._following.discard(uuid)
        self._ends[uuid] = end
        self.wake()

    def news(self) -> str:
        events: list[tuple[str, str]] = []
        if self._resets:
            self._resets = False
            events.append(("reset", json.dumps({"reason": "the event named in Last-Event-ID is not remembered"})))
        if self._counting:
            events += self._figures()
        ends, self._ends = self._ends, {}
        events += [("ended", json.dumps({"uuid": uuid, **end})) for uuid, end in ends.items()]
        self._told = self._feed.numbers.last
        # At the last one only: who loses the connection in the middle is told all of them again. And none while figures
        # are missing.
        number = "" if self._counting and self._counted < self._told else f"{self._feed.name}-{self._told}"
        return "".join(event(*one, number if one is events[-1] else "") for one in events)

    def _figures(self) -> Iterable[tuple[str, str]]:
        fault = self._feed.counts.fault(self.visitor.user)
        if fault is not self._fault:
            self._fault = fault
            yield "problem", json.dumps(None if fault is None else fault.document())
        if fault is None:
            if text := self._feed.counts.text(self._counted, self._services):
                yield "services", text
            self._counted = self._feed.numbers.last
