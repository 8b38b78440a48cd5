"""The store in memory, some of whose replies cannot be read."""

from __future__ import annotations

from typing import Any

from titanic.errors import RecordCorrupt
from titanic.store import Outcome, Pending
from titanic.store.memory import MemoryReadTransaction, MemoryStore, MemoryWriteTransaction


class DamageableStore(MemoryStore):
    """`damaged`: the requests whose replies cannot be read."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.damaged: set[bytes] = set()

    def read(self) -> DamageableRead:
        return DamageableRead(self)

    def write(self) -> DamageableWrite:
        return DamageableWrite(self)


class DamageableRead(MemoryReadTransaction):
    store: Any

    def reply(self, uuid: bytes) -> Outcome | Pending | None:
        if uuid in self.store.damaged and uuid in self.tables.requests:
            raise RecordCorrupt(uuid, "replies", "it was damaged")
        return super().reply(uuid)


class DamageableWrite(DamageableRead, MemoryWriteTransaction):
    pass
