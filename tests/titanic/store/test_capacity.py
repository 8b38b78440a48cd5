"""Whether the store is full is what it has room for now, not what it refused. What is refused pushes nothing out."""

import pytest
from support.serving import serving
from support.store_facts import accept_all, closed_range

from titanic import Client, Refused
from titanic.errors import StoreFull
from titanic.store import NewRequest, Status
from titanic.store.lmdb.capacity import divide
from titanic.store.lmdb.store import LmdbStore

NOW = 1_795_258_520_106_479
CAPACITY = 16 << 20


pytestmark = pytest.mark.settings(capacity=CAPACITY, closed_body_limit=1 << 20)


def accept(store, *sizes):
    with store.write() as txn:
        return accept_all(txn, [NewRequest(b"echo", [bytes(size)]) for size in sizes], NOW)


def fill(store, *sizes):
    """Accept what there is room for, in ever smaller requests."""
    uuids = []
    for size in sizes or (100_000, 2000, 10):
        while True:
            try:
                uuids += accept(store, *[size] * 10)
            except StoreFull as full:
                uuids += accept(store, *[size] * full.fitting)
                if not full.fitting:
                    break
    return uuids


def close(store, uuids):
    for at in range(0, len(uuids), store.batch):
        with store.write() as txn:
            for uuid in uuids[at : at + store.batch]:
                txn.close(uuid, NOW)


def full(store):
    with store.read() as txn:
        return txn.space().full


def remembered(store):
    with store.read() as txn:
        return txn.counts().closed


@pytest.mark.parametrize("size", [16 << 20, 1 << 30, 1 << 40])
def test_requests_leave_room_for_replies_and_these_for_ends(size):
    room = divide(size)
    assert 0 < room.accept < room.reply < room.least < room.capacity - room.facts < room.capacity == size


def test_of_many_small_requests_each_one_counts(store):
    """What they need besides their bytes is more than these."""
    fill(store, 100_000, 2000)
    with pytest.raises(StoreFull) as raised:
        accept(store, *[10] * 3000)
    assert raised.value.fitting < 1000


def test_a_store_is_full_when_a_small_request_finds_no_room(store):
    assert not full(store)
    uuids = fill(store)
    assert full(store)
    with pytest.raises(StoreFull):
        accept(store, 10)
    close(store, uuids[:2])
    assert not full(store)
    accept(store, 10)


def test_a_request_that_is_too_large_does_not_make_it_full(store):
    with pytest.raises(StoreFull):
        accept(store, 13 << 20)
    assert not full(store)


def test_closed_requests_that_may_make_way_are_room(store):
    """Those that the archive has not got yet may not."""
    for _ in range(20):
        close(store, accept(store, *[60_000] * 20))
    with store.write() as txn:
        txn.update_archive(register=True)
    uuids = fill(store)
    assert full(store)
    with store.write() as txn:
        txn.update_archive(upto=closed_range(txn)[1])
    assert not full(store)
    accept(store, 10)
    uuids += fill(store)
    assert remembered(store) == 0
    assert full(store)


def test_bodies_that_are_being_freed_are_room(tmp_path):
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY, keep_closed=False) as store:
        uuids = accept(store, 5 << 20, 5 << 20)
        uuids += fill(store)
        assert full(store)
        close(store, uuids[:2])
        assert not full(store)
        accept(store, 10)


def test_replies_fill_a_store_as_well(store):
    uuids = accept(store, *[10] * 100)
    for uuid in uuids:
        with store.write() as txn:
            end = {"attempts": 1, "dispatched_at": NOW, "finished_at": NOW}
            try:
                txn.finish(uuid, Status.DONE, [bytes(150_000)], **end)
            except StoreFull:
                break
    assert full(store)


@pytest.mark.parametrize(("size", "count"), [(100, 600), (3000, 300), (60_000, 30)])
def test_a_batch_that_is_refused_pushes_no_closed_request_out(store, size, count):
    waiting = accept(store, *[100_000] * 60)
    close(store, accept(store, *[size] * count))
    before = remembered(store)
    assert before == count
    for _ in range(3):
        with store.write() as txn:  # others have their part in it
            with pytest.raises(StoreFull):
                accept_all(txn, [NewRequest(b"echo", [bytes(100_000)])] * 80, NOW)
            accept_all(txn, [NewRequest(b"echo", [b"x"])], NOW)
        assert remembered(store) == before
    close(store, waiting[:1])
    assert remembered(store) == before + 1


def test_a_server_is_full_as_long_as_there_is_no_room(tmp_path):
    """It ends with closing: nobody has to submit."""
    with serving(tmp_path, capacity=CAPACITY) as server, Client(server.endpoints[0], timeout=30) as client:
        uuids = client.submit_many("absent", [bytes(500_000)] * 10)
        with pytest.raises(Refused, match="store full"):
            client.submit_many("absent", [bytes(500_000)] * 30)
        assert client.stats()["accepting"]
        for size in (100_000, 1000):
            while True:
                try:
                    uuids += client.submit_many("absent", [bytes(size)] * 5, unique=False)
                except Refused:
                    break
        while True:
            try:
                uuids.append(client.submit("absent", b"x"))
            except Refused:
                break
        assert not client.stats()["accepting"]
        assert server.snapshot().full
        assert list(server.shortages()) == ["store"]
        client.close(*uuids[:2])
        assert client.stats()["accepting"]
        assert not server.snapshot().full
        assert server.shortages() == {}
