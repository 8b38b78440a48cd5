"""A full store refuses new requests and nothing else, its file never exceeds its capacity, a bad disk loses nothing."""

import random

import lmdb
import pytest
from support.processes import run_fork
from support.store_facts import accept_all, closed_range, state_of
from support.torture import SEED, tally

from titanic.errors import CapacityTooSmall, StoreFailed, StoreFull
from titanic.store import MIN_CAPACITY, NewRequest, State, Status
from titanic.store.lmdb.free_space import can_make_way
from titanic.store.lmdb.schema import PAGE
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check

NOW = 1_795_258_520_106_479
CAPACITY = 16 << 20
LIMIT = 11 << 20  # from which nothing is accepted


@pytest.fixture
def store(tmp_path):
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY) as store:
        yield store
        assert check(store) == []
        assert file_size(store) <= CAPACITY


def accept(store, *requests):
    with store.write() as txn:
        return accept_all(txn, requests, NOW)


def fill(store, size=100_000, batch=1):
    """Accept requests until there is no room."""
    uuids = []
    try:
        while True:
            uuids += accept(store, *[NewRequest(b"echo", [bytes(size)])] * batch)
    except StoreFull:
        return uuids


def finish(store, uuid, frames=(b"reply",)):
    with store.write() as txn:
        return txn.finish(uuid, Status.DONE, frames, attempts=1, dispatched_at=NOW, finished_at=NOW)


def close(store, *uuids):
    for at in range(0, len(uuids), store.batch):
        with store.write() as txn:
            for uuid in uuids[at : at + store.batch]:
                assert txn.close(uuid, NOW)


def test_a_long_reason_is_cut_where_there_is_no_room_for_it(store):
    """Ends and delays always find room, whatever a worker has said."""
    uuids = fill(store, 1000, batch=500)
    reason = "é" * 1000
    for at in range(0, len(uuids), 500):
        with store.write() as txn:
            for uuid in uuids[at : at + 500]:
                assert txn.postpone(uuid, due=NOW + 9, attempts=1, dispatched_at=NOW, reason=reason)
    with store.write() as txn:
        kept = [len(row.reason) for row in txn.select(limit=len(uuids))]
    assert kept[0] == 500, "as ever, while there is room"
    assert 20 < kept[-1] < 60
    for at in range(0, len(uuids), 500):
        with store.write() as txn:
            for uuid in uuids[at : at + 500]:
                assert txn.finish(
                    uuid, Status.FAILED, [], attempts=2, dispatched_at=NOW, finished_at=NOW, reason=reason
                )
    with store.read() as txn:
        ends = [row.reason for row in txn.select(limit=len(uuids))]
    assert all(end == reason[:500] or (reason.startswith(end.rstrip("…")) and len(end) > 20) for end in ends)
    assert counts(store).replies == len(uuids)


def counts(store):
    with store.read() as txn:
        return txn.counts()


def file_size(store):
    return (store.path / "data.mdb").stat().st_size


def test_a_full_store_says_how_full_it_is(store):
    fill(store)
    with pytest.raises(StoreFull, match=r"the store is full; \d+ of 16777216 bytes are used") as raised:
        accept(store, NewRequest(b"echo", [bytes(500_000)]))
    full = raised.value
    assert LIMIT * 0.95 < counts(store).used <= LIMIT
    assert counts(store).used <= full.used < LIMIT, "without what is kept back"
    assert full.kept == CAPACITY - LIMIT
    assert 500_000 < full.needed < 515_000
    assert full.used + full.kept + full.needed > full.capacity == CAPACITY
    assert full.fitting == 0


def test_nothing_of_a_batch_is_stored_when_it_does_not_fit(store):
    batch = [NewRequest(b"echo", [bytes(100_000)])] * 200
    with store.write() as txn:
        with pytest.raises(StoreFull) as raised:
            accept_all(txn, batch, NOW)
        assert txn.counts().requests == 0
        fitting = raised.value.fitting
        assert len(accept_all(txn, batch[:fitting], NOW)) == fitting > 70
        with pytest.raises(StoreFull):
            accept_all(txn, batch[:fitting], NOW)
    assert counts(store).requests == fitting


def test_delayed_requests_count_too(store):
    later = NewRequest(b"echo", [bytes(1000)], not_before=NOW + 1)
    with pytest.raises(StoreFull) as raised:
        accept(store, *[later] * 20_000)
    accept(store, *[later] * raised.value.fitting)
    assert 0.7 * LIMIT < counts(store).used < LIMIT


