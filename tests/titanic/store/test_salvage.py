"""Pages that are damaged: noticed before LMDB meets them, and all that can be read is saved."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from lmdb.verify import VerifyError
from support.cli_titanic import here, titanic
from support.store_damage import NOW, edit
from support.store_facts import accept_all, state_of

from titanic.errors import StoreCorrupt, StoreError, StoreLocked
from titanic.store import NewRequest, Status
from titanic.store.lmdb import pages
from titanic.store.lmdb.opening import FORMAT
from titanic.store.lmdb.pages import faults
from titanic.store.lmdb.schema import PAGE, U32
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check, check_apart, repair, salvage

COUNT = 140
OWNERS = (b"", b"shop")
KINDS = ("zero", "random", "head", "other")


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> tuple[Path, list[bytes]]:
    """A store with a few pages of everything, some of them below branches, and its requests."""
    path = tmp_path_factory.mktemp("sound") / "store"
    with LmdbStore.open(path, capacity=16 << 20) as store:
        with store.write() as txn:
            for uuid in accept_all(txn, [NewRequest(b"echo", [bytes(size)]) for size in range(400, 440)], NOW):
                assert txn.close(uuid, NOW + 1)
        with store.write() as txn:
            new = [
                NewRequest(b"echo", [b"%d" % n, bytes(300)], key=b"key %d" % n, key_until=NOW, owner=OWNERS[n % 2])
                for n in range(COUNT)
            ]
            uuids = accept_all(txn, [*new, NewRequest(b"echo", [bytes(9000)], expires_at=NOW + 50)], NOW)
        with store.write() as txn:
            for uuid in uuids[: COUNT // 3]:
                txn.finish(uuid, Status.DONE, [bytes(500)], attempts=1, dispatched_at=NOW, finished_at=NOW)
            for uuid in uuids[COUNT // 3 : COUNT // 2]:
                txn.postpone(uuid, due=NOW + 1, attempts=1, dispatched_at=NOW, reason="it broke")
        assert check(store) == []
    assert faults(path / "data.mdb") == []
    return path, uuids


@pytest.fixture
def damaged(sound, tmp_path) -> tuple[Path, list[bytes]]:
    path = tmp_path / "store"
    shutil.copytree(sound[0], path)
    return path, sound[1]


def pages_of(path: Path) -> int:
    return (path / "data.mdb").stat().st_size // PAGE


def spoil(path: Path, number: int, kind: str) -> None:
    with (path / "data.mdb").open("r+b") as file:
        file.seek(number * PAGE)
        page = bytearray(file.read(PAGE))
        chance = random.Random(number)
        if kind == "zero":
            page[:] = bytes(PAGE)
        elif kind == "random":
            page[:] = chance.randbytes(PAGE)
        elif kind == "head":
            page[chance.randrange(60)] ^= 1 << chance.randrange(8)
        else:
            file.seek(chance.randrange(2, pages_of(path)) * PAGE)
            page[:] = file.read(PAGE)
        file.seek(number * PAGE)
        file.write(page)


def read(path: Path, number: int) -> bytes:
    with (path / "data.mdb").open("rb") as file:
        file.seek(number * PAGE)
        return file.read(PAGE)


def live(path: Path, marker: bytes) -> list[int]:
    """The pages in which something stands, if damage to them is noticed: they are in a tree."""
    content = (path / "data.mdb").read_bytes()
    found = []
    for number in range(2, pages_of(path)):
        if marker in read(path, number):
            spoil(path, number, "zero")
            if faults(path / "data.mdb"):
                found.append(number)
            (path / "data.mdb").write_bytes(content)
    return found


def branches(path: Path) -> list[int]:
    """The branches, those that are free now too."""
    found = [(number, read(path, number)) for number in range(2, pages_of(path))]
    return [number for number, page in found if page[:8] == number.to_bytes(8, "little") and page[10] == 1]


def mend(path: Path, uuids: list[bytes]) -> tuple[int, int]:
    """Salvage and repair; nobody is lost. Returns how many requests and replies were kept as they were."""
    salvage(path)
    with LmdbStore.open(path, to_repair=True, verified=True) as store:
        repair(store, NOW + 5)
        assert check(store) == []
    with LmdbStore.open(path) as store:
        with store.read() as txn:
            states = [state_of(txn, uuid) for uuid in uuids]
            assert None not in states
            requests = [txn.request(uuid) for uuid in uuids]
            whole = [(n, one) for n, one in enumerate(requests[:COUNT]) if one and one.body]
            assert all(one.owner == OWNERS[n % 2] for n, one in whole)
            replies = [txn.reply(uuid) for uuid in uuids[: COUNT // 3]]
        with store.write() as txn:
            (new,) = accept_all(txn, [NewRequest(b"echo", [bytes(9000)])], NOW)
            assert txn.close(new, NOW)
        assert check(store) == []
    return sum(bool(one and one.body) for one in requests), sum(getattr(one, "frames", None) != [] for one in replies)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_page_is_damaged_nobody_is_lost(sound, tmp_path, kind):
    source, uuids = sound
    mended = 0
    for number in range(0, pages_of(source), 1 if kind == "zero" else 3):
        path = tmp_path / str(number)
        shutil.copytree(source, path)
        spoil(path, number, kind)
        if faults(path / "data.mdb"):
            with pytest.raises(StoreCorrupt, match=r"first: .*; restore a backup, or save what can be read: titanic"):
                LmdbStore.open(path, verified=True)
            mend(path, uuids)
            mended += 1
        else:  # it was free, or what changed is covered by checksums
            with LmdbStore.open(path, to_repair=True) as store:
                repair(store, NOW + 5)
                assert check(store) == []
        shutil.rmtree(path)
    assert mended > 10


def test_a_sound_store_is_saved_as_it_is(damaged):
    path, _uuids = damaged
    long = bytes(range(256)) * 20  # LMDB gives it pages of its own
    edit(path, lambda txn, db: txn.put(b"long", long, db=db["facts"]))
    before = rows(path)
    assert before["facts"] == [(b"long", long)]
    saved = salvage(path)
    assert saved.problems == []
    assert saved.rows == sum(map(len, before.values()))
    assert rows(path) == before
    assert faults(saved.damaged) == faults(path / "data.mdb") == []


def rows(path: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    edit(path, lambda txn, db: found.update({name: list(txn.cursor(one)) for name, one in db.items()}))
    return found


def test_below_a_lost_branch_all_is_found(damaged):
    path, uuids = damaged
    for number in branches(path):
        spoil(path, number, "random")
    assert mend(path, uuids) == (len(uuids), COUNT // 3)


def test_of_a_lost_leaf_the_requests_have_failed(damaged):
    path, uuids = damaged
    (number, *_) = live(path, b"echokey 77")
    spoil(path, number, "zero")
    requests, replies = mend(path, uuids)
    assert len(uuids) - 20 < requests < len(uuids)
    assert replies == COUNT // 3


def test_rows_of_a_page_that_belongs_elsewhere_are_not_believed(damaged):
    """It was written to the wrong place, with that one's number: a sound page, but its keys can't be there."""
    path, uuids = damaged
    before = rows(path)
    (number, *_) = requests = live(path, b"echokey 70")
    elsewhere = next(page for page in live(path, b"key 70") if page not in requests)
    with (path / "data.mdb").open("r+b") as file:
        file.seek(number * PAGE)
        file.write(number.to_bytes(8, "little") + read(path, elsewhere)[8:])
    saved = salvage(path)
    assert [problem[:2] for problem in saved.problems] == [("requests", f"page {number} can't be read")]
    found = rows(path)
    assert len(before["requests"]) - 20 < len(found["requests"]) < len(before["requests"])
    assert {name for name in before if not set(found[name]) <= set(before[name])} == set()
    assert mend(path, uuids)[1] == COUNT // 3


def test_where_it_is_not_known_what_is_free_rows_without_a_tree_are_not_believed(damaged):
    """They may be of requests that were closed."""
    path, _uuids = damaged
    before, lost = rows(path), branches(path)
    for number in [*lost, root(path, 80)]:
        spoil(path, number, "zero")
    salvage(path)
    found = rows(path)
    assert {name for name in before if not set(found[name]) <= set(before[name])} == set()


def test_a_list_of_free_pages_that_can_be_read_in_part_is_not_believed(damaged):
    """What it says is free is in use."""
    path, uuids = damaged
    number = root(path, 80)
    page, (used, *_) = bytearray(read(path, number)), live(path, b"echokey 77")
    odd, free = (int.from_bytes(page[at : at + 2], "little") for at in (16, 18))
    page[odd + 4] = 0x80  # a flag that no row has
    last = free + 8 + 8 + 8 * page[free + 16]  # of the pages that the other row lists
    page[last : last + 8] = used.to_bytes(8, "little")
    with (path / "data.mdb").open("r+b") as file:
        os.pwrite(file.fileno(), page, number * PAGE)
    assert mend(path, uuids) == (len(uuids), COUNT // 3)


def root(path: Path, at: int) -> int:
    """That of a tree, where the last transaction's meta page has it."""
    last = max((read(path, number) for number in (0, 1)), key=lambda meta: int.from_bytes(meta[144:152], "little"))
    return int.from_bytes(last[at : at + 8], "little")


