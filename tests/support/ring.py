"""Stores with closed requests in them, made without a server."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from support.store_facts import accept_all, closed_range

from titanic.errors import StoreFull
from titanic.store import NewRequest, Status, Store, open_store

DAY = 24 * 3600 * 1_000_000
BEGIN = 1_700_000_000_000_000
"""When the first request was submitted, µs since the epoch: 2023-11-14, 22:13:20."""

BODIES: list[list[bytes]] = [[b"one"], [b"x" * 300], [], [b"a", b"", b"ccc"], [b"y" * 5000], [b"z" * 70_000], [b""]]
SERVICES = (b"resize", b"mail", "größe".encode())
OWNERS = (b"", b"shop", b"eve")
SOURCES = (b"", b"192.0.2.7", b"2001:db8::7")


def fill(store: Store, count: int, *, at: int = 0, step_us: int = 60_000_000) -> list[bytes]:
    """Close so many requests of all kinds, `step_us` apart; their ids."""
    uuids: list[bytes] = []
    for begin in range(at, at + count, 500):
        numbers = range(begin, min(begin + 500, at + count))
        with store.write() as txn:
            new = [
                NewRequest(
                    SERVICES[n % 3],
                    BODIES[n % 7],
                    priority=n % 10,
                    key=b"key %d" % n if n % 2 else b"",
                    key_until=BEGIN * 2 if n % 2 else 0,
                    owner=OWNERS[n // 3 % 3],
                    source=SOURCES[n // 9 % 3],
                )
                for n in numbers
            ]
            accepted = accept_all(txn, new, BEGIN + begin * step_us)
        with store.write() as txn:
            for n, uuid in zip(numbers, accepted, strict=True):
                now = BEGIN + n * step_us
                if n % 5 != 4:
                    status = (Status.DONE, Status.DONE, Status.FAILED, Status.EXPIRED)[n % 5 % 4]
                    reason = "" if status is Status.DONE else f"{status.name.lower()} {n % 2}"
                    reply = BODIES[(n + 1) % 7] if status is not Status.EXPIRED else []
                    sent = now + 1_000_000 * (1 + n % 4)
                    txn.finish(
                        uuid,
                        status,
                        reply,
                        attempts=1 + n % 3,
                        dispatched_at=0 if status is Status.EXPIRED else sent,
                        finished_at=sent + 250_000 * (1 + n % 5),
                        reason=reason,
                    )
                txn.close(uuid, now + 10_000_000)
        uuids += accepted
    return uuids


def ring(path: Path, count: int, *, capacity: int = 256 << 20, step_us: int = 60_000_000) -> Path:
    """A store in which so many requests were closed."""
    with open_store(path, capacity=capacity) as store:
        fill(store, count, step_us=step_us)
    return path


def wait_for_room(store: Store, count: int) -> None:
    """Store requests until the ring has let go of so many closed ones."""
    first = refused = 0
    while first <= count:
        assert refused < 20, f"it begins at {first} and is full"
        with store.write() as txn, suppress(StoreFull):  # freed pages can be used some transactions later
            refused += 1
            for uuid in accept_all(txn, [NewRequest(b"filler", [b"f" * 50_000])] * 4, BEGIN):
                txn.close(uuid, BEGIN)
            refused = 0
        with store.read() as reader:
            first = closed_range(reader)[0]
