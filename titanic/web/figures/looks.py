"""What open pages ask of the server when they refresh themselves: once for all of a user's that show the same.

A page that is opened or loaded again is asked for anew: whoever has just changed something sees it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

Found = TypeVar("Found")

Key = tuple[str, str, str, str]
"""A user, a page, what it was asked for, and which of its looks this is."""

FRESH = 3.0
"""Seconds for which an answer is shown to others, at least."""

SHARE = 0.02
"""The part of the time that may go into asking the same again and again: what took long is shown for longer."""

LONGEST = 10.0
"""Seconds for which an answer is shown to others, at most. An error is shown for FRESH."""

MOST = 200
"""Answers that are kept."""


class Look:
    """An answer, or one that is on its way."""

    def __init__(self, asked: Coroutine[Any, Any, Any], fresh: float) -> None:
        self.answer = asyncio.create_task(asked)
        self._fresh = fresh
        self._began = time.monotonic()
        self._until = math.inf
        self.answer.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        shown = self._fresh
        if not task.cancelled() and task.exception() is None:
            shown = max(shown, min(LONGEST, (time.monotonic() - self._began) / SHARE))
        self._until = self._began + shown

    @property
    def fresh(self) -> bool:
        """Whether it may be shown to others."""
        return time.monotonic() < self._until


class Looks:
    """Answers of the last seconds, and those that are on their way."""

    def __init__(self) -> None:
        self._known: dict[Key, Look] = {}

    async def share(
        self, request: Request, what: str, ask: Callable[[], Coroutine[Any, Any, Found]], fresh: float = FRESH
    ) -> Found:
        """What `ask` returns or raises; `what`: its name among those of the page. `fresh`: instead of FRESH."""
        key = request.state.visitor.user, request.url.path, request.url.query, what
        look = self._known.get(key)
        if look is None or not look.fresh or request.headers.get("x-live") != "1":
            if len(self._known) >= MOST:
                self._known = {each: one for each, one in self._known.items() if one.fresh}
            look = self._known[key] = Look(ask(), fresh)
        answer: Found = await asyncio.shield(look.answer)  # whoever leaves takes it from nobody
        return answer