def test_without_the_main_tree_it_is_the_transaction_before(damaged):
    path, uuids = damaged
    spoil(path, root(path, 128), "zero")
    saved = salvage(path)
    assert saved.problems[0][:2] == ("the last transaction", "it can't be read, but the one before it can")
    with LmdbStore.open(path, to_repair=True, verified=True) as store:
        repair(store, NOW)
        assert check(store) == []
        with store.read() as txn:
            assert all(state_of(txn, uuid) for uuid in uuids)


def test_where_nothing_can_be_read_all_stays_as_it_was(damaged):
    path, _ = damaged
    for number in (0, 1):
        spoil(path, number, "zero")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(StoreCorrupt, match="no part of it can be read; restore a backup"):
        salvage(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_a_store_in_use_is_not_salvaged(damaged):
    path, _ = damaged
    with LmdbStore.open(path), pytest.raises(StoreLocked):
        salvage(path)


def test_the_server_can_open_what_somebody_else_repaired(damaged):
    path, _ = damaged
    if os.geteuid():
        pytest.fail("to be run as root, as CI does")
    for name in ("data.mdb", "lock.mdb"):
        os.chown(path / name, 12345, 12345)
    saved = salvage(path)
    for file in (path / "data.mdb", path / "lock.mdb", saved.damaged):
        assert (file.stat().st_uid, file.stat().st_gid, file.stat().st_mode & 0o777) == (12345, 12345, 0o640)


def test_check_says_it_and_repair_saves(damaged):
    path, uuids = damaged
    (number, *_) = live(path, b"echokey 70")
    spoil(path, number, "zero")
    looked = here("check", "--store", path)
    assert looked.code == 1
    assert looked.err.startswith(f"titanic: {path}/data.mdb is damaged; ")
    assert looked.err.endswith("; restore a backup, or save what can be read: titanic check --repair\n")
    mended = here("check", "--repair", "--store", path)
    assert mended.code == 0
    assert f"page {number} can't be read → copy the rest to a new file\n" in mended.out.decode()
    assert mended.out.endswith(b", 0 left after the repair\n")
    (kept,) = path.glob("damaged-*.mdb")
    assert mended.err == f"titanic: the damaged file is kept as {kept}\n"
    assert here("check", "--store", path).code == 0
    with LmdbStore.open(path) as store, store.read() as txn:
        assert all(state_of(txn, uuid) for uuid in uuids)


def test_a_check_beside_a_server_survives_what_ends_lmdb(damaged):
    path, _ = damaged
    for number in live(path, b"key 70"):
        spoil(path, number, "zero")
    with LmdbStore.open(path):  # that somebody has it open is all that a server does here
        with pytest.raises(StoreCorrupt) as raised:
            check_apart(path)
        done = titanic("check", "--store", path)
    text = str(raised.value)
    assert text.startswith(f"the store in {path} is damaged; LMDB crashed while reading '")
    assert "SIGABRT" in text
    assert "Assertion" in text
    assert text.endswith("; restore a backup, or save what can be read: titanic check --repair")
    assert (done.code, done.out, done.err) == (1, b"", f"titanic: {text}\n")


def test_a_check_beside_a_server_finds_what_any_check_finds(damaged):
    path, uuids = damaged
    edit(path, lambda txn, db: txn.delete(uuids[0], db=db["replies"]))
    with LmdbStore.open(path) as store:
        found = check_apart(path)
        assert found.problems == check(store)
        assert (found.requests, found.replies) == (len(uuids), COUNT // 3 - 1)
    edit(path, lambda txn, db: txn.put(b"store_format", U32.pack(FORMAT + 1), db=db["meta"]))
    with pytest.raises(StoreError, match="was written by a later version"):
        check_apart(path)


def test_a_walk_ends_where_lmdb_can_not_go_on(damaged):
    path, uuids = damaged
    for number in branches(path):
        page = bytearray(read(path, number))
        node = int.from_bytes(page[16:18], "little")
        page[node : node + 6] = b"\xff" * 6  # the page below: there is none of that number
        with (path / "data.mdb").open("r+b") as file:
            file.seek(number * PAGE)
            file.write(page)
    with LmdbStore.open(path, to_repair=True) as store:
        (problem,) = check(store)
        assert problem.where == "requests"
        assert "MDB_PAGE_NOTFOUND" in problem.what
        assert problem.what.endswith("; the rest was not checked")
        with pytest.raises(StoreCorrupt, match=r"MDB_PAGE_NOTFOUND.*; restore a backup, or save what can be read: "):
            repair(store)
    assert mend(path, uuids) == (len(uuids), COUNT // 3)


def test_no_backup_is_made_of_damaged_pages_or_restored(damaged, tmp_path):
    path, _ = damaged
    spoil(path, live(path, b"key 70")[0], "zero")
    new = tmp_path / "new"
    for done in (here("backup", new, "--store", path), here("restore", path, "--store", new)):
        assert done.code == 1
        assert done.err.startswith(f"titanic: {path}/data.mdb is damaged; ")
        assert not new.exists()


def test_a_sound_file_is_read_once_and_a_damaged_one_is_never_taken_for_sound(damaged, monkeypatch):
    """The screen may be stricter than lmdb's verifier, never less strict."""
    data = damaged[0] / "data.mdb"
    content = data.read_bytes()
    verify = pages.verify
    asked = []
    monkeypatch.setattr(pages, "verify", lambda *args, **options: asked.append(args) or [])
    assert faults(data) == []
    assert not asked, "the screen alone says so"
    chance = random.Random(5)
    missed = noticed = 0
    for _ in range(400):
        spoiled = bytearray(content)
        page = chance.randrange(len(content) // PAGE)
        at = page * PAGE + chance.choice([chance.randrange(16), chance.randrange(16, 200), chance.randrange(PAGE)])
        spoiled[at] ^= 1 << chance.randrange(8)
        data.write_bytes(spoiled)
        del asked[:]
        faults(data)
        try:
            right = verify(str(data), subdir=False)
        except VerifyError as error:
            right = [str(error)]
        missed += bool(right) and not asked
        noticed += bool(right)
    assert (missed, noticed > 100) == (0, True)
