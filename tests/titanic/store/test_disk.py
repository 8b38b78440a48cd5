"""The disk is full, really: a small file system. What was acknowledged stays, and it goes on when there is room."""

import errno
import re
import shutil
import subprocess

import lmdb
import pytest
from support.cli_titanic import here, running, titanic
from support.scraping import ask, samples
from support.serving import serving
from support.small_disk import small_disk
from support.store_contents import contents, difference
from support.store_damage import edit
from support.store_facts import accept_all
from support.store_formats import synthetic_step, unpack
from support.torture import LONG, tally

from titanic import Client, Refused
from titanic.errors import StoreFailed, StoreFull, StoreLocked, StoreUnwritable
from titanic.store import NewRequest, Status
from titanic.store.lmdb import transaction
from titanic.store.lmdb.disk import disk_full
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import backup, check, restore

NOW = 1_795_258_520_106_479
SIZE = 8 << 20
CAPACITY = 64 << 20
BODY = bytes(20_000)
FULL = "No space left on device"
FREE_SOME = "free some disk space: replies and closing need it, too"

pytestmark = pytest.mark.torture(short=True)


@pytest.fixture(params=["tmpfs", "ext4"] if LONG else ["tmpfs"])
def disk(request, tmp_path):
    with small_disk(tmp_path / "disk", request.param, SIZE) as disk:
        yield disk


def accept(store, n=10):
    with store.write() as txn:
        return accept_all(txn, [NewRequest(b"echo", [BODY])] * n, NOW)


def fill(store):
    """Accept until the disk is full."""
    uuids = []
    while True:
        try:
            uuids += accept(store)
        except StoreFull as error:
            return uuids, str(error)


def expect(store, uuids):
    """All of them are there."""
    assert check(store) == []
    with store.read() as txn:
        assert all(txn.request(uuid).body == [BODY] for uuid in uuids)
        assert txn.counts().requests == len(uuids)
    tally["acknowledged requests checked"] += len(uuids)


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def test_a_disk_that_fills_up_is_named_and_loses_nothing(disk):
    disk.fill()
    disk.make_room(4 << 20)
    with LmdbStore.open(disk.path / "store", capacity=CAPACITY) as store:
        uuids, said = fill(store)
        assert said.startswith(f"the disk of the store in {store.path} is full; ")
        assert len(uuids) > 100
        expect(store, uuids)
        for _ in range(5):
            with pytest.raises(StoreFull, match=r"is full; 1\.3 MiB is .*, \d+ are kept back .* or free some disk"):
                accept(store, 30)
        disk.make_room(1 << 20)
        uuids += accept(store)
        expect(store, uuids)
    with LmdbStore.open(disk.path / "store") as store:
        expect(store, uuids)
        with store.write() as txn:
            for uuid in uuids:
                assert txn.close(uuid, NOW)


def test_a_server_says_so_and_goes_on_when_there_is_room(disk):
    disk.fill()
    disk.make_room(3 << 20)
    with (
        serving(disk.path, capacity=CAPACITY) as server,
        Client(server.endpoints[0], timeout=30) as client,
    ):
        uuids = []
        said = ""
        while not said:
            try:
                uuids.append(client.submit("absent", BODY))
            except Refused as refusal:
                said = str(refusal)
        full = f"not stored: the disk of the store in {server.store.path} is full; "
        assert re.match(re.escape(full) + r"0\.[1-9] MiB is free on it, \d+ of \d+ bytes are used, ", said)
        assert len(uuids) > 20
        assert client.stats()["store"]["requests"] == len(uuids)
        disk.make_room()
        uuids.append(client.submit("absent", BODY))
    with LmdbStore.open(disk.path / "store") as store:
        expect(store, [bytes.fromhex(uuid) for uuid in uuids])


