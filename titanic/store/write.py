"""Changing the store. One transaction at a time: LMDB lets the next writer in when this one is done."""

from __future__ import annotations

from titanic.store.accept import Accepting
from titanic.store.archiving import Archiving
from titanic.store.recap import Recapping
from titanic.store.trim import Trimming
from titanic.store.views import Archive, Counts, Load


class WriteTransaction(Accepting, Trimming, Recapping, Archiving):
    """All of the changes made in it, synced to the disk when the `with` block ends, or none of them.

    accept.py, ending.py, closing.py, trim.py, recap.py and archiving.py each have a part of it.
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
