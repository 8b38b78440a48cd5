"""Group commit: all changes that have gathered are one transaction and one sync.

Whatever changes the store is a `Write`: accepting, closing, keeping replies, putting off retries. Only when it is on
disk are the writes told (`committed`) and send their answers. Whatever has gathered during one batch is the next one:
under load the batches grow by themselves, and a single message waits for nobody. There is no timer and no size to tune.

A write is committed by the thread that brings it as long as the disk is quick: to wake the writer, be woken by it and
fight with it for the interpreter costs more than the sync. What comes meanwhile waits in sockets, and is one batch
then. While a disk syncs that is slow, or has just failed a commit, that thread must do other things, so the writer's
has the writes; and those that change much. With a remote store the writer's thread has all: the network is never quick
enough, and may fall silent.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, Protocol, TypeVar

from titanic.errors import RecordCorrupt, StoreAway, StoreCorrupt, StoreError, StoreFailed, StoreFull, WriteConflict
from titanic.logs import Incident, event
from titanic.store import Store, WriteTransaction
from titanic.util.clock import ClockJumps

log = logging.getLogger(__name__)

Item = TypeVar("Item")

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
"""The buckets in which commits are counted."""

QUICK = 0.002
"""Seconds, on average, that recent commits have waited for a quick disk."""

WEIGHT = 0.2
"""Of the last commit in that average. After one that stalls, the writer's thread has the next ones, more of them the
longer it took."""

LIGHT_ITEMS, LIGHT_BYTES = 2000, 1 << 20
"""Frames or UUIDs, and bytes, of which a light write has no more: some 20 ms of work."""

LIGHT_OUTCOMES = 16
"""Outcomes of attempts of which a light write has no more. When so many workers answer at a time, others have something
to do for the loop: it does not wait for the disk meanwhile."""

UNKNOWN_PACE = 1.0
"""That average while nothing is known of the disk: at the start, and after a commit has failed. Some thirty quick
commits in the writer's thread bring it below QUICK."""

TRIES = 3
"""How often a transaction is done that other nodes outrun."""

AGAIN = 0.01
"""Seconds until `work` is called again that has put something off, when no item comes."""


class _Call(NamedTuple):
    """A function that the thread is to call, instead of an item."""

    function: Callable[[], None]


