"""How many requests of each service have ended here since the start, and how."""

from __future__ import annotations

from titanic.store import Status

MOST = 10_000
"""Services that are counted: anybody can invent names."""

_PLACES = {Status.DONE: 0, Status.FAILED: 1, Status.EXPIRED: 2}


class EndedCounts(dict[bytes, list[int]]):
    """By service: done, failed, expired. One thread counts, any may copy."""

    def add(self, service: bytes, status: Status, count: int = 1) -> None:
        """So many more."""
        counts = self.get(service)
        if counts is None:
            if len(self) >= MOST:
                return
            counts = self[service] = [0, 0, 0]
        counts[_PLACES[status]] += count