@pytest.mark.parametrize("keep_closed", [True, False])
def test_a_disk_smaller_than_the_capacity_is_a_smaller_capacity(tmp_path, keep_closed):
    """When it is full, replies and closing go on, closed requests make way, and accepting resumes."""
    with (
        small_disk(tmp_path / "disk", "tmpfs", 24 << 20) as disk,
        LmdbStore.open(disk.path / "store", capacity=1 << 30, keep_closed=keep_closed) as store,
    ):
        for _ in range(4 if LONG else 2):
            uuids = []
            for count in (10, 1):
                with pytest.raises(StoreFull, match=r"the disk of the store in .* is full"):  # noqa: PT012
                    while True:
                        uuids += accept(store, count)
            assert len(uuids) > 500
            for uuid in uuids:
                with store.write() as txn:
                    assert txn.finish(uuid, Status.DONE, [b"done"], attempts=1, dispatched_at=NOW, finished_at=NOW)
            for uuid in uuids:
                with store.write() as txn:
                    assert txn.close(uuid, NOW)
        assert not short(store)
        assert check(store) == []


def short(store):
    with store.read() as txn:
        return txn.space().disk_full


def test_a_full_disk_is_seen_without_a_write_and_so_is_its_end(disk):
    with LmdbStore.open(disk.path / "store", capacity=CAPACITY) as store:
        assert not short(store)
        disk.fill()
        assert short(store)
        disk.make_room(2 << 20)
        assert not short(store)


def test_nothing_is_accepted_into_a_file_that_was_deleted(tmp_path):
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY) as store:
        (kept,) = accept(store, 1)
        (tmp_path / "store").rename(tmp_path / "old")
        assert short(store)
        with pytest.raises(StoreFull):
            accept(store, 1)
        (tmp_path / "old").rename(tmp_path / "store")
        assert not short(store)
        expect(store, [kept, *accept(store, 1)])


