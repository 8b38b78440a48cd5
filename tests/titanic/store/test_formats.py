"""Stores of other formats: released ones are opened for ever, those from before the first release are refused."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import lmdb
import psycopg
import pytest
from msgspec.structs import asdict
from support.cli_titanic import here, titanic
from support.postgres import needs_postgres, shared_server
from support.processes import run_fork
from support.store_contents import contents, difference
from support.store_facts import accept_all, closed_in
from support.store_formats import STORES, synthetic_step, unpack, unpack_tables

from titanic.errors import NotAStore, StoreFailed, StoreTooNew, StoreTooOld
from titanic.store import NewRequest, open_export, open_read_only, open_store
from titanic.store.lmdb import closed_record, opening, outcome_record, request_record, schema
from titanic.store.lmdb.record import BODY, PREFIX, seal
from titanic.store.lmdb.schema import closed_key
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check, restore
from titanic.store.postgres import schema as postgres_schema
from titanic.store.postgres.schema import FORMAT as POSTGRES_FORMAT
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import check as check_tables
from titanic.store.request import (
    CLOSED_FORMAT,
    CLOSED_LAYOUT,
    CLOSED_LAYOUTS,
    CLOSED_TEXTS,
    LASTING_TEXTS,
    ClosedLayout,
)
from titanic_data.columns import closed_batch

NOW = 1_795_258_520_106_479
RELEASED = range(1, POSTGRES_FORMAT + 1)
"""Of the packed stores: each time one of both engines has another format, there is one more."""
UNRELEASED = range(1, 7)
LAYOUTS = {1: "8492515bb17478ed", 2: "e26a574ca608270c", 3: "fd32e7dcf7eb9f51", 4: "0cb6de6848e31ca5"}
"""The digest of the layout of each format."""

_CATALOG = """
SELECT table_name::text, column_name::text, data_type::text, is_nullable::text, column_default::text
FROM information_schema.columns WHERE table_schema = 'titanic'
UNION ALL SELECT conrelid::regclass::text, conname::text, pg_get_constraintdef(oid), '', '' FROM pg_constraint
WHERE connamespace = 'titanic'::regnamespace
UNION ALL SELECT tablename::text, indexname::text, indexdef, '', '' FROM pg_indexes WHERE schemaname = 'titanic'
ORDER BY 1, 2, 3"""


@pytest.fixture
def url() -> Iterator[str]:
    """Of an empty database."""
    name = shared_server().new_database()
    yield shared_server().url(name)
    shared_server().drop_database(name)


def sql(url: str, text: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else []


# -- released formats --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", RELEASED)
def test_a_packed_store_is_opened_and_has_all_of_it(tmp_path: Path, number: int) -> None:
    expected = unpack(tmp_path, f"format-{number}")
    with LmdbStore.open(tmp_path) as store:
        assert check(store) == []
    assert difference(expected, contents(str(tmp_path))) == []
    with LmdbStore.open(tmp_path) as store, store.write() as txn:
        for row in txn.select(limit=1000):
            assert txn.close(row.uuid, NOW)
        assert accept_all(txn, [NewRequest(b"x", [b"body"])], NOW)


@needs_postgres
@pytest.mark.parametrize("number", RELEASED)
def test_packed_tables_are_opened_and_have_all_of_it(tmp_path: Path, url: str, number: int) -> None:
    expected = unpack(tmp_path, f"format-{number}")
    unpack_tables(url, f"format-{number}")
    assert difference(expected, contents(url)) == []
    there = sql(url, _CATALOG)
    with PostgresStore.open(url) as store:
        assert check_tables(store) == []
    with open_store(url) as store, store.write() as txn:
        (uuid,) = accept_all(txn, [NewRequest(b"x", [b"body"])], NOW)
        assert txn.request(uuid).body == [b"body"]
    sql(url, "DROP SCHEMA titanic CASCADE")
    open_store(url).close()
    todo = "the tables changed: in titanic/store/postgres/schema.py raise FORMAT, add the change to UPGRADES, then pack"
    assert there == sql(url, _CATALOG), todo


def test_the_layout_is_that_of_its_format() -> None:
    """All keys, layouts of values and names of databases that are declared."""
    modules = (schema, request_record, outcome_record, closed_record)
    values = {repr(schema.Databases._fields)}
    for value in (value for module in modules for name, value in vars(module).items() if name.strip("_").isupper()):
        if isinstance(value, bytes | struct.Struct):
            values.add(value.format if isinstance(value, struct.Struct) else value.hex())
    found = sha256("\n".join(sorted(values)).encode()).hexdigest()[:16]
    todo = "what is declared of the layout changed: if a store looks different now, follow the steps in lmdb/schema.py"
    todo += ", or of a record those in lmdb/record.py: the format stays"
    assert LAYOUTS.get(opening.FORMAT) == found, f"{todo}; then note the new digest in LAYOUTS"


def test_there_is_a_step_for_every_earlier_format() -> None:
    assert sorted(opening.STEPS) == list(range(1, opening.FORMAT))
    assert sorted(postgres_schema.UPGRADES) == list(range(1, POSTGRES_FORMAT))


# -- the upgrade -------------------------------------------------------------------------------------------------


LAST = opening.FORMAT


def test_an_earlier_format_is_converted_when_it_is_opened(tmp_path: Path) -> None:
    expected = unpack(tmp_path, "format-1")
    with synthetic_step():
        with pytest.raises(StoreTooOld, match=f"its format is 1, this version reads format {LAST + 1}; open it for"):
            LmdbStore.open_read_only(tmp_path)
        for _ in range(2):
            with LmdbStore.open(tmp_path) as store:
                assert check(store) == []
            assert difference(expected, contents(str(tmp_path))) == []
    with pytest.raises(StoreTooNew, match=f"its format is {LAST + 1}, this version reads formats up to {LAST}"):
        LmdbStore.open(tmp_path)


DIE = """
import os, sys
from support.store_formats import synthetic_step
from titanic.store.lmdb import opening
from titanic.store.lmdb.store import LmdbStore
with synthetic_step():
    number, step = max(opening.STEPS.items())
    def die(env, txn):
        step(env, txn)
        os._exit(9)
    opening.STEPS[number] = die
    LmdbStore.open(sys.argv[1])
