"""Group commit: all changes that have gathered are one transaction and one sync.

Every change of the store is a `Write`: accepting, closing, storing replies, delaying retries. Writes send their answers
only once they are on disk (`committed`). What gathers during one batch is the next batch: under load batches grow by
themselves, and a single message does not wait. There is no timer and no size to tune.

While the disk is quick, a write is committed by the thread that enqueues it: waking the writer's thread and competing
with it for the interpreter costs more than the sync. Messages that arrive meanwhile wait in sockets and form the next
batch. If the disk is slow, or has just failed a commit, the enqueuing thread must not wait for it, so the writer's
thread commits. It also commits large writes, and all writes to a remote store: the network is never quick enough, and
may stall.
"""

from __future__ import annotations

import logging
import resource
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from broker import Action
from titanic.errors import RecordCorrupt, StoreAway, StoreCorrupt, StoreError, StoreFailed, StoreFull, WriteConflict
from titanic.facts.recorder import FactsRecorder
from titanic.logs import Incident, event
from titanic.store import SharedWriteTransaction, Store, WriteTransaction
from titanic.util.clock import ClockJumps

log = logging.getLogger(__name__)

Item = TypeVar("Item")

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
"""The buckets in which commits are counted."""

QUICK = 0.002
"""Maximum average time, in seconds, that recent commits waited for the disk while it counts as quick."""

WEIGHT = 0.2
"""Weight of the last commit in that average. After a stall, the writer's thread commits for a while, the longer the
stall the longer."""

LIGHT_ITEMS, LIGHT_BYTES = 2000, 1 << 20
"""Maximum frames or UUIDs, and bytes, of a light write: some 20 ms of work."""

LIGHT_BATCH = 64 << 10
"""Maximum bytes of several messages in a light write, less than a local socket holds (208 KiB): while a thread commits
all that it got, it reads nothing, so the next batch would be no larger, and so on."""

LIGHT_OUTCOMES = 100
"""Maximum outcomes of attempts of a light write: some 5 ms of work."""

UNKNOWN_PACE = 1.0
"""The average while the disk's speed is unknown: at the start, and after a failed commit. Some thirty quick commits in
the writer's thread bring it below QUICK."""

TRIES = 3
"""How often a transaction is tried that conflicts with other nodes."""

AGAIN = 0.01
"""Seconds until `work` is called again without a new item, if it has postponed something."""


_OF_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class _Call(NamedTuple):
    """A function that the thread is to call, instead of an item."""

    function: Action
    args: tuple[Any, ...]


class BatchThread(Generic[Item]):
    """Calls `work` in a thread of its own with all items that wait, at least one.

    When `work` has postponed something, it returns True: then it is called again soon, perhaps without an item. What is
    postponed when the thread ends is not done.
    """

    def __init__(self, name: str, work: Callable[[list[Item]], bool | None]) -> None:
        self._work = work
        self._queue: SimpleQueue[Item | _Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: Item) -> None:
        """Add an item. Any thread may."""
        self._queue.put(item)

    def call(self, function: Action, *args: Any) -> None:
        """Call a function in the thread, after the items that were put before. Any thread may."""
        self._queue.put(_Call(function, args))

    def stop(self) -> None:
        """Process what was put so far, then stop."""
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
                    # Items handle their own errors, so this is a bug. The thread must survive: all others depend on it.
                    log.exception("unexpected error in the %s thread", self._thread.name)
            for call in calls:
                call.function(*call.args)
            if stopping:
                return


class Histogram:
    """A histogram. One thread at a time adds; any may read, and may miss the value that is being added."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper ends of the buckets, ascending; one more bucket counts larger values."""
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """The number of values up to each bound, and in total."""
        return list(accumulate(self._counts))


class Write(Protocol):
    """A batch of changes of one kind. Methods are called in the writer's thread or, if it is light, in the thread that
    enqueues it. Classes that are not compiled inherit the defaults."""

    light: bool = False
    """Whether it changes little: LIGHT_ITEMS and LIGHT_BYTES."""

    def uuids(self) -> Sequence[bytes]:
        """The requests that `apply` reads, as far as they are known beforehand."""
        return ()

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        """Make the changes. A StoreError raised here drops the whole transaction; then each write is applied alone."""

    def __len__(self) -> int:
        """The number of changes, roughly."""

    def parts(self) -> Sequence[Write]:
        """Split it into smaller writes; none if it cannot be split. In a full store a transaction must not change too
        much, and how much is too much is known only at its end."""
        return ()

    def committed(self) -> None:
        """Send the answers: the changes are on disk."""

    def failed(self, error: StoreError) -> None:
        """Report the error: the changes were dropped."""


class FlushWrite(Write):
    """A commit for the facts alone, when none has come for a while."""

    light = True

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        """Nothing: the writer adds the facts to each commit in which they are due."""

    def __len__(self) -> int:
        return 0

    def committed(self) -> None:
        pass

    def failed(self, error: StoreError) -> None:
        """Nothing: the facts are kept for the next commit."""


