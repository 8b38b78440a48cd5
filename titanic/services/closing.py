"""Closing requests: the change of the store that titanic.close makes.

request body    uuid                    one (RFC 9)
                uuid 0A uuid 0A uuid…   several: one frame, one UUID a line, at most tsp.MOST_UUIDS
reply body      200
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from titanic import tsp
from titanic.errors import StoreError, StoreFull
from titanic.services.asks import Answer, Ask, Watcher
from titanic.store import WriteTransaction
from titanic.tsp import Frames
from titanic.writer import halves


class _Wish:
    """One ask, and how many of its UUIDs are not dealt with yet."""

    __slots__ = ("answer", "ask", "left")

    def __init__(self, ask: Ask, left: int) -> None:
        self.ask = ask
        self.left = left
        self.answer: Frames = [tsp.OK]


class Close:
    """A batch of asks, as one `Write`. `counts` is where the closed ones are counted.

    In a full store a transaction must not change too much, so the UUIDs of an ask can end in several: it is answered
    with the last of them.
    """

    def __init__(self, answer: Answer, watcher: Watcher, counts: dict[str, int], asks: Sequence[Ask]) -> None:
        self._answer = answer
        self._watcher = watcher
        self._counts = counts
        self._asks = asks
        self._items: Sequence[tuple[_Wish, bytes]] | None = None
        self._answers: list[tuple[Any, Frames]] = []
        self._closed: list[bytes] = []
        self._refused: dict[int, str] = {}

    def write(self, transaction: WriteTransaction, now_us: int) -> None:
        if self._items is None:
            self._items = self._read()
        self._closed, self._refused = [], {}
        for at, (_, uuid) in enumerate(self._items):
            try:
                if transaction.close(uuid, now_us) is not None:
                    self._closed.append(uuid)
            except StoreFull as error:  # the archive is far behind, and may not miss anything; the others may fit
                self._refused[at] = str(error)

    def __len__(self) -> int:
        return len(self._items or ())

    def parts(self) -> list[Close]:
        parts = []
        for half in halves(self._items or []):
            part = Close(self._answer, self._watcher, self._counts, [])
            part._items = half
            parts.append(part)
        if parts:
            parts[0]._answers = self._answers  # to asks that made no sense
        return parts

    def committed(self) -> None:
        self._counts["closed"] += len(self._closed)
        if self._closed:
            self._watcher.closed(self._closed)  # first: what is closed is not dispatched any more
        self._tell()

    def failed(self, error: StoreError) -> None:
        if self._items is None:
            self._items = self._read()
        self._refused = dict.fromkeys(range(len(self._items)), str(error))
        self._tell()

    def _read(self) -> list[tuple[_Wish, bytes]]:
        items = []
        for ask in self._asks:
            uuids = tsp.read_uuids(ask.body)
            if uuids is None:
                self._answers.append((ask, tsp.BAD_UUID))
            else:
                wish = _Wish(ask, len(uuids))
                items += [(wish, uuid) for uuid in uuids]
        return items

    def _tell(self) -> None:
        """Answer the asks that are dealt with."""
        for at, (wish, _) in enumerate(self._items or ()):
            wish.left -= 1
            if at in self._refused:
                wish.answer = tsp.failure(f"not closed: {self._refused[at]}")
            if not wish.left:
                self._answers.append((wish.ask, wish.answer))
        self._answer(self._answers)
