"""What commits wait for: `synced`, `relaxed` and `memory`. (What is left after kills and power cuts: test_crash.py.)"""

import os
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from support.cli_titanic import here, titanic
from support.serving import serving
from support.small_disk import small_disk
from support.store_facts import accept_all
from support.waiting import until

from titanic import Client, ServerConfig
from titanic.errors import CallerError, DiskFull, NotInMemory, StoreFailed, StoreLocked
from titanic.store import DURABILITIES, NewRequest, open_read_only, open_store
from titanic.store.lmdb.tools import backup, check, restore
from titanic.util import files

NOW = 1_795_258_520_106_479


@pytest.fixture
def ram():
    """A folder in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def syncs(monkeypatch):
    """Syncs of files that are not LMDB's own, one after another; `syncs.error` is raised by the next ones."""

    class Syncs(list):
        error = None

    found = Syncs()

    def fdatasync(descriptor):
        found.append(descriptor)
        if found.error is not None:
            raise found.error

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return found


def accept(store, body=b"x"):
    with store.write() as txn:
        return accept_all(txn, [NewRequest(b"s", [body])], NOW)


def expect(store, uuids):
    assert check(store) == []
    with store.read() as txn:
        assert [txn.request(uuid).uuid for uuid in uuids] == uuids
        assert txn.counts().requests == len(uuids)


def test_a_store_can_be_opened_with_another_one_each_time(ram):
    uuids = []
    for one, other in pairwise([*DURABILITIES, *reversed(DURABILITIES), "memory", "synced"]):
        for durability in (one, other):
            with open_store(ram / "store", durability=durability) as store:
                assert store.durability == durability
                expect(store, uuids)
                uuids += accept(store)
    assert here("check", "--store", ram / "store").code == 0


@pytest.mark.parametrize("durability", ["relaxed", "memory"])
def test_others_look_at_it_as_at_any_store(ram, tmp_path, durability):
    with open_store(ram / "store", durability=durability) as store:
        uuids = accept(store)
        with pytest.raises(StoreLocked):
            open_store(ram / "store")
        assert titanic("check", "--store", ram / "store").code == 0
        backup(store, tmp_path / "backup")
        uuids += accept(store)
    with open_store(tmp_path / "backup") as copy:
        expect(copy, uuids[:1])
    restore(ram / "store", tmp_path / "restored")
    with open_store(tmp_path / "restored") as copy:
        expect(copy, uuids)


def test_memory_must_be_in_memory(on_disk):
    where = on_disk / "not there" / "store"
    with pytest.raises(NotInMemory, match=r"is not in memory; it is on \w+, .* like /dev/shm/titanic"):
        open_store(where, durability="memory")
    assert not where.parent.exists()
    open_store(on_disk / "store").close()
    with pytest.raises(NotInMemory):
        open_store(on_disk / "store", durability="memory")
    open_store(on_disk / "store").close()


def test_a_system_that_does_not_tell_is_not_trusted(ram, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOUNTS", tmp_path / "mountinfo")
    with pytest.raises(NotInMemory, match="it is on an unknown file system"):
        open_store(ram / "store", durability="memory")


@pytest.mark.parametrize("durability", ["relaxed", "memory"])
def test_a_full_disk_is_no_obstacle_for_long(tmp_path, durability):
    with (
        small_disk(tmp_path / "ram", "tmpfs", 8 << 20) as disk,
        open_store(disk.path / "store", durability=durability) as store,
    ):
        uuids = accept(store)
        disk.fill()
        with pytest.raises(DiskFull):
            accept(store, bytes(500_000))
        expect(store, uuids)
        disk.make_room()
        uuids += accept(store)
        expect(store, uuids)


def test_memory_can_be_taken_beforehand(tmp_path):
    with small_disk(tmp_path / "ram", "tmpfs", 32 << 20) as disk:
        with pytest.raises(Exception, match="No space left"):
            open_store(disk.path / "store", durability="memory", capacity=64 << 20, preallocate=True)
        assert list(disk.path.iterdir()) == []


def test_relaxed_syncs_what_is_not_synced_and_no_more(tmp_path, syncs):
    with open_store(tmp_path / "store", durability="relaxed") as store:
        accept(store)
        del syncs[:]
        for _ in range(3):
            store.sync()
        assert len(syncs) == 1
        accept(store)
    assert len(syncs) == 2, "closing syncs"


def test_the_others_have_nothing_to_sync(ram, syncs):
    for durability in ("synced", "memory"):
        with open_store(ram / durability, durability=durability) as store:
            del syncs[:]
            accept(store)
            store.sync()
        assert syncs == []


def test_who_reads_can_have_it_synced(tmp_path, syncs):
    open_store(tmp_path / "store").close()
    with open_read_only(tmp_path / "store") as store:
        store.sync()
        assert len(syncs) == 1
        syncs.error = OSError(5, "Input/output error")
        with pytest.raises(StoreFailed, match="could not be synced"):
            store.sync()


def test_a_sync_that_fails_is_said_and_made_up_for(tmp_path, syncs):
    with open_store(tmp_path / "store", durability="relaxed") as store:
        uuids = accept(store)
        syncs.error = OSError(5, "Input/output error")
        with pytest.raises(StoreFailed, match="could not be synced"):
            store.sync()
        with pytest.raises(StoreFailed, match="Input/output error"):
            accept(store)
        syncs.error = None
        del syncs[:]
        uuids += accept(store)
        assert len(syncs) == 1, "before anything is written"
        accept(store)
        assert len(syncs) == 1
    with open_store(tmp_path / "store") as store, store.read() as txn:
        assert txn.counts().requests == 3


def test_a_last_sync_that_fails_is_said(tmp_path, syncs):
    store = open_store(tmp_path / "store", durability="relaxed")
    uuids = accept(store)
    syncs.error = OSError(5, "Input/output error")
    with pytest.raises(StoreFailed, match="a power failure may lose the last commit"):
        store.close()
    syncs.error = None
    with open_store(tmp_path / "store") as store:
        expect(store, uuids)


def test_what_was_made_for_nothing_goes(tmp_path):
    store = open_store(tmp_path / "store", durability="relaxed")
    store.discard()
    assert not (tmp_path / "store").exists()


def test_a_relaxed_server_syncs_when_nothing_else_comes(tmp_path):
    with serving(tmp_path, durability="relaxed") as server, Client(server.endpoints[0]) as client:
        client.submit("absent", b"x")
        until(lambda: not server.store.environment.pace.unsynced)
        assert client.stats()["durability"] == "relaxed"


def test_a_setting_that_is_none_is_refused():
    with pytest.raises(CallerError, match="durability is 'fast'; it must be one of synced, relaxed, memory"):
        ServerConfig(durability="fast")
    assert ServerConfig().durability == "synced"