def test_a_store_in_use_is_not_read_where_its_lock_file_cannot_be_written(disk, tmp_path):
    """As a systemd unit sees a store outside of its ReadWritePaths: LMDB would read without a lock."""
    (seen := tmp_path / "seen").mkdir()
    subprocess.run(["mount", "--bind", disk.path, seen], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", seen], check=True)
        with LmdbStore.open(disk.path / "store", capacity=CAPACITY) as store:
            (uuid,) = accept(store, 1)
            with pytest.raises(StoreLocked, match="read-only here"):
                LmdbStore.open_read_only(seen / "store")
        with LmdbStore.open_read_only(seen / "store") as store, store.read() as txn:
            assert txn.request(uuid).body == [BODY]
    finally:
        subprocess.run(["umount", seen], check=True)


def test_a_disk_that_others_fill_refuses_until_it_has_more_room_or_takes_something(disk, monkeypatch):
    disk.fill()
    disk.make_room(4 << 20)
    with LmdbStore.open(disk.path / "store", capacity=CAPACITY) as store:
        uuids = accept(store, 100)
        monkeypatch.setattr(transaction, "largest_file", lambda directory: CAPACITY)  # as it was before they did
        with pytest.raises(StoreFailed, match=FULL):
            accept(store, 300)
        monkeypatch.undo()
        disk.fill()
        assert short(store)
        disk.make_room(3 << 20)
        uuids += accept(store)
        assert not short(store)
        expect(store, uuids)


def test_what_is_free_in_the_file_needs_no_disk(disk):
    disk.fill()
    disk.make_room(4 << 20)
    with LmdbStore.open(disk.path / "store", capacity=CAPACITY, keep_closed=False) as store:
        uuids = accept(store, 105)
        for uuid in uuids[:90]:
            with store.write() as txn:
                txn.close(uuid, NOW)
        disk.fill()
        assert not short(store)
        expect(store, uuids[90:] + accept(store))


def test_a_full_disk_is_named_wherever_somebody_looks(disk, tmp_path):
    """And no longer when there is room again, though nobody submits."""
    disk.fill()
    disk.make_room(3 << 20)
    options = ("--store", disk.path / "store", "--capacity", "64MiB", "--metrics", "127.0.0.1:0")
    with running(tmp_path / "log", "serve", "--bind", "tcp://127.0.0.1:*", *options) as server:
        at = ("--endpoint", server.says(r"serving at ([^;]+);")[1])
        base = server.says(r"metrics at (\S+)/metrics")[1]
        assert ask(f"{base}/readyz") == (200, "ok\n")
        disk.fill()
        full = f"the disk of the store in {disk.path / 'store'} is full; 0.0 MiB is free on it"
        assert ask(f"{base}/readyz") == (503, f"{full.partition('; ')[0]}; {FREE_SOME}\n")
        assert ask(f"{base}/healthz") == (200, "ok\n")
        found = samples(base)
        assert (found["titanic_disk_full"], found["titanic_ready"], found["titanic_store_full"]) == (1, 0, 0)
        bad = here("health", "--timeout", "60", *at)
        assert (bad.code, bad.out) == (2, f"critical: {full}; {FREE_SOME}\n".encode())
        document = here("status", "--json", *at).json
        assert (document["disk_full"], document["disk_free"], document["accepting"]) == (True, 0, False)
        assert f"; {full}; {FREE_SOME}\n".encode() in here("status", *at).out
        doctor = here("doctor", "--timeout", "60", "--store", disk.path / "store", *at)
        assert f"problem  server: {full}; {FREE_SOME}\n".encode() in doctor.out
        server.says(f"ERROR titanic: cannot write: {full.partition('; ')[0]}; {FREE_SOME}\n")
        disk.make_room()
        assert ask(f"{base}/readyz") == (200, "ok\n")
        assert samples(base)["titanic_disk_full"] == 0
        assert here("health", "--timeout", "60", *at).code == 0
        server.says("INFO titanic: can write again\n")


def test_a_store_cannot_be_made_on_a_full_disk_and_nothing_is_left_of_it(disk):
    disk.fill()
    path = disk.path / "store"
    for _ in range(2):
        with pytest.raises(StoreUnwritable, match=FULL):
            LmdbStore.open(path)
        assert not path.exists() or set(names(path)) <= {"titanic.lock"}
    ended = titanic("serve", "--store", path, "--bind", "tcp://127.0.0.1:*")
    assert ended.code == 1
    assert FULL in ended.err
    disk.make_room()
    with LmdbStore.open(path) as store:
        expect(store, accept(store))


def test_a_store_on_a_full_disk_can_be_opened_and_read(disk):
    path = disk.path / "store"
    with LmdbStore.open(path, capacity=CAPACITY) as store:
        uuids = accept(store)
    disk.fill()
    with LmdbStore.open(path) as store:
        expect(store, uuids)
    ended = titanic("check", "--store", path)
    assert (ended.code, ended.out) == (0, f"{path}: 10 requests, 0 replies: no problems\n".encode())


@pytest.mark.parametrize("command", [("check", "--store"), ("serve", "--bind", "tcp://127.0.0.1:*", "--store")])
def test_a_restored_store_on_a_full_disk_is_an_error_that_says_so(disk, command):
    """LMDB maps its lock file, sparse as it made it: the first touch would end the process with SIGBUS."""
    path = disk.path / "store"
    with LmdbStore.open(path, capacity=CAPACITY) as store:
        uuids = accept(store)
    for name in ("lock.mdb", "titanic.lock"):
        (path / name).unlink()
    disk.fill()
    ended = titanic(*command, path)
    assert (ended.code, FULL in ended.err) == (1, True), ended
    disk.make_room()
    with LmdbStore.open(path) as store:
        expect(store, uuids)


def test_who_only_reads_is_told_as_well(disk):
    path = disk.path / "store"
    with LmdbStore.open(path, capacity=CAPACITY) as store:
        uuids = accept(store)
    (path / "lock.mdb").unlink()
    disk.fill()
    with pytest.raises(StoreUnwritable, match=FULL):
        LmdbStore.open_read_only(path)
    disk.make_room()
    with LmdbStore.open_read_only(path) as store:
        expect(store, uuids)


def test_preallocating_more_than_there_is_says_so(disk):
    path = disk.path / "store"
    with LmdbStore.open(path, capacity=CAPACITY) as store:
        uuids = accept(store)
    with pytest.raises(StoreUnwritable, match=FULL):
        LmdbStore.open(path, preallocate=True)
    with LmdbStore.open(path) as store:
        expect(store, uuids)


def test_a_backup_to_a_full_disk_leaves_nothing_there(disk, tmp_path):
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY) as store:
        uuids = accept(store, 100)
        disk.fill()
        disk.make_room(1 << 20)
        with pytest.raises(StoreUnwritable, match=FULL):
            backup(store, disk.path / "copy")
        assert names(disk.path)[0] == "ballast"
        assert not {"copy", ".copy.partial"} & set(names(disk.path))
        disk.make_room()
        backup(store, disk.path / "copy")
        expect(store, uuids)
    with LmdbStore.open_read_only(disk.path / "copy") as copy:
        expect(copy, uuids)


