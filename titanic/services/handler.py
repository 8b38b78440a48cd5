"""Titanic's services: a batch of requests in, a list of answers out.

Both ways to run Titanic use these. They differ in where the requests come from and how the answers go back,
which is all behind `Ask` and `Answer`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from titanic.commit.batch_thread import BatchThread
from titanic.commit.writer import Writer
from titanic.config import ServiceLimits
from titanic.errors import StoreError
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.services import list_requests, reply
from titanic.services.admin import Administer
from titanic.services.ask import Answer, Answers, Ask, Watcher
from titanic.services.close import Close
from titanic.services.read_turns import PORTION, Batch, Turns
from titanic.services.request_submit import PARSERS, Accept, Intake
from titanic.store import ReadTransaction, Store

log = logging.getLogger(__name__)


TOO_MANY = tsp.failure("busy: too many asks of this client wait already; read their answers first")


class Waits(Protocol):
    """Who keeps those who wait."""

    def wait(self, asks: Sequence[Ask]) -> None:
        """Asks for titanic.wait have come."""

    def found(self, answers: Answers) -> None:
        """What the store says of some of them."""


class Services:
    """Answers requests for `tsp.SERVICES`."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        watcher: Watcher,
        answer: Answer,
        *,
        sated: Callable[[Any], bool] = lambda ask: False,
        most_bytes: int = 1 << 30,
        most_body: int | None = None,
        limits: Mapping[bytes, ServiceLimits] | None = None,
    ) -> None:
        """`sated`: whether who asked does not read the answers that are on their way to it.

        `most_bytes`: bodies that may wait for the disk; more are refused, or a slow disk would fill the memory.
        `most_body`: of one request, what the broker takes. None: that is the broker's business.
        """
        self._store = store
        self._writer = writer
        self._waits: Waits
        self._watcher = watcher
        self._answer = answer
        self._intake = Intake(answer, watcher, limits or {}, writer.leaps, most_body)
        self._turns = Turns(sated)
        self._reader: BatchThread[Batch] = BatchThread("reader", self._read)
        self.start = self._reader.start
        self.call = self._reader.call
        self.stop = self._reader.stop
        self._most_bytes = most_bytes
        # Two counters, because += is not atomic: each is changed in one thread only.
        self._bytes_taken = 0
        self.counts = {"replies_given": 0, "closed": 0}

    def refuse(self, text: str) -> None:
        """Refuse all new requests from now on, with this text."""
        self._intake.refusing = text

    @property
    def accepted(self) -> int:
        """Requests accepted since the start."""
        return self._intake.counts["accepted"]

    def figures(self) -> dict[str, dict[str, int]]:
        """What was counted since the start. Any thread may ask."""
        return {"intake": dict(self._intake.counts), "refused": dict(self._intake.refused), "asked": dict(self.counts)}

    def limit(self, limits: Mapping[bytes, ServiceLimits]) -> None:
        """From now on these are the services' limits. Any thread may say so."""
        self._intake.limits = limits

    def handle(self, name: bytes, batch: Sequence[Ask]) -> None:
        """Take a batch for one of the services; the answers follow. Never blocks. One thread calls it."""
        if name in PARSERS:
            size = sum(len(frame) for ask in batch for frame in ask.body)
            waiting = self._bytes_taken - self._intake.bytes_written
            if waiting and waiting + size > self._most_bytes:
                text = f"busy: {waiting} bytes wait for the disk; try again in a moment"
                self._intake.refused["busy"] += len(batch)
                self._answer([(ask, tsp.failure(text)) for ask in batch])
                return
            self._bytes_taken += size
            self._writer.put(Accept(self._intake, PARSERS[name], batch, size))
        elif name == tsp.CLOSE:
            self._writer.put(Close(self._answer, self._watcher, self.counts, batch))
        elif name == tsp.ADMIN:
            self._writer.put(Administer(self._answer, self._watcher, batch))
        elif name == tsp.WAIT:
            self._waits.wait(batch)
        else:
            self._reader.put((name, batch))

    def look(self, waiting: Sequence[Ask]) -> None:
        """Look for the replies that these asks for titanic.wait want; `Waits.found` gets what there is."""
        self._reader.put((tsp.WAIT, waiting))

    def use(self, waits: Waits) -> None:
        """Who takes the asks for titanic.wait."""
        self._waits = waits

    def _read(self, batches: list[Batch]) -> bool:
        turns, portion = self._turns, _Portion(self._answer, self._tell_waiting)
        waited_for: dict[bytes, Frames] = {}  # many may wait for one: it is read once
        asks = turns.next(batches)
        try:
            with self._store.read() as transaction:
                for name, ask in asks:
                    key = ask.body[-1] if name == tsp.WAIT else b""
                    frames = waited_for.get(key) if key else None
                    if frames is None:
                        frames = self._read_one(transaction, name, ask.body)
                        if key:
                            waited_for[key] = frames
                    size = sum(map(len, frames))
                    turns.spend(ask, size)
                    portion.add(name, ask, frames, size)
        except StoreError as error:
            for name, ask in asks:
                portion.add(name, ask, tsp.failure(f"not read: {error}"), 0)
        for name, ask in turns.take_refused():
            portion.add(name, ask, TOO_MANY, 0)
        portion.send()
        return len(turns) > 0

    def _tell_waiting(self, found: Answers) -> None:
        self._waits.found(found)

    def _read_one(self, transaction: ReadTransaction, name: bytes, body: Frames) -> Frames:
        try:
            if name in (tsp.REPLY, tsp.WAIT):
                frames, found = reply.answer(transaction, body[1:] if name == tsp.WAIT else body)
                self.counts["replies_given"] += found
                return frames
            if name == tsp.LIST:
                return list_requests.answer(transaction, body, self._watcher.running)
            return [tsp.OK, json.dumps(self._stats(transaction)).encode()]
        except StoreError as error:  # one damaged record is no reason to fail the others
            return tsp.failure(f"not read: {error}")
        except Exception as error:  # an ask that is never answered would block its lane for ever
            log.exception("a fault of this program: could not answer %s", name.decode())
            return tsp.failure(f"not read: {type(error).__name__}: {error}")

    def _stats(self, transaction: ReadTransaction) -> dict[str, Any]:
        disk_full = transaction.disk_full()
        return {
            "store": {"path": str(self._store.path), **transaction.counts()._asdict()},
            "services": {name.decode(errors="replace"): count for name, count in transaction.waiting().items()},
            "accepting": not (disk_full or transaction.full()),
            "disk_full": disk_full,
            "since_start": {**self._intake.counts, **self.counts, "commits": self._writer.commits},
            **self._watcher.stats(),
        }


class _Portion:
    """Answers that were read and not sent yet: what is large does not wait for the rest."""

    def __init__(self, answer: Answer, found: Answer) -> None:
        self._answer = answer
        self._tell_found = found
        self._clear()

    def _clear(self) -> None:
        self._answers: list[tuple[Any, Frames]] = []
        self._found: list[tuple[Any, Frames]] = []
        self._size = 0

    def add(self, name: bytes, ask: Ask, frames: Frames, size: int) -> None:
        (self._found if name == tsp.WAIT else self._answers).append((ask, frames))
        self._size += size
        if self._size > PORTION:
            self.send()

    def send(self) -> None:
        if self._answers:
            self._answer(self._answers)
        if self._found:
            self._tell_found(self._found)
        self._clear()
