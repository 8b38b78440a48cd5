"""What is remembered of closed requests, and the agreement with an archive about it."""

from contextlib import suppress

import pytest
from support.dropping import drop
from support.each import each
from support.store_engines import is_sound
from support.store_facts import accept_all, closed_in, closed_range, state_of

from titanic.errors import InvalidArchive, RecordCorrupt, StoreFull
from titanic.store import CloseResult, NewRequest, Retention, State, Status
from titanic.store.lmdb.free_space import recount
from titanic.store.lmdb.store import LmdbStore

NOW = 1_795_258_520_106_479
CAPACITY = 16 << 20


pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.settings(capacity=CAPACITY)]


def accept(store, *requests):
    with store.write() as txn:
        return accept_all(txn, requests, NOW)


def finish(store, uuid, status=Status.DONE, frames=(b"reply",), reason=""):
    with store.write() as txn:
        return txn.finish(uuid, status, frames, attempts=2, dispatched_at=NOW + 1, finished_at=NOW + 2, reason=reason)


def close(store, *uuids, now=NOW + 3):
    with store.write() as txn:
        return [txn.close(uuid, now) for uuid in uuids]


def closed(store, after=0, limit=1000, max_bytes=1 << 30):
    with store.read() as txn:
        return closed_in(txn, after, limit, max_bytes)


def sequence_range(store):
    with store.read() as txn:
        return closed_range(txn)


def archive(store):
    with store.read() as txn:
        return txn.archive()


def fill(store, size):
    """Accept requests until there is no room for fifty."""
    uuids = []
    try:
        while True:
            uuids += accept(store, *[NewRequest(b"echo", [bytes(size)])] * 50)
    except StoreFull:
        return uuids


