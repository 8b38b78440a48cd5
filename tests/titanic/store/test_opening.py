"""Opening a store, and everything that can be in the way."""

import fcntl
import os
from pathlib import Path

import lmdb
import pytest
from support.processes import fork, run_fork
from support.store_facts import accept_all, closed_range

from titanic.errors import NotAStore, StoreCorrupt, StoreLocked, StoreTooNew, StoreUnwritable
from titanic.store import NewRequest
from titanic.store.lmdb.opening import FORMAT
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import backup, check, restore
from titanic.util.ids import SIZE

NOW = 1_795_258_520_106_479


def make(path, n=1, size=10):
    """A store with `n` requests, closed again."""
    with LmdbStore.open(path) as store:
        with store.write() as txn:
            uuids = accept_all(txn, [NewRequest(b"echo", [bytes(size)])] * n, NOW)
        assert check(store) == []
    return uuids


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def set_format(path, number):
    with lmdb.open(str(path), max_dbs=16, map_size=1 << 20) as env:
        meta = env.open_db(b"meta", create=False)
        with env.begin(write=True, db=meta) as txn:
            txn.put(b"store_format", number.to_bytes(4, "little"))


def test_directories_are_created_and_nobody_else_may_read_them(tmp_path):
    path = tmp_path / "a" / "b"
    with LmdbStore.open(path) as store:
        assert store.path == path
        assert check(store) == []
    assert path.stat().st_mode & 0o777 == 0o750
    assert (path / "data.mdb").stat().st_mode & 0o007 == 0
    assert names(path) == ["data.mdb", "lock.mdb", "titanic.lock"]


def test_an_empty_directory_becomes_a_store(tmp_path):
    (tmp_path / "lost+found").mkdir()  # the root of a file system of its own
    make(tmp_path)
    assert (tmp_path / "data.mdb").exists()


def test_a_store_has_an_id_that_stays_and_that_its_copies_have(tmp_path):
    ids = []
    for path in (tmp_path / "one", tmp_path / "one", tmp_path / "copy", tmp_path / "other"):
        if path.name == "copy":
            with LmdbStore.open(tmp_path / "one") as store:
                backup(store, tmp_path / "backup")
            restore(tmp_path / "backup", path)
        with LmdbStore.open(path) as store, store.read() as txn:
            ids.append(txn.identity())
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert {len(one) for one in ids} == {SIZE}


def test_what_an_interrupted_creation_left_is_no_obstacle(tmp_path):
    (tmp_path / "new.mdb").write_bytes(b"half")
    (tmp_path / "titanic.lock").write_bytes(b"pid 1 since never")
    make(tmp_path)
    assert not list(tmp_path.glob("new.mdb*"))


def test_a_store_is_closed_once(tmp_path):
    store = LmdbStore.open(tmp_path)
    store.close()
    store.close()
    make(tmp_path)


def test_a_path_through_a_file_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnwritable, match="file/store"):
        LmdbStore.open(tmp_path / "file" / "store")


def test_a_file_system_that_takes_no_files_is_unwritable():
    with pytest.raises(StoreUnwritable, match="/proc/self"):
        LmdbStore.open("/proc/self/titanic-store")


