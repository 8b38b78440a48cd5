"""A ring to measure with."""

from __future__ import annotations

from pathlib import Path

from support.store_facts import accept_all

from titanic.store import NewRequest, Status, open_store

BEGIN = 1_780_000_000_000_000
PORTION = 2000


def filled(path: Path, count: int) -> Path:
    """A store in which so many requests were closed, of 130 bytes with their replies."""
    with open_store(path, capacity=max(64 << 20, count * 1000)) as store:
        for begin in range(0, count, PORTION):
            numbers = range(begin, min(begin + PORTION, count))
            with store.write() as txn:
                new = [NewRequest(b"service %d" % (n % 7), [b"x" * 100]) for n in numbers]
                for n, uuid in zip(numbers, accept_all(txn, new, BEGIN + begin), strict=True):
                    now = BEGIN + n * 1000
                    txn.finish(uuid, Status.DONE, [b"y" * 30], attempts=1, dispatched_at=now, finished_at=now + 5000)
                    txn.close(uuid, now + 10_000)
    return path
