"""Changing the store. One transaction at a time: LMDB lets the next writer in when this one is done."""

from __future__ import annotations

from titanic.store.lmdb.accept import Accepting
from titanic.store.lmdb.archive import Archiving
from titanic.store.lmdb.clock_correction import Recapping
from titanic.store.lmdb.retention import Trimming
from titanic.store.records import Archive, Counts, Load


class WriteTransaction(Accepting, Trimming, Recapping, Archiving):
    """All of the changes made in it, synced to the disk when the `with` block ends, or none of them.

    accept.py, lifecycle.py, close.py, retention.py, clock_correction.py and archive.py each have a part of it.
    """

    def waiting(self) -> dict[bytes, int]:
        self._put_counters()
        return super().waiting()

    def load(self, service: bytes) -> Load:
        self._put_counters()
        return super().load(service)

    def counts(self) -> Counts:
        self._put_counters()
        return super().counts()

    def archive(self) -> Archive:
        self._put_counters()
        return super().archive()
