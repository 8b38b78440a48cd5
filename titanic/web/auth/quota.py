"""Limits on what one user, and all users together, may hold at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from titanic.web.problems import Problem


class Quota:
    """A limit for all users together, and one for each user."""

    def __init__(self, what: str, most: int, each: int) -> None:
        """`what`: the name of what is limited, in the plural."""
        self._what = what
        self._most = most
        self._each = each
        self._held: Counter[str] = Counter()
        self._all = 0

    def acquire(self, user: str, count: int = 1) -> None:
        """Acquire this many, to be released. Raises Problem when fewer are left: 429 for this user, 503 for all."""
        if self._all + count > self._most:
            raise self._full(503, f"there may be {self._most:,} in all")
        if self._held[user] + count > self._each:
            raise self._full(429, f"one user may have {self._each:,}")
        self._held[user] += count
        self._all += count

    def release(self, user: str, count: int = 1) -> None:
        """Release what was acquired."""
        self._all -= count
        self._held[user] -= count
        if not self._held[user]:
            del self._held[user]

    @contextmanager
    def held(self, user: str, count: int = 1) -> Iterator[None]:
        """Hold this many within a `with` block."""
        self.acquire(user, count)
        try:
            yield
        finally:
            self.release(user, count)

    def __len__(self) -> int:
        return self._all

    def _full(self, status: int, fact: str) -> Problem:
        detail = f"too many {self._what}; {fact}; end some, or try again later"
        return Problem(status, detail, headers={"Retry-After": "5"})


HELD = "titanic.held"
"""The key of the scope for the counted bytes of its body."""


UNCOUNTED = 64 << 10
"""Smaller bodies are not counted: each connection may buffer that much in any case."""


def hold_body(scope: Scope, size: int) -> None:
    """Count the bytes that a request holds of its body. Raises Problem when there is no room for more."""
    if size > UNCOUNTED and (more := size - scope.get(HELD, 0)) > 0:
        scope["app"].titanic.bodies.acquire(scope["state"]["visitor"].user, more)
        scope[HELD] = size


def release_body(scope: Scope) -> None:
    """Release what `hold_body` has counted for a request."""
    if held := scope.pop(HELD, 0):
        scope["app"].titanic.bodies.release(scope["state"]["visitor"].user, held)