"""


def test_a_crash_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    expected = unpack(tmp_path, "format-1")
    assert run_fork(DIE, tmp_path)[0] == 9
    assert difference(expected, contents(str(tmp_path))) == []


@needs_postgres
def test_tables_of_an_earlier_format_are_upgraded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(url) as store, store.write() as txn:
        accept_all(txn, [NewRequest(b"x", [b"body"])], NOW)
    table = "ALTER TABLE titanic.request"
    text = f"{table} ADD synthetic bytea NOT NULL DEFAULT ''; {table} ALTER synthetic DROP DEFAULT"
    monkeypatch.setitem(postgres_schema.UPGRADES, POSTGRES_FORMAT, postgres_schema.Upgrade(text, POSTGRES_FORMAT))
    monkeypatch.setattr(postgres_schema, "FORMAT", POSTGRES_FORMAT + 1)
    open_store(url).close()
    found = sql(url, "SELECT store_format, oldest FROM titanic.meta")
    assert found == [(POSTGRES_FORMAT + 1, POSTGRES_FORMAT)]
    assert sql(url, "SELECT synthetic FROM titanic.request") == [(b"",)]
    with open_store(url) as store, pytest.raises(StoreFailed), store.write() as txn:
        accept_all(txn, [NewRequest(b"x", [b"body"])], NOW)  # as a node that does not know the field


@needs_postgres
def test_a_later_format_is_served_if_it_says_so(url: str) -> None:
    with open_store(url) as store, store.write() as txn:
        (uuid,) = accept_all(txn, [NewRequest(b"x", [b"body"])], NOW)
    sql(url, f"UPDATE titanic.meta SET store_format = 99, oldest = {POSTGRES_FORMAT}")
    with open_store(url) as store, store.read() as txn:
        assert txn.request(uuid).body == [b"body"]
    open_read_only(url).close()
    assert sql(url, "SELECT store_format, oldest FROM titanic.meta") == [(99, POSTGRES_FORMAT)]
    sql(url, f"UPDATE titanic.meta SET oldest = {POSTGRES_FORMAT + 1}")
    for open_it in (open_store, open_read_only):
        with pytest.raises(StoreTooNew, match=f"it has format 99, this version reads {POSTGRES_FORMAT}"):
            open_it(url)


@needs_postgres
def test_a_format_that_no_version_made_is_refused(url: str) -> None:
    open_store(url).close()
    sql(url, "UPDATE titanic.meta SET store_format = 0, oldest = 0")
    with pytest.raises(NotAStore, match="it has format 0, which no version writes"):
        open_store(url)


# -- a field more -------------------------------------------------------------------------------------------------


def _without_its_last_text(record: bytes, sequence: int) -> bytes:
    """A record of a closed request as if the last of today's fields were not known when it was written."""
    names = [name for name, _ in CLOSED_LAYOUT]
    fields = dict(zip(names, CLOSED_LAYOUTS[CLOSED_FORMAT].header.unpack_from(record), strict=True))
    at, texts = CLOSED_LAYOUTS[CLOSED_FORMAT].header.size, {}
    for name in CLOSED_TEXTS:
        texts[name] = record[at : at + fields[f"{name}_size"]]
        at += len(texts[name])
    earlier = CLOSED_LAYOUTS[EARLIER]
    head = earlier.header.pack(*(EARLIER if name == "format" else fields[name] for name, _ in earlier.fields))
    rest = b"".join((head[BODY:], *(texts[name] for name in earlier.texts), record[at:]))
    return seal(closed_key(sequence), head[:PREFIX], rest)


EARLIER = CLOSED_FORMAT - 1


