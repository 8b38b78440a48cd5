"""What a batch costs over the network: round trips, and statements in them, however many requests there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.postgres import needs_postgres, shared_server
from support.store_facts import accept_all, closed_range, holder_of

from titanic.store import NewRequest, Status
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import check

pytestmark = needs_postgres

NOW = 1_795_258_520_106_479
FINISHED = {"attempts": 1, "dispatched_at": NOW, "finished_at": NOW}


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    name = shared_server().new_store()
    with PostgresStore.open(shared_server().url(name)) as store:
        yield store
    shared_server().drop_database(name)


def accept(store, n, **options):
    with store.write() as txn:
        return accept_all(txn, [NewRequest(b"x", [b"body"], **options)] * n, NOW)


@pytest.mark.parametrize("n", [1, 100, 1000])
def test_accepting_is_one_statement(store, trips, n):
    accept(store, n)
    assert trips == [1]


@pytest.mark.parametrize("n", [1, 100])
def test_accepting_with_keys_takes_them_first(store, trips, n):
    with store.write() as txn:
        new = [NewRequest(b"x", [b"body"], key=b"%d" % number, key_until=NOW + 1) for number in range(n)]
        txn.accept(new, NOW)
    assert trips == [1, 2], "the keys; the requests and COMMIT"


@pytest.mark.parametrize("n", [1, 100])
def test_ends_of_requests_are_locked_and_read_then_written(store, trips, n):
    uuids = accept(store, n, expires_at=NOW + 10)
    del trips[:]
    with store.write() as txn:
        txn.prefetch(uuids)
        assert all(txn.finish(uuid, Status.FAILED, [b"reply"], **FINISHED) for uuid in uuids)
    assert trips == [2, 2], "a lock and a look; all ends and COMMIT"
    del trips[:]
    with store.write() as txn:
        txn.prefetch(uuids)
        assert all(txn.retry(uuid, NOW) for uuid in uuids)
    assert trips == [2, 2]
    del trips[:]
    with store.write() as txn:
        txn.prefetch(uuids)
        assert all(txn.close(uuid, NOW) for uuid in uuids)
    assert trips == [2, 2]


def test_writes_that_are_committed_together_look_once_each(store, trips):
    first, second = accept(store, 2)
    del trips[:]
    with store.write() as txn:
        txn.prefetch([first])
        txn.finish(first, Status.DONE, [], **FINISHED)
        txn.prefetch([second])
        txn.close(second, NOW)
        accept_all(txn, [NewRequest(b"x", [])], NOW)
    assert trips == [2, 2, 2]


def test_what_a_transaction_reads_it_writes_before(store, trips):
    with store.write() as txn:
        (uuid,) = accept_all(txn, [NewRequest(b"x", [b"body"])], NOW)
        assert txn.request(uuid).body == [b"body"]
        assert txn.finish(uuid, Status.DONE, [b"reply"], **FINISHED)
        assert txn.reply(uuid).frames == [b"reply"]
        assert txn.close(uuid, NOW).state == Status.DONE
        assert txn.request(uuid) is None
        assert closed_range(txn) == (1, 1)


def test_a_transaction_that_does_nothing_asks_nothing(store, trips):
    with store.write():
        pass
    with store.read():
        pass
    assert trips == []


def test_keys_are_forgotten_with_those_that_are_taken(store, trips):
    def new(key):
        return NewRequest(b"x", [b"body"], key=key, key_until=NOW + 1)

    with store.write() as txn:
        txn.accept([new(b"k"), new(b"l")], NOW)
    del trips[:]
    with store.write() as txn:
        txn.forget([b"k"])
        txn.forget([b"l", b"unknown"])
        assert [one.new for one in txn.accept([new(b"k"), new(b"m")], NOW)] == [True, True]
    assert trips == [2, 2]
    with store.read() as txn:
        assert holder_of(txn, b"l") is None
    with store.write() as txn:
        txn.forget([b"m"])
        assert holder_of(txn, b"m") is None
    with store.write() as txn:
        txn.forget([b"k"])
    assert check(store) == []
