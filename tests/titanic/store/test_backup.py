"""Copies of a store, and reading one that somebody else has open."""

import os

import pytest
from support.processes import fork
from support.store_facts import accept_all, closed_in

from titanic.errors import NotAStore, StoreCorrupt, StoreReadOnly, StoreUnwritable
from titanic.store import NewRequest, Status
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import backup, check, restore

NOW = 1_795_258_520_106_479


@pytest.fixture
def store(tmp_path):
    with LmdbStore.open(tmp_path / "store", capacity=64 << 20) as store:
        with store.write() as txn:
            uuids = accept_all(txn, [NewRequest(b"echo", [bytes(n * 100)]) for n in range(200)], NOW)
            txn.finish(uuids[0], Status.DONE, [bytes(9000)], attempts=1, dispatched_at=NOW, finished_at=NOW)
            txn.postpone(uuids[1], due=NOW + 5, attempts=1, dispatched_at=NOW, reason="it broke")
            for uuid in uuids[2:20]:
                txn.close(uuid, NOW)
        yield store
        assert check(store) == []


def contents(store):
    with store.read() as txn:
        rows = [(row, txn.request(row.uuid), txn.reply(row.uuid)) for row in txn.select(limit=1000)]
        return rows, closed_in(txn)


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def test_a_backup_is_a_store_with_all_that_was_there(store, tmp_path):
    calls = []
    backup(store, tmp_path / "copy", lambda *told: calls.append(told))
    assert names(tmp_path / "copy") == ["data.mdb"]
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "copy" / "data.mdb").stat().st_mode & 0o777 == 0o640
    assert all(0 <= done <= total for _, done, total in calls)
    assert [what for what, *_ in calls if what != "copying"], "the check, too"
    before = contents(store)
    with store.write() as txn:
        accept_all(txn, [NewRequest(b"echo", [b"later"])], NOW)
    with LmdbStore.open(tmp_path / "copy") as copy:
        assert copy.capacity == store.capacity
        assert contents(copy) == before
        assert check(copy) == []


def test_a_backup_has_no_free_pages(store, tmp_path):
    with store.write() as txn:
        for row in txn.select(limit=1000):
            txn.close(row.uuid, NOW)
    backup(store, tmp_path / "copy")
    assert (tmp_path / "copy" / "data.mdb").stat().st_size < (store.path / "data.mdb").stat().st_size


def test_a_backup_replaces_nothing(store, tmp_path):
    backup(store, tmp_path / "copy")
    with pytest.raises(NotAStore, match="it already has a store"):
        backup(store, tmp_path / "copy")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    with pytest.raises(NotAStore, match="not empty"):
        backup(store, tmp_path / "full")
    (tmp_path / "empty").mkdir()
    backup(store, tmp_path / "empty")
    assert names(tmp_path) == ["copy", "empty", "full", "store"]


def test_what_an_interrupted_backup_left_is_no_obstacle(store, tmp_path):
    (tmp_path / ".copy.partial").mkdir()
    (tmp_path / ".copy.partial" / "data.mdb").write_bytes(b"half")
    backup(store, tmp_path / "copy")
    assert names(tmp_path) == ["copy", "store"]


def test_a_backup_of_a_damaged_store_is_not_made(store, tmp_path):
    with store.write() as txn:
        txn.raw.put(b"nobody", b"", db=txn.db.replies)
    with pytest.raises(StoreCorrupt, match=r"1 problem, the first: replies .* wrong length; repair it first"):
        backup(store, tmp_path / "copy")
    assert names(tmp_path) == ["store"]
    with store.write() as txn:
        txn.raw.delete(b"nobody", db=txn.db.replies)


def test_a_backup_that_cannot_be_written_leaves_nothing(store, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnwritable):
        backup(store, tmp_path / "file" / "copy")
    assert names(tmp_path) == ["file", "store"]


def test_a_restored_store_is_as_it_was(store, tmp_path):
    backup(store, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "again")
    with LmdbStore.open(tmp_path / "again") as again:
        assert contents(again) == contents(store)
        assert check(again) == []
        with again.write() as txn:
            assert accept_all(txn, [NewRequest(b"echo", [])], NOW + 1)


def test_restoring_replaces_no_store_and_trusts_none(store, tmp_path):
    backup(store, tmp_path / "copy")
    with pytest.raises(NotAStore, match="it already has a store"):
        restore(tmp_path / "copy", store.path)
    with pytest.raises(NotAStore, match=r"has no data\.mdb"):
        restore(tmp_path / "nowhere", tmp_path / "again")
    with LmdbStore.open(tmp_path / "copy") as copy, copy.write() as txn:
        txn.raw.put(b"nobody", b"", db=txn.db.replies)
    with pytest.raises(StoreCorrupt, match="is damaged"):
        restore(tmp_path / "copy", tmp_path / "again")
    os.truncate(tmp_path / "copy" / "data.mdb", 20_000)
    with pytest.raises(StoreCorrupt):
        restore(tmp_path / "copy", tmp_path / "again")
    assert not (tmp_path / "again").exists()


READ = """
import sys
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import backup, check
with LmdbStore.open_read_only(sys.argv[1]) as store:
    print("open", flush=True)
    input()
    assert check(store) == []
    with store.read() as txn:
        counts = txn.counts()
        assert txn.next_ready(b"echo", None, 9, 1 << 20)
        assert len(txn.closed_bulk(1, 100).starts) == counts.closed
    backup(store, sys.argv[2])
    print(counts.requests, counts.capacity, flush=True)
"""


def test_another_process_reads_checks_and_backs_up_while_the_server_works(store, tmp_path):
    with fork("-c", READ, store.path, tmp_path / "copy") as reader:
        assert reader.stdout.readline() == "open\n"
        for _ in range(20):  # the file grows beyond what it had when the reader opened it
            with store.write() as txn:
                accept_all(txn, [NewRequest(b"echo", [bytes(100_000)])], NOW)
        print(file=reader.stdin, flush=True)
        assert reader.stdout.readline() == f"202 {64 << 20}\n"
    assert reader.returncode == 0
    with LmdbStore.open(tmp_path / "copy") as copy, copy.read() as txn:
        assert txn.counts().requests == 202


def test_who_only_reads_cannot_write(tmp_path):
    with LmdbStore.open(tmp_path) as store, store.write() as txn:
        accept_all(txn, [NewRequest(b"echo", [])], NOW)
    with LmdbStore.open_read_only(tmp_path) as store:
        assert store.read_only
        with pytest.raises(StoreReadOnly, match="opened for reading"):
            store.write()
        assert check(store) == []
    LmdbStore.open(tmp_path).close()


def test_only_a_store_is_read(tmp_path):
    with pytest.raises(NotAStore):
        LmdbStore.open_read_only(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(NotAStore):
        LmdbStore.open_read_only(tmp_path)
    assert names(tmp_path) == []
