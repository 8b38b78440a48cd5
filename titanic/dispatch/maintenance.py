"""Maintenance does what is due in the store: delayed requests go back into the queue, requests expire, old replies and
closed requests are removed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping

from titanic.commit.writer import Write, Writer
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.outcomes import CompletionEvents, Stored
from titanic.errors import RecordCorrupt, StoreCorrupt, StoreError
from titanic.facts.counts import CLOSED
from titanic.logs import Incident, event
from titanic.services.ask import Inbox
from titanic.settings import ServerConfig
from titanic.store import PINS_MUCH, ReadTransaction, Store, WriteTransaction

log = logging.getLogger(__name__)

STEP = 500
"""Requests of each kind that one commit moves, at most: other writes must not wait for long."""

PAUSE_US = 1_000_000
"""µs until it is tried again when it could not be done."""

DAMAGED_PAUSE_US = 30_000_000
"""The same when the store must be repaired first."""

SHORTEST_ALARM = 0.02
LONGEST_ALARM = 30.0
"""Seconds after which the wall clock is read again: it may have been set."""

SYNC_EVERY = 1.0
"""Seconds after which commits are synced that did not wait for it: what a power cut may take."""

READERS_EVERY = 1.0
"""Seconds between checks for readers: killed ones, which hold slots and pages that could be used again, and slow
ones."""


class Maintenance:
    """Sets the alarm of the dispatcher's core to what the store says, and does what is due. Methods are called in its
    loop's thread, unless they say otherwise."""

    apart_us = 0
    """By how much the clocks may differ that gave the times in the store."""

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        writer: Writer,
        core: DispatchCore,
        inbox: Inbox[MaintenanceWrite],
        completions: CompletionEvents,
    ) -> None:
        self.config = config
        self.core = core
        self.inbox = inbox
        self.completions = completions
        self.clock_jumps = writer.clock_jumps
        """The wall clock, as the writer sees it."""
        self._readers_at = 0.0
        """When to check for readers."""
        self._refresh_at = math.inf
        """When to read what is due next, because something has changed."""
        self._named: set[int] = set()
        """The processes that read and hold much, and were named."""
        self._sync_at = 0.0 if store.durability == "relaxed" else math.inf
        """When to sync what is not synced yet."""
        self._store = store
        self.now_us = store.now_us
        self._writer = writer
        self.facts = writer.facts
        self._due_incident = Incident(log, "read what is due")
        self._readers_incident = Incident(log, "check for readers")
        self._sync_incident = Incident(log, "sync the store")

    def begin(self) -> None:
        """Do what is due."""
        self._writer.enqueue(MaintenanceWrite(self, STEP))

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        return min(self._readers_at, self._sync_at, self._refresh_at)

    def tick(self, now: float) -> None:
        """Set the alarm, if what is due may have changed; free what killed readers hold; have the writer's thread sync
        what is not synced yet."""
        if now >= self._refresh_at:
            self._refresh()
        if now >= self._sync_at:
            self._sync_at = now + SYNC_EVERY
            self._writer.call(self._sync)
        if now < self._readers_at:
            return
        self._readers_at = now + READERS_EVERY
        try:
            if killed := self._store.reader_check():
                log.warning("%d readers of the store died without releasing their slots", killed)
            self._name_readers()
            self._readers_incident.recovered()
        except StoreError as error:
            self._readers_incident.failed(error)

    def _name_readers(self) -> None:
        readers = self._store.readers()
        for reader in readers:
            if reader.pid not in self._named and reader.pinned > self._store.capacity * PINS_MUCH:
                text = "process %d (%s) is reading the store: %d MiB freed since then cannot be reused until it ends"
                log.warning(text, reader.pid, reader.command, reader.pinned >> 20, extra=event("reader"))
                self._named.add(reader.pid)
        self._named &= {reader.pid for reader in readers}

    def _sync(self) -> None:
        try:
            self._store.sync()
            self._sync_incident.recovered()
        except StoreError as error:
            self._sync_incident.failed(error, **event("write-failed"))

    def refresh_alarm(self) -> None:
        """Set the alarm to the earliest time in the store, in a moment: many changes may follow each other."""
        self._refresh_at = min(self._refresh_at, time.monotonic() + SHORTEST_ALARM)

    def _refresh(self) -> None:
        self._refresh_at = math.inf
        try:
            with self._store.read() as transaction:
                due = self.next_due(transaction)
            # A clock that was wrong may have delayed what is delayed.
            self.set_alarm(due if self.clock_jumps.unchecked is None else 0)
            self._due_incident.recovered()
        except StoreError as error:
            self._due_incident.failed(error)
            self.pause(error)

    def next_due(self, transaction: ReadTransaction) -> int | None:
        """When something is due (µs since the epoch). Any thread may ask."""
        return transaction.next_due(self.config.retention, self.core.flights, self.clock_jumps.ahead_us)

    def pause(self, error: StoreError) -> None:
        """Try again after a pause."""
        is_damage = isinstance(error, (StoreCorrupt, RecordCorrupt))
        self.set_alarm(self.now_us() + (DAMAGED_PAUSE_US if is_damage else PAUSE_US))

    def maintained(self, write: MaintenanceWrite) -> None:
        """Set the alarm to what is due next."""
        due = write.due
        if not write.moved and due is not None:
            # What is due cannot be done now: an archive has to catch up first, for example. Don't insist.
            due = max(due, self.now_us() + PAUSE_US)
        self.set_alarm(due)

    def set_alarm(self, due_us: int | None) -> None:
        """Something is due then (µs since the epoch), and nothing earlier; None: nothing is."""
        self.core.set_alarm(None if due_us is None else self._alarm_for(due_us))

    def hasten_alarm(self, due_us: int) -> None:
        """Bring the alarm forward to `due_us`; what was due earlier still is. (A wrong clock may have delayed it, as
        when it is refreshed; but then the alarm is set already.)"""
        self.core.hasten_alarm(self._alarm_for(due_us))

    def _alarm_for(self, due_us: int) -> float:
        return time.monotonic() + min(LONGEST_ALARM, max(SHORTEST_ALARM, (due_us - self.now_us()) / 1e6))


