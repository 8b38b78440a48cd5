"""A store of an earlier format is converted when it is opened, wholly or not at all."""

import shutil
import subprocess
import sys

import lmdb
import pytest
from support.store_formats import digest, expect_all, unpack

from titanic.errors import StoreTooOld
from titanic.store import NewRequest, State
from titanic.store.lmdb import upgrade
from titanic.store.lmdb.schema import FORMAT
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check

NOW = 1_795_258_520_106_479
HOUR = 3600 * 1_000_000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def test_all_is_there_afterwards(path):
    expected = unpack(path, 1)
    assert {row["state"] for row in expected["requests"]} > {None, "WAITING", "DELAYED", "DONE", "FAILED", "EXPIRED"}
    with LmdbStore.open(path) as store:
        assert store.capacity == 64 << 20
        expect_all(store, expected)
    with LmdbStore.open(path) as store:
        expect_all(store, expected)


def test_the_converted_store_goes_on_working(path):
    expected = unpack(path, 1)
    with LmdbStore.open(path) as store:
        rows = [row for row in expected["requests"] if row["state"]]
        mortal = [row for row in rows if row["expires_at"]]
        assert len(mortal) == 2
        with store.write() as txn:
            assert len(txn.accept_many([NewRequest(b"echo", [bytes(5000)])], NOW + HOUR)) == 1
            assert txn.load(b"resize").waiting == 4
            assert txn.next_due() == NOW + HOUR
            assert sum(n for _, n in txn.promote(NOW + HOUR)) == 3
            assert {uuid.hex() for uuid, _ in txn.expire(NOW + 3 * HOUR)} == {row["uuid"] for row in mortal}
            trimmed = txn.trim(NOW + 1000 * 24 * HOUR)
            assert (trimmed.replies, trimmed.dead) == (3, 5)
        assert check(store) == []
        with store.write() as txn:
            for row in txn.list(limit=1000):
                assert txn.close(row.uuid, NOW)
            assert txn.counts()[:4] == (0, 0, 0, 0)
            first, last = txn.closed_range()
            assert last - first == len(rows)
            digests = {(life.uuid.hex(), digest(life.request)) for life in txn.closed(0, 99, 1 << 30) if life.request}
        assert check(store) == []
    assert digests >= {(row["uuid"], row["body_sha256"]) for row in rows if row["service"] != "resize"}


def test_records_of_the_old_format_are_left_as_they_were(path):
    unpack(path, 1)
    with lmdb.open(str(path), max_dbs=16) as env, env.begin(db=env.open_db(b"requests")) as txn:
        before = list(txn.cursor())
    LmdbStore.open(path).close()
    with lmdb.open(str(path), max_dbs=16) as env, env.begin(db=env.open_db(b"requests")) as txn:
        assert list(txn.cursor()) == before


def test_keys_of_format_2_count_as_before(path):
    expected = unpack(path, 2)
    with LmdbStore.open(path) as store:
        expect_all(store, expected)
        for key, uuids in expected["keys"].items():
            requests = [NewRequest(b"echo", []) for _ in uuids]
            requests[0] = requests[0]._replace(key=key.encode(), key_until=NOW + HOUR, together=len(uuids))
            with store.write() as txn:
                found = txn.accept(requests, NOW)
            assert [(one.uuid.hex(), one.new) for one in found] == [(uuid, False) for uuid in uuids]
        with store.write() as txn:
            assert txn.recap(NOW - 30 * 365 * 24 * HOUR) != (0, None), "what was given when is known of requests"
            assert {key for key in expected["keys"] if txn.holder(key.encode())} == {*expected["keys"]}
            assert txn.trim(NOW + HOUR - 1).keys == 0
            assert txn.trim(NOW + HOUR).keys == 3
            closed = [[life.uuid.hex(), life.status.name] for life in txn.closed(0, 99, 1 << 30)]
            archive, archivist = txn.archive(), txn.archivist()
        assert closed[:3] == expected["closed"]
        assert (archive.registered, archive.archived_upto, archivist.name) == (True, 1, "archive")
        assert check(store) == []


