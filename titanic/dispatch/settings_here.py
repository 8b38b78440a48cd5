"""What is set for services, as this process goes by it: which are paused, and whose ends are told to others; and the
limits that servers have in common which share a store.

The store has it. A server that has its store to itself reads it when it begins; of those that share one, each reads it
before it claims anything, with each renewal of its lease, and when another one tells that something was set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from titanic.dispatch.core import DispatchCore
from titanic.dispatch.end_requests import CompletionEvents
from titanic.dispatch.read_aside import BackgroundReader
from titanic.logs import Incident
from titanic.store import KnownSettings, Limits, ReadTransaction, ServiceSettings, SharedReadTransaction, Store

log = logging.getLogger(__name__)


class ServiceSettingsCache:
    """Methods are called in the loop's thread, unless they say otherwise."""

    def __init__(
        self,
        store: Store,
        core: DispatchCore,
        arrived: Callable[[Mapping[bytes, int], int | None], None],
        call: Callable[..., None],
    ) -> None:
        """`arrived`: is told which services have something new. `call`: has a function called in the loop's thread."""
        self.known = KnownSettings()
        self.ends = CompletionEvents(self.known, arrived)
        self.tell_others: Callable[[], None] = _nobody
        """Called when something was set by this server."""
        self.limits: Mapping[bytes, Limits] | None = None
        """What holds at all servers that share the store; None: it is not shared."""
        self.told_limits: Callable[[Mapping[bytes, Limits]], None] = _unlimited
        """Called when others hold."""
        self._changes = 0
        """How often something was set by this server."""
        self._store = store
        self._core = core
        self._call = call
        self._unread = Incident(log, "read what is set for services")

    def begin(self) -> None:
        """Read it. Raises StoreError."""
        self._hold(self._read())

    def read_first(self) -> None:
        """The same, before anything is claimed, in the thread of the lease."""
        self._call(self._hold, self._read())

    def look(self, aside: BackgroundReader) -> None:
        """It may be another by now."""
        aside.read(_settings, partial(self._looked, self._changes), self._unread.failed)
        if self.limits is not None:
            aside.read(_limits, self._looked_at_limits, self._unread.failed)

    def changed(self, settings: ServiceSettings, then: Callable[[], None]) -> None:
        """This was set here, and is on disk: `then` is called when it holds. Any thread may call it."""
        self._changes += 1
        self.known.know(settings)  # for what is written from now on
        self.tell_others()
        self._call(self._changed, then)

    def _changed(self, then: Callable[[], None]) -> None:
        self._hold(self.known.all)
        then()

    def _read(self) -> ServiceSettings:
        with self._store.read() as transaction:
            return transaction.service_settings()

    def _looked(self, changes: int, settings: ServiceSettings) -> None:
        self._unread.recovered()
        if changes == self._changes:  # otherwise it may have been read before that
            self._hold(settings)

    def _looked_at_limits(self, limits: Mapping[bytes, Limits]) -> None:
        if limits != self.limits:
            self.limits = limits
            self.told_limits(limits)

    def _hold(self, settings: ServiceSettings) -> None:
        if settings != self.known.all:
            self.known.know(settings)
        if self.known.paused != self._core.backlogs.paused:
            self._core.pause_services(self.known.paused)


def _settings(transaction: ReadTransaction) -> ServiceSettings:
    return transaction.service_settings()


def _limits(transaction: ReadTransaction) -> Mapping[bytes, Limits]:
    return cast(SharedReadTransaction, transaction).service_limits()


def _nobody() -> None:
    return


def _unlimited(limits: Mapping[bytes, Limits]) -> None:
    return
