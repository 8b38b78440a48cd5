"""Rows of a length that they can't have, and numbers that can't be: said as damage, repaired, and nobody is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.store_damage import NOW, edit, make
from support.store_facts import accept_all, closed_in, closed_range, load_of, state_of, waiting_in

from titanic.errors import StoreCorrupt, StoreError
from titanic.store import NewRequest, Retention, Status
from titanic.store.lmdb import listing
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check, repair

UNLIKELY = 10**12


def put(database: str, key: bytes, value: bytes = b"") -> Callable[..., object]:
    return lambda txn, db: txn.put(key, value, db=db[database])


def drop(database: str, key: bytes) -> Callable[..., object]:
    return lambda txn, db: txn.delete(key, db=db[database])


def archive(registered: int, upto: int) -> Callable[..., object]:
    return put("meta", b"archive", bytes([registered]) + upto.to_bytes(8, "little"))


def sequence(number: int) -> Callable[..., object]:
    return put("meta", b"sequence", number.to_bytes(8, "little"))


ODD = {
    "sequence": (put("meta", b"sequence", b"1234"), "'sequence' has 4 bytes"),
    "load": (put("meta", b"necho", b"1"), "b'echo' (ready, pending, bytes) are 1 bytes, but should be (1, 2, "),
    "load of nobody": (
        put("meta", b"nnobody", b"1"),
        "b'nobody' (ready, pending, bytes) are 1 bytes, but should be None",
    ),
    "capacity": (put("meta", b"capacity", b"12"), "'capacity' has 2 bytes"),
    "capacity beyond all": (put("meta", b"capacity", (1 << 60).to_bytes(8, "little")), f"'capacity' is {1 << 60}"),
    "lost": (put("meta", b"lost", b"123"), "'lost' has 3 bytes"),
    "archive": (put("meta", b"archive", b"\1"), "'archive' has 1 bytes"),
    "archivist": (put("meta", b"archivist", b"12"), "'archivist' has 2 bytes"),
    "services": (put("meta", b"services", b'{"a": 5}'), "'services' is invalid"),
    "identity": (put("meta", b"identity", b"12"), "'identity' has 2 bytes"),
    "blob": (put("blobs", b"abcdef", b"x"), "the key has the wrong length"),
    "long blob": (put("blobs", b"a" * 40, b"x"), "the key has the wrong length"),
    "grave": (put("graves", b"ab"), "the key has the wrong length"),
    "grave without a count": (put("graves", (99).to_bytes(8)), "the row has 0 bytes"),
    "timer": (put("timers", b"E"), "the key has the wrong length"),
    "later": (put("later", b"\0", b"echo\0\5"), "the key has the wrong length"),
    "ready": (put("ready", b"echo\0\5"), "the key has the wrong length"),
    "ready of no priority": (put("ready", b"echo\0\xff" + bytes(16)), "there is no such request"),
    "ready of an id": (put("ready", b"echo\0\xff" + b"\1\2\3\4\5\6\x70\x80\x80" * 2), "there is no such request"),
    "request": (put("requests", b"e"), "the key has the wrong length"),
    "closed": (put("closed", b"\0"), "the key has the wrong length"),
    "key": (put("keys", b"key", b"x"), "the row has 1 bytes"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


READING: list[Callable[..., object]] = [
    lambda txn, uuids: [(state_of(txn, uuid), txn.reply(uuid), txn.request(uuid)) for uuid in uuids],
    lambda txn, uuids: txn.next_ready(b"echo", None, 9, 1 << 20),
    lambda txn, uuids: txn.next_due(Retention(closed_retention=1)),
    lambda txn, uuids: waiting_in(txn),
    lambda txn, uuids: load_of(txn, b"echo"),
    lambda txn, uuids: txn.counts(),
    lambda txn, uuids: txn.archive(),
    lambda txn, uuids: (txn.identity(), txn.service_settings()),
    lambda txn, uuids: txn.select(),
    lambda txn, uuids: list(listing._requests_of(txn, b"echo", None, False, listing._Effort(0.0))),
    lambda txn, uuids: closed_in(txn, 0, 9, 1 << 20),
]
WRITING: list[Callable[..., object]] = [
    lambda txn, uuids: accept_all(txn, [NewRequest(b"echo", [b"x"], expires_at=NOW + 99)], NOW),
    lambda txn, uuids: accept_all(txn, [NewRequest(b"echo", [bytes(9000)])], NOW),
    lambda txn, uuids: txn.promote(NOW + 2),
    lambda txn, uuids: txn.expire(NOW + 3),
    lambda txn, uuids: txn.finish(uuids[0], Status.DONE, [b""], attempts=1, dispatched_at=NOW, finished_at=NOW),
    lambda txn, uuids: txn.close(accept_all(txn, [NewRequest(b"echo", [bytes(9000)])], NOW)[0], NOW + 3),
    lambda txn, uuids: txn.clamp_timers(NOW),
    lambda txn, uuids: txn.trim(NOW + 3, Retention(closed_retention=1)),
    lambda txn, uuids: txn.update_archive(register=True),
]
"""All that a server does to a store."""


def use(store: LmdbStore, uuids: list[bytes]) -> list[StoreError]:
    """Do all of it, and return what went wrong."""
    errors = []
    for steps, begin in ((READING, store.read), (WRITING, store.write)):
        for step in steps:
            try:
                with begin() as txn:
                    step(txn, uuids)
            except StoreError as error:
                errors.append(error)
    return errors


@pytest.mark.parametrize("name", ODD)
def test_an_odd_row_is_found_and_repaired(path: Path, name: str) -> None:
    change, found = ODD[name]
    uuids = make(path)
    edit(path, change)
    with LmdbStore.open_read_only(path) as store:
        assert any(found in problem.what and problem.repair for problem in check(store)), check(store)
    with LmdbStore.open(path, to_repair=True) as store:
        repaired = repair(store, NOW + 5)
        assert any(found in problem.what for problem in repaired)
        assert check(store) == []
    with LmdbStore.open(path) as store:
        with store.read() as txn:
            assert None not in [state_of(txn, uuid) for uuid in uuids]
        assert use(store, uuids) == []
        assert check(store) == []


@pytest.mark.parametrize("name", ODD)
def test_an_odd_row_is_damage_and_no_fault_of_the_program(path: Path, name: str) -> None:
    uuids = make(path)
    edit(path, ODD[name][0])
    with LmdbStore.open(path, to_repair=True) as store:
        for error in use(store, uuids):
            assert "report" not in str(error)
        repair(store, NOW + 5)
        assert check(store) == []
        with store.read() as txn:
            assert None not in [state_of(txn, uuid) for uuid in uuids]


def test_the_error_names_the_row_and_says_what_to_do(path: Path) -> None:
    uuids = make(path)
    edit(path, ODD["sequence"][0])
    errors = []
    with pytest.raises(StoreCorrupt) as raised:
        LmdbStore.open(path)
    errors.append(str(raised.value))
    with LmdbStore.open(path, to_repair=True) as store, pytest.raises(StoreCorrupt) as raised, store.write() as txn:
        txn.close(uuids[0])
    errors.append(str(raised.value))
    advice = "stop the server and repair the store: titanic check --repair"
    assert errors == [f"the store is damaged; sequence in 'meta' has 4 bytes; {advice}"] * 2


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (drop("meta", b"store_format"), "'store_format' in 'meta' is missing"),
        (put("meta", b"store_format", b"\2"), "'store_format' in 'meta' is 02"),
        (put("meta", b"store_format", b"\2\0\0\x40"), "'store_format' in 'meta' is 02000040"),
        (put("meta", b"store_format", bytes(4)), "'store_format' in 'meta' is 00000000"),
    ],
)
def test_a_store_of_which_the_format_is_damaged_is_a_store_all_the_same(
    path: Path, change: Callable[..., object], fact: str
) -> None:
    uuids = make(path)
    edit(path, change)
    for open_ in (LmdbStore.open, LmdbStore.open_read_only):
        with pytest.raises(StoreCorrupt, match=f"{fact}; .* titanic check --repair"):
            open_(path)
    with LmdbStore.open(path, to_repair=True) as store:
        assert [problem.what for problem in repair(store, NOW)] == [fact.replace(" in 'meta'", "")]
    with LmdbStore.open(path) as store:
        assert check(store) == []
        assert use(store, uuids) == []


# -- the ring's numbers: 1 to 3 are there --------------------------------------------------------------------------


def ring(path: Path) -> tuple[int, int, list[str], int]:
    """First and last number, the entries' errors, and what the archive has, after a repair."""
    with LmdbStore.open(path, to_repair=True) as store:
        found = check(store)
        assert found
        assert set(found) <= set(repair(store, NOW + 5))
        assert check(store) == []
        assert repair(store, NOW + 6) == []
        with store.read() as txn:
            numbers = closed_range(txn)
            entries = closed_in(txn, 0, 99, 1 << 20)
            assert [entry.sequence for entry in entries] == list(range(numbers[0], numbers[1] + 1))
            return *numbers, [entry.error for entry in entries], txn.archive().archived_upto