def test_closed_records_of_an_earlier_format_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLOSED_LAYOUTS, EARLIER, ClosedLayout.of(*LASTING_TEXTS[:-1], "error"))
    last = LASTING_TEXTS[-1]
    with LmdbStore.open(tmp_path) as store:
        with store.write() as txn:
            new = [NewRequest(b"x", body, owner=b"eve", source=b"192.0.2.7") for body in ([b"1"], [], [bytes(70_000)])]
            for uuid in accept_all(txn, new, NOW):
                txn.close(uuid, NOW)
        with store.read() as txn:
            expected = [asdict(one) | {last: b""} for one in closed_in(txn, 0, 3, 1 << 30)]
        environment = store.environment
        with environment.env.begin(write=True, db=environment.databases.closed) as raw:
            for number in (1, 2, 3):
                record = raw.get(closed_key(number))
                raw.put(closed_key(number), _without_its_last_text(record, number))
        with store.read() as txn:
            assert [asdict(one) for one in closed_in(txn, 0, 3, 1 << 30)] == expected
            bulk = txn.closed_bulk(1, 3)
        assert [asdict(one) for one in bulk.requests()] == expected
        assert {bulk.data[start] for start in bulk.starts} == {CLOSED_FORMAT}
        rows = closed_batch(bulk, ["owner", last, "request"]).to_pylist()
        assert [(row["owner"], row[last]) for row in rows] == [("eve", None)] * 3
        assert check(store) == []


# -- before the first release ------------------------------------------------------------------------------------

REFUSAL = (
    "the store in {} was written before the first release of Titanic; its format {} of that time cannot be converted;"
    " use another place for the store, or the version that wrote it"
)


def refused(text: str, *calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(StoreTooOld) as raised:
            call()
        assert str(raised.value) == text


@pytest.mark.parametrize("number", UNRELEASED)
def test_a_directory_from_before_the_first_release_is_refused_and_stays(tmp_path: Path, number: int) -> None:
    path, new = tmp_path / "store", tmp_path / "new"
    unpack(path, f"unreleased-{number}")
    before = (path / "data.mdb").read_bytes()
    text = REFUSAL.format(path, number)
    refused(
        text,
        lambda: open_store(path),
        lambda: open_store(path, capacity=1 << 30),
        lambda: LmdbStore.open(path, to_repair=True),
        lambda: open_read_only(path),
        lambda: open_export(path),
        lambda: restore(path, new),
    )
    if number in (UNRELEASED[0], UNRELEASED[-1]):
        store = ("--store", path)
        for command in (
            ("check", *store),
            ("check", "--repair", *store),
            ("backup", new, *store),
            ("restore", path, "--store", new),
            ("migrate", path, new),
            ("status", *store),
            ("serve", *store, "--bind", "tcp://127.0.0.1:0"),
        ):
            done = (titanic if command[0] == "serve" else here)(*command)
            assert (done.code != 0, done.out, text in done.err) == (True, b"", True), (command, done)
    assert (path / "data.mdb").read_bytes() == before
    assert not (new / "data.mdb").exists()
    assert not list(path.glob("damaged*"))


@pytest.mark.parametrize("value", [b"", bytes(5)])
def test_a_directory_that_only_resembles_one_is_not_taken_for_it(tmp_path: Path, value: bytes) -> None:
    unpack(tmp_path, "unreleased-6")
    with lmdb.open(str(tmp_path), max_dbs=16) as env, env.begin(write=True) as txn:
        txn.put(b"format", value, db=env.open_db(b"meta", txn))
    with pytest.raises(Exception, match="'store_format' in 'meta' is missing"):
        LmdbStore.open(tmp_path)


@needs_postgres
@pytest.mark.parametrize("number", range(1, 5))
def test_tables_from_before_the_first_release_are_refused_and_stay(tmp_path: Path, url: str, number: int) -> None:
    sql(url, (STORES / "unreleased.sql").read_text())
    sql(url, f"UPDATE titanic.meta SET format = {number}")
    if number == 1:
        sql(url, "ALTER TABLE titanic.meta DROP oldest")
    everything = [_CATALOG, "SELECT * FROM titanic.meta", "SELECT * FROM titanic.request"]
    before = [sql(url, text) for text in everything]
    refused_at = []
    for call in (open_store, open_read_only, open_export):
        with pytest.raises(StoreTooOld) as raised:
            call(url)
        refused_at.append(str(raised.value))
    assert len({*refused_at}) == 1
    assert f"its format {number} of that time cannot be converted" in refused_at[0]
    if number in (1, 4):
        for command in (
            ("check", "--store", url),
            ("check", "--repair", "--store", url),
            ("migrate", url, tmp_path / "new"),
            ("status", "--store", url),
            ("serve", "--store", url, "--bind", "tcp://127.0.0.1:0"),
        ):
            done = (titanic if command[0] == "serve" else here)(*command)
            assert (done.code != 0, done.out, refused_at[0] in done.err) == (True, b"", True), (command, done)
    assert [sql(url, text) for text in everything] == before
