"""A full store refuses new requests and nothing else; a disk that fails loses nothing that was stored."""

import subprocess
import sys

import lmdb
import pytest

from titanic.errors import StoreFailed, StoreFull
from titanic.store import NewRequest, Status, Store, check

NOW = 1_795_258_520_106_479
CAPACITY = 1 << 20


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store", capacity=CAPACITY) as store:
        yield store
        assert check(store) == []


def accept(store, *requests):
    with store.write() as txn:
        return txn.accept_many(requests, NOW)


def fill(store, size=1000):
    """Accept requests until there is no room."""
    uuids = []
    try:
        while True:
            uuids += accept(store, NewRequest(b"echo", [bytes(size)]))
    except StoreFull:
        return uuids


def finish(store, uuid, frames=(b"reply",)):
    with store.write() as txn:
        return txn.finish(uuid, Status.DONE, frames, attempts=1, dispatched_at=NOW, finished_at=NOW)


def close(store, *uuids):
    with store.write() as txn:
        for uuid in uuids:
            txn.close(uuid)


def used(store):
    with store.read() as txn:
        return txn.counts().used


def file_size(store):
    return (store.path / "data.mdb").stat().st_size


def test_a_full_store_says_how_full_it_is(store):
    fill(store)
    with pytest.raises(StoreFull, match=r"the store is full; \d+ of 1048576 bytes are used") as raised:
        accept(store, NewRequest(b"echo", [bytes(5000)]))
    full = raised.value
    assert full.used == used(store) <= full.capacity == CAPACITY
    assert full.needed > 5000
    assert full.used + full.needed > full.capacity
    assert full.fitting == 0


def test_nothing_of_a_batch_is_stored_when_it_does_not_fit(store):
    batch = [NewRequest(b"echo", [bytes(10_000)])] * 200
    with store.write() as txn:
        with pytest.raises(StoreFull) as raised:
            txn.accept_many(batch, NOW)
        assert txn.counts().requests == 0
        fitting = raised.value.fitting
        assert len(txn.accept_many(batch[:fitting], NOW)) == fitting > 50
        with pytest.raises(StoreFull):
            txn.accept_many(batch[:1], NOW)
    with store.read() as txn:
        assert txn.counts().requests == fitting


def test_delayed_requests_count_too(store):
    later = NewRequest(b"echo", [bytes(1000)], not_before=NOW + 1)
    with pytest.raises(StoreFull) as raised:
        accept(store, *[later] * 2000)
    accept(store, *[later] * raised.value.fitting)
    assert used(store) > CAPACITY - 1500


def test_a_full_store_finishes_postpones_promotes_and_closes(store):
    first, second, *_ = fill(store)
    assert finish(store, first, [bytes(50_000)])
    with store.write() as txn:
        assert txn.postpone(second, due=NOW, attempts=1, dispatched_at=NOW, reason="x" * 500)
    with store.write() as txn:
        assert txn.promote(NOW) == [(b"echo", 1)]
    close(store, second)
    with store.read() as txn:
        assert txn.reply(first).frames == [bytes(50_000)]


def test_accepting_resumes_when_there_is_room_again(store):
    uuids = fill(store)
    close(store, uuids[0])
    accept(store, NewRequest(b"echo", [bytes(1000)]))
    with pytest.raises(StoreFull):
        accept(store, NewRequest(b"echo", [bytes(1000)]))
    finish(store, uuids[1], [bytes(2000)])
    close(store, uuids[1])
    accept(store, NewRequest(b"echo", [bytes(1000)]))


def test_a_store_is_full_across_a_restart(tmp_path):
    with Store.open(tmp_path, capacity=CAPACITY) as store:
        fill(store)
    with Store.open(tmp_path, capacity=CAPACITY) as store:
        assert fill(store) == []
        assert check(store) == []
    with Store.open(tmp_path, capacity=2 * CAPACITY) as store:
        assert fill(store) != []