def pass_through(store, n, size=100):
    """Accept `n` requests and close them again."""
    many = min(100, 400_000 // size)
    for _ in range(0, n, many):
        close(store, *accept(store, *[NewRequest(b"echo", [bytes(size)])] * many))


def test_a_whole_life_is_remembered(store):
    new = NewRequest(b"echo", [b"one", b"", b"two"], 7, key=b"key", key_until=NOW + 99)
    (uuid,) = accept(store, new)
    finish(store, uuid, frames=[b"a", b"bc"])
    assert close(store, uuid) == [CloseResult(b"echo", State.DONE, b"key", b"", 1)]
    (life,) = closed(store)
    assert (life.sequence, life.uuid, life.service, life.key) == (1, uuid, b"echo", b"key")
    assert (life.status, life.attempts) == (Status.DONE, 2)
    assert (life.submitted_at, life.dispatched_at, life.replied_at, life.closed_at) == (NOW, NOW + 1, NOW + 2, NOW + 3)
    assert (life.request, life.request_bytes, life.request_left_out) == ([b"one", b"", b"two"], 6, False)
    assert (life.reply, life.reply_bytes, life.reply_left_out) == ([b"a", b"bc"], 3, False)
    assert (life.error, life.priority, life.unclaimed) == ("", 7, False)


@each("status", [Status.FAILED, Status.EXPIRED, Status.CANCELLED])
def test_an_end_without_a_reply_keeps_its_reason(store, status):
    (uuid,) = accept(store, NewRequest(b"echo", [b"body"]))
    finish(store, uuid, status, [], "because")
    close(store, uuid)
    life = closed(store)[-1]
    assert (life.status, life.error, life.reply) == (status, "because", [])


def test_closed_before_its_end_is_cancelled(store):
    waiting, delayed, retried = accept(store, *[NewRequest(b"echo", [b"body"])] * 3)
    with store.write() as txn:
        for uuid in (delayed, retried):
            txn.postpone(uuid, due=NOW + (uuid == delayed), attempts=3, dispatched_at=NOW + 1, reason="it broke")
        txn.promote(NOW)
    close(store, waiting, delayed, retried)
    lives = closed(store)
    assert [life.uuid for life in lives] == [waiting, delayed, retried]
    assert {life.status for life in lives} == {Status.CANCELLED}
    assert [(life.attempts, life.dispatched_at, life.replied_at) for life in lives] == [
        (0, 0, 0),
        (3, NOW + 1, 0),
        (3, NOW + 1, 0),
    ]
    assert [life.error for life in lives] == ["", "it broke", "it broke"]


@pytest.mark.lasting
def test_numbers_follow_the_order_of_closing_without_gaps_across_restarts(engine, tmp_path):
    with engine(tmp_path) as store:
        uuids = accept(store, *[NewRequest(b"echo", [])] * 5)
        close(store, uuids[3], uuids[0])
        drop(store, lambda txn: txn.close(uuids[1], NOW))
    with engine(tmp_path) as store:
        close(store, uuids[4], uuids[0], uuids[2])
        assert [(life.sequence, life.uuid) for life in closed(store)] == [
            (1, uuids[3]),
            (2, uuids[0]),
            (3, uuids[4]),
            (4, uuids[2]),
        ]
        assert sequence_range(store) == (1, 4)
        assert is_sound(store)


def test_nothing_closed_is_an_empty_range(store):
    assert sequence_range(store) == (1, 0)
    assert closed(store) == []


@pytest.mark.lmdb
@each("request_size", [0, 1000, 1990, 5000, 65_536])
@each("reply_size", [0, 900, 1960, 30_000])
def test_bodies_up_to_a_limit_are_remembered_wherever_they_stand(store, request_size, reply_size):
    (uuid,) = accept(store, NewRequest(b"echo", [b"q" * request_size]))
    finish(store, uuid, frames=[b"r" * reply_size])
    close(store, uuid)
    (life,) = closed(store)
    assert (life.request, life.reply) == ([b"q" * request_size], [b"r" * reply_size])
    assert is_sound(store)
    with store.write() as txn:
        assert txn.trim(NOW + 10, Retention(closed_retention=1)).closed == 1
        assert txn.raw.stat(txn.db.blobs)["entries"] == 0


def test_larger_bodies_are_left_out_and_their_size_is_kept(engine, tmp_path):
    with engine(tmp_path, closed_body_limit=1000) as store:
        small, large = accept(store, NewRequest(b"echo", [bytes(999), b"x"]), NewRequest(b"echo", [bytes(999), b"xx"]))
        for uuid, size in ((small, 5000), (large, 1000)):
            finish(store, uuid, frames=[bytes(size)])
        close(store, small, large)
        first, second = closed(store)
        assert (first.request, first.request_left_out, first.reply, first.reply_left_out) == (
            [bytes(999), b"x"],
            False,
            [],
            True,
        )
        assert (second.request, second.request_left_out, second.reply_left_out) == ([], True, False)
        assert (first.reply_bytes, second.request_bytes) == (5000, 1001)
        assert is_sound(store)


@pytest.mark.lasting
def test_a_store_that_keeps_nothing_gives_out_no_numbers(engine, tmp_path):
    with engine(tmp_path) as store:
        close(store, *accept(store, NewRequest(b"echo", [])))
    with engine(tmp_path, keep_closed=False) as store:
        close(store, *accept(store, NewRequest(b"echo", [bytes(5000)])))
        assert sequence_range(store) == (1, 1)
        assert is_sound(store)
    with engine(tmp_path) as store:
        close(store, *accept(store, NewRequest(b"echo", [])))
        assert sequence_range(store) == (1, 2)


def test_the_ring_is_read_in_pieces(store):
    close(store, *accept(store, *[NewRequest(b"echo", [bytes(1000)])] * 10))
    assert [life.sequence for life in closed(store, after=3, limit=4)] == [4, 5, 6, 7]
    assert [life.sequence for life in closed(store, after=8)] == [9, 10]
    assert closed(store, after=10) == []
    assert [life.sequence for life in closed(store, max_bytes=3200)] == [1, 2, 3]
    assert [life.sequence for life in closed(store, max_bytes=1)] == [1]


@pytest.mark.lmdb
def test_a_damaged_entry_is_named(store):
    close(store, *accept(store, *[NewRequest(b"echo", [b"body"])] * 3))
    with store.write() as txn:
        key = (2).to_bytes(8)
        whole = bytes(txn.raw.get(key, db=txn.db.closed))
        txn.raw.put(key, b"\xff" * 90, db=txn.db.closed)
    assert [life.sequence for life in closed(store, limit=1)] == [1]
    with pytest.raises(RecordCorrupt, match=r"0000000000000002 in 'closed' is damaged.*repair the store"):
        closed(store, after=1)
    with store.write() as txn:
        txn.raw.put(key, whole, db=txn.db.closed)


@pytest.mark.lmdb
def test_damage_gets_no_new_checksum_when_a_request_is_closed(store):
    (uuid,) = accept(store, NewRequest(b"echo", [b"body"]))
    with store.write() as txn:
        record = bytearray(txn.raw.get(uuid, db=txn.db.requests))
        record[-1] ^= 1
        txn.raw.put(uuid, bytes(record), db=txn.db.requests)
    close(store, uuid)
    (life,) = closed(store)
    assert (life.service, life.request, life.request_left_out) == (b"echo", [], True)


def test_the_oldest_make_way_for_requests(store):
    pass_through(store, 1500, size=16_000)
    first, last = sequence_range(store)
    assert last == 1500
    assert (750 if isinstance(store, LmdbStore) else 375) < first < 1500
    assert archive(store) == (False, 0, first, last, 0, None)


def test_an_archive_is_not_overtaken(store):
    with store.write() as txn:
        assert txn.update_archive(register=True) == (True, 0, 1, 0, 0, None)
        assert txn.update_archive(register=True).registered
    refused_at = None
    for n in range(50):
        try:
            pass_through(store, 100, size=4000)
        except StoreFull:
            refused_at = n
            break
    assert refused_at is not None
    first, last = sequence_range(store)
    assert first == 1
    assert archive(store) == (True, 0, 1, last, 0, None)
    with store.write() as txn:
        assert txn.update_archive(upto=last // 2).archived_upto == last // 2
    pass_through(store, 100, size=4000)
    assert 1 < sequence_range(store)[0] <= last // 2 + 1


def test_what_an_archive_missed_is_counted_when_that_is_the_setting(engine, tmp_path):
    with engine(tmp_path, capacity=CAPACITY, drop_unarchived=True) as store:
        with store.write() as txn:
            txn.update_archive(register=True)
        pass_through(store, 1500, size=16_000)
        found = archive(store)
        assert found.last == 1500
        assert found.lost == found.first - 1 > 0
        assert is_sound(store)


@pytest.mark.lmdb
def test_requests_are_closed_while_an_archive_is_behind_at_last_without_their_frames(store):
    with store.write() as txn:
        txn.update_archive(register=True)
    some = fill(store, 1500)[::2]
    for at in range(0, len(some), store.batch):
        close(store, *some[at : at + store.batch])
    lives = closed(store)
    assert [life.sequence for life in lives] == list(range(1, len(lives) + 1))
    assert lives[0].request == [bytes(1500)]
    assert any(life.request_left_out for life in lives), "there was no room for all of them"
    assert all(life.request_bytes == 1500 for life in lives)
    assert archive(store).lost == 0


def fill_to_the_brim(store):
    """Until not even a closed request without its frames has room; requests that are delayed now."""
    uuids = []
    with suppress(StoreFull):
        while True:
            uuids += accept(store, *[NewRequest(b"echo", [bytes(100)])] * 500)
    least = store.environment.room.least
    for at in range(0, len(uuids), 500):
        with store.write() as txn:
            for uuid in uuids[at : at + 500]:
                assert txn.postpone(uuid, due=NOW + 9, attempts=1, dispatched_at=NOW, reason="x" * 1000)
            if recount(txn) > least:
                return uuids[: at + 500]
    raise AssertionError("it is not full")


@pytest.mark.lmdb
def test_full_to_the_brim_it_closes_nothing_that_an_archive_would_miss(store):
    with store.write() as txn:
        txn.update_archive(register=True)
    pass_through(store, 300, size=3000)
    one, other, *_ = fill_to_the_brim(store)
    for act in ("close", "trim"):
        with store.write() as txn:
            if act == "close":
                with pytest.raises(StoreFull):
                    txn.close(one, NOW + 3)
            else:
                assert txn.finish(one, Status.DONE, [], attempts=1, dispatched_at=NOW, finished_at=NOW)
                assert txn.trim(NOW + 100, Retention(reply_retention=1)).replies == 0
    assert archive(store) == (True, 0, 1, 300, 0, None)
    with store.read() as txn:
        assert (state_of(txn, one), state_of(txn, other)) == (State.DONE, State.DELAYED)

    with store.write() as txn:
        txn.update_archive(upto=300)
    for _ in range(5):  # the room of what the archive has is made free bit by bit
        with store.write():
            pass
    assert close(store, one, other) == [CloseResult(b"echo", State.DONE, run_us=0), CloseResult(b"echo", State.DELAYED)]
    assert sequence_range(store)[1] == 302
    assert [life.uuid for life in closed(store, after=300)] == [one, other]
    assert archive(store).lost == 0


@pytest.mark.lmdb
def test_without_an_archive_it_closes_them_and_counts_that_they_are_forgotten(store):
    one, *_ = fill_to_the_brim(store)
    assert close(store, one) == [CloseResult(b"echo", State.DELAYED)]
    assert sequence_range(store) == (1, 0)
    assert archive(store) == (False, 0, 1, 0, 1, None)


def test_acknowledging_goes_forward_only_and_not_beyond_the_end(store):
    pass_through(store, 100)
    with store.write() as txn:
        with pytest.raises(InvalidArchive, match="no archive is registered"):
            txn.update_archive(upto=1)
        txn.update_archive(register=True)
        assert txn.update_archive(upto=50).archived_upto == 50
        assert txn.update_archive(upto=20).archived_upto == 50
        with pytest.raises(InvalidArchive, match="up to 101 can't be acknowledged; the last is 100"):
            txn.update_archive(upto=101)
        assert txn.update_archive(upto=100).archived_upto == 100


def test_an_archive_comes_back_to_where_it_was(store):
    pass_through(store, 100)
    with store.write() as txn:
        txn.update_archive(register=True)
        txn.update_archive(upto=30)
        assert txn.update_archive(register=False) == (False, 30, 1, 100, 0, None)
        assert txn.update_archive(register=False).archived_upto == 30
    with store.write() as txn:
        assert txn.update_archive(register=True) == (True, 30, 1, 100, 0, None)
        txn.update_archive(register=False)
        txn.trim(NOW + 10, Retention(closed_retention=1), limit=60)
        assert txn.update_archive(register=True) == (True, 60, 61, 100, 0, None)


def test_their_time_over_they_go_but_not_before_the_archive_has_them(store):
    policy = Retention(closed_retention=100)
    for n in range(4):
        close(store, *accept(store, NewRequest(b"echo", [])), now=NOW + n)
    with store.write() as txn:
        assert txn.next_due(policy) == NOW + 100
        txn.update_archive(register=True)
        assert txn.next_due(policy) is None
        assert txn.trim(NOW + 500, policy).closed == 0
        txn.update_archive(upto=3)
        assert txn.trim(NOW + 101, policy).closed == 2
        assert closed_range(txn) == (3, 4)
        assert txn.next_due(policy) == NOW + 102
        assert txn.trim(NOW + 500, policy).closed == 1
        txn.update_archive(register=False)
        assert txn.trim(NOW + 500, policy, limit=1)[:5] == (0, 0, 1, 0, True)
        assert closed_range(txn) == (5, 4)
