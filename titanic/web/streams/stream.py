"""A stream of server-sent events to one visitor: https://html.spec.whatwg.org/multipage/server-sent-events.html.

A stream has no queue. It remembers what it has told, and when its reader has taken that, it looks what is new since. So
a reader that is slow is told less often, and one that takes nothing costs its place and no more.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from titanic.web.auth.identity import Visitor

BEAT = 15.0
"""Seconds of silence after which a comment is sent, so that nobody in between takes the connection for dead."""

LIFE = 3600.0
"""Seconds after which a stream ends. Its reader comes again, and is asked again who he is."""

RETRY = 2000
"""Milliseconds after which a reader comes again."""


class Stream(Response):
    """Sends what `news` says, when it is woken and once more after that, until the reader leaves, `end` is called or
    its life is over."""

    media_type = "text/event-stream"
    charset = "utf-8"

    def __init__(self, visitor: Visitor) -> None:
        super().__init__(None, headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.visitor = visitor
        self._awake = asyncio.Event()
        self._over = False

    @abstractmethod
    def news(self) -> str:
        """Events that were not told yet; "" for none."""

    @abstractmethod
    def begin(self) -> None:
        """It goes out from now on."""

    @abstractmethod
    def leave(self) -> None:
        """It goes out no more. This is called also when `begin` was not."""

    def wake(self) -> None:
        """There may be news."""
        self._awake.set()

    def end(self) -> None:
        """Have it end. Its reader may come again."""
        self._over = True
        self._awake.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                self.begin()
                await self._tell_all(receive, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.leave()

    async def _tell_all(self, receive: Receive, send: Send) -> None:
        left = asyncio.create_task(_wait_until_left(receive))
        left.add_done_callback(self._left)
        until = time.monotonic() + LIFE
        try:
            text = f"retry: {RETRY}\n\n{self.news()}"
            while not self._over and time.monotonic() < until:
                if text:
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
                text = await self._next()
        finally:
            left.cancel()

    async def _next(self) -> str:
        """What to send next, after a while at the latest."""
        try:
            async with asyncio.timeout(BEAT):
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


def event(name: str, data: str, number: str = "") -> str:
    """An event; `data` is one line."""
    return f"event: {name}\ndata: {data}\n" + (f"id: {number}\n\n" if number else "\n")
