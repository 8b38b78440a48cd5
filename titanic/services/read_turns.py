"""Who is read for next: each peer gets a portion of the store's replies at a time, and none while it does not read.

Replies can be large and asks for them are tiny. Whoever asks for hundreds at once would fill the memory with them, and
let the others wait. So what goes beyond a portion is put off, behind everybody else, until the peer has read enough of
what is on its way to it already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from titanic.services.ask import Ask

Batch = tuple[bytes, Sequence[Ask]]

PORTION = 16 << 20
"""Bytes of replies that are read for one peer before the others get their turn."""

MOST = 10_000
"""Asks of one peer that can be put off; more are refused."""


class Turns:
    """What is to be read. `sated` says whether who asked has enough to read for now."""

    def __init__(self, sated: Callable[[Any], bool]) -> None:
        self._sated = sated
        self._later: dict[object, deque[tuple[bytes, Ask]]] = {}
        self._spent: dict[object, int] = {}
        self._refused: list[tuple[bytes, Ask]] = []

    def __len__(self) -> int:
        """For how many peers something was put off."""
        return len(self._later)

    def next(self, batches: Sequence[Batch]) -> Iterator[tuple[bytes, Ask]]:
        """A round: what was put off before and these, except what is to be put off. Say with `spend` what it took."""
        self._spent = {}
        later = self._later
        for peer in list(later):
            queue = later[peer]
            while queue and self._has_turn(queue[0][1]):
                yield queue.popleft()
            if not queue:
                del later[peer]
        for name, batch in batches:
            for ask in batch:
                if ask.peer not in later and self._has_turn(ask):
                    yield name, ask
                else:
                    self._put_off(name, ask)

    def spend(self, ask: Ask, size: int) -> None:
        """So many bytes were read for an ask."""
        self._spent[ask.peer] += size

    def take_refused(self) -> list[tuple[bytes, Ask]]:
        """Asks of peers with too many: they want an answer, but nothing is read for them."""
        refused, self._refused = self._refused, []
        return refused

    def _has_turn(self, ask: Ask) -> bool:
        spent = self._spent.get(ask.peer)
        if spent is None:
            spent = self._spent[ask.peer] = PORTION if self._sated(ask) else 0
        return spent < PORTION

    def _put_off(self, name: bytes, ask: Ask) -> None:
        queue = self._later.setdefault(ask.peer, deque())
        if len(queue) < MOST:
            queue.append((name, ask))
        else:
            self._refused.append((name, ask))
