"""Closing requests: the change of the store that titanic.close makes.

request body    uuid                    one (RFC 9)
                uuid 0A uuid 0A uuid…   several: one frame, one UUID a line, at most MOST_UUIDS
reply body      200

What was closed before it had ended may be on its way to a worker. The answer waits until none can get it any more: it
was not sent, the broker gave it back, or a worker has it already.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from titanic.commit.writer import halves
from titanic.errors import StoreError, StoreFull
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.services.ask import Ask, CloseDoubt, DispatcherInbox, SendAnswers
from titanic.store import WriteTransaction


class _Wish:
    """One ask, and how many of its UUIDs are not dealt with yet."""

    __slots__ = ("_left", "answer", "ask")

    def __init__(self, ask: Ask, left: int) -> None:
        self.ask = ask
        self.answer: Frames = [tsp.OK]
        self._left = left

    def done(self, count: int) -> bool:
        """So many more are dealt with: whether these were the last. Any thread may say so."""
        with _counting:
            self._left -= count
            return not self._left


_counting = threading.Lock()


class CloseWrite:
    """A batch of asks, as one `Write`. `counts` is where the closed ones are counted.

    In a full store a transaction must not change too much, so the UUIDs of an ask can end in several: it is answered
    with the last of them.
    """

    def __init__(
        self, send_answers: SendAnswers, dispatcher: DispatcherInbox, counts: dict[str, int], asks: Sequence[Ask]
    ) -> None:
        self._send_answers = send_answers
        self._dispatcher = dispatcher
        self._counts = counts
        self._asks = asks
        self._items: Sequence[tuple[_Wish, bytes]] | None = None
        self._answers: list[tuple[Any, Frames]] = []
        self._begin()

    def _begin(self) -> None:
        self._closed: list[bytes] = []
        self._services: set[bytes] = set()
        self._doubtful: set[int] = set()
        self._refused: dict[int, str] = {}

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        if self._items is None:
            self._items = self._read()
        self._begin()
        for at, (_, uuid) in enumerate(self._items):
            try:
                closed = transaction.close(uuid, now_us)
                if closed is not None:
                    self._closed.append(uuid)
                if closed is None:  # one that was closed a moment ago, perhaps, and is not answered yet
                    self._doubtful.add(at)
                elif closed.waited:
                    self._doubtful.add(at)
                    self._services.add(closed.service)
            except StoreFull as error:  # the archive is far behind, and may not miss anything; the others may fit
                self._refused[at] = str(error)

    def __len__(self) -> int:
        return len(self._items or ())

    def parts(self) -> list[CloseWrite]:
        parts = []
        for half in halves(self._items or []):
            part = CloseWrite(self._send_answers, self._dispatcher, self._counts, [])
            part._items = half
            parts.append(part)
        if parts:
            parts[0]._answers = self._answers  # to asks that made no sense
        return parts

    def committed(self) -> None:
        self._counts["closed"] += len(self._closed)
        self._tell()

    def failed(self, error: StoreError) -> None:
        if self._items is None:
            self._items = self._read()
        self._begin()
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
        in_doubt: dict[_Wish, list[bytes]] = {}
        for at, (wish, uuid) in enumerate(self._items or ()):
            if at in self._doubtful:
                in_doubt.setdefault(wish, []).append(uuid)
                continue
            if at in self._refused:
                wish.answer = tsp.failure(f"not closed: {self._refused[at]}")
            if wish.done(1):
                self._answers.append((wish.ask, wish.answer))
        if self._closed or in_doubt:
            doubts: list[CloseDoubt] = [
                (uuids, partial(self._sure, wish, len(uuids))) for wish, uuids in in_doubt.items()
            ]
            self._dispatcher.closed(self._closed, self._services, doubts)
        if self._answers:
            self._send_answers(self._answers)

    def _sure(self, wish: _Wish, count: int) -> None:
        if wish.done(count):
            self._send_answers([(wish.ask, wish.answer)])