def test_a_full_store_finishes_expires_postpones_promotes_retries_and_closes(store):
    first, second, third, *_ = fill(store)
    assert finish(store, first, [bytes(500_000)])
    with store.write() as txn:
        assert txn.postpone(second, due=NOW, attempts=1, dispatched_at=NOW, reason="x" * 500)
        assert txn.finish(third, Status.FAILED, [], attempts=1, dispatched_at=0, finished_at=NOW)
    with store.write() as txn:
        assert txn.promote(NOW) == [(b"echo", 1)]
        assert txn.retry(third, NOW)
    close(store, second)
    with store.read() as txn:
        assert txn.reply(first).frames == [bytes(500_000)]
        assert closed_range(txn)[1] == 1


@pytest.mark.parametrize("size", [0, pytest.param(200, marks=pytest.mark.torture), 3000])
def test_every_request_of_a_full_store_can_be_ended(store, size):
    uuids = fill(store, size, batch=500)
    for at in range(0, len(uuids), 500):
        with store.write() as txn:
            for uuid in uuids[at : at + 500]:
                reason = "there is no room for the reply"
                assert txn.finish(
                    uuid, Status.FAILED, [], attempts=1, dispatched_at=NOW, finished_at=NOW, reason=reason
                )
    assert counts(store)[:4] == (len(uuids), 0, 0, len(uuids))


def test_replies_are_refused_before_they_take_the_room_of_ends(store):
    uuids = fill(store)
    refused = 0
    for uuid in uuids:
        try:
            finish(store, uuid, [bytes(60_000)])
        except StoreFull:
            refused += 1
            with store.write() as txn:
                with pytest.raises(StoreFull):
                    txn.finish(uuid, Status.DONE, [bytes(60_000)], attempts=1, dispatched_at=NOW, finished_at=NOW)
                assert state_of(txn, uuid) is State.WAITING
                assert txn.finish(
                    uuid, Status.FAILED, [], attempts=1, dispatched_at=NOW, finished_at=NOW, reason="no room"
                )
    assert 10 < refused < len(uuids)
    close(store, *uuids)
    assert fill(store) != []


def test_accepting_resumes_when_there_is_room_again(store):
    uuids = fill(store)
    close(store, *uuids[:2])
    accept(store, NewRequest(b"echo", [bytes(100_000)]))
    finish(store, uuids[2], [bytes(2000)])
    close(store, *uuids[2:4])
    accept(store, NewRequest(b"echo", [bytes(100_000)]))


def test_a_store_is_full_across_a_restart(tmp_path):
    with LmdbStore.open(tmp_path, capacity=CAPACITY) as store:
        fill(store)
    with LmdbStore.open(tmp_path) as store:
        assert store.capacity == CAPACITY
        assert fill(store) == []
        assert check(store) == []
    with LmdbStore.open(tmp_path, capacity=2 * CAPACITY) as store:
        assert fill(store) != []


def test_a_store_that_is_fuller_than_it_may_be_for_new_requests_gets_no_more_room_by_a_restart(tmp_path):
    """A server was killed in a store whose replies had gone beyond the limit of requests."""
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY) as store:
        for uuid in fill(store):
            try:
                finish(store, uuid, [bytes(60_000)])
            except StoreFull:
                break
        with store.read() as txn:
            assert txn.counts().used > LIMIT
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY) as store:
        assert store.environment.env.info()["map_size"] == CAPACITY


def test_a_store_above_a_lowered_capacity_keeps_its_size_and_can_be_emptied(tmp_path):
    with LmdbStore.open(tmp_path, capacity=4 * CAPACITY) as store:
        uuids = fill(store)
        before = file_size(store)
    with LmdbStore.open(tmp_path, capacity=CAPACITY) as store:
        assert fill(store) == []
        assert finish(store, uuids[0], [b"small"])
        with pytest.raises(StoreFull):
            finish(store, uuids[1], [bytes(60_000)])
        close(store, *uuids[:-110])
        assert fill(store, batch=110) == []
        close(store, *uuids[-110:-10])
        assert fill(store) != []
        assert check(store) == []
        assert before <= file_size(store) <= 4 * CAPACITY


def test_a_capacity_that_leaves_no_room_is_refused(tmp_path):
    with pytest.raises(CapacityTooSmall, match="it is 16777215 bytes; choose at least 16 MiB"):
        LmdbStore.open(tmp_path / "new", capacity=MIN_CAPACITY - 1)
    assert not (tmp_path / "new").exists()
    LmdbStore.open(tmp_path, capacity=MIN_CAPACITY).close()


