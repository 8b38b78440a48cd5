"""Keeping time: what was delayed goes back into the queue, what is too old expires, what is old enough goes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from titanic.commit.writer import Write
from titanic.errors import RecordCorrupt, StoreCorrupt, StoreError
from titanic.store import Status, WriteTransaction
from titanic.util.clock import wall_us

if TYPE_CHECKING:
    from titanic.dispatch.dispatcher import Dispatcher

log = logging.getLogger(__name__)

PAUSE_US = 1_000_000
"""Until what could not be done is tried again."""

DAMAGED_PAUSE_US = 30_000_000
"""The same when somebody has to repair the store first."""


def pause_us(error: StoreError) -> int:
    """Until it is tried again after this."""
    return DAMAGED_PAUSE_US if isinstance(error, (StoreCorrupt, RecordCorrupt)) else PAUSE_US


class Keep:
    """One look at the clock, as a `Write`. `step` is how many requests of each kind are moved at most."""

    def __init__(self, dispatcher: Dispatcher, step: int) -> None:
        self._dispatcher = dispatcher
        self._step = step
        self._moved = False
        self._services: list[bytes] = []
        self._expired: list[tuple[bytes, bytes]] = []
        self._due: int | None = None
        self._recapped = 0
        self._unchecked: bytes | None = None

    def write(self, transaction: WriteTransaction, now_us: int) -> None:
        self._services = [service for service, _ in transaction.promote(now_us, self._step)]
        running = self._dispatcher.core.flights
        leaps = self._dispatcher.leaps
        ahead_us = leaps.ahead_us
        self._expired = transaction.expire(now_us, self._step, running, ahead_us)
        self._recapped, self._unchecked = 0, None
        trimmed = transaction.trim(now_us, self._dispatcher.config.retention, self._step, ahead_us)
        if leaps.unchecked is not None:
            self._recapped, self._unchecked = transaction.recap(now_us, leaps.unchecked, self._step)
        self._due = self._dispatcher.next_due(transaction)
        self._moved = bool(self._services or self._expired or any(trimmed[:4]) or self._due == 0)
        if self._unchecked is not None:
            self._moved, self._due = True, 0

    def __len__(self) -> int:
        return 1

    def parts(self) -> list[Write]:
        return [Keep(self._dispatcher, self._step // 4)] if self._step >= 4 else []

    def committed(self) -> None:
        self._dispatcher.leaps.unchecked = self._unchecked
        if self._recapped:
            log.warning(
                "%d delays, times to live and keys were given by a clock that was ahead: they end sooner",
                self._recapped,
            )
        self._dispatcher.loop.call(self._tell)

    def failed(self, error: StoreError) -> None:
        self._dispatcher.loop.call(self._dispatcher.set_alarm, wall_us() + pause_us(error))

    def _tell(self) -> None:
        dispatcher = self._dispatcher
        dispatcher.core.returned(self._services)
        dispatcher.core.counts["expired"] += len(self._expired)
        dispatcher.waiters.wake([uuid for uuid, _ in self._expired])
        dispatcher.withdrawn({service for _, service in self._expired})
        for uuid, service in self._expired:
            dispatcher.failures.tell(uuid, service, Status.EXPIRED, "not done in time")
        if not self._moved and self._due is not None:
            # What is due cannot be done now: an archive has to catch up first, for example. Don't insist.
            self._due = max(self._due, wall_us() + PAUSE_US)
        dispatcher.set_alarm(self._due)
