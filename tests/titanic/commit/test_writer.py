"""Group commit: who learns what, and when."""

from __future__ import annotations

import resource
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.shortages import broken_disk
from support.store_facts import accept_all
from support.store_remote import RemoteStore
from support.waiting import until

from titanic.commit.writer import BatchThread, Writer, disk_reads, halves
from titanic.errors import RecordCorrupt, StoreAway, StoreError, StoreFailed, StoreFull, WriteConflict
from titanic.facts.counts import FAILED
from titanic.facts.recorder import AttemptEnd
from titanic.store import MIN_CAPACITY, NewRequest, Store
from titanic.store.lmdb.store import LmdbWriteTransaction


class Put:
    """A write that stores a request, or does not."""

    light = True

    def __init__(
        self, store: Store, *, fails_with: Exception | None = None, size: int = 1, looks_at: Sequence[bytes] = ()
    ) -> None:
        self.store = store
        self.looks_at = looks_at
        self.error = fails_with
        self.size = size
        self.uuid = b""
        self.heard: list[object] = []

    def apply(self, transaction: LmdbWriteTransaction, now_us: int) -> None:
        (self.uuid,) = accept_all(transaction, [NewRequest(b"echo", [bytes(self.size)])], now_us)
        if self.error is not None:
            raise self.error

    def uuids(self) -> Sequence[bytes]:
        return self.looks_at

    def __len__(self) -> int:
        return 1

    def parts(self) -> list[Put]:
        return []

    def committed(self) -> None:
        with self.store.read() as transaction:
            assert transaction.request(self.uuid) is not None, "told before it was on disk"
        self.heard.append("committed")

    def failed(self, error: StoreError) -> None:
        self.heard.append(error)


pytestmark = pytest.mark.settings(capacity=MIN_CAPACITY)


def stored(store: Store) -> int:
    with store.read() as transaction:
        return transaction.counts().requests


def run(store: Store, writes: list[Put]) -> Writer:
    """Commit them as one batch."""
    writer = Writer(store)
    for write in writes:
        writer.enqueue(write)
    writer.start()
    writer.stop()
    return writer