class MaintenanceWrite(Write):
    """What is due, posted when it is committed or has failed; at most `step` requests of each kind are moved."""

    def __init__(self, maintenance: Maintenance, step: int) -> None:
        self._maintenance = maintenance
        self._step = step
        self.error: StoreError | None = None
        """Why nothing was done, if it failed."""
        self.services: list[bytes] = []
        """Services that have requests again."""
        self.expired: list[tuple[bytes, bytes]] = []
        """Requests that have expired: UUID and service of each."""
        self.moved = False
        """Whether anything was done."""
        self.due: int | None = None
        """When more is due."""
        self._stored: Stored | None = None
        self._closed: Mapping[bytes, int] = {}
        self._clamped = 0
        self._unchecked: bytes | None = None

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        maintenance = self._maintenance
        clock_jumps = maintenance.clock_jumps
        ahead_us = clock_jumps.ahead_us
        self.services = [service for service, _ in transaction.promote(now_us, self._step)]
        self.expired = transaction.expire(now_us, self._step, maintenance.core.flights, ahead_us)
        self._stored = None
        if self.expired:
            self._stored = maintenance.completions.store(transaction, [uuid for uuid, _ in self.expired], now_us)
        self._clamped, self._unchecked = 0, None
        trimmed = transaction.trim(now_us, maintenance.config.retention, self._step, ahead_us)
        self._closed = trimmed.services
        if clock_jumps.unchecked is not None:
            right_us = now_us + maintenance.apart_us
            self._clamped, self._unchecked = transaction.clamp_timers(right_us, clock_jumps.unchecked, self._step)
        self.due = maintenance.next_due(transaction)
        self.moved = bool(self.services or self.expired or any(trimmed[:4]) or trimmed.bodies or self.due == 0)
        if self._unchecked is not None:
            self.moved, self.due = True, 0

    def __len__(self) -> int:
        return 1

    def parts(self) -> list[Write]:
        return [MaintenanceWrite(self._maintenance, self._step // 4)] if self._step >= 4 else []

    def committed(self) -> None:
        self._maintenance.facts.count(CLOSED, self._closed)
        self._maintenance.clock_jumps.unchecked = self._unchecked
        if self._clamped:
            log.warning(
                "%d delays, times to live and keys were set while the clock was ahead; they were shortened",
                self._clamped,
            )
        self._maintenance.inbox.post(self)
        if self._stored is not None:
            self._maintenance.completions.committed(self._stored)

    def failed(self, error: StoreError) -> None:
        self.error = error
        self._maintenance.inbox.post(self)