def test_restoring_to_a_full_disk_leaves_nothing_there(disk, tmp_path):
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY) as store:
        uuids = accept(store, 100)
        backup(store, tmp_path / "copy")
    disk.fill()
    for room in (0, 1 << 20):
        disk.make_room(room)
        with pytest.raises(StoreUnwritable, match=FULL):
            restore(tmp_path / "copy", disk.path / "store")
        assert not (disk.path / "store").exists()
        assert ".store.partial" not in names(disk.path)
    disk.make_room()
    restore(tmp_path / "copy", disk.path / "store")
    with LmdbStore.open(disk.path / "store") as store:
        expect(store, uuids)


def test_a_store_without_an_id_on_a_full_disk_is_opened_without(disk, tmp_path):
    """A repair sets a damaged one aside. The store gets another one when there is room."""
    path, old = disk.path / "store", tmp_path / "old"
    with LmdbStore.open(old, capacity=CAPACITY) as store:
        uuids = accept(store)
    edit(old, lambda txn, db: txn.delete(b"identity", db=db["meta"]))
    path.mkdir()
    with lmdb.open(str(old)) as env:
        env.copy(str(path), compact=True)  # without free pages that would do
    disk.fill()
    disk.make_room(12 << 10)  # for the locks
    for is_full in (True, False):
        if not is_full:
            disk.make_room()
        with LmdbStore.open(path) as store:
            expect(store, uuids)
            with store.read() as txn:
                assert (txn.identity() is None) is is_full


def test_a_store_of_an_earlier_format_on_a_full_disk_stays_as_it_is(disk, tmp_path):
    path = disk.path / "store"
    expected = unpack(tmp_path / "old", "format-1")
    path.mkdir()
    with lmdb.open(str(tmp_path / "old")) as env:
        env.copy(str(path), compact=True)  # without free pages that would do
    disk.fill()
    disk.make_room(12 << 10)  # for the locks
    with synthetic_step():
        with pytest.raises(StoreUnwritable, match=FULL):
            LmdbStore.open(path)
        shutil.copytree(path, tmp_path / "again")
        disk.make_room()
        for where in (path, tmp_path / "again"):
            assert difference(expected, contents(str(where))) == []


def test_only_a_full_disk_is_reported_as_one(tmp_path):
    assert disk_full(OSError(errno.ENOSPC, FULL), tmp_path) == FULL
    assert disk_full(OSError(errno.EDQUOT, "Disk quota exceeded"), tmp_path) == "Disk quota exceeded"
    assert disk_full(lmdb.DiskError("mdb_put"), tmp_path) == FULL
    for other in (OSError(errno.EIO, "Input/output error"), lmdb.Error("mdb_put"), lmdb.MapFullError("x"), OSError()):
        assert disk_full(other, tmp_path) == ""
