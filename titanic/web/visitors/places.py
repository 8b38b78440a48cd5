"""Bounds on what one visitor, and all of them together, may hold at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from titanic.web.problems import Problem


class Places:
    """So many places in all, and so many for each user."""

    def __init__(self, what: str, most: int, each: int) -> None:
        """`what`: the things that are held, in the plural."""
        self._what = what
        self._most = most
        self._each = each
        self._held: Counter[str] = Counter()
        self._all = 0

    def take(self, user: str, count: int = 1) -> None:
        """Raises Problem 429 when there are not so many left. What was taken is to be given back."""
        if self._held[user] + count > self._each:
            raise self._full(f"one user may have {self._each}")
        if self._all + count > self._most:
            raise self._full(f"there may be {self._most} in all")
        self._held[user] += count
        self._all += count

    def give_back(self, user: str, count: int = 1) -> None:
        """These are free again."""
        self._all -= count
        self._held[user] -= count
        if not self._held[user]:
            del self._held[user]

    @contextmanager
    def held(self, user: str, count: int = 1) -> Iterator[None]:
        """With so many places."""
        self.take(user, count)
        try:
            yield
        finally:
            self.give_back(user, count)

    def __len__(self) -> int:
        return self._all

    def _full(self, fact: str) -> Problem:
        detail = f"too many {self._what}; {fact}; close some, or try again later"
        return Problem(429, detail, headers={"Retry-After": "5"})
