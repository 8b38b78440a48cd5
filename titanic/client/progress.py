"""How far a request is, for a client that waits for its reply."""

from __future__ import annotations

from collections.abc import Callable

from broker import read_json
from titanic.client.calls import Calls
from titanic.protocol import tsp
from titanic.protocol.answers import check
from titanic.protocol.progress import Progress
from titanic.protocol.submit_options import encode

LOOK = 1.0
"""Seconds between two looks."""


class ProgressWatch:
    """Looks how far a request is, and tells what is new."""

    def __init__(self, calls: Calls, uuid: str, tell: Callable[[Progress], object]) -> None:
        self._calls = calls
        self._question = encode({"uuid": uuid})
        self._tell = tell
        self._told: Progress | None = None

    async def look(self) -> None:
        """Ask once."""
        found = read_json(check(await self._calls.ask(tsp.LIST, self._question))[0])["requests"]
        progress: Progress | None = found[0].get("progress") if found else None
        if progress is not None and progress != self._told:
            self._told = progress
            self._tell(progress)
