"""What event streams report, and which streams are open.

Streams have no queues. Each change has a number. The last state of each thing is kept with the number of its last
change, so a stream asks for all that changed after a number, gets it as it is now, and remembers the new number. It may
ask as rarely as it likes. Forgetting a thing moves `reach`: streams from before it start over.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Collection, KeysView, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from titanic.errors import Forbidden, InvalidRequest, RequestFailed, TitanicError, UnknownRequest
from titanic.web import problems
from titanic.web.auth.identity import Visitor
from titanic.web.auth.quota import Quota
from titanic.web.problems import Problem
from titanic.web.stats import POLL_INTERVAL, StatsPoller, StatsSample

Key = TypeVar("Key")
Value = TypeVar("Value")


End = dict[str, str]
"""How a request ended: `state` is done, failed, expired, unknown or refused; `reason` for people."""


class Listener(Protocol):
    """An open stream, as its sources see it."""

    visitor: Visitor

    def wake(self) -> None:
        """There may be something new."""

    def ended(self, uuid: str, end: End) -> None:
        """A request that it follows has ended."""

    def end(self) -> None:
        """End the stream: its visitor's connection to the server is closed, or the process ends."""


class Numbers:
    """Numbers changes, of several kinds of things together."""

    def __init__(self) -> None:
        self.last = 1  # 0 is before everything

    def next(self) -> int:
        """The number of a new change."""
        self.last += 1
        return self.last


class Changes(Generic[Key, Value]):
    """The last states of some things, the longest unchanged first."""

    def __init__(self, numbers: Numbers, most: int) -> None:
        """`most`: things that are remembered."""
        self.reach = 0
        """The last change that is forgotten."""
        self._numbers = numbers
        self._most = most
        self._known: OrderedDict[Key, tuple[int, Value]] = OrderedDict()

    def put(self, key: Key, value: Value, *, anew: bool = False) -> None:
        """A thing is so now; with `anew` that is a change even if it was so before."""
        before = self._known.get(key)
        if before is not None and before[1] == value and not anew:
            return
        self._known[key] = self._numbers.next(), value
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            _, (self.reach, _) = self._known.popitem(last=False)

    def get(self, key: Key) -> tuple[int, Value] | None:
        """The number of its last change, and how it is since; None: it is not known."""
        return self._known.get(key)

    def keys(self) -> KeysView[Key]:
        """All that is known."""
        return self._known.keys()

    def after(self, number: int) -> Mapping[Key, Value]:
        """What changed after a change with this number, as it is now."""
        found: dict[Key, Value] = {}
        for key in reversed(self._known):
            at, value = self._known[key]
            if at <= number:
                break
            found[key] = value
        return found


MAX_SERVICES = 20_000
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


class StatsWatcher:
    """The figures of each service, and which streams want them."""

    def __init__(self, poller: StatsPoller, numbers: Numbers) -> None:
        self.rows: Changes[str, Row] = Changes(numbers, MAX_SERVICES)
        self._numbers = numbers
        self._poller = poller
        self._sample: StatsSample | None = None
        self._streams: dict[str, set[Listener]] = {}
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

    async def _look_for(self, streams: set[Listener]) -> None:
        try:
            await self.look(next(iter(streams)).visitor)
        except InvalidRequest:  # the connection of their user was closed: those who come again get a new one
            for stream in streams:
                stream.end()

    def fault(self, user: str) -> Problem | None:
        """Why this user is not told anything at present."""
        return self._faults.get(user)

    def join(self, stream: Listener) -> None:
        """Wake a stream when there is something new."""
        self._streams.setdefault(stream.visitor.user, set()).add(stream)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look_again_and_again())

    def leave(self, stream: Listener) -> None:
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


MAX_WATCHED = 10_000
MAX_WATCHED_EACH = 2_000
"""Requests that are followed at a time, by all and by one user. The server lets one client wait for 20,000."""

MAX_ENDS = 20_000
"""Ends that are remembered, for streams that come again."""

RETRY_INTERVAL = 2.0
"""Seconds until the server is asked again when it did not answer, or not let us wait."""


@dataclass(slots=True)
class _Wait:
    task: asyncio.Task[None]
    listeners: set[Listener] = field(default_factory=set)


class RequestWatcher:
    """The waits of all users."""

    def __init__(self, numbers: Numbers) -> None:
        self.ends: Changes[tuple[str, str], End] = Changes(numbers, MAX_ENDS)
        """By user and UUID: what was told, also to streams that have broken since."""
        self._waits: dict[tuple[str, str], _Wait] = {}
        self.quota = Quota("requests that are followed", MAX_WATCHED, MAX_WATCHED_EACH)

    def follow(self, listener: Listener, uuid: str) -> None:
        """Tell of the end of a request."""
        key = listener.visitor.user, uuid
        if (wait := self._waits.get(key)) is None:
            wait = self._waits[key] = _Wait(asyncio.create_task(self._wait(listener.visitor, uuid)))
        wait.listeners.add(listener)

    def leave(self, listener: Listener, uuid: str) -> None:
        """Do not tell it any more."""
        key = listener.visitor.user, uuid
        if (wait := self._waits.get(key)) is not None:
            wait.listeners.discard(listener)
            if not wait.listeners:
                del self._waits[key]
                wait.task.cancel()

    def __len__(self) -> int:
        return len(self._waits)

    async def _wait(self, visitor: Visitor, uuid: str) -> None:
        key = visitor.user, uuid
        try:
            while (end := await _end_of(visitor, uuid)) is None:
                await asyncio.sleep(RETRY_INTERVAL)
        except InvalidRequest:
            for listener in self._waits.pop(key).listeners:
                listener.end()
            return
        self.ends.put(key, end, anew=True)  # it may have been executed again, with the same end
        for listener in self._waits.pop(key).listeners:
            listener.ended(uuid, end)


async def _end_of(visitor: Visitor, uuid: str) -> End | None:
    """How a request ended, as soon as it has; None: the server cannot say now."""
    try:
        await visitor.client.wait(uuid)
    except RequestFailed as error:
        return {"state": error.state, "reason": str(error)}
    except UnknownRequest as error:
        return {"state": "unknown", "reason": str(error)}
    except Forbidden as error:
        return {"state": "refused", "reason": str(error)}
    except InvalidRequest:
        raise
    except TitanicError:
        return None
    return {"state": "done"}


MAX_STREAMS = 1000
MAX_STREAMS_EACH = 100
"""Streams at a time, of all visitors and of one."""


class Feed:
    """What streams tell, and who reads them."""

    def __init__(self, poller: StatsPoller) -> None:
        self.name = os.urandom(4).hex()
        """Of this process: another one counts from 1 again."""
        self.numbers = Numbers()
        self.stats = StatsWatcher(poller, self.numbers)
        self.requests = RequestWatcher(self.numbers)
        self.quota = Quota("event streams", MAX_STREAMS, MAX_STREAMS_EACH)
        self.streams: set[Listener] = set()
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
        if number > self.numbers.last or (services and number < self.stats.rows.reach):
            return None
        return None if requests and number < self.requests.ends.reach else number
