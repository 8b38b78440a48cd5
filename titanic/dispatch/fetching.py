"""What is to be sent, from the store to the core.

LocalFetch       the store is in this machine: it is read in the loop, while the core waits
ClaimingNode     the store is elsewhere (`remote`), and nodes share it: what is claimed is sent, or given back
                 (titanic/cluster/node.py)
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Container, Sequence
from itertools import chain
from typing import Protocol

from titanic.dispatch.attempts import Send
from titanic.dispatch.backlogs import Fetch
from titanic.dispatch.core import DispatchCore
from titanic.errors import RecordCorrupt, StoreError
from titanic.logs import Incident
from titanic.protocol.submit_options import DEFAULT_PRIORITY
from titanic.store import NO_QUEUE, ReadTransaction, ReadyRow, State, Store, ready_counts
from titanic.util.clock import ClockJumps

log = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
"""Bytes of bodies that a round reads from the store for all services together, plus at most one body: everything else
waits meanwhile."""

MAX_READS = 20
"""Reads of the store in one round, until results get their turn."""


class Sender(Protocol):
    """The dispatcher, for what was fetched."""

    def send(self, sends: Sequence[Send], now: float) -> None:
        """Pass requests to the transport."""


class Fetching(Protocol):
    """Methods are called in the loop's thread."""

    @property
    def busy(self) -> bool:
        """Whether something is on its way between the core and the store."""

    def begin(self) -> None:
        """Report to the core what the store holds. LocalFetch raises StoreError."""

    def fetch(self, now: float) -> float | None:
        """Read what the core wants, and send it. When to call again: 0 when there is more at once, None when not before
        something has happened."""

    def hold(self, uuid: bytes) -> bool:
        """Keep a request from being sent until it was released as often as held; False: it is in flight. Any thread may
        call it."""

    def release(self, uuids: Collection[bytes]) -> None:
        """Send these again, as the store has them from now on."""

    def given_back(self, uuid: bytes) -> None:
        """A request has gone back to the queue."""

    def emptied(self, names: Sequence[bytes]) -> None:
        """Report to the core which of these services' queues are empty now: something has left them."""


class LocalFetch:
    """Reads in the loop's thread."""

    busy = False

    def __init__(self, store: Store, core: DispatchCore, dispatcher: Sender) -> None:
        self._store = store
        self._core = core
        self._dispatcher = dispatcher
        self._held: Counter[bytes] = Counter()
        self._reading = threading.Lock()
        """Whoever holds a request finds it in flight, or its reading sees that it is held."""
        self._clock = ClockJumps()
        self._now_us = store.now_us
        self._clock.observe(self._now_us())
        """The wall clock, as the dispatcher sees it."""
        self._damage = Incident(log, "dispatch")
        self._unread = Incident(log, "read what to dispatch")

    def begin(self) -> None:
        with self._store.read() as transaction:
            self._core.arrived(dict.fromkeys(ready_counts(transaction.queues()), DEFAULT_PRIORITY), time.monotonic())

    def fetch(self, now: float) -> float | None:
        core, left = self._core, FETCH_BYTES
        for _ in range(MAX_READS):
            if not (fetches := core.take_fetches()):
                return None
            left = self._read(fetches, left)
            if sends := core.take_sends(now, self._clock.observe(self._now_us())):
                self._dispatcher.send(sends, now)
            if left <= 0:
                break
        return 0.0

    def hold(self, uuid: bytes) -> bool:
        with self._reading:
            if uuid in self._core.flights:
                return False
            self._held[uuid] += 1
            return True

    def release(self, uuids: Collection[bytes]) -> None:
        """Called in the loop's thread: what was read before is in flight by now, or was left out."""
        with self._reading:
            self._held -= Counter(uuids)

    def given_back(self, uuid: bytes) -> None:
        """Nothing: it was in the queue all the time."""

    def emptied(self, names: Sequence[bytes]) -> None:
        try:
            with self._store.read() as transaction:
                queues = transaction.queues(names, skip=())
            self._core.emptied([name for name in names if queues.get(name, NO_QUEUE).oldest is None])
        except StoreError as error:
            self._unread.failed(error)

    def _read(self, fetches: Sequence[Fetch], left: int) -> int:
        """Read the store once, bodies of `left` bytes at most. Return how many bytes are left then."""
        now = time.monotonic()  # a request may have been stored after the round began, and is sent after that
        sure_us = self._clock.observe(self._now_us())
        try:
            with self._reading, self._store.read() as transaction:
                flights, held = self._core.flights, self._held
                skip: Container[bytes] = flights.keys() | held.keys() if held else flights
                for service, after, limit in fetches:
                    if left <= 0:
                        break
                    try:
                        rows = transaction.next_ready(service, after, limit, left, skip=skip)
                    except RecordCorrupt as damage:
                        self._damage.failed(damage)
                        self._core.damaged(service, damage.uuid, str(damage), now)
                    else:
                        left -= sum(map(len, chain.from_iterable([row.body for row in rows])))
                        self._core.fetched(service, rows, now, sure_us, more=rows.more)
            self._unread.recovered()
        except StoreError as error:
            self._unread.failed(error)
            for fetch in fetches:
                self._core.unreadable(fetch.service, now)
        return left


def ready_row(transaction: ReadTransaction, uuid: bytes) -> tuple[bytes, ReadyRow] | None:
    """Return a request that is in the queue, with its service; None: it is not. Raises RecordCorrupt."""
    now, one = transaction.describe(uuid), transaction.request(uuid)
    if now is None or one is None or now.state is not State.WAITING:
        return None
    key = one.service + b"\0" + bytes([9 - one.priority]) + uuid
    past = now.attempts, one.body, one.max_attempts, now.expires_at, one.options, one.key, now.deliveries
    return one.service, ReadyRow(key, uuid, *past)
