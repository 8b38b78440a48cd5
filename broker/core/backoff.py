"""Waiting longer after each failure in a row."""

from __future__ import annotations


class Backoff:
    """Doubles from `first` to `most` seconds; `reset` after a success."""

    def __init__(self, first: float = 1.0, most: float = 32.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def take(self) -> float:
        """How long to wait now, in seconds."""
        delay = self._next
        self._next = min(delay * 2, self._most)
        return delay

    def reset(self) -> None:
        """The next wait is the first one again."""
        self._next = self._first
