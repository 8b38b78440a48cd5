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
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from titanic.util import ids
from titanic.web.api.resource import ApiRoute
from titanic.web.api.schemas import TEXT, parameter, wrong
from titanic.web.app_state import app_state, visitor_of
from titanic.web.auth.identity import Visitor
from titanic.web.problems import Problem
from titanic.web.streams import End, Feed


async def get_events(request: Request) -> Response:
    """Open a stream. `?service=`, repeatable: statistics of these services; `*`: of all. `?request=`, repeatable: the
    ends of these requests. Without both: statistics of all services."""
    feed, visitor = app_state(request).feed, visitor_of(request)
    services = frozenset(request.query_params.getlist("service"))
    uuids = {_uuid(one) for one in request.query_params.getlist("request")}
    if unknown := request.query_params.keys() - {"service", "request"}:
        raise Problem(400, f"unknown parameter {sorted(unknown)[0][:100]!r}; known: service, request")
    if len(uuids) > MAX_FOLLOWED:
        raise Problem(400, f"{len(uuids)} requests; one stream follows at most {MAX_FOLLOWED}; open several")
    if not services and not uuids:
        services = frozenset([ALL])
    if services:
        await feed.stats.refresh(visitor)
    return EventStream(feed, visitor, services, uuids, request.headers.get("last-event-id"))


def _uuid(text: str) -> str:
    plain = ids.plain(text).lower()
    if ids.parse(plain.encode()) is None:
        raise Problem(400, f"{text[:100]!r} is not a UUID; write its 32 hexadecimal digits")
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
        self._fault: Problem | None = None
        known = None if last is None else feed.known(last, self._counting, bool(self._following))
        self._resets = last is not None and known is None
        self._sent = self._stats_sent = known or 0
        """The last change up to which everything was sent, and that up to which statistics were sent."""
        feed.quota.acquire(visitor.user)
        try:
            feed.requests.quota.acquire(visitor.user, self._places)
        except Problem:
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
            events.append(("reset", json.dumps({"reason": "the event named in Last-Event-ID is not remembered"})))
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
        left = asyncio.create_task(_wait_until_left(receive))
        left.add_done_callback(self._left)
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

    def _left(self, _: asyncio.Task[None]) -> None:
        self.end()


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def server_sent_event(name: str, data: str, number: str = "") -> str:
    """Encode an event; `data` is one line."""
    return f"event: {name}\ndata: {data}\n" + (f"id: {number}\n\n" if number else "\n")


PATHS = {
    "/v1/events": {
        "get": {
            "operationId": "events",
            "summary": "Statistics and ends of requests, as server-sent events",
            "parameters": [
                parameter(
                    "query", "service", "Statistics of this service; `*`: of all.", {"type": "array", "items": TEXT}
                ),
                parameter("query", "request", "The end of this request.", {"type": "array", "items": TEXT}),
                parameter("header", "Last-Event-ID", "The last event received: continue after it.", TEXT),
            ],
            "responses": {
                "200": {
                    "description": "A stream of events `services`, `ended`, `problem` and `reset`.",
                    "content": {"text/event-stream": {"schema": TEXT}},
                },
                **wrong(),
            },
        }
    }
}

ROUTES = [ApiRoute("/v1/events", GET=get_events)]