def test_a_file_is_not_a_store(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotAStore, match="not a directory"):
        LmdbStore.open(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_with_other_things_is_not_a_store(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(NotAStore, match="thesis"):
        LmdbStore.open(tmp_path)
    assert names(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize("database", [None, b"meta", b"theirs"])
def test_somebody_elses_lmdb_is_not_a_store_and_stays_as_it_was(tmp_path, database):
    with lmdb.open(str(tmp_path), max_dbs=2) as env:
        handle = env.open_db(database)
        with env.begin(write=True, db=handle) as txn:
            txn.put(b"key", b"value")
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(NotAStore, match="an LMDB file of another program"):
        LmdbStore.open(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before
    assert names(tmp_path) == ["data.mdb", "lock.mdb"]


def test_a_later_format_is_left_alone(tmp_path):
    make(tmp_path)
    set_format(tmp_path, FORMAT + 1)
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StoreTooNew, match=f"format is {FORMAT + 1}, this version reads formats up to {FORMAT}"):
        LmdbStore.open(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before
    set_format(tmp_path, FORMAT)
    LmdbStore.open(tmp_path).close()


def keep(store):
    """Leave something of each kind, and nothing that waits."""
    with store.write() as txn:
        (uuid,) = accept_all(txn, [NewRequest(b"echo", [])], NOW)
        txn.close(uuid)


@pytest.mark.parametrize(
    ("act", "stays"),
    [(lambda store: None, False), (keep, True)],
    ids=["untouched", "used"],
)
def test_a_new_store_is_discarded_unless_something_was_in_it(tmp_path, act, stays):
    store = LmdbStore.open(tmp_path / "a" / "store")
    act(store)
    store.discard()
    store.discard()
    assert (tmp_path / "a").exists() == stays
    if stays:
        with LmdbStore.open_read_only(tmp_path / "a" / "store") as store, store.read() as txn:
            assert closed_range(txn) == (1, 1)


def test_only_what_the_opening_made_is_discarded(tmp_path):
    LmdbStore.open(tmp_path).discard()
    assert names(tmp_path) == []
    LmdbStore.open(tmp_path).close()
    LmdbStore.open(tmp_path).discard()
    assert names(tmp_path) == ["data.mdb", "lock.mdb", "titanic.lock"]


def test_a_store_with_an_archive_is_not_discarded(tmp_path):
    store = LmdbStore.open(tmp_path)
    with store.write() as txn:
        txn.update_archive(register=True)
    store.discard()
    assert "data.mdb" in names(tmp_path)


NO_ROOM = """
import resource, signal, sys
from titanic.store.lmdb.store import LmdbStore
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
LmdbStore.open(sys.argv[1], capacity=64 << 20, preallocate=True)
"""


def test_a_new_store_that_finds_no_room_leaves_nothing(tmp_path):
    _, _, said = run_fork(NO_ROOM, tmp_path / "store")
    assert "StoreUnwritable" in said
    assert names(tmp_path) == []


def test_a_lock_is_that_of_the_file_that_is_there(tmp_path, monkeypatch):
    """Who opened the file just before it was removed must not get a lock that nobody else will ask for."""
    first = LmdbStore.open(tmp_path)
    flock = fcntl.flock

    def discard_before(descriptor, operation):
        monkeypatch.undo()
        first.discard()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", discard_before)
    with LmdbStore.open(tmp_path):
        assert names(tmp_path) == ["data.mdb", "lock.mdb", "titanic.lock"]
        with pytest.raises(StoreLocked):
            LmdbStore.open(tmp_path)


HOLD = """
import sys
from titanic.store.lmdb.store import LmdbStore
store = LmdbStore.open(sys.argv[1])
print("open", flush=True)
input()
"""


def test_a_store_that_is_open_elsewhere_says_where(tmp_path):
    with fork("-c", HOLD, tmp_path) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked, match=rf"pid {holder.pid} since \d{{4}}-") as raised:
            LmdbStore.open(tmp_path)
        assert raised.value.pid == holder.pid
        holder.kill()
    make(tmp_path)  # a lock dies with its holder


def test_a_store_is_opened_once_in_a_process(tmp_path):
    with LmdbStore.open(tmp_path):
        with pytest.raises(StoreLocked) as raised:
            LmdbStore.open(tmp_path)
        assert raised.value.pid == os.getpid()
        held = [one.readlink().name for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        assert held.count("titanic.lock") == 1


def test_a_failed_opening_gives_the_lock_back(tmp_path):
    make(tmp_path)
    set_format(tmp_path, 9)
    for _ in range(2):
        with pytest.raises(StoreTooNew):
            LmdbStore.open(tmp_path)


@pytest.mark.parametrize("size", [0, 100, 4096, 8191, 8192, 3 * 4096, 10 * 4096, -4096, -1])
def test_a_truncated_file_is_damaged(tmp_path, size):
    make(tmp_path, n=1000, size=200)
    data = tmp_path / "data.mdb"
    whole = data.stat().st_size
    os.truncate(data, size if size >= 0 else whole + size)
    with pytest.raises(StoreCorrupt, match=r"data\.mdb is damaged"):
        LmdbStore.open(tmp_path)


def test_a_file_may_end_early_if_the_missing_pages_are_free(tmp_path):
    uuids = make(tmp_path, n=100, size=9000)
    with LmdbStore.open(tmp_path) as store:
        for uuid in uuids:
            with store.write() as txn:
                txn.close(uuid)
    data = tmp_path / "data.mdb"
    with lmdb.open(str(tmp_path)) as env:
        pages = env.info()["last_pgno"] + 1
    os.truncate(data, data.stat().st_size - 4096)
    assert data.stat().st_size < pages * 4096
    with LmdbStore.open(tmp_path) as store:
        assert check(store) == []
        with store.read() as txn:
            assert txn.counts().requests == 0
    make(tmp_path, n=100, size=9000)


@pytest.mark.parametrize("content", [b"", b"x" * 9000, bytes(16384)])
def test_a_data_file_of_something_else_is_damaged(tmp_path, content):
    make(tmp_path)
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(StoreCorrupt):
        LmdbStore.open(tmp_path)


def test_a_file_of_another_lmdb_is_named(tmp_path):
    """LMDB 1.0 has eight bytes more in front of each page, and neither release reads the other's files."""
    make(tmp_path)
    data = (tmp_path / "data.mdb").read_bytes()
    pages = (data[at : at + 4096] for at in range(0, len(data), 4096))
    moved = b"".join(page[:8] + bytes(8) + page[8:-8] for page in pages)
    (tmp_path / "data.mdb").write_bytes(moved)
    for opening in (LmdbStore.open, LmdbStore.open_read_only):
        with pytest.raises(StoreTooNew, match=r"was written with LMDB 1\.0, .* reads that of LMDB 0\.9; install"):
            opening(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == moved


def test_the_capacity_can_be_another_one_each_time(tmp_path):
    make(tmp_path)
    for capacity in (1 << 26, 1 << 34, 1 << 24, (1 << 24) + 4096):
        with LmdbStore.open(tmp_path, capacity=capacity) as store:
            assert store.capacity == capacity
            with store.read() as txn:
                assert txn.counts().capacity == capacity
            assert check(store) == []
        with lmdb.open(str(tmp_path), max_dbs=16) as env, env.begin(db=env.open_db(b"meta")) as txn:
            assert int.from_bytes(txn.get(b"capacity"), "little") == capacity
        with LmdbStore.open(tmp_path) as store:
            assert store.capacity == capacity


DIE_READING = """
import os, sys, lmdb
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=16)
txn = env.begin()
os._exit(9)
"""


def test_killed_readers_are_cleared_away(tmp_path):
    with LmdbStore.open(tmp_path) as store:
        assert run_fork(DIE_READING, tmp_path)[0] == 9
        assert store.reader_check() == 1
        assert store.reader_check() == 0
        assert check(store) == []