def test_a_store_above_a_lowered_capacity_can_be_emptied(tmp_path):
    with Store.open(tmp_path, capacity=CAPACITY) as store:
        uuids = fill(store)
    with Store.open(tmp_path, capacity=CAPACITY // 4) as store:
        assert fill(store) == []
        for uuid in uuids:
            assert finish(store, uuid)
            close(store, uuid)
        assert fill(store) != []
        assert check(store) == []


@pytest.mark.parametrize("size", [10, 200, 1000, 5000, 100_000])
def test_the_file_of_a_full_store_is_about_as_large_as_its_capacity(store, size):
    batch = [NewRequest(b"echo", [bytes(size)])]
    with pytest.raises(StoreFull) as raised:
        accept(store, *batch * (2 * CAPACITY // (size + 80)))
    step = 100
    for done in range(0, raised.value.fitting, step):
        accept(store, *batch * min(step, raised.value.fitting - done))
    assert 0.7 * CAPACITY < file_size(store) < 1.6 * CAPACITY


def test_the_file_stays_at_its_size_however_much_passes_through(store):
    sizes = []
    for _ in range(12):
        for _ in range(10):
            uuids = accept(store, *[NewRequest(b"echo", [bytes(200)])] * 100)
            for uuid in uuids:
                finish(store, uuid) if uuid is uuids[0] else None
            close(store, *uuids)
        sizes.append(file_size(store))
    assert sizes[-1] == sizes[3]


def test_one_old_request_pins_only_its_own_space(store):
    (old,) = accept(store, NewRequest(b"echo", [b"old"]))
    for _ in range(30):
        close(store, *accept(store, *[NewRequest(b"echo", [bytes(1000)])] * 500))
    assert file_size(store) < 3 * CAPACITY
    with store.read() as txn:
        assert txn.request(old).body == [b"old"]


def test_accepting_stops_at_the_brim_whatever_the_accounts_say(tmp_path):
    with Store.open(tmp_path) as store:
        store._environment = store._environment._replace(brim=1 << 20)
        uuids = fill(store)
        assert file_size(store) < 1.5 * (1 << 20)
        assert used(store) < store.capacity / 2
        with pytest.raises(StoreFull) as raised:
            accept(store, NewRequest(b"echo", [bytes(1000)]))
        assert raised.value.used + raised.value.needed > raised.value.capacity  # the message makes sense
        for uuid in uuids[:-10]:
            assert finish(store, uuid)
            close(store, uuid)
        assert fill(store) != []
        assert check(store) == []


def test_a_reply_beyond_all_room_drops_its_transaction_and_no_more(store):
    one, two = accept(store, NewRequest(b"echo", []), NewRequest(b"echo", []))

    def finish_both():
        with store.write() as txn:
            assert txn.finish(one, Status.DONE, [b"small"], attempts=1, dispatched_at=0, finished_at=0)
            txn.finish(two, Status.DONE, [bytes(150 << 20)], attempts=1, dispatched_at=0, finished_at=0)

    with pytest.raises(StoreFull) as raised:
        finish_both()
    assert isinstance(raised.value.__cause__, lmdb.MapFullError)
    with store.read() as txn:
        assert txn.counts()[:4] == (2, 2, 0, 0)
    assert finish(store, one)


# A limit on the size of files makes the system refuse writes as a full or broken disk does.
FILE_LIMIT = """
import resource, signal, sys
from titanic.errors import StoreFailed
from titanic.store import NewRequest, Store, check
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store.open(sys.argv[1])
with store.write() as txn:
    txn.accept_many([NewRequest(b"echo", [bytes(100)])], 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    with store.write() as txn:
        txn.accept_many([NewRequest(b"echo", [bytes(1000)])] * 1000, 2)
except StoreFailed as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert check(store) == []
with store.write() as txn:
    txn.accept_many([NewRequest(b"echo", [bytes(1000)])] * 1000, 3)
store.close()
"""


def test_a_disk_that_fails_loses_nothing_and_is_forgiven(tmp_path):
    run = subprocess.run([sys.executable, "-c", FILE_LIMIT, tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "failed" in run.stdout
    assert "nothing was kept of the transaction" in run.stdout
    with Store.open(tmp_path) as store:
        assert check(store) == []
        with store.read() as txn:
            assert [row.submitted_at for row in txn.list(limit=5000)] == [1] + [3] * 1000


def test_an_error_of_lmdb_is_never_seen(store):
    def misuse():
        with store.write() as txn:
            txn._txn.put(b"", b"", db=txn._db.meta)

    with pytest.raises(StoreFailed) as raised:
        misuse()
    assert isinstance(raised.value.__cause__, lmdb.BadValsizeError)