def test_what_is_in_a_store_of_format_3_belongs_to_nobody(path):
    expected = unpack(path, 3)
    keys = expected["keys"]
    with LmdbStore.open(path) as store:
        expect_all(store, expected)
        with store.write() as txn:
            stored = {bytes.fromhex(row["uuid"]) for row in expected["requests"] if row["state"]}
            assert {row.uuid for row in txn.list(owner=b"", limit=1000)} == stored
            assert {row.owner for row in txn.list(limit=1000)} == {txn.owner(uuid) for uuid in stored} == {b""}
            assert not txn.list(owner=b"shop")
            assert {name: [*txn.load(name.encode())] for name in expected["loads"]} == expected["loads"]
            assert {key: txn.holder(key.encode()).hex() for key in keys} == {key: ids[0] for key, ids in keys.items()}
            assert not any(txn.holder(key.encode(), b"shop") for key in keys)
            closed = [[life.uuid.hex(), life.status.name] for life in txn.closed(0, 99, 1 << 30)]
            assert closed == expected["closed"]
            # It goes on working, with owners and without.
            of_shop = NewRequest(b"echo", [b"1"], key=b"order 7", key_until=NOW + HOUR, owner=b"shop")
            (mine,) = txn.accept([of_shop], NOW)
            (first,) = txn.accept([of_shop._replace(owner=b"")], NOW)
            assert (mine.new, first.new, first.uuid.hex()) == (True, False, keys["order 7"][0])
            assert txn.promote(NOW + 5 * HOUR)
            assert txn.expire(NOW + 5 * HOUR)
        assert check(store) == []
        with store.write() as txn:
            for row in txn.list(limit=1000):
                assert txn.close(row.uuid, NOW)
            txn.trim(NOW + 200 * HOUR)
            assert txn.raw.stat(txn.db.keys)["entries"] == txn.raw.stat(txn.db.timers)["entries"] == 0
        assert check(store) == []


def test_all_that_an_owner_has_in_a_store_of_format_4_is_counted(path):
    """It counted the bytes of requests that had not ended."""
    expected = unpack(path, 4)
    before = {owner.encode(): load for owner, load in expected["owner_loads"].items()}
    with LmdbStore.open(path) as store:
        expect_all(store, expected)
        with store.write() as txn:
            for row in expected["requests"]:
                assert row["state"] is None or txn.owner(bytes.fromhex(row["uuid"])).decode() == row["owner"]
            assert {name: [*txn.load(name.encode())] for name in expected["loads"]} == expected["loads"]
            for owner, key, uuid in expected["keys"]:
                assert txn.holder(key.encode(), owner.encode()).hex() == uuid
            loads = {owner: txn.owner_load(owner) for owner in before}
            assert {owner: load.waiting for owner, load in loads.items()} == {
                owner: n for owner, (n, _) in before.items()
            }
            assert all(loads[owner].bytes > size + 500 for owner, (_, size) in before.items())
            assert (before[b"left"], loads[b"left"].waiting, txn.owner_load(b"")) == ([0, 0], 0, (0, 0))
        with store.write() as txn:
            for row in txn.list(limit=1000):
                assert txn.close(row.uuid, NOW)
            txn.trim(NOW + 200 * HOUR)
            assert {txn.owner_load(owner) for owner in before} == {(0, 0)}
        assert check(store) == []


DIE = """
import os, sys
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb import upgrade
step = upgrade.STEPS[1]
def die(env, txn):
    step(env, txn)
    os._exit(9)
upgrade.STEPS[1] = die
LmdbStore.open(sys.argv[1])
"""


def test_a_crash_leaves_the_old_store(path):
    expected = unpack(path, 1)
    assert subprocess.run([sys.executable, "-c", DIE, path], check=False).returncode == 9
    with lmdb.open(str(path), max_dbs=16) as env:
        with env.begin(db=env.open_db(b"meta")) as txn:
            assert int.from_bytes(txn.get(b"format"), "little") == 1
            assert txn.get(b"used")
        with pytest.raises(lmdb.NotFoundError):
            env.open_db(b"timers", create=False)
    with LmdbStore.open(path) as store:
        expect_all(store, expected)


def test_a_store_above_its_capacity_is_converted_and_can_be_emptied(path):
    unpack(path, 1)
    with LmdbStore.open(path, capacity=16 << 20) as store, store.write() as txn:
        for row in txn.list(limit=1000):
            assert txn.close(row.uuid, NOW)


def test_who_only_reads_cannot_convert(path):
    unpack(path, 1)
    with pytest.raises(StoreTooOld, match="its format is 1, read is format 6; open it once for writing"):
        LmdbStore.open_read_only(path)


def test_there_is_a_step_and_a_packed_store_for_every_earlier_format(tmp_path):
    assert sorted(upgrade.STEPS) == list(range(1, FORMAT))
    for number in range(1, FORMAT):
        path = tmp_path / str(number)
        unpack(path, number)
        with LmdbStore.open(path) as store:
            assert check(store) == []
            with store.read() as txn:
                assert txn.list(state=State.WAITING)
        shutil.rmtree(path)
