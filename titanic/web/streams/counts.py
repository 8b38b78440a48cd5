"""What happens in each service, for all streams: looked at once in two seconds while somebody wants to know."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from titanic.errors import InvalidRequest, TitanicError
from titanic.web import problems
from titanic.web.auth.identity import Visitor
from titanic.web.problems import Problem
from titanic.web.stats import POLL_INTERVAL, StatsPoller, StatsSample
from titanic.web.streams.changes import Changes, Numbers
from titanic.web.streams.stream import Stream

MOST_SERVICES = 20_000
"""Services that are remembered, those that are gone among them."""

Row = Any
"""The figures of a service; None: it is gone."""


def _rows(sample: StatsSample) -> dict[str, Row]:
    rows = {name: row if isinstance(row, dict) else {"waiting": row} for name, row in sample.stats["services"].items()}
    if sample.workers is not None:
        for name in sample.workers.keys() - rows.keys():
            rows[name] = {"waiting": 0}
        rows = {name: {**row, "workers": sample.workers.get(name, 0)} for name, row in rows.items()}
    return rows


class Counts:
    """The figures of each service, and which streams want them."""

    def __init__(self, poller: StatsPoller, numbers: Numbers) -> None:
        self.rows: Changes[str, Row] = Changes(numbers, MOST_SERVICES)
        self._numbers = numbers
        self._poller = poller
        self._sample: StatsSample | None = None
        self._streams: dict[str, set[Stream]] = {}
        """By user."""
        self._faults: dict[str, Problem] = {}
        """Why users are not told anything at present."""
        self._task: asyncio.Task[None] | None = None
        self._last: tuple[tuple[int, int], str] = (-1, -1), ""
        """What was made for who wants all services, and for which changes."""

    async def look(self, visitor: Visitor) -> None:
        """See what there is now. Raises Problem for whoever may not know."""
        try:
            sample = await self._poller.sample(visitor)
        except InvalidRequest:
            raise
        except TitanicError as error:
            problem = problems.of(error)
            if (
                before := self._faults.get(visitor.user)
            ) is None or before.status != problem.status:  # texts tell times, too
                self._faults[visitor.user] = problem
            if problem.status == 403:
                raise problem from error
            return
        self._faults.pop(visitor.user, None)
        if sample is not self._sample:
            self._sample = sample
            self._take(_rows(sample))

    @property
    def idle(self) -> bool:
        """Whether nobody wants to know anything."""
        return self._task is None

    async def _look_for(self, streams: set[Stream]) -> None:
        try:
            await self.look(next(iter(streams)).visitor)
        except InvalidRequest:  # the connection of their user was closed: those who come again get a new one
            for stream in streams:
                stream.end()

    def fault(self, user: str) -> Problem | None:
        """Why this user is not told anything at present."""
        return self._faults.get(user)

    def join(self, stream: Stream) -> None:
        """Wake a stream when there is something new."""
        self._streams.setdefault(stream.visitor.user, set()).add(stream)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look_again_and_again())

    def leave(self, stream: Stream) -> None:
        """It does not want to know any more."""
        user = stream.visitor.user
        if (streams := self._streams.get(user)) is not None:
            streams.discard(stream)
            if not streams:
                del self._streams[user]
                self._faults.pop(user, None)
        if not self._streams and self._task is not None:
            self._task.cancel()
            self._task = None

    def text(self, after: int, services: Collection[str]) -> str:
        """What changed after a change, as JSON, of these services or, if there are none, of all; "" for nothing. With
        `after` 0 it is all that there is."""
        mark = after, self._numbers.last
        if not services and self._last[0] == mark:
            return self._last[1]
        rows = self.rows.after(after)
        if services:
            rows = {name: row for name, row in rows.items() if name in services}
        if not after:
            rows = {name: row for name, row in rows.items() if row is not None}
        made = json.dumps({"services": rows}, separators=(",", ":")) if rows or not after else ""
        if not services:
            self._last = mark, made
        return made

    def _take(self, services: dict[str, Row]) -> None:
        for name, row in services.items():
            self.rows.put(name, row)
        for name in self.rows.keys() - services.keys():
            self.rows.put(name, None)

    async def _look_again_and_again(self) -> None:
        while self._streams:
            await asyncio.sleep(POLL_INTERVAL)
            before, faults = self._numbers.last, {**self._faults}
            for streams in [*self._streams.values()]:
                with suppress(Problem):  # `fault` tells
                    await self._look_for(streams)
            for user, streams in self._streams.items():
                if self._numbers.last != before or self._faults.get(user) is not faults.get(user):
                    for stream in streams:
                        stream.wake()