class BatchThread(Generic[Item]):
    """Calls `work` in a thread of its own with all items that wait, at least one.

    When `work` has put something off, it returns True: then it is called soon, perhaps without an item. What is put off
    when the thread ends stays undone.
    """

    def __init__(self, name: str, work: Callable[[list[Item]], bool | None]) -> None:
        self._work = work
        self._queue: SimpleQueue[Item | _Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def put(self, item: Item) -> None:
        """Add an item. Any thread may."""
        self._queue.put(item)

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called in the thread after what was put before. Any thread may."""
        self._queue.put(_Call(function))

    def stop(self) -> None:
        """Do what was put so far, then end."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        get, get_nowait = self._queue.get, self._queue.get_nowait
        again: bool | None = False
        while True:
            batch: list[Item] = []
            calls: list[_Call] = []
            stopping = False
            try:
                item = get(timeout=AGAIN if again else None)
                while item is not None:
                    if isinstance(item, _Call):
                        calls.append(item)
                    else:
                        batch.append(item)
                    item = get_nowait()
                stopping = True
            except Empty:
                pass
            if batch or again:
                again = False
                try:
                    again = self._work(batch)
                except Exception:
                    # Items handle their own errors, so this is an error of this program. The thread must live on: all
                    # others depend on it.
                    log.exception("the %s thread met an unexpected error", self._thread.name)
            for call in calls:
                call.function()
            if stopping:
                return


class Histogram:
    """One thread at a time adds, any may read; a reader may miss the value that is being added."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper ends of the buckets, ascending; one more bucket has the larger values."""
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count it."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """How many values there are up to each bound, and in all."""
        return list(accumulate(self._counts))


class Write(Protocol):
    """A batch of changes of one kind. Methods are called in the writer's thread, or, if it is light, where it comes
    from."""

    light: bool
    """Whether it changes little: LIGHT_ITEMS and LIGHT_BYTES."""

    def uuids(self) -> Sequence[bytes]:
        """The requests that `apply` looks at, as far as it is known before."""

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        """Make the changes. A StoreError raised here drops the whole transaction; then each write is applied alone."""

    def __len__(self) -> int:
        """How many changes these are, roughly."""

    def parts(self) -> Sequence[Write]:
        """Smaller writes that together are this one; none when it cannot be divided. In a full store a transaction must
        not change too much, and only at its end it is known what is too much."""

    def committed(self) -> None:
        """The changes are on disk: answer."""

    def failed(self, error: StoreError) -> None:
        """The changes were dropped: say so."""


def halves(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Two halves, for `Write.parts`; none of a single item."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []


class Writer:
    """Writes to the store; commits writes in the order of `enqueue`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._remote = store.remote
        self._thread: BatchThread[Write] = BatchThread("writer", self._work)
        self.start = self._thread.start
        self.call = self._thread.call
        self.stop = self._thread.stop
        self.clock_jumps = ClockJumps()
        self._now_us = store.now_us
        self.clock_jumps.look(self._now_us())
        """The wall clock, looked at in each commit."""
        self._enqueued = self._done = 0
        """Writes that the thread got, and those that it has committed and told."""
        self._pace = UNKNOWN_PACE
        """Seconds that a commit waits, on average."""
        self._damage = Incident(log, "write")
        self.commits = 0
        self.seconds = Histogram(SECONDS)
        """Seconds that commits took, with their changes."""
        self.sizes = Histogram(SIZES)
        """Changes in each commit."""

    def enqueue(self, write: Write) -> None:
        """Commit this after all that came before. One thread calls it; not inside of `committed` and `failed`."""
        if write.light and self._pace < QUICK and self.idle and not self._remote:
            self._commit([write])
            return
        self._enqueued += 1
        self._thread.put(write)

    @property
    def idle(self) -> bool:
        """Whether the thread has nothing to do."""
        return self._done == self._enqueued

    def _work(self, writes: list[Write]) -> None:
        try:
            self._commit(writes)
        finally:
            self._done += len(writes)

    def _commit(self, writes: list[Write], tries: int = 1) -> None:
        now_us, began, worked = self._now_us(), time.monotonic(), time.thread_time()
        at_work: Write | None = None
        self.clock_jumps.look(now_us)
        try:
            with self._store.write() as transaction:
                if self._remote:
                    transaction.optimistic(alone=len(writes) == 1)
                    transaction.prefetch([uuid for write in writes for uuid in write.uuids()])
                for at_work in writes:
                    at_work.apply(transaction, now_us)
                at_work = None
        except Exception as error:
            if isinstance(error, WriteConflict) and tries < TRIES:
                self._commit(writes, tries + 1)
                return
            if len(writes) > 1 and (at_work is not None or isinstance(error, StoreFull)):
                # One of them is at fault. One by one, the others get through.
                for write in writes:
                    self._commit([write])
                return
            if isinstance(error, StoreFull) and (parts := writes[0].parts()):
                for part in parts:
                    self._commit([part])
                return
            if isinstance(
                error, StoreFailed
            ):  # a disk that fails may take seconds for it, which no loop waits for twice
                self._pace = UNKNOWN_PACE
            failure = self._failure(error)
            for write in writes:  # all of them: it was the disk
                try:
                    write.failed(failure)
                except Exception:  # the others are told all the same
                    log.exception("a fault of this program: could not tell what has failed")
            return
        seconds = time.monotonic() - began
        waited = seconds - (time.thread_time() - worked)
        self._pace += (waited - self._pace) * WEIGHT
        self.commits += 1
        self.seconds.add(seconds)
        self.sizes.add(sum(map(len, writes)))
        for write in writes:
            try:
                write.committed()
            except Exception:  # the others are told all the same
                log.exception("a fault of this program: could not tell what was committed")

    def _failure(self, error: Exception) -> StoreError:
        if isinstance(error, (StoreCorrupt, RecordCorrupt)):  # this is met again and again
            self._damage.failed(error, **event("write-failed"))
            return error
        if isinstance(error, StoreAway):
            return error
        if isinstance(error, StoreError):
            log.error("could not write: %s", error, extra=event("write-failed"))
            return error
        log.error("a fault of this program: could not write", exc_info=error)
        return StoreFailed("the write failed", f"{type(error).__name__}: {error}", "report this as a bug")