def put_and(*changes: Callable[..., object]) -> Callable[..., object]:
    return lambda txn, db: [change(txn, db) for change in changes]


@pytest.mark.parametrize("registered", [0, 1])
def test_a_sequence_that_is_far_too_high_follows_from_the_entries(path: Path, registered: int) -> None:
    make(path)
    edit(path, put_and(archive(registered, 2), sequence(UNLIKELY)))
    assert ring(path) == (1, 3, [""] * 3, 2)


def test_what_the_archive_has_is_not_given_out_again(path: Path) -> None:
    make(path)
    edit(path, put_and(archive(1, 5), sequence(UNLIKELY)))
    missing = "its record was missing"
    assert ring(path) == (1, 5, ["", "", "", missing, missing], 5)


def test_what_an_archive_had_that_left_doesnt_count(path: Path) -> None:
    make(path)
    edit(path, put_and(archive(0, UNLIKELY), sequence(UNLIKELY)))
    assert ring(path) == (1, 3, [""] * 3, 3)


def test_numbers_that_archive_and_sequence_agree_on_are_left_to_people(path: Path) -> None:
    make(path)
    edit(path, put_and(archive(1, UNLIKELY), sequence(UNLIKELY)))
    with LmdbStore.open(path) as store:
        repair(store, NOW)
        assert check(store) == [("closed", f"4 … {UNLIKELY} are missing", "")]