def test_counts_that_cannot_be_written_fail_no_request(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """They begin again."""
    writer = Writer(store)
    writer.facts.attempts([AttemptEnd(bytes(16), b"echo", FAILED, 0.1, 0.1, "half a letter: \ud800")], 1)
    write = Put(store)
    writer.enqueue(write)
    writer.start()
    until(lambda: write.heard == ["committed"])
    writer.stop()
    assert caplog.text.count("counts and failure groups since the last write are dropped") == 1


def test_all_that_waits_is_one_commit(store: Store) -> None:
    writes = [Put(store) for _ in range(100)]
    assert run(store, writes).commits == 1
    assert all(write.heard == ["committed"] for write in writes)
    assert stored(store) == 100


@pytest.mark.parametrize(
    "error",
    [StoreFailed("no"), StoreFull(1, 1), RecordCorrupt(bytes(16), "x", "y"), KeyError("a fault"), MemoryError()],
)
def test_one_that_fails_costs_the_others_nothing(store: Store, error: Exception) -> None:
    writes = [Put(store, fails_with=error if number == 3 else None) for number in range(6)]
    run(store, writes)
    for number, write in enumerate(writes):
        if number == 3:
            (heard,) = write.heard
            assert isinstance(heard, StoreError)
        else:
            assert write.heard == ["committed"]
    assert stored(store) == 5


def test_a_disk_that_fails_is_told_to_all_at_once_and_nothing_is_kept(store: Store) -> None:
    writes = [Put(store) for _ in range(50)]
    with broken_disk() as tried:
        run(store, writes)
    assert len(tried) == 1
    assert all(isinstance(write.heard[0], StoreFailed) and len(write.heard) == 1 for write in writes)
    assert stored(store) == 0
    run(store, [Put(store)])
    assert stored(store) == 1


def test_what_conflicts_with_other_nodes_is_tried_three_times(store: Store) -> None:
    class Conflicts(Put):
        left = 2

        def apply(self, transaction: LmdbWriteTransaction, now_us: int) -> None:
            super().apply(transaction, now_us)
            if self.left:
                self.left -= 1
                raise conflict

    conflict = WriteConflict("another node was first")
    one, other = Conflicts(store), Conflicts(store)
    other.left = 3
    run(store, [one])
    run(store, [other])
    assert (one.heard, other.heard, stored(store)) == (["committed"], [conflict], 1)


def test_a_database_that_is_away_is_logged_by_the_store_alone(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    away = StoreAway("the database is away")
    write = Put(store, fails_with=away)
    run(store, [write])
    assert (write.heard, caplog.text) == ([away], "")


def test_the_sync_is_before_the_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    leave = LmdbWriteTransaction.__exit__

    def watched(self: LmdbWriteTransaction, *args: Any) -> None:
        leave(self, *args)
        events.append("on disk")

    monkeypatch.setattr(LmdbWriteTransaction, "__exit__", watched)
    write = Put(store)
    monkeypatch.setattr(write, "committed", lambda: events.append("told"))
    run(store, [write])
    assert events == ["on disk", "told"]


class Pile:
    """A write of which a full store takes only two items at a time."""

    light = False

    def __init__(self, items: list[int], heard: list[str]) -> None:
        self.items = items
        self.heard = heard

    def apply(self, transaction: LmdbWriteTransaction, now_us: int) -> None:
        if len(self.items) > 2:
            raise StoreFull(1, 1)

    def uuids(self) -> list[bytes]:
        return []

    def __len__(self) -> int:
        return len(self.items)

    def parts(self) -> list[Pile]:
        return [Pile(list(half), self.heard) for half in halves(self.items)]

    def committed(self) -> None:
        self.heard.append(f"committed {self.items}")

    def failed(self, error: StoreError) -> None:
        self.heard.append(f"failed {self.items}")


def test_what_is_too_much_for_a_full_store_is_done_in_parts(store: Store) -> None:
    heard: list[str] = []
    writer = Writer(store)
    writer.enqueue(Pile([1, 2, 3, 4, 5], heard))
    writer.start()
    writer.stop()
    assert heard == ["committed [1, 2]", "committed [3]", "committed [4, 5]"]
    assert halves([1]) == halves([]) == []


def test_one_that_cannot_tell_its_client_keeps_nobody_else_from_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(Put):
        def committed(self) -> None:
            raise KeyError("oops")

    after = Put(store)
    run(store, [Mute(store), after])
    assert after.heard == ["committed"]
    assert "could not report" in caplog.text


class Where(Put):
    """When it is applied, it waits so long for the disk and the interpreter, works, and says where that was."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seconds: float,
        *,
        light: bool = True,
        work: float = 0.0,
        interpreter: float = 0.0,
    ) -> None:
        super().__init__(store)
        self.clock = clock
        self.seconds = seconds
        self.work = work
        self.interpreter = interpreter
        self.light = light
        self.thread = ""
        self.told = threading.Event()

    def apply(self, transaction: LmdbWriteTransaction, now_us: int) -> None:
        super().apply(transaction, now_us)
        self.clock.now += self.seconds + self.work + self.interpreter
        self.clock.worked += self.work
        self.clock.reads += self.seconds > 0
        self.thread = threading.current_thread().name

    def committed(self) -> None:
        super().committed()
        self.told.set()


def where(writer: Writer, write: Where) -> str:
    """The thread that commits a write."""
    writer.enqueue(write)
    assert write.told.wait(30)
    until(lambda: writer.idle)
    return write.thread


class Clock:
    now = worked = 0.0
    reads = 0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.worked

    def disk_reads(self) -> int:
        return self.reads


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What writers ask for the time and for reads from the disk."""
    one = Clock()
    monkeypatch.setattr("titanic.commit.writer.time", one)
    monkeypatch.setattr("titanic.commit.writer.disk_reads", one.disk_reads)
    return one


def test_a_light_write_is_committed_where_it_comes_from_as_long_as_the_disk_is_quick(
    store: Store, clock: Clock
) -> None:
    writer = Writer(store)
    writer.start()
    here = threading.current_thread().name

    def commit(seconds: float, *, light: bool = True, work: float = 0.0, interpreter: float = 0.0) -> str:
        """Where a commit was made that waited so long for the disk, and computed so long."""
        return where(writer, Where(store, clock, seconds, light=light, work=work, interpreter=interpreter))

    assert commit(0.0) == "writer", "nobody knows the disk yet"
    quick = [commit(0.001) for _ in range(50)]
    assert quick == sorted(quick, key=[*dict.fromkeys(quick)].index), "it changes once"
    assert quick[-1] == here
    assert commit(0.001, light=False) == "writer"
    assert [commit(0.001) for _ in range(50)] == [here] * 50, "many come, one after another"
    assert [commit(0.001, work=0.02) for _ in range(50)] == [here] * 50, "nobody waits for the disk"
    assert [commit(0.0, interpreter=0.05) for _ in range(50)] == [here] * 50, "another thread would wait, too"
    assert commit(0.05) == here, "that could not be known"
    assert [commit(0.05) for _ in range(50)] == ["writer"] * 50
    assert [commit(0.001) for _ in range(50)][-1] == here, "it is quick again"
    writer.stop()


@pytest.mark.parametrize("step", ["__enter__", "commit"])
def test_a_disk_is_slow_if_a_transaction_waits_for_it_at_its_beginning_or_end(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It begins with commits that make room, and with the wait for those of others; it ends with the sync."""
    writer = Writer(store)
    writer.start()
    here = threading.current_thread().name

    assert [where(writer, Where(store, clock, 0.0)) for _ in range(50)][-1] == here
    take = getattr(LmdbWriteTransaction, step)

    def wait(transaction: LmdbWriteTransaction) -> object:
        clock.now += 0.05
        return take(transaction)

    monkeypatch.setattr(LmdbWriteTransaction, step, wait)
    assert [where(writer, Where(store, clock, 0.0)) for _ in range(50)] == [here] + ["writer"] * 49
    writer.stop()


def test_only_reads_of_the_own_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def usage(who: int) -> SimpleNamespace:
        asked.append(who)
        return SimpleNamespace(ru_majflt=3, ru_inblock=40)

    monkeypatch.setattr(resource, "getrusage", usage)
    assert disk_reads() == 43
    assert asked == [resource.RUSAGE_THREAD]


def test_after_a_commit_that_failed_the_writer_s_thread_has_the_next(store: Store, clock: Clock) -> None:
    """A disk may take seconds to fail, and the loop must not stand still for each of them."""

    class Fails(Where):
        def failed(self, error: StoreError) -> None:
            self.thread = threading.current_thread().name
            self.told.set()

    writer = Writer(store)
    writer.start()
    here = threading.current_thread().name
    assert [where(writer, Where(store, clock, 0.0)) for _ in range(50)][-1] == here
    with broken_disk():
        assert where(writer, Fails(store, clock, 0.0)) == here, "that could not be known"
        assert where(writer, Fails(store, clock, 0.0)) == "writer"
    again = [where(writer, Where(store, clock, 0.0)) for _ in range(50)]
    assert (again[:20], again[-1]) == (["writer"] * 20, here)
    writer.stop()


def test_one_that_cannot_say_that_it_failed_keeps_nobody_else_from_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(Put):
        def failed(self, error: StoreError) -> None:
            raise KeyError("oops")

    after = Put(store)
    with broken_disk():
        run(store, [Mute(store), after])
    assert isinstance(after.heard[0], StoreFailed)
    assert "could not report" in caplog.text


def test_what_comes_after_something_that_waits_waits_for_it(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.commit.writer.QUICK", 10.0)
    writer = Writer(store)
    heavy, light = Where(store, clock, 0.0, light=False), Where(store, clock, 0.0)
    writer.enqueue(heavy)
    writer.enqueue(light)
    assert not light.heard
    writer.start()
    writer.stop()
    assert (heavy.thread, light.thread) == ("writer", "writer")
    assert heavy.uuid < light.uuid


def test_the_network_is_never_waited_for_where_a_write_comes_from() -> None:
    store = RemoteStore()
    writer = Writer(store)
    writer.start()
    writes = [Put(store) for _ in range(20)]
    store.loops.add(threading.get_ident())
    for write in writes:
        done = threading.Event()
        writer.enqueue(write)
        writer.call(done.set)
        assert done.wait(30)
    writer.stop()
    assert all(write.heard == ["committed"] for write in writes)


def test_all_that_a_commit_looks_at_is_foreseen_at_once() -> None:
    store = RemoteStore()
    uuids = [bytes([number]) * 16 for number in range(4)]
    writes = [Put(store, looks_at=uuids[:1]), Put(store), Put(store, looks_at=uuids[1:])]
    run(store, writes)
    assert store.prefetched == [(uuids, False)]


def test_what_was_postponed_is_done_without_a_new_item() -> None:
    batches: list[list[int]] = []
    twice = threading.Event()

    def work(items: list[int]) -> bool:
        batches.append(items)
        if len(batches) == 2:
            twice.set()
        return len(batches) < 2

    thread = BatchThread[int]("postponing", work)
    thread.start()
    thread.put(1)
    assert twice.wait(30)
    thread.stop()
    assert batches == [[1], []]
