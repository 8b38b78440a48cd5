"""Which archive is whose: a store is told from others, and has one archive."""

from __future__ import annotations

import json
from pathlib import Path

import lmdb
import pytest
from support.cli_data import titanic_data
from support.cli_titanic import serving
from support.ring import fill, ring

from titanic import Client
from titanic.store import ArchiveState, open_store
from titanic.store.lmdb.tools import backup
from titanic_data.archive import Archive, Archiver, PyArrowEngine, Queue, verify
from titanic_data.errors import ArchiveError
from titanic_data.store_reader import forget


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return ring(tmp_path / "store", 100)


def run(store: Path, archive: Path) -> int:
    return Archiver(Archive.create(archive), Queue(store), PyArrowEngine()).run().rows


def close_more(store: Path, count: int) -> None:
    forget(store)
    with open_store(store) as opened:
        fill(opened, count, at=1000)


def forget_rows(store: Path, *keys: bytes) -> None:
    """Make it one that an earlier version wrote."""
    forget(store)
    with lmdb.open(str(store), max_dbs=16) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            for key in keys:
                txn.delete(key, db=meta)


def test_a_wrong_endpoint_changes_no_other_store(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    ring(one / "store", 10)
    with serving(one) as (_, _), serving(other) as (_, wrong), Client(wrong) as client:
        where = ("--store", one / "store", "--endpoint", wrong)
        done = titanic_data("archive", *where, "--archive", tmp_path / "archive")
        assert done.code == 1
        assert f"the server at {wrong} has another store than {one / 'store'}; its id is " in done.err
        assert done.err.rstrip().endswith("nothing was changed; name the right --endpoint")
        assert not client.archive()["registered"]
        assert not (tmp_path / "archive").exists()
    assert run(one / "store", tmp_path / "archive") == 10
    with serving(one) as (_, _), serving(other) as (_, wrong), Client(wrong) as client:
        client.archive(register=True)
        done = titanic_data("unregister", "--store", one / "store", "--endpoint", wrong)
        assert done.code == 1
        assert client.archive()["registered"]


def test_a_second_archive_is_refused_until_the_first_is_unregistered(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "first")
    close_more(store, 20)
    done = titanic_data("archive", "--store", store, "--archive", tmp_path / "second")
    assert done.code == 1
    assert f"another archive is registered with the store {store}; it is {tmp_path / 'first'} on " in done.err
    assert "run titanic-data unregister first" in done.err
    assert not (tmp_path / "second").exists(), "nothing half done"
    assert run(store, tmp_path / "first") == 20
    assert titanic_data("unregister", "--store", store).code == 0
    assert run(store, tmp_path / "second") == 120, "it begins with what is there, whatever the first one has"
    with pytest.raises(ArchiveError, match="another archive is registered"):
        run(store, tmp_path / "first")
    assert Queue(store).progress()[:2] == (True, 120)


def test_a_server_refuses_it_too(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, endpoint), Client(endpoint) as client:
        client.close(client.submit("absent", "x"))
        where = ("--store", tmp_path / "store", "--endpoint", endpoint)
        assert titanic_data("archive", *where, "--archive", tmp_path / "first").code == 0
        done = titanic_data("archive", *where, "--archive", tmp_path / "second")
        assert done.code == 1
        assert f"it is {tmp_path / 'first'} on " in done.err
        assert not (tmp_path / "second").exists()
        assert titanic_data("unregister", *where).code == 0
        assert titanic_data("archive", *where, "--archive", tmp_path / "second").code == 0


class Late(Queue):
    """It has looked before another archive was registered."""

    def progress(self) -> ArchiveState:
        return super().progress()._replace(archivist=None)


def test_of_two_at_the_same_moment_the_server_takes_one(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, endpoint), Client(endpoint) as client:
        client.close(client.submit("absent", "x"))
        client.archive(register=True, archive=32 * "1", name="/quicker")
        archive = Archive.create(tmp_path / "archive")
        with pytest.raises(ArchiveError, match=f"the server at {endpoint} refused .* /quicker .*nothing was changed"):
            Archiver(archive, Late(tmp_path / "store", endpoint), PyArrowEngine()).run()
        assert not archive.path.exists()
        assert client.archive()["name"] == "/quicker"
        forget(tmp_path / "store")


def test_no_server_can_be_asked(tmp_path: Path) -> None:
    with serving(tmp_path):
        where = ("--store", tmp_path / "store", "--endpoint", "no such thing")
        done = titanic_data("archive", *where, "--archive", tmp_path / "archive")
    assert done.code == 2
    assert not (tmp_path / "archive").exists()


def test_without_java_nothing_is_left_behind(store: Path, tmp_path: Path) -> None:
    where = ("--store", store, "--archive", tmp_path / "archive")
    done = titanic_data("archive", *where, "--engine", "spark", JAVA_HOME=str(tmp_path))
    assert done.code == 1
    assert "Spark needs Java" in done.err
    assert not (tmp_path / "archive").exists()
    assert not Queue(store).progress().registered


def test_an_archive_that_was_moved_is_the_same(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "archive")
    (tmp_path / "archive").rename(tmp_path / "elsewhere")
    close_more(store, 5)
    assert run(store, tmp_path / "elsewhere") == 5
    archivist = Queue(store).progress().archivist
    assert archivist is not None
    assert archivist.name.startswith(f"{tmp_path / 'elsewhere'} on ")


def test_a_store_and_an_archive_of_an_earlier_version(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "archive")
    close_more(store, 5)
    forget_rows(store, b"identity", b"archivist")  # it is registered, and nobody says by whom
    about = tmp_path / "archive" / "archive.json"
    about.write_text('{"what": "titanic archive", "format": 1}\n')
    assert Queue(store).identity() == ""
    assert Archive.open(about.parent).id == ""
    assert run(store, tmp_path / "archive") == 5
    identity = Queue(store).identity()
    archivist = Queue(store).progress().archivist
    assert archivist is not None
    assert run(store, tmp_path / "archive") == 0
    told = json.loads(about.read_text())
    assert (told["id"], told["store"]) == (archivist.id.hex(), identity)
    assert len(identity) == 32
    with pytest.raises(ArchiveError, match="another archive is registered"):
        run(store, tmp_path / "second")
    assert verify(Archive.open(about.parent)) == []


def test_a_server_gives_an_old_store_its_identity(tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 5)
    forget_rows(store, b"identity")
    with serving(tmp_path) as (_, endpoint), Client(endpoint) as client:
        identity = Queue(store, endpoint).identity()
        assert client.archive()["store"] == identity != ""
    with serving(tmp_path) as (_, endpoint), Client(endpoint) as client:
        assert client.archive()["store"] == identity, "it stays"


def test_a_backup_is_the_same_store(store: Path, tmp_path: Path) -> None:
    forget(store)
    with open_store(store) as opened:
        backup(opened, tmp_path / "backup")
    run(store, tmp_path / "archive")
    assert run(tmp_path / "backup", tmp_path / "archive") == 0
    close_more(store, 5)
    assert run(store, tmp_path / "archive") == 5
    with pytest.raises(ArchiveError, match=r"is older than its archive .*restored from a backup"):
        run(tmp_path / "backup", tmp_path / "archive")


def test_the_archive_of_another_store_whose_ring_tells_nothing(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "archive")
    other = ring(tmp_path / "other", 100)
    with open_store(other) as opened, opened.write() as txn:
        for number in range(1, 101):
            txn.raw.delete(number.to_bytes(8), db=txn.db.closed)
    with open_store(other) as opened:
        fill(opened, 5, at=1000)
    with pytest.raises(ArchiveError, match="is the archive of another store; its store has the id "):
        run(other, tmp_path / "archive")
    assert not Queue(other).progress().registered


def test_a_store_that_got_a_new_identity_is_known_by_its_requests(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "archive")
    forget_rows(store, b"identity")  # it was damaged, and set aside
    close_more(store, 5)
    assert run(store, tmp_path / "archive") == 5
    assert Archive.open(tmp_path / "archive").store == Queue(store).identity()
