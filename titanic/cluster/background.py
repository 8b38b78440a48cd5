"""Reads of a remote store: the reader's thread waits for the network, and the loop goes on."""

from __future__ import annotations

import logging
from typing import Any, Generic, TypeVar

from titanic.commit.writer import Writer
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.maintenance import Maintenance, MaintenanceWrite
from titanic.dispatch.outcomes import CompletionEvents
from titanic.errors import StoreError, StoreFailed
from titanic.services.ask import Inbox
from titanic.services.reader import Reader
from titanic.settings import ServerConfig
from titanic.store import ReadTransaction, Store

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.05
"""Seconds between polls of a remote store for what is due: each takes time there."""

APART_US = 1_000_000
"""Nodes know the time of a shared store to less than this: what another node has just written is not from the
future."""

Found = TypeVar("Found")


class BackgroundRead(Generic[Found]):
    """A question to a remote store. It is posted when it is answered: with what was `found`, or with the `error`."""

    found: Found
    error: StoreError | None = None

    def read(self, transaction: ReadTransaction) -> Found:
        """Read the answer, in the reader's thread."""
        raise NotImplementedError


class BackgroundReader:
    """Methods without an underscore are called in the loop's thread, the others in the reader's."""

    def __init__(self, store: Store, reader: Reader, inbox: Inbox[BackgroundRead[Any]]) -> None:
        self._store = store
        self._reader = reader
        self._inbox = inbox

    def ask(self, question: BackgroundRead[Any]) -> None:
        """Have a question answered."""
        self._reader.call(self._answer, question)

    def _answer(self, question: BackgroundRead[Any]) -> None:
        try:
            with self._store.read() as transaction:
                question.found = question.read(transaction)
        except StoreError as error:
            question.error = error
        except Exception as error:  # the thread must live on, and the caller must get the error
            log.exception("a bug in this program: could not read the store")
            question.error = StoreFailed("the read failed", f"{type(error).__name__}: {error}", "report this")
        self._inbox.post(question)


class DueRead(BackgroundRead[int | None]):
    """When something is due in the store (µs since the epoch)."""

    def __init__(self, maintenance: ClusterMaintenance) -> None:
        self.maintenance = maintenance

    def read(self, transaction: ReadTransaction) -> int | None:
        return self.maintenance.next_due(transaction)


class ClusterMaintenance(Maintenance):
    """For a remote store: read what is due in the reader's thread, and not after each commit. The database server does
    the rest."""

    apart_us = APART_US

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        writer: Writer,
        core: DispatchCore,
        inbox: Inbox[MaintenanceWrite],
        completions: CompletionEvents,
        background: BackgroundReader,
    ) -> None:
        super().__init__(config, store, writer, core, inbox, completions)
        self._background = background
        self._poll_at: float | None = None
        """When to poll."""
        self._polling = False
        self._polled_at = 0.0
        """When the last poll began."""
        self._stale = False
        """Whether something that the poll does not show may have become due since then."""

    def next_deadline(self) -> float | None:
        return None if self._polling else self._poll_at

    def tick(self, now: float) -> None:
        """Poll, when that is due."""
        if self._poll_at is not None and now >= self._poll_at and not self._polling:
            self._poll_at, self._polled_at = None, now
            self._polling, self._stale = True, False
            self._background.ask(DueRead(self))

    def refresh_alarm(self) -> None:
        self._poll_at = self._polled_at + POLL_INTERVAL
        self._stale = True

    def hasten_alarm(self, due_us: int) -> None:
        self._stale = True
        super().hasten_alarm(due_us)

    def polled(self, answer: DueRead) -> None:
        """Set the alarm to what the poll has found."""
        self._polling = False
        if answer.error is not None:
            self._due_incident.failed(answer.error)
            self.pause(answer.error)
            return
        due = answer.found
        self._due_incident.recovered()
        if self.clock_jumps.unchecked is not None:
            due = 0
        if not self._stale:
            self.set_alarm(due)
        elif due is not None:
            super().hasten_alarm(due)
