"""A store as if it were on another machine: transactions in dicts (store_dict.py) over a network that a test can hold,
claims, and a record of what was foreseen. For tests of the layers above a remote store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, RLock, get_ident
from typing import Any

from support.store_dict import DictStore, Read, Write

from titanic.errors import StoreFailed
from titanic.store import Closed, ReadyRow, State


class RemoteStore(DictStore):
    """With one node, whose lease never ends."""

    remote = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tables.claimed = {}
        """What is claimed, with the service. (A dict, so it is copied and kept or dropped like the others.)"""
        self.network = RLock()
        self.waits = Event()
        """Somebody has begun or ends a transaction, and perhaps waits for the network."""
        self.loops: set[int] = set()
        """Threads in which no transaction may begin."""
        self.foreseen: list[tuple[list[bytes], bool]] = []
        self.claims: list[list[tuple[bytes, int]]] = []
        """What was asked for in each claim."""
        self.away = False
        """Whether it cannot be reached."""
        self.silent = 0
        """Of so many of the next commits nobody is told whether they were done: they are."""

    def read(self) -> RemoteRead:
        return RemoteRead(self)

    def write(self) -> RemoteWrite:
        return RemoteWrite(self)

    @property
    def claimed(self) -> set[bytes]:
        return set(self.tables.claimed)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """The network carries nothing meanwhile."""
        with self.network:
            self.waits.clear()
            yield

    def travel(self) -> None:
        """To the store and back."""
        assert get_ident() not in self.loops, "a loop waits for the network"
        self.waits.set()
        with self.network:
            if self.away:
                raise StoreFailed("the store could not be reached", "it is away", "wait")


class RemoteRead(Read):
    def __enter__(self) -> RemoteRead:
        self.store.travel()
        return super().__enter__()

    def foresee(self, uuids: Sequence[bytes], replies: bool = False) -> None:
        self.store.foreseen.append((list(uuids), replies))


class RemoteWrite(RemoteRead, Write):
    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None:
                self.store.travel()
        except StoreFailed:
            super().__exit__(StoreFailed)
            raise
        super().__exit__(*error)
        if error[0] is None and self.store.silent:
            self.store.silent -= 1
            raise StoreFailed("it is not known whether the commit was done", "the connection broke", "look")

    def claim(self, services: Sequence[tuple[bytes, int]], max_bytes: int) -> dict[bytes, list[ReadyRow]]:
        self.store.claims.append(list(services))
        found: dict[bytes, list[ReadyRow]] = {}
        for service, limit in services:
            if max_bytes <= 0:
                break
            found[service] = []
            for row in self.next_ready(service, None, limit, 1 << 40, skip=self.tables.claimed):
                if max_bytes > 0:
                    max_bytes -= sum(map(len, row.body))
                    self.tables.claimed[row.uuid] = service
                    found[service].append(row)
        return found

    def change(self, row: Any, **fields: Any) -> None:
        super().change(row, **fields)
        if self.state(row.uuid) is not State.WAITING:
            self.release([row.uuid])  # the claim goes with its place in the queue

    def close(self, uuid: bytes, *args: Any, **options: Any) -> Closed | None:
        self.release([uuid])
        return super().close(uuid, *args, **options)

    def release(self, uuids: Sequence[bytes]) -> None:
        for uuid in uuids:
            self.tables.claimed.pop(uuid, None)

    def release_all_but(self, uuids: Collection[bytes]) -> None:
        self.release([uuid for uuid in self.tables.claimed if uuid not in uuids])
