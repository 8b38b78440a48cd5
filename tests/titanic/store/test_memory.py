"""The store in memory: what was changed is undone completely, and readers see one moment without waiting."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from support.store_facts import accept_all, state_of, waiting_in
from support.store_lives import NOW, live

from titanic.errors import StoreFull
from titanic.store import Archivist, NewRequest, Retention, ServiceSetting, State, Status
from titanic.store.memory import MemoryStore
from titanic.store.memory_tables import Tables

END = {"attempts": 1, "dispatched_at": 1, "finished_at": NOW}


class Dropped(Exception):
    pass


def contents(tables: Tables) -> dict[str, Any]:
    return {name: value for name, value in vars(tables).items() if name != "readers"}


def change_all(store: MemoryStore, uuids: list[bytes], chance: random.Random) -> None:
    with store.write() as txn:
        txn.update_archive(Archivist(bytes(16), "a"), register=chance.random() < 0.5)
        for uuid in chance.sample(uuids, 40):
            txn.close(uuid, NOW)
        txn.update_archive(Archivist(bytes(16), "a"), register=True, upto=txn.archive().last // 2)
        txn.set_service(b"a", ServiceSetting(paused=True))
        with suppress(StoreFull):
            for uuid in chance.sample(uuids, 40):
                txn.finish(uuid, Status.FAILED, [bytes(9000)], **END)
                txn.retry(uuid, NOW)
        txn.clamp_timers(NOW - 99)
        txn.promote(NOW + 500)
        txn.expire(NOW + 500)
        txn.trim(NOW + 500, Retention(9, 9, 9))
        raise Dropped


@pytest.mark.parametrize("seed", range(5))
def test_what_is_dropped_leaves_nothing_behind(seed: int) -> None:
    store, chance = MemoryStore(capacity=400_000), random.Random(seed)
    uuids = live(store, chance, 200)
    tables = store.tables
    before = contents(tables.copy())
    with pytest.raises(Dropped):
        change_all(store, uuids, chance)
    assert store.tables is tables, "nothing was copied"
    assert contents(tables) == before


@pytest.mark.parametrize("seed", range(5))
def test_counters_and_lists_are_those_of_the_rows(seed: int) -> None:
    store = MemoryStore(capacity=[60_000, 1 << 30][seed % 2])
    live(store, random.Random(seed), 400)
    again = Tables()
    again.put_ring(None, store.tables.ring)
    for uuid, row in store.tables.requests.items():
        again.put_request(uuid, row)
    for key, holder in store.tables.keys.items():
        again.put_key(key, holder)
    for number, one in store.tables.closed.items():
        again.put_closed(number, one)
    assert contents(again) == contents(store.tables)
    assert store.tables.used <= store.capacity


def test_a_reader_sees_its_moment_whatever_a_writer_does_meanwhile() -> None:
    store = MemoryStore()
    with store.read() as before:
        with store.write() as txn:
            (uuid,) = accept_all(txn, [NewRequest(b"a", [])], NOW)
            with store.read() as during:
                assert state_of(during, uuid) is None
        assert state_of(before, uuid) is None
        assert waiting_in(before) == {}
        with store.read() as after:
            assert state_of(after, uuid) is State.WAITING
    with store.write() as txn:
        txn.close(uuid)
        with store.read() as during:
            txn.accept([NewRequest(b"b", [])], NOW)
            assert waiting_in(during) == {b"a": 1}
        with suppress(Dropped), store.read() as during:
            raise Dropped
    with store.read() as after:
        assert waiting_in(after) == {b"b": 1}
        assert after.archive().last == 1
    assert store.tables.readers == 0


def test_a_listing_of_very_much_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.store.memory.LOOKED_AT", 8)
    store = MemoryStore()
    with store.write() as txn:
        accept_all(txn, [NewRequest(b"other", [])] * 10, NOW)
        (uuid,) = accept_all(txn, [NewRequest(b"mine", [])], NOW)
        page = txn.select(service=b"mine")
        assert page == []
        (found,) = txn.select(service=b"mine", after=page.next)
    assert found.uuid == uuid
