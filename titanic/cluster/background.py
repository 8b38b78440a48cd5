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

LOOK_EVERY = 0.05
"""Seconds between looks into a remote store for what is due: each takes time there."""

APART_US = 1_000_000
"""Nodes that share a store know its time to less than this. What another one has just given is not from the future."""

Found = TypeVar("Found")


class BackgroundReader:
    """Methods without an underscore are called in the loop's thread, the others in the reader's."""

    def __init__(
        self, store: Store, read_soon: Callable[[Callable[[], None]], None], call: Callable[..., None]
    ) -> None:
        """`read_soon`: has a function called in the reader's thread. `call`: has one called in the loop's."""
        self._store = store
        self._read_soon = read_soon
        self._call = call

    def read(
        self,
        look: Callable[[ReadTransaction], Found],
        found: Callable[[Found], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        """Have `look` called in the reader's thread, and then, in the loop's, `found` with what it returned or `failed`
        with what it raised."""
        self._read_soon(partial(self._read, look, found, failed))

    def _read(
        self,
        look: Callable[[ReadTransaction], Found],
        found: Callable[[Found], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        try:
            with self._store.read() as transaction:
                result = look(transaction)
        except StoreError as error:
            self._call(failed, error)
        except Exception as error:  # the thread must live on, and whoever asked is to hear of it
            log.exception("a fault of this program: could not read the store")
            self._call(failed, StoreFailed("the read failed", f"{type(error).__name__}: {error}", "report this"))
        else:
            self._call(found, result)


class ClusterMaintenance(Maintenance):
    """For a remote store: what is due is read in the reader's thread, and not after each commit. Its server does the
    rest by itself."""

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
        self._look_at: float | None = None
        """When to look."""
        self._looking = False
        self._begun = 0.0
        """When the last look began."""
        self._stale = False
        """Whether something may have become due since then of which it does not tell."""

    def next_deadline(self) -> float | None:
        return None if self._looking else self._look_at

    def tick(self, now: float) -> None:
        """Look, when that is due."""
        if self._look_at is not None and now >= self._look_at and not self._looking:
            self._look_at, self._begun = None, now
            self._looking, self._stale = True, False
            self._background.read(self.next_due, self._looked, self._not_looked)

    def look(self) -> None:
        self._look_at = self._begun + LOOK_EVERY
        self._stale = True

    def hasten_alarm(self, due_us: int) -> None:
        self._stale = True
        super().hasten_alarm(due_us)

    def _looked(self, due: int | None) -> None:
        self._looking = False
        self._due_incident.recovered()
        if self.clock_jumps.unchecked is not None:
            due = 0
        if not self._stale:
            self.set_alarm(due)
        elif due is not None:
            super().hasten_alarm(due)

    def _not_looked(self, error: StoreError) -> None:
        self._looking = False
        self._due_incident.failed(error)
        self.set_alarm(self.now_us() + pause_us(error))
