"""Titanic's services: a batch of requests in, a list of answers out.

Both ways to run Titanic use these. They differ in where the requests come from and how the answers go back,
which is all behind `Ask` and `Answer`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from titanic import ids, listing, tsp
from titanic.batches import BatchThread
from titanic.errors import StoreError, StoreFull
from titanic.store import NewRequest, Outcome, ReadTransaction, Status, Store, WriteTransaction
from titanic.tsp import Frames
from titanic.writer import Writer

log = logging.getLogger(__name__)


class Ask(Protocol):
    """A request to one of these services."""

    body: Frames


Answers = Sequence[tuple[Any, Frames]]
Answer = Callable[[Answers], None]
"""Sends answers to asks. It is called in another thread than the one that asked."""


class Watcher(Protocol):
    """Who wants to know at once what was committed: the dispatcher."""

    def arrived(self, services: set[bytes]) -> None:
        """These services have new requests to be dispatched."""

    def closed(self, uuids: list[bytes]) -> None:
        """These requests are closed: do not dispatch them, drop their replies."""

    def stats(self) -> dict[str, Any]:
        """What is going on, for titanic.stats."""

    def running(self) -> Collection[bytes]:
        """The requests that are with a worker now."""


class Services:
    """Answers requests for `tsp.SERVICES`."""

    def __init__(
        self, store: Store, writer: Writer, watcher: Watcher, answer: Answer, *, most_bytes: int = 1 << 30
    ) -> None:
        """`most_bytes`: bodies that may wait for the disk; more are refused, or a slow disk would fill the memory."""
        self._store = store
        self._writer = writer
        self._watcher = watcher
        self._answer = answer
        self._reader: BatchThread[tuple[bytes, Sequence[Ask]]] = BatchThread("reader", self._read)
        self.start = self._reader.start
        self.stop = self._reader.stop
        self.refusing = ""
        """When not empty, new requests are refused with this text."""
        self._most_bytes = most_bytes
        # Two counters, because += is not atomic: each is changed in one thread only.
        self._bytes_taken = 0
        self._bytes_written = 0
        self.counts = {"accepted": 0, "refused": 0, "replies_given": 0, "closed": 0}

    def handle(self, name: bytes, batch: Sequence[Ask]) -> None:
        """Take a batch for one of the services; the answers follow. Never blocks. One thread calls it."""
        if name == tsp.REQUEST:
            size = sum(len(frame) for ask in batch for frame in ask.body)
            waiting = self._bytes_taken - self._bytes_written
            if waiting and waiting + size > self._most_bytes:
                text = f"busy: {waiting} bytes wait for the disk; try again in a moment"
                self._answer([(ask, tsp.failure(text)) for ask in batch])
                return
            self._bytes_taken += size
            self._writer.put(_Accept(self, batch, size))
        elif name == tsp.CLOSE:
            self._writer.put(_Close(self, batch))
        else:
            self._reader.put((name, batch))

    def _read(self, batches: list[tuple[bytes, Sequence[Ask]]]) -> None:
        answers: list[tuple[Any, Frames]] = []
        try:
            with self._store.read() as transaction:
                for name, batch in batches:
                    answers += [(ask, self._read_one(transaction, name, ask.body)) for ask in batch]
        except StoreError as error:
            answers = [(ask, tsp.failure(f"not read: {error}")) for _, batch in batches for ask in batch]
        self._answer(answers)

    def _read_one(self, transaction: ReadTransaction, name: bytes, body: Frames) -> Frames:
        try:
            if name == tsp.REPLY:
                return self._reply(transaction, body)
            if name == tsp.LIST:
                return listing.answer(transaction, body, self._watcher.running)
            return [tsp.OK, json.dumps(self._stats(transaction)).encode()]
        except StoreError as error:  # one damaged record is no reason to fail the others
            return tsp.failure(f"not read: {error}")
        except Exception as error:  # an ask that is never answered would block its lane for ever
            log.exception("a fault of this program: could not answer %s", name.decode())
            return tsp.failure(f"not read: {type(error).__name__}: {error}")

    def _reply(self, transaction: ReadTransaction, body: Frames) -> Frames:
        uuid = tsp.read_uuid(body)
        if uuid is None:
            return tsp.BAD_UUID
        outcome = transaction.reply(uuid)
        if outcome is None:
            return tsp.UNKNOWN
        if not isinstance(outcome, Outcome):
            return [tsp.PENDING]
        self.counts["replies_given"] += 1
        if outcome.status is Status.DONE:
            return [tsp.OK, *outcome.frames]
        return [*tsp.failure(f"{outcome.status.name.lower()}: {outcome.reason}"), *outcome.frames]

    def _stats(self, transaction: ReadTransaction) -> dict[str, Any]:
        return {
            "store": {"path": str(self._store.path), **transaction.counts()._asdict()},
            "services": {name.decode(errors="replace"): count for name, count in transaction.waiting().items()},
            "since_start": {**self.counts, "commits": self._writer.commits},
            **self._watcher.stats(),
        }


class _Accept:
    """A batch for titanic.request."""

    def __init__(self, services: Services, asks: Sequence[Ask], size: int) -> None:
        self._services = services
        self._asks = asks
        self._size = size
        self._answers: list[tuple[Any, Frames]] = []
        self._arrived: set[bytes] = set()
        self._accepted = 0

    def write(self, transaction: WriteTransaction, now_us: int) -> None:
        self._answers, self._arrived, self._accepted = [], set(), 0
        if self._services.refusing:
            self._answers = [(ask, tsp.failure(self._services.refusing)) for ask in self._asks]
            return
        good: list[Ask] = []
        for ask in self._asks:
            fault = tsp.request_fault(ask.body)
            if fault is None:
                good.append(ask)
            else:
                self._answers.append((ask, tsp.bad_request(fault)))
        self._accept(transaction, good, now_us)

    def _accept(self, transaction: WriteTransaction, asks: Sequence[Ask], now_us: int) -> None:
        if not asks:
            return
        try:
            uuids = transaction.accept_many([NewRequest(ask.body[0], ask.body[1:]) for ask in asks], now_us)
        except StoreFull as full:
            if len(asks) == 1:
                self._answers.append((asks[0], tsp.failure(f"store full: {full}")))
                return
            for ask in asks:  # smaller ones may still fit
                self._accept(transaction, [ask], now_us)
            return
        self._accepted += len(asks)
        self._arrived.update(ask.body[0] for ask in asks)
        self._answers += [(ask, [tsp.OK, ids.text(uuid)]) for ask, uuid in zip(asks, uuids, strict=True)]

    def committed(self) -> None:
        self._services._bytes_written += self._size
        counts = self._services.counts
        counts["accepted"] += self._accepted
        counts["refused"] += len(self._answers) - self._accepted
        self._services._answer(self._answers)
        if self._arrived:
            self._services._watcher.arrived(self._arrived)

    def failed(self, error: StoreError) -> None:
        self._services._bytes_written += self._size
        self._services.counts["refused"] += len(self._asks)
        self._services._answer([(ask, tsp.failure(f"not stored: {error}")) for ask in self._asks])


class _Close:
    """A batch for titanic.close."""

    def __init__(self, services: Services, asks: Sequence[Ask]) -> None:
        self._services = services
        self._asks = asks
        self._answers: list[tuple[Any, Frames]] = []
        self._closed: list[bytes] = []

    def write(self, transaction: WriteTransaction, now_us: int) -> None:
        self._answers, self._closed = [], []
        for ask in self._asks:
            uuid = tsp.read_uuid(ask.body)
            if uuid is None:
                self._answers.append((ask, tsp.BAD_UUID))
                continue
            if transaction.close(uuid) is not None:
                self._closed.append(uuid)
            self._answers.append((ask, [tsp.OK]))

    def committed(self) -> None:
        self._services.counts["closed"] += len(self._closed)
        if self._closed:
            self._services._watcher.closed(self._closed)  # first: what is closed is not dispatched any more
        self._services._answer(self._answers)

    def failed(self, error: StoreError) -> None:
        self._services._answer([(ask, tsp.failure(f"not closed: {error}")) for ask in self._asks])
