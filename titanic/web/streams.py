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
    """The interface of an open stream."""

    visitor: Visitor

    def wake(self) -> None:
        """Send what is new, if anything."""

    def ended(self, uuid: str, end: End) -> None:
        """Report the end of a request that it follows."""

    def end(self) -> None:
        """End the stream: its visitor's connection to the server is closed, or the process ends."""


class Numbers:
    """Numbers all changes in one sequence."""

    def __init__(self) -> None:
        self.last = 1  # 0 is before everything

    def next(self) -> int:
        """Return the number of a new change."""
        self.last += 1
        return self.last


class Changes(Generic[Key, Value]):
    """The current values by key, the least recently changed first."""

    def __init__(self, numbers: Numbers, most: int) -> None:
        """`most`: maximum number of keys."""
        self.reach = 0
        """The number of the last change that was forgotten."""
        self._numbers = numbers
        self._most = most
        self._known: OrderedDict[Key, tuple[int, Value]] = OrderedDict()

    def put(self, key: Key, value: Value, *, always: bool = False) -> None:
        """Set a value; with `always`, an equal value counts as a change, too."""
        before = self._known.get(key)
        if before is not None and before[1] == value and not always:
            return
        self._known[key] = self._numbers.next(), value
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            _, (self.reach, _) = self._known.popitem(last=False)

    def get(self, key: Key) -> tuple[int, Value] | None:
        """The number of a key's last change, and its value; None: unknown."""
        return self._known.get(key)

    def keys(self) -> KeysView[Key]:
        """All known keys."""
        return self._known.keys()

    def after(self, number: int) -> Mapping[Key, Value]:
        """The current values of all keys that changed after this number."""
        found: dict[Key, Value] = {}
        for key in reversed(self._known):
            at, value = self._known[key]
            if at <= number:
                break
            found[key] = value
        return found


MAX_SERVICES = 20_000
"""Services that are remembered, including removed ones."""

Row = Any
"""The statistics of a service; None: it is gone."""


def _rows(sample: StatsSample) -> dict[str, Row]:
    rows = {name: row if isinstance(row, dict) else {"waiting": row} for name, row in sample.stats["services"].items()}
    if sample.workers is not None:
        for name in sample.workers.keys() - rows.keys():
            rows[name] = {"waiting": 0}
        rows = {name: {**row, "workers": sample.workers.get(name, 0)} for name, row in rows.items()}
    return rows


class StatsWatcher:
    """The statistics of each service, and the streams that report them."""

    def __init__(self, poller: StatsPoller, numbers: Numbers) -> None:
        self.rows: Changes[str, Row] = Changes(numbers, MAX_SERVICES)
        self._numbers = numbers
        self._poller = poller
        self._sample: StatsSample | None = None
        self._streams: dict[str, set[Listener]] = {}
        """By user."""
        self._faults: dict[str, Problem] = {}
        """Why a user's streams get no statistics at present."""
        self._task: asyncio.Task[None] | None = None
        self._last: tuple[tuple[int, int], str] = (-1, -1), ""
        """The last text for streams of all services, and the changes that it covers."""

    async def refresh(self, visitor: Visitor) -> None:
        """Get current statistics. Raises Problem when the visitor lacks the permission."""
        try:
            sample = await self._poller.sample(visitor)
        except InvalidRequest:
            raise
        except TitanicError as error:
            problem = problems.of(error)
            if (
                before := self._faults.get(visitor.user)
            ) is None or before.status != problem.status:  # the texts differ in times, too
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
        """Whether no stream is open."""
        return self._task is None

    async def _refresh_for(self, streams: set[Listener]) -> None:
        try:
            await self.refresh(next(iter(streams)).visitor)
        except InvalidRequest:  # the connection of their user was closed: readers that reconnect get a new one
            for stream in streams:
                stream.end()

    def fault(self, user: str) -> Problem | None:
        """Why this user's streams get no statistics at present."""
        return self._faults.get(user)

    def join(self, stream: Listener) -> None:
        """Wake a stream whenever there is something new."""
        self._streams.setdefault(stream.visitor.user, set()).add(stream)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_refreshing())

    def leave(self, stream: Listener) -> None:
        """Stop waking a stream."""
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
        """What changed after this number, as JSON: of these services, or of all if none is given; "" for nothing. With
        `after` 0, all current statistics."""
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

    async def _keep_refreshing(self) -> None:
        while self._streams:
            await asyncio.sleep(POLL_INTERVAL)
            before, faults = self._numbers.last, {**self._faults}
            for streams in [*self._streams.values()]:
                with suppress(Problem):  # `fault` reports it
                    await self._refresh_for(streams)
            for user, streams in self._streams.items():
                if self._numbers.last != before or self._faults.get(user) is not faults.get(user):
                    for stream in streams:
                        stream.wake()


MAX_WATCHED = 10_000
MAX_WATCHED_EACH = 2_000
"""Requests that are followed at a time, by all users and by one. The server allows 20,000 waits per client."""

MAX_ENDS = 20_000
"""Ends that are remembered for streams that reconnect."""

RETRY_INTERVAL = 2.0
"""Seconds until the server is asked again when it did not answer, or refused the wait."""


@dataclass(slots=True)
class _Wait:
    task: asyncio.Task[None]
    listeners: set[Listener] = field(default_factory=set)


class RequestWatcher:
    """Waits for the ends of requests, for the streams of all users."""

    def __init__(self, numbers: Numbers) -> None:
        self.ends: Changes[tuple[str, str], End] = Changes(numbers, MAX_ENDS)
        """By user and UUID: the ends that were reported, also to streams that have broken since."""
        self._waits: dict[tuple[str, str], _Wait] = {}
        self.quota = Quota("requests that are followed", MAX_WATCHED, MAX_WATCHED_EACH)

    def follow(self, listener: Listener, uuid: str) -> None:
        """Report the end of a request to a stream."""
        key = listener.visitor.user, uuid
        if (wait := self._waits.get(key)) is None:
            wait = self._waits[key] = _Wait(asyncio.create_task(self._wait(listener.visitor, uuid)))
        wait.listeners.add(listener)

    def leave(self, listener: Listener, uuid: str) -> None:
        """Stop following a request for a stream."""
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
        self.ends.put(key, end, always=True)  # it may have been executed again, with the same end
        for listener in self._waits.pop(key).listeners:
            listener.ended(uuid, end)


async def _end_of(visitor: Visitor, uuid: str) -> End | None:
    """Wait for the end of a request; None: the server is not available."""
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
"""Maximum number of streams, of all users and of one."""


class Feed:
    """What event streams report, and the open streams."""

    def __init__(self, poller: StatsPoller) -> None:
        self.name = os.urandom(4).hex()
        """A name for this process: another process numbers its changes from 1 again."""
        self.numbers = Numbers()
        self.stats = StatsWatcher(poller, self.numbers)
        self.requests = RequestWatcher(self.numbers)
        self.quota = Quota("event streams", MAX_STREAMS, MAX_STREAMS_EACH)
        self.streams: set[Listener] = set()
        self.ending = False

    def end(self) -> None:
        """End all streams, also those opened later: this process is shutting down."""
        self.ending = True
        for stream in self.streams:
            stream.end()

    def known(self, id_: str, services: bool, requests: bool) -> int | None:
        """The number of the last change that a reader has received; None: later changes have been forgotten."""
        name, _, digits = id_.rpartition("-")
        if name != self.name or not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
            return None
        number = int(digits)
        if number > self.numbers.last or (services and number < self.stats.rows.reach):
            return None
        return None if requests and number < self.requests.ends.reach else number
