"""GET /v1/events: statistics of services and the ends of followed requests, as server-sent events.

    event       data
    ----------  ---------------------------------------------------------------------------------------------------
    services    {"services": {NAME: its row of titanic.stats}}: at first all, then those that have changed;
                null: the service is gone
    ended       {"uuid", "state", "reason"}: the end of a followed request, reported once
    problem     why there are no statistics at present, as a problem document; null: they are available again
    reset       the last event that the reader knows is forgotten: discard everything, a full report follows

The id of an event is a name for this process and the number of the last change that the event covers. A reader that
reconnects with this id in `Last-Event-ID` gets what has changed since. (`EventSource` does that by itself.)

Streams have no queues. Each change has a number. The last state of each thing is kept with the number of its last
change, so a stream asks for all that changed after a number, gets it as it is now, and remembers the new number. It may
ask as rarely as it likes. Forgetting a thing moves `reach`: streams from before it start over.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, KeysView, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from titanic.errors import Forbidden, InvalidRequest, RequestFailed, TitanicError, UnknownRequest
from titanic.util import ids
from titanic.web import problems
from titanic.web.api.openapi import answer, endpoint, parameter, schema, wrong
from titanic.web.api.requests import disconnected
from titanic.web.api.resource import ApiRoute
from titanic.web.app_state import UserQuota, visitor_of
from titanic.web.auth.identity import Visitor
from titanic.web.problems import HTTPProblem
from titanic.web.stats import POLL_INTERVAL, StatsPoller, StatsSample


async def get_events(request: Request) -> Response:
    """Open a stream. `?service=`, repeatable: statistics of these services; `*`: of all. `?request=`, repeatable: the
    ends of these requests. Without both: statistics of all services."""
    feed: Feed = request.app.feed
    visitor = visitor_of(request)
    services = frozenset(request.query_params.getlist("service"))
    uuids = {_uuid(one) for one in request.query_params.getlist("request")}
    if unknown := request.query_params.keys() - {"service", "request"}:
        raise HTTPProblem(400, f"unknown parameter {sorted(unknown)[0][:100]!r}; known: service, request")
    if len(uuids) > MAX_FOLLOWED:
        raise HTTPProblem(400, f"{len(uuids)} requests; one stream follows at most {MAX_FOLLOWED}; open several")
    if not services and not uuids:
        services = frozenset([ALL])
    if services:
        await feed.stats.refresh(visitor)
    return EventStream(feed, visitor, services, uuids, request.headers.get("last-event-id"))


def _uuid(text: str) -> str:
    plain = ids.plain(text).lower()
    if ids.parse(plain.encode()) is None:
        raise HTTPProblem(400, f"{text[:100]!r} is not a UUID; write its 32 hexadecimal digits")
    return plain


KEEPALIVE_INTERVAL = 15.0
"""Seconds of silence after which a comment is sent, so that proxies do not close the connection."""

STREAM_LIFETIME = 3600.0
"""Seconds after which a stream ends. Its reader reconnects and is authenticated again."""

RETRY_AFTER_MS = 2000
"""Milliseconds after which a reader reconnects."""


MAX_FOLLOWED = 200
"""Maximum number of requests that one stream follows."""

ALL = "*"
"""The value of `service` for all services."""


class EventStream(Response):
    """A stream of events for one visitor. Sends what is new when it is woken, until its reader disconnects, `end` is
    called or its lifetime ends.

    It has no queue. It remembers what it has sent; once the reader has received that, it sends what has changed since.
    So a slow reader gets fewer events, and a stalled one costs no memory.
    """

    media_type = "text/event-stream"
    charset = "utf-8"

    def __init__(
        self, feed: Feed, visitor: Visitor, services: frozenset[str], uuids: Iterable[str], last: str | None
    ) -> None:
        """`services`: the services to report, or ALL. `last`: the id of the last event that the reader received."""
        super().__init__(None, headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.visitor = visitor
        self._awake = asyncio.Event()
        self._over = False
        self._feed = feed
        self._all = ALL in services
        self._services = frozenset() if self._all else services
        self._counting = bool(services)
        self._following = {*uuids}
        self._ends: dict[str, End] = {}
        """Ends that are not sent yet."""
        self._places = len(self._following)
        self._fault: HTTPProblem | None = None
        known = None if last is None else feed.known(last, self._counting, bool(self._following))
        self._resets = last is not None and known is None
        self._sent = self._stats_sent = known or 0
        """The last change up to which everything was sent, and that up to which statistics were sent."""
        feed.quota.acquire(visitor.user)
        try:
            feed.requests.quota.acquire(visitor.user, self._places)
        except HTTPProblem:
            feed.quota.release(visitor.user)
            raise

    def begin(self) -> None:
        feed = self._feed
        feed.streams.add(self)
        if feed.ending:
            self.end()
        if self._counting:
            feed.stats.join(self)
        for uuid in [*self._following]:
            end = feed.requests.ends.get((self.visitor.user, uuid)) if self._sent else None
            if end is None:
                feed.requests.follow(self, uuid)
            elif end[0] <= self._sent:
                self._following.discard(uuid)
            else:
                self.ended(uuid, end[1])

    def leave(self) -> None:
        feed = self._feed
        feed.streams.discard(self)
        feed.stats.leave(self)
        for uuid in self._following:
            feed.requests.leave(self, uuid)
        feed.requests.quota.release(self.visitor.user, self._places)
        feed.quota.release(self.visitor.user)

    def ended(self, uuid: str, end: End) -> None:
        """A request that it follows has ended."""
        self._following.discard(uuid)
        self._ends[uuid] = end
        self.wake()

    def news(self) -> str:
        events: list[tuple[str, str]] = []
        if self._resets:
            self._resets = False
            events.append(("reset", json.dumps({"reason": "the event in Last-Event-ID is no longer stored"})))
        if self._counting:
            events += self._figures()
        ends, self._ends = self._ends, {}
        events += [("ended", json.dumps({"uuid": uuid, **end})) for uuid, end in ends.items()]
        self._sent = self._feed.numbers.last
        # Only the last event has an id: after a connection that broke in the middle, all are sent again. And there is
        # none while statistics are missing.
        number = "" if self._counting and self._stats_sent < self._sent else f"{self._feed.name}-{self._sent}"
        return "".join(server_sent_event(*one, number if one is events[-1] else "") for one in events)

    def _figures(self) -> Iterable[tuple[str, str]]:
        fault = self._feed.stats.fault(self.visitor.user)
        if fault is not self._fault:
            self._fault = fault
            yield "problem", json.dumps(None if fault is None else fault.document())
        if fault is None:
            if text := self._feed.stats.text(self._stats_sent, self._services):
                yield "services", text
            self._stats_sent = self._feed.numbers.last

    def wake(self) -> None:
        """Send what is new, if anything."""
        self._awake.set()

    def end(self) -> None:
        """End the stream. Its reader may reconnect."""
        self._over = True
        self._awake.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                self.begin()
                await self._send_all(receive, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.leave()

    async def _send_all(self, receive: Receive, send: Send) -> None:
        left = asyncio.create_task(disconnected(receive))
        left.add_done_callback(lambda _: self.end())
        until = time.monotonic() + STREAM_LIFETIME
        try:
            text = f"retry: {RETRY_AFTER_MS}\n\n{self.news()}"
            while not self._over and time.monotonic() < until:
                if text:
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
                text = await self._next()
        finally:
            left.cancel()

    async def _next(self) -> str:
        """Wait for what to send next: events, or a comment after KEEPALIVE_INTERVAL."""
        try:
            async with asyncio.timeout(KEEPALIVE_INTERVAL):
                await self._awake.wait()
        except TimeoutError:
            return ":\n\n"
        self._awake.clear()
        return "" if self._over else self.news()


def server_sent_event(name: str, data: str, number: str = "") -> str:
    """Encode an event; `data` is one line."""
    return f"event: {name}\ndata: {data}\n" + (f"id: {number}\n\n" if number else "\n")


_PARAMETERS = [
    parameter("query", "service", "Statistics of this service; `*`: of all.", list[str]),
    parameter("query", "request", "The end of this request.", list[str]),
    parameter("header", "Last-Event-ID", "The last event received: continue after it.", str),
]
_STREAM = answer(
    "A stream of events `services`, `ended`, `problem` and `reset`.",
    content={"text/event-stream": {"schema": schema(str)}},
)
_EVENTS = "Statistics and ends of requests, as server-sent events"

ROUTES = [
    ApiRoute(
        "/v1/events",
        GET=endpoint(get_events, "events", _EVENTS, {"200": _STREAM, **wrong()}, parameters=_PARAMETERS),
    )
]


Key = TypeVar("Key")
Value = TypeVar("Value")


End = dict[str, str]
"""How a request ended: `state` is done, failed, expired, unknown or refused; `reason` for people."""


class Numbers:
    """Numbers all changes in one sequence."""

    def __init__(self) -> None:
        self.last = 1  # 0 is before everything

    def next(self) -> int:
        """Return the number of a new change."""
        self.last += 1
        return self.last


class ChangeLog(Generic[Key, Value]):
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
        self.rows: ChangeLog[str, Row] = ChangeLog(numbers, MAX_SERVICES)
        self._numbers = numbers
        self._poller = poller
        self._sample: StatsSample | None = None
        self._streams: dict[str, set[EventStream]] = {}
        """By user."""
        self._faults: dict[str, HTTPProblem] = {}
        """Why a user's streams get no statistics at present."""
        self._task: asyncio.Task[None] | None = None
        self._last: tuple[tuple[int, int], str] = (-1, -1), ""
        """The last text for streams of all services, and the changes that it covers."""

    async def refresh(self, visitor: Visitor) -> None:
        """Get current statistics. Raises HTTPProblem when the visitor lacks the permission."""
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

    async def _refresh_for(self, streams: set[EventStream]) -> None:
        try:
            if stream := next(iter(streams), None):  # the last may have closed while another user's were refreshed
                await self.refresh(stream.visitor)
        except InvalidRequest:  # the connection of their user was closed: readers that reconnect get a new one
            for stream in streams:
                stream.end()

    def fault(self, user: str) -> HTTPProblem | None:
        """Why this user's streams get no statistics at present."""
        return self._faults.get(user)

    def join(self, stream: EventStream) -> None:
        """Wake a stream whenever there is something new."""
        self._streams.setdefault(stream.visitor.user, set()).add(stream)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_refreshing())

    def leave(self, stream: EventStream) -> None:
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
                with suppress(HTTPProblem):  # `fault` reports it
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
    listeners: set[EventStream] = field(default_factory=set)


class RequestWatcher:
    """Waits for the ends of requests, for the streams of all users."""

    def __init__(self, numbers: Numbers) -> None:
        self.ends: ChangeLog[tuple[str, str], End] = ChangeLog(numbers, MAX_ENDS)
        """By user and UUID: the ends that were reported, also to streams that have broken since."""
        self._waits: dict[tuple[str, str], _Wait] = {}
        self.quota = UserQuota("followed requests", MAX_WATCHED, MAX_WATCHED_EACH)

    def follow(self, listener: EventStream, uuid: str) -> None:
        """Report the end of a request to a stream."""
        key = listener.visitor.user, uuid
        if (wait := self._waits.get(key)) is None:
            wait = self._waits[key] = _Wait(asyncio.create_task(self._wait(listener.visitor, uuid)))
        wait.listeners.add(listener)

    def leave(self, listener: EventStream, uuid: str) -> None:
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
        self.quota = UserQuota("event streams", MAX_STREAMS, MAX_STREAMS_EACH)
        self.streams: set[EventStream] = set()
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
