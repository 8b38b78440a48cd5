"""What open pages ask of the server when they refresh themselves: once for all of a user's that show the same.

A page that is opened or loaded again is asked for anew: whoever has just changed something sees it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

Found = TypeVar("Found")

Key = tuple[str, str, str, str]
"""A user, a page, what it was asked for, and which of its looks this is."""

FRESH = 3.0
"""Seconds for which an answer is shown to others."""

MOST = 200
"""Answers that are kept."""


class Looks:
    """Answers of the last seconds, and those that are on their way."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[float, asyncio.Task[Any]]] = {}

    async def share(self, request: Request, what: str, ask: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
        """What `ask` returns or raises; `what`: its name among those of the page."""
        key = request.state.visitor.user, request.url.path, request.url.query, what
        now = time.monotonic()
        known = self._known.get(key)
        if known is None or now - known[0] > FRESH or request.headers.get("x-live") != "1":
            if len(self._known) >= MOST:
                self._known = {each: one for each, one in self._known.items() if now - one[0] <= FRESH}
            known = now, asyncio.create_task(ask())
            known[1].add_done_callback(_heard)
            self._known[key] = known
        answer: Found = await asyncio.shield(known[1])  # whoever leaves takes it from nobody
        return answer


def _heard(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # everybody may have left