def halves(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Split items in two halves, for `Write.parts`; none for a single item."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []


def disk_reads() -> int:
    """What this thread has read from a disk, in pages and blocks."""
    used = resource.getrusage(_OF_THREAD)
    return used.ru_majflt + used.ru_inblock


class Writer:
    """Writes to the store in the order of `enqueue`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._remote = store.remote
        self._thread: BatchThread[Write] = BatchThread("writer", self._work)
        self.start = self._thread.start
        self.call = self._thread.call
        self.stop = self._thread.stop
        self.clock_jumps = ClockJumps()
        self._now_us = store.now_us
        self.clock_jumps.observe(self._now_us())
        """The wall clock, read in each commit."""
        self._enqueued = self._done = 0
        """Writes that were passed to the thread, and those that it has finished."""
        self._pace = UNKNOWN_PACE
        """Seconds that a commit waits, on average."""
        self._damage = Incident(log, "write")
        self.commits = 0
        self.seconds = Histogram(SECONDS)
        """Seconds that commits took, with their changes."""
        self.sizes = Histogram(SIZES)
        """Changes in each commit."""
        self.facts = FactsRecorder(store)
        """What is counted of the changes."""

    def enqueue(self, write: Write) -> None:
        """Commit a write after all previous ones. One thread calls it, but not in `committed` or `failed`."""
        if write.light and self._pace < QUICK and self.idle and not self._remote:
            self._commit([write])
            return
        self._enqueued += 1
        self._thread.put(write)

    def flush_facts(self) -> None:
        """Write facts that no other commit has taken along. The thread of `enqueue` calls it now and then."""
        if self.facts.is_due(self._now_us()):
            self.enqueue(FlushWrite())

    def finish(self) -> None:
        """Write the last facts, when everything else has ended."""
        if self._store.usable:
            self._commit([FlushWrite()], last=True)

    @property
    def idle(self) -> bool:
        """Whether the thread has nothing to do."""
        return self._done == self._enqueued

    def _work(self, writes: list[Write]) -> None:
        try:
            self._commit(writes)
        finally:
            self._done += len(writes)

    def _commit(self, writes: Sequence[Write], tries: int = 1, *, last: bool = False) -> None:
        facts, more = self.facts, False
        now_us, began, worked, reads = self._now_us(), time.monotonic(), time.thread_time(), disk_reads()
        at_work: Write | None = None
        self.clock_jumps.observe(now_us)
        try:
            with self._store.write() as transaction:
                entered = time.monotonic(), time.thread_time()
                if self._remote:
                    cast(SharedWriteTransaction, transaction).optimistic(alone=len(writes) == 1)
                # isinstance is slow for a class that inherits from a Protocol.
                flushes = last or facts.wants(now_us) or type(writes[0]) is FlushWrite
                if flushes:  # first: the totals are compared with the requests before any change
                    alone = all(type(write) is FlushWrite for write in writes)
                    try:
                        more = facts.flush(transaction, now_us, alone=alone, last=last)
                    except StoreError:
                        raise
                    except Exception:
                        facts.give_up(now_us)
                        flushes = False
                if self._remote:
                    transaction.prefetch([uuid for write in writes for uuid in write.uuids()])
                for at_work in writes:
                    at_work.apply(transaction, now_us)
                at_work = None
                applied = time.monotonic(), time.thread_time()
        except Exception as error:
            if isinstance(error, WriteConflict) and tries < TRIES:
                self._commit(writes, tries + 1, last=last)
                return
            if len(writes) > 1 and (at_work is not None or isinstance(error, StoreFull)):
                # One of them is the cause. Applied one by one, the others succeed.
                for write in writes:
                    self._commit([write])
                return
            if isinstance(error, StoreFull) and (parts := writes[0].parts()):
                for part in parts:
                    self._commit([part])
                return
            if isinstance(error, StoreFailed):  # a failing disk may take seconds, for which no loop should wait twice
                self._pace = UNKNOWN_PACE
            failure = self._failure(error)
            for write in writes:  # all of them: it was the disk
                try:
                    write.failed(failure)
                except Exception:  # the others must still report it
                    log.exception("a bug in this program: could not report a failed write")
            return
        if flushes:
            facts.flushed(now_us, more)
        if size := sum(map(len, writes)):
            facts.changed_at = now_us
        seconds = time.monotonic() - began
        waited = seconds - (time.thread_time() - worked)
        if disk_reads() == reads:  # then the changes waited only for the interpreter or a processor
            waited -= applied[0] - entered[0] - (applied[1] - entered[1])
        self._pace += (waited - self._pace) * WEIGHT
        self.commits += 1
        self.seconds.add(seconds)
        self.sizes.add(size)
        for write in writes:
            try:
                write.committed()
            except Exception:  # the others must still send their answers
                log.exception("a bug in this program: could not report a committed write")

    def _failure(self, error: Exception) -> StoreError:
        if isinstance(error, (StoreCorrupt, RecordCorrupt)):  # this recurs
            self._damage.failed(error, **event("write-failed"))
            return error
        if isinstance(error, StoreAway):
            return error
        if isinstance(error, StoreError):
            log.error("could not write: %s", error, extra=event("write-failed"))
            return error
        log.error("a bug in this program: could not write", exc_info=error)
        return StoreFailed("the write failed", f"{type(error).__name__}: {error}", "report this as a bug")
