"""The one thread that writes to the store: group commit for everything that changes it.

Accepting, closing, keeping replies, putting off retries: each kind is a `Write`. All that have gathered go into
one transaction with one sync. Only after it is on disk do they learn it (`committed`) and send their answers.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

from titanic.batches import BatchThread
from titanic.errors import StoreError
from titanic.store import Store, WriteTransaction

log = logging.getLogger(__name__)


class Write(Protocol):
    """A batch of one kind of change."""

    def write(self, transaction: WriteTransaction, now_us: int) -> None:
        """Make the changes. A StoreError raised here drops the whole transaction, with everybody's changes."""

    def committed(self) -> None:
        """It is on disk: answer."""

    def failed(self, error: StoreError) -> None:
        """Nothing was kept: say so."""


class Writer:
    """Commits what it is given, in order."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: BatchThread[Write] = BatchThread("writer", self._commit)
        self.start = self._thread.start
        self.put = self._thread.put
        self.stop = self._thread.stop
        self.commits = 0

    def _commit(self, writes: list[Write]) -> None:
        now_us = time.time_ns() // 1000
        try:
            with self._store.write() as transaction:
                for write in writes:
                    write.write(transaction, now_us)
        except StoreError as error:
            if len(writes) > 1:
                # Whose fault was it? One by one, the innocent get through.
                for write in writes:
                    self._commit([write])
                return
            log.error("could not write: %s", error)
            writes[0].failed(error)
            return
        self.commits += 1
        for write in writes:
            write.committed()
