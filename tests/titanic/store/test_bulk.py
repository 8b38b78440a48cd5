"""Reading much of the store at a time: the same as one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.store_facts import accept_all, closed_in, holder_of

from titanic.errors import InvalidArchive, RecordCorrupt
from titanic.store import CLOSED_LAYOUT, CLOSED_TEXTS, NewRequest, Status, Store
from titanic.store.lmdb.store import LmdbStore

BODIES: list[list[bytes]] = [[b"one"], [], [b"a", b"", b"ccc"], [b"x" * 5000], [b"y" * 70_000], [b""]]


@pytest.fixture
def store(engine: Callable[..., Store], tmp_path: Path) -> Iterator[Store]:
    """Closed requests of all kinds, twice, with numbers 1 to 12; the second time with an owner."""
    store = engine(tmp_path / "store")
    for turn in range(2):
        for number, body in enumerate(BODIES):
            with store.write() as txn:
                new = NewRequest(b"service %d" % number, body, key=b"%d %d" % (turn, number), key_until=1 << 60)
                (uuid,) = accept_all(txn, [new._replace(owner=turn * b"shop")], 1000)
            with store.write() as txn:
                if number != 1:
                    txn.finish(uuid, Status.DONE, body[::-1], attempts=1, dispatched_at=2000, finished_at=3000)
                txn.close(uuid, 4000 + number)
    yield store
    store.close()


def test_records_in_one_piece(store: Store) -> None:
    dtype = np.dtype(
        [(name, "V16" if code == "16s" else f"<u{np.dtype(code).itemsize}") for name, code in CLOSED_LAYOUT]
    )
    with store.read() as txn:
        one_by_one = closed_in(txn, 0, 100, 1 << 30)
        bulk = txn.closed_bulk(1, 100)
    assert len(bulk.starts) == len(one_by_one) == 12
    assert bulk.first == 1
    for number, (start, entry) in enumerate(zip(bulk.starts, one_by_one, strict=True)):
        (header,) = np.frombuffer(bulk.data, dtype, 1, start)
        assert bytes(header["uuid"]) == entry.uuid
        assert header["closed_at"] == entry.closed_at
        name = bulk.data[start + dtype.itemsize :][: header["service_size"]]
        assert name == entry.service
        assert entry.owner == (b"shop" if number > 5 else b"")
        if number not in bulk.apart and entry.request:
            texts = sum(int(header[f"{text}_size"]) for text in CLOSED_TEXTS)
            at = start + dtype.itemsize + texts + 4
            assert bulk.data[at : at + entry.request_bytes] == entry.request[0]
        if number in bulk.apart:
            assert bulk.apart[number] == entry
    if isinstance(store, LmdbStore):
        assert sorted(bulk.apart) == [2, 3, 4, 8, 9, 10]
    else:
        assert {2, 4, 8, 10} <= set(bulk.apart)


def test_a_part(store: Store) -> None:
    with store.read() as txn:
        assert len(txn.closed_bulk(3, 5).starts) == 3
        assert len(txn.closed_bulk(1, 12, max_bytes=1).starts) == 1
        assert txn.closed_bulk(13, 20).starts == []
        assert txn.closed_bulk(5, 4).starts == []
        assert txn.cut_closed(1, 12, 1) == 1
        assert txn.cut_closed(1, 12, 1 << 30) == 12
        assert txn.cut_closed(3, 4, 1 << 30) == 4
        assert txn.cut_closed(3, 12, 2 * 10_000 + 100) == 4


@pytest.mark.lmdb
def test_damage_is_named(store: LmdbStore) -> None:
    environment = store.environment
    with environment.env.begin(write=True, db=environment.databases.closed) as txn:
        key = (7).to_bytes(8, "big")
        txn.put(key, txn.get(key)[:-1] + b"?")
        txn.delete((10).to_bytes(8, "big"))
    with store.read() as txn:
        with pytest.raises(RecordCorrupt, match="0000000000000007"):
            txn.closed_bulk(1, 12)
        with pytest.raises(RecordCorrupt, match="000000000000000a"):
            txn.closed_bulk(8, 12)
        assert len(txn.closed_bulk(1, 6).starts) == 6


def test_requests_that_have_not_ended(engine: Callable[..., Store], tmp_path: Path) -> None:
    with engine(tmp_path / "store") as store:
        with store.write() as txn:
            uuids = accept_all(txn, [NewRequest(b"s", [b"%d" % n]) for n in range(10)], 1000)
            txn.finish(uuids[3], Status.DONE, [], attempts=1, dispatched_at=2000, finished_at=3000)
        with store.read() as txn:
            assert txn.request_ids(4) == uuids[::4]
            found, following = txn.unended(b"", None, 6)
            assert [body for _, body in found] == [[b"0"], [b"1"], [b"2"], [b"4"], [b"5"]]
            assert following == uuids[6]
            found, following = txn.unended(b"", None, 6, max_bytes=1)
            assert ([row.uuid for row, _ in found], following) == (uuids[:1], uuids[1])
            found, following = txn.unended(uuids[6], uuids[8], 6)
            assert [row.uuid for row, _ in found] == uuids[6:8]
            assert following is None
            assert holder_of(txn, b"none") is holder_of(txn, b"") is None


def test_an_acknowledgement_for_another_store(store: Store) -> None:
    with store.write() as txn:
        (entry,) = closed_in(txn, 4, 1, 1 << 20)
        txn.update_archive(register=True)
        with pytest.raises(InvalidArchive, match="another request has that number"):
            txn.update_archive(upto=5, uuid=bytes(16))
        assert txn.update_archive(upto=5, uuid=entry.uuid).archived_upto == 5
