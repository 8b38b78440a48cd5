"""Reads of a remote store: the reader's thread waits for the network, and the loop goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from titanic.commit.writer import Writer
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.maintenance import Maintenance, pause_us
from titanic.dispatch.outcomes import CompletionEvents
from titanic.errors import StoreError, StoreFailed
from titanic.settings import ServerConfig
from titanic.store import ReadTransaction, Store

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.05
"""Seconds between polls of a remote store for what is due: each takes time there."""

APART_US = 1_000_000
"""Nodes know the time of a shared store to less than this: what another node has just written is not from the
future."""

Found = TypeVar("Found")


class BackgroundReader:
    """Methods without an underscore are called in the loop's thread, the others in the reader's."""

    def __init__(
        self, store: Store, read_soon: Callable[[Callable[[], None]], None], call: Callable[..., None]
    ) -> None:
        """`read_soon`: schedules a function in the reader's thread. `call`: schedules one in the loop's."""
        self._store = store
        self._read_soon = read_soon
        self._call = call

    def read(
        self,
        query: Callable[[ReadTransaction], Found],
        found: Callable[[Found], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        """Call `query` in the reader's thread, and then, in the loop's, `found` with its result or `failed` with its
        exception."""
        self._read_soon(partial(self._read, query, found, failed))

    def _read(
        self,
        query: Callable[[ReadTransaction], Found],
        found: Callable[[Found], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        try:
            with self._store.read() as transaction:
                result = query(transaction)
        except StoreError as error:
            self._call(failed, error)
        except Exception as error:  # the thread must live on, and the caller must get the error
            log.exception("a bug in this program: could not read the store")
            self._call(failed, StoreFailed("the read failed", f"{type(error).__name__}: {error}", "report this"))
        else:
            self._call(found, result)


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
        call: Callable[..., None],
        expired: Callable[[Sequence[tuple[bytes, bytes]]], None],
        returned: Callable[[Collection[bytes]], None],
        completions: CompletionEvents,
        background: BackgroundReader,
    ) -> None:
        super().__init__(config, store, writer, core, call, expired, returned, completions)
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
            self._background.read(self.next_due, self._polled, self._not_polled)

    def refresh_alarm(self) -> None:
        self._poll_at = self._polled_at + POLL_INTERVAL
        self._stale = True

    def hasten_alarm(self, due_us: int) -> None:
        self._stale = True
        super().hasten_alarm(due_us)

    def _polled(self, due: int | None) -> None:
        self._polling = False
        self._due_incident.recovered()
        if self.clock_jumps.unchecked is not None:
            due = 0
        if not self._stale:
            self.set_alarm(due)
        elif due is not None:
            super().hasten_alarm(due)

    def _not_polled(self, error: StoreError) -> None:
        self._polling = False
        self._due_incident.failed(error)
        self.set_alarm(self.now_us() + pause_us(error))
