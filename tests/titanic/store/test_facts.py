"""Facts: rows that the server keeps of its work, in a room of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.postgres import shared_server

from titanic.errors import InvalidRequest, StoreFull
from titanic.store import NewRequest, Store, open_store
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check, repair
from titanic.store.memory import MemoryStore

NOW = 1_795_258_520_106_479
MIB = 1 << 20


@pytest.fixture(params=["lmdb", "memory", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgres":
        name = shared_server().new_database()
        with open_store(shared_server().url(name)) as opened:
            yield opened
        shared_server().drop_database(name)
    elif request.param == "memory":
        yield MemoryStore()
    else:
        with open_store(tmp_path, capacity=16 * MIB) as opened:
            yield opened


def put(store: Store, **changed: bytes | None) -> None:
    with store.write() as tx:
        tx.put_facts([(key.encode(), value) for key, value in changed.items()])


def test_rows_are_read_in_order_by_prefix(store: Store) -> None:
    long = os.urandom(60_000)
    put(store, a1=b"one", a2=long, a3=b"", b1=b"other")
    with store.read() as tx:
        assert tx.facts(b"a") == [(b"a1", b"one"), (b"a2", long), (b"a3", b"")]
        assert tx.facts(b"a", newest=True) == tx.facts(b"a")[::-1]
        assert tx.facts(b"a", b"a1", 1) == [(b"a2", long)]
        assert tx.facts(b"a", b"a3", 1, newest=True) == [(b"a2", long)]
        assert tx.facts(b"", limit=2) == tx.facts(b"a", limit=2)
        assert tx.facts(b"c") == tx.facts(b"c", newest=True) == tx.facts(b"a", limit=0) == []
        assert tx.facts_bytes() >= 60_000


def test_rows_are_replaced_and_deleted(store: Store) -> None:
    put(store, a1=os.urandom(20_000), a2=b"two", a3=b"three")
    put(store, a1=b"short", a2=None, a4=None)
    with store.read() as tx:
        assert tx.facts(b"") == [(b"a1", b"short"), (b"a3", b"three")]


def test_a_transaction_reads_what_it_put_and_a_failure_keeps_none(store: Store) -> None:
    put(store, a1=b"one")
    with suppress(ZeroDivisionError), store.write() as tx:
        tx.put_facts([(b"a1", None), (b"a2", b"two")])
        assert tx.facts(b"a") == [(b"a2", b"two")]
        raise ZeroDivisionError
    with store.read() as tx:
        assert tx.facts(b"a") == [(b"a1", b"one")]


@pytest.mark.parametrize(("key", "size"), [(b"", 1), (bytes(401), 1), (b"a", 65_537)])
def test_what_is_too_long_is_refused(store: Store, key: bytes, size: int) -> None:
    with pytest.raises(InvalidRequest), store.write() as tx:
        tx.put_facts([(key, bytes(size))])


def test_a_full_store_takes_facts(tmp_path: Path) -> None:
    """As many as there is room for; and they take no room from requests."""
    with open_store(tmp_path, capacity=16 * MIB, closed_body_limit=0) as store:
        uuids: list[bytes] = []
        with suppress(StoreFull):
            for _ in range(1000):
                with store.write() as tx:
                    uuids += [one.uuid for one in tx.accept([NewRequest(b"a", [os.urandom(3000)])] * 50, NOW)]
        assert 1000 < len(uuids) < 50_000
        room = store.facts_room
        assert room == MIB
        with store.read() as tx:
            left = tx.room_left()
        for n in range(room // 70_000):
            with store.write() as tx:
                tx.put_facts([(b"f%03d" % n, os.urandom(60_000))])
        with store.read() as tx:
            assert len(tx.facts(b"f")) == room // 70_000
            assert tx.facts_bytes() <= room
            assert tx.room_left() == left
        for uuid in uuids[::3]:  # all of it goes on as in a store without facts
            with store.write() as tx:
                assert tx.close(uuid, NOW) is not None
        with store.write() as tx:
            assert tx.accept([NewRequest(b"a", [b"x"])], NOW)[0].new


def test_damaged_rows_are_left_out_and_repaired(tmp_path: Path) -> None:
    with LmdbStore.open(tmp_path, capacity=16 * MIB) as store:
        put(store, a1=b"one", a2=os.urandom(5000), a3=b"three", a4=os.urandom(5000))
        with store.write() as tx:
            tx.raw.put(b"a1\0", b"odd", db=tx.db.facts)
            tx.raw.delete(b"a2\0", db=tx.db.facts)
            tx.raw.put(b"a4\1", b"changed", db=tx.db.facts)
        with store.read() as tx:
            assert tx.facts(b"a") == [(b"a3", b"three")]
            assert [key for key, _ in tx.facts(b"a", newest=True)] == [b"a3"]
        assert {one.what for one in check(store)} == {"its value is damaged"}
        repair(store)
        assert check(store) == []
        with store.read() as tx:
            assert tx.facts(b"") == [(b"a3", b"three")]
