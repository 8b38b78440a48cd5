"""Closing requests: the change of the store that titanic.close makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from titanic import tsp
from titanic.errors import StoreError, StoreFull
from titanic.services.asks import Answer, Ask, Watcher
from titanic.store import WriteTransaction
from titanic.tsp import Frames
from titanic.writer import halves


class Close:
    """A batch of asks, as one `Write`. `counts` is where the closed ones are counted."""

    def __init__(self, answer: Answer, watcher: Watcher, counts: dict[str, int], asks: Sequence[Ask]) -> None:
        self._answer = answer
        self._watcher = watcher
        self._counts = counts
        self._asks = asks
        self._answers: list[tuple[Any, Frames]] = []
        self._closed: list[bytes] = []

    def write(self, transaction: WriteTransaction, now_us: int) -> None:
        self._answers, self._closed = [], []
        for ask in self._asks:
            uuid = tsp.read_uuid(ask.body)
            if uuid is None:
                self._answers.append((ask, tsp.BAD_UUID))
                continue
            try:
                if transaction.close(uuid, now_us) is not None:
                    self._closed.append(uuid)
            except StoreFull as error:  # the archive is far behind, and may not miss anything; the others may fit
                self._answers.append((ask, tsp.failure(f"not closed: {error}")))
                continue
            self._answers.append((ask, [tsp.OK]))

    def __len__(self) -> int:
        return len(self._asks)

    def parts(self) -> list[Close]:
        return [Close(self._answer, self._watcher, self._counts, half) for half in halves(self._asks)]

    def committed(self) -> None:
        self._counts["closed"] += len(self._closed)
        if self._closed:
            self._watcher.closed(self._closed)  # first: what is closed is not dispatched any more
        self._answer(self._answers)

    def failed(self, error: StoreError) -> None:
        self._answer([(ask, tsp.failure(f"not closed: {error}")) for ask in self._asks])