def test_preallocating_takes_the_room_from_the_disk(tmp_path):
    with LmdbStore.open(tmp_path, capacity=CAPACITY, preallocate=True) as store:
        found = (tmp_path / "data.mdb").stat()
        assert found.st_size == CAPACITY
        assert found.st_blocks * 512 >= CAPACITY
        uuids = fill(store)
        assert check(store) == []
    with LmdbStore.open(tmp_path, capacity=CAPACITY, preallocate=True) as store:
        close(store, *uuids)
        assert check(store) == []
        assert file_size(store) == CAPACITY


@pytest.mark.parametrize(
    ("size", "share"), [(30, 0.06), (200, 0.28), (1000, 0.45), (2100, 0.45), (10_240, 0.58), (1 << 20, 0.65)]
)
def test_most_of_the_capacity_is_for_bodies(store, size, share):
    uuids = fill(store, size, batch=max(1, 200_000 // (size + 200)))
    rest = fill(store, size)
    assert len(uuids + rest) * size > share * (CAPACITY - store.facts_room)


def some_size(rng):
    return rng.randrange(rng.choice([2000, 20_000, 200_000, 1 << 20]))


@pytest.mark.parametrize("keep_closed", [True, False])
def test_the_file_never_exceeds_the_capacity_and_room_that_is_free_can_be_used(tmp_path, keep_closed):
    turn_over(tmp_path, CAPACITY, turns=3, keep_closed=keep_closed, seed=7)


@pytest.mark.torture
@pytest.mark.parametrize("keep_closed", [True, False])
def test_a_store_is_turned_over_fifty_times(tmp_path, keep_closed):
    turn_over(tmp_path, 64 << 20, turns=50, keep_closed=keep_closed, seed=SEED)


def expect_no_room(store, full):
    """The refusal was right, and the store's own decision."""
    found = counts(store)
    promised = 192 * (found.requests - found.replies)
    assert full.__cause__ is None, "it was prefetched"
    with store.read() as txn:
        way = can_make_way(txn, 1 << 40)
    assert found.used - way + promised + full.needed > store.environment.room.accept, "there was room"


def turn_over(path, capacity, *, turns, keep_closed, seed):
    """Accept, finish and close requests of all sizes in random order at the edge of the capacity.

    A request is refused only when the pages in use, what is promised to others and what it needs come to the limit.
    """
    rng = random.Random(seed)
    content = rng.randbytes(1 << 20)
    live, ended, passed, refused, steps = [], set(), 0, 0, 0
    with LmdbStore.open(path, capacity=capacity, keep_closed=keep_closed) as store:
        while passed < turns * capacity:
            steps += 1
            act = rng.random()
            if act < 0.6:
                batch = [NewRequest(b"s%d" % rng.randrange(3), [content[: some_size(rng)]])]
                if batch[0].body[0][1000:] == b"":
                    batch *= rng.choice([1, 10])
                try:
                    live += accept(store, *batch)
                    passed += sum(len(new.body[0]) for new in batch)
                    continue
                except StoreFull as error:
                    full = error
                refused += 1
                expect_no_room(store, full)
            rng.shuffle(live)
            some = [live.pop() for _ in range(min(len(live), rng.choice([1, 2, 4])))]
            if act < 0.75:
                with store.write() as txn:
                    for uuid in some:
                        end = {"attempts": 1, "dispatched_at": NOW, "finished_at": NOW}
                        try:
                            assert txn.finish(uuid, Status.DONE, [content[: some_size(rng) // 8]], **end) == (
                                uuid not in ended
                            )
                        except StoreFull:
                            assert txn.finish(uuid, Status.FAILED, [], **end)
                ended.update(some)
                live += some
            else:
                close(store, *some)
            assert file_size(store) <= capacity
        tally["operations modelled"] += steps
        assert refused > 10 * turns
        assert file_size(store) > 0.7 * capacity
        assert check(store) == []


def test_the_file_stays_at_its_size_however_much_passes_through(tmp_path):
    sizes = []
    with LmdbStore.open(tmp_path, capacity=CAPACITY, keep_closed=False) as store:
        for _ in range(12):
            for _ in range(10):
                uuids = accept(store, *[NewRequest(b"echo", [bytes(200)])] * 100)
                finish(store, uuids[0])
                close(store, *uuids)
            sizes.append(file_size(store))
    assert sizes[-1] == sizes[3] < 1 << 20


def test_one_old_request_pins_only_its_own_space(store):
    (old,) = accept(store, NewRequest(b"echo", [b"old"]))
    for _ in range(60):
        close(store, *accept(store, *[NewRequest(b"echo", [bytes(1000)])] * 500))
    with store.read() as txn:
        assert txn.request(old).body == [b"old"]
        first, last = closed_range(txn)
    assert last == 30_000
    assert first > 15_000, "the oldest made way"


def test_a_large_body_that_was_closed_is_freed_bit_by_bit(tmp_path):
    with LmdbStore.open(tmp_path, capacity=CAPACITY, keep_closed=False) as store:
        uuids = accept(store, *[NewRequest(b"echo", [bytes(4 << 20)])] * 2)
        close(store, *uuids)
        left = counts(store).used
        assert left > 6 << 20
        assert check(store) == []
        while counts(store).used > 1 << 20:
            with store.write() as txn:
                txn.trim(NOW)
            assert counts(store).used < left
            left = counts(store).used
        assert check(store) == []
        with store.read() as txn:
            assert txn.next_due() is None


def test_a_request_finds_room_while_large_bodies_are_being_freed(tmp_path):
    with LmdbStore.open(tmp_path, capacity=CAPACITY, keep_closed=False) as store:
        for _ in range(5):
            uuids = accept(store, *[NewRequest(b"echo", [bytes(5 << 20)])] * 2)
            close(store, *uuids)
        assert check(store) == []


def test_a_request_larger_than_all_that_closed_ones_leave_gets_their_room(store):
    for _ in range(30):
        close(store, *accept(store, *[NewRequest(b"echo", [bytes(30_000)])] * 20))
    assert counts(store).closed > 200
    wanted = NewRequest(b"echo", [bytes(9 << 20)])
    for _ in range(2):
        try:
            accept(store, wanted)
            break
        except StoreFull:
            continue
    assert counts(store).requests == 1


def test_a_reply_beyond_all_room_is_refused_and_no_more(store):
    one, two = accept(store, NewRequest(b"echo", []), NewRequest(b"echo", []))
    with store.write() as txn:
        assert txn.finish(one, Status.DONE, [b"small"], attempts=1, dispatched_at=0, finished_at=0)
        with pytest.raises(StoreFull):
            txn.finish(two, Status.DONE, [bytes(15 << 20)], attempts=1, dispatched_at=0, finished_at=0)
    assert counts(store)[:4] == (2, 1, 0, 1)


def test_a_map_that_is_full_all_the_same_drops_the_transaction_and_no_more(store):
    uuids = fill(store)
    store.environment = store.environment._replace(room=store.environment.room._replace(accept=1 << 30))
    with pytest.raises(StoreFull) as raised:
        accept(store, NewRequest(b"echo", [bytes(12 << 20)]))
    assert isinstance(raised.value.__cause__, lmdb.MapFullError)
    assert raised.value.used == (store.environment.env.info()["last_pgno"] + 1) * PAGE
    assert counts(store).requests == len(uuids)
    assert finish(store, uuids[0])


# A limit on the size of files makes the system refuse writes as a full or broken disk does.
FILE_LIMIT = """
import resource, signal, sys
from titanic.errors import StoreFailed
from titanic.store import NewRequest
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = LmdbStore.open(sys.argv[1])
with store.write() as txn:
    txn.accept([NewRequest(b"echo", [bytes(100)])], 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    with store.write() as txn:
        txn.accept([NewRequest(b"echo", [bytes(1000)])] * 1000, 2)
except StoreFailed as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert check(store) == []
with store.write() as txn:
    txn.accept([NewRequest(b"echo", [bytes(1000)])] * 1000, 3)
store.close()
"""


def test_a_disk_that_fails_loses_nothing_and_is_forgiven(tmp_path):
    code, out, err = run_fork(FILE_LIMIT, tmp_path)
    assert code == 0, err
    assert "failed" in out
    assert "the transaction was rolled back" in out
    with LmdbStore.open(tmp_path) as store:
        assert check(store) == []
        with store.read() as txn:
            assert [row.submitted_at for row in txn.select(limit=5000)] == [1] + [3] * 1000


def test_an_error_of_lmdb_is_never_seen(store):
    def misuse():
        with store.write() as txn:
            txn.raw.put(b"", b"", db=txn.db.meta)

    with pytest.raises(StoreFailed) as raised:
        misuse()
    assert isinstance(raised.value.__cause__, lmdb.BadValsizeError)