@pytest.mark.parametrize("change", [drop("meta", b"sequence"), put("meta", b"sequence", b"x")])
@pytest.mark.parametrize("emptied", [False, True])
def test_a_sequence_that_is_gone_follows_from_what_the_archive_has(
    path: Path, change: Callable[..., object], emptied: bool
) -> None:
    make(path)
    edit(path, put_and(archive(1, 3), change))
    if emptied:
        edit(path, lambda txn, db: [txn.delete(number.to_bytes(8), db=db["closed"]) for number in (1, 2, 3)])
    assert ring(path) == ((4, 3, [], 3) if emptied else (1, 3, [""] * 3, 3))


@pytest.mark.parametrize("change", [drop("meta", b"sequence"), put("meta", b"sequence", b"x")])
def test_a_damaged_last_entry_keeps_its_number(path: Path, change: Callable[..., object]) -> None:
    make(path)
    edit(path, put_and(change, put("closed", (3).to_bytes(8), b"x" * 90)))
    assert ring(path) == (1, 3, ["", "", "its record was damaged"], 0)


@pytest.mark.parametrize("change", [drop("meta", b"sequence"), sequence(2**64 - 1), sequence(1 << 62)])
def test_an_empty_ring_has_no_numbers_that_nobody_comes_to(path: Path, change: Callable[..., object]) -> None:
    uuids = make(path)
    edit(path, lambda txn, db: [txn.delete(number.to_bytes(8), db=db["closed"]) for number in (1, 2, 3)])
    edit(path, put_and(archive(1, 3), change, put("closed", b"\xff" * 8, b"x")))
    assert ring(path) == (4, 3, [], 3)
    with LmdbStore.open(path) as store:
        assert use(store, uuids) == []


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("moved", [UNLIKELY, 1 << 62])
def test_an_entry_under_a_number_never_given_out_is_set_aside(path: Path, number: int, moved: int) -> None:
    make(path)

    def move(txn, db):
        record = txn.pop(number.to_bytes(8), db=db["closed"])
        txn.put(moved.to_bytes(8), record, db=db["closed"])

    edit(path, move)
    errors = ["", "", ""]
    errors[number - 1] = "its record was missing"
    first = 2 if number == 1 else 1  # nobody can tell that there was one before
    assert ring(path) == (first, 3, errors[first - 1 :], 0)
    with LmdbStore.open(path) as store, store.read() as txn:
        assert txn.raw.stat(txn.db.aside)["entries"] == 1


def test_an_entry_far_before_the_others_is_set_aside(path: Path) -> None:
    """The ring was at 2⁴⁰, when a bit flipped in the key of one of its entries."""
    make(path)
    start = 1 << 40
    edit(path, lambda txn, db: [txn.delete(number.to_bytes(8), db=db["closed"]) for number in (1, 2, 3)])
    edit(path, sequence(start))
    with LmdbStore.open(path) as store, store.write() as txn:
        for uuid in accept_all(txn, [NewRequest(b"echo", [b"x"])] * 3, NOW):
            assert txn.close(uuid, NOW)

    def move(txn, db):
        txn.put((2).to_bytes(8), txn.pop((start + 2).to_bytes(8), db=db["closed"]), db=db["closed"])

    edit(path, move)
    assert ring(path) == (start + 1, start + 3, ["", "its record was missing", ""], 0)


@pytest.mark.parametrize(("row", "upto"), [(b"", 0), (b"\1\2", 0)])
def test_an_archive_row_that_says_nothing_keeps_all_that_is_there(path: Path, row: bytes, upto: int) -> None:
    make(path)
    edit(path, put("meta", b"archive", row))
    assert ring(path) == (1, 3, [""] * 3, upto)
    with LmdbStore.open(path) as store, store.read() as txn:
        assert txn.archive().registered
