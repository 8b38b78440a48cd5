"""`titanic migrate`: all of a store moves to another one, of the same engine or another, or nothing does."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.postgres import needs_postgres
from support.processes import run_fork
from support.store_contents import SECOND, START, fill
from support.store_engines import forget_databases, is_sound, place_of
from support.store_facts import accept_all, closed_in, closed_range, holder_of, load_of, waiting_in

from titanic.errors import NotAStore, RecordCorrupt, StoreCorrupt, StoreError, StoreLocked
from titanic.store import (
    Load,
    NewRequest,
    Retention,
    State,
    Status,
    Store,
    open_export,
    open_import,
    open_store,
)
from titanic.store.lmdb.tools.lmdb_export import LmdbImport
from titanic.store.moving import Progress, StoredKey, StoreSummary, move
from titanic.store.postgres import postgres_export
from titanic.store.rules import LATEST

ENGINES = ("lmdb", pytest.param("postgres", marks=needs_postgres))
WAYS = [
    ("lmdb", "lmdb"),
    *(pytest.param(*way, marks=needs_postgres) for way in product(("lmdb", "postgres"), repeat=2) if "postgres" in way),
]

Places = Callable[[str, str], str]

OWNERS = [b"eve", b"evelyn", b"nobody"]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    """Where a store of an engine can be, under a name."""
    yield lambda engine, name: place_of(engine, tmp_path / name)
    forget_databases()


def seen(store: Store) -> dict[str, Any]:
    """All that the interface shows of a store."""
    with store.read() as tx:
        rows = tx.select(limit=10_000)
        services = sorted(waiting_in(tx))
        return {
            "identity": tx.identity(),
            "rows": rows,
            "requests": [tx.request(row.uuid) for row in rows],
            "replies": [tx.reply(row.uuid) for row in rows],
            "queues": [tx.next_ready(service, None, 1000, 1 << 30) for service in services],
            "loads": [load_of(tx, service) for service in services],
            "unended": [tx.load(owner).waiting for owner in OWNERS],
            "waiting": waiting_in(tx),
            "counts": tx.counts()[:4],
            "due": [tx.next_due(), tx.next_due(Retention())],
            "keys": [holder_of(tx, b"key %d" % n, owner) for n in range(120) for owner in [b"", *OWNERS]],
            "three": holder_of(tx, b"three", b"eve"),
            "closed": closed_in(tx, 0, 10_000, 1 << 30),
            "bulk": len(tx.closed_bulk(*closed_range(tx)).starts),
            "archive": tx.archive(),
            "settings": tx.service_settings(),
        }


def archived(store: Store) -> list[Load]:
    """The loads of owners once the archive has all closed requests: the engines count these differently."""
    with store.write() as tx:
        tx.update_archive(tx.archive().archivist, upto=closed_range(tx)[1])
    with store.write() as tx:
        tx.trim(START)
    with store.read() as tx:
        return [tx.load(owner) for owner in OWNERS]


def migrate(source: str, target: str, tell: Progress = lambda doing, done, total: None) -> StoreSummary:
    with open_export(source) as out, open_import(target) as into:
        return move(out, into, tell)


@pytest.mark.parametrize(("one", "other"), WAYS)
def test_everything_moves_and_goes_on(places: Places, one: str, other: str) -> None:
    source, target = places(one, "source"), places(other, "target")
    with open_store(source, closed_body_limit=10_000) as store:
        fill(store)
        before = seen(store)
    moved = migrate(source, target)
    assert moved.requests == len(before["rows"])
    assert {state for state, count in moved.states.items() if count} == set(State) - {State.RUNNING}
    assert (moved.keys, moved.closed) == (28, len(before["closed"]))
    with open_store(source) as store:
        assert seen(store) == before, "the source stays as it is"
        loads = archived(store)
    with open_store(target) as store:
        assert seen(store) == before
        assert archived(store) == loads
        with store.write() as tx:
            (again,) = tx.accept([NewRequest(b"a", [b"x"], key=b"key 5", key_until=START + 1, owner=b"evelyn")], START)
            assert not again.new
            (new,) = accept_all(tx, [NewRequest(b"a", [bytes(9000)])], START)
            assert new > max(row.uuid for row in before["rows"])
        with store.write() as tx:
            tx.promote(START + 10_000 * SECOND)
            tx.expire(START + 10_000 * SECOND)
            for row in tx.select(limit=1000):
                assert tx.close(row.uuid, START)
        with store.read() as tx:
            assert closed_range(tx)[1] == before["archive"].last + len(before["rows"]) + 1
            assert tx.load(b"eve").waiting == load_of(tx, b"a").waiting == load_of(tx, b"a").bytes == 0
        assert is_sound(store)


@pytest.mark.parametrize(("one", "other"), WAYS)
def test_an_empty_store_moves_too(places: Places, one: str, other: str) -> None:
    with open_store(places(one, "source")) as store:
        before = seen(store)
    assert migrate(places(one, "source"), places(other, "target")).requests == 0
    with open_store(places(other, "target")) as store:
        assert seen(store) == before


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("step", ["copying requests", "copying closed requests", "comparing keys"])
def test_what_was_interrupted_serves_nobody_until_it_is_done_again(places: Places, kind: str, step: str) -> None:
    source, target = places("lmdb", "source"), places(kind, "target")
    with open_store(source) as store:
        fill(store)
        before = seen(store)

    def tell(doing: str, done: int, total: int) -> None:
        if doing == step:
            raise Interrupted

    for _ in range(2):
        with pytest.raises(Interrupted):
            migrate(source, target, tell)
        with pytest.raises(NotAStore, match="unfinished"):
            open_store(target)
    migrate(source, target)
    with open_store(target) as store:
        assert seen(store) == before


@pytest.mark.parametrize("kind", ENGINES)
def test_a_target_that_is_killed_serves_nobody(places: Places, kind: str) -> None:
    source, target = places("lmdb", "source"), places(kind, "target")
    with open_store(source) as store:
        fill(store)
    program = """if True:
        import os, sys
        from titanic.store import open_export, open_import
        from titanic.store.moving import move
        with open_export(sys.argv[1]) as out, open_import(sys.argv[2]) as into:
            move(out, into, lambda doing, *_: doing == "copying keys" and os.kill(os.getpid(), 9))
    """
    assert run_fork(program, source, target)[0] == -signal.SIGKILL
    with pytest.raises(NotAStore, match="unfinished"):
        open_store(target)
    migrate(source, target)
    open_store(target).close()


@pytest.mark.parametrize("kind", ENGINES)
def test_what_is_there_is_not_overwritten(places: Places, kind: str) -> None:
    source, target = places("lmdb", "source"), places(kind, "target")
    for place in (source, target):
        open_store(place).close()
    with pytest.raises(NotAStore, match=r"cannot write to .*; it already has a store"):
        migrate(source, target)


def test_a_directory_of_somebody_else_stays_as_it_was(places: Places, tmp_path: Path) -> None:
    open_store(places("lmdb", "source")).close()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "letters").touch()
    with pytest.raises(NotAStore, match="it holds 'letters'"):
        migrate(places("lmdb", "source"), places("lmdb", "target"))
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["letters"]


@pytest.mark.parametrize("kind", ENGINES)
def test_who_uses_the_source_goes_first(places: Places, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with open_store(places(kind, "source")) as store, monkeypatch.context() as quick:
        quick.setattr(postgres_export, "_PATIENCE", 0.1)
        with store.write() as tx:
            accept_all(tx, [NewRequest(b"a", [b"x"])], START)
        with pytest.raises(StoreLocked, match="in use"):
            migrate(places(kind, "source"), places("lmdb", "target"))
    migrate(places(kind, "source"), places("lmdb", "target"))


@needs_postgres
def test_a_source_that_is_none_is_not_made(places: Places, tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="has no store"):
        migrate(places("postgres", "absent"), places("lmdb", "target"))
    with pytest.raises(NotAStore, match="is not a store"):
        migrate(str(tmp_path / "absent"), places("lmdb", "target"))
    assert not (tmp_path / "target").exists()
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("kind", ENGINES)
def test_nobody_else_makes_the_same_store_meanwhile(places: Places, kind: str) -> None:
    open_store(places("lmdb", "source")).close()
    target = places(kind, "target")
    with open_import(target), pytest.raises(StoreLocked, match="in use"):
        migrate(places("lmdb", "source"), target)
    migrate(places("lmdb", "source"), target)


def test_damage_does_not_move(places: Places) -> None:
    source, target = places("lmdb", "source"), places("lmdb", "target")
    with open_store(source) as store, store.write() as tx:
        (uuid,) = accept_all(tx, [NewRequest(b"a", [b"x"])], START)
        record = bytearray(tx.raw.get(uuid, db=tx.db.requests))
        record[-1] ^= 1
        tx.raw.put(uuid, bytes(record), db=tx.db.requests)
    with pytest.raises(RecordCorrupt):
        migrate(source, target)
    with pytest.raises(NotAStore):
        open_store(target)


@needs_postgres
@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("UPDATE titanic.request SET body = '{x}'", RecordCorrupt),
        ("UPDATE titanic.reply SET frames = '{x,y}'", RecordCorrupt),
        ("DELETE FROM titanic.ready", StoreCorrupt),
        ("DELETE FROM titanic.closed WHERE seq = 10", StoreCorrupt),
    ],
)
def test_damage_of_a_database_does_not_move(places: Places, damage: str, fault: type[StoreError]) -> None:
    source, target = places("postgres", "source"), places("lmdb", "target")
    with open_store(source) as store:
        fill(store)
    with psycopg.connect(source) as connection:
        connection.execute(damage)
    with pytest.raises(fault):
        migrate(source, target)
    with pytest.raises(NotAStore):
        open_store(target)


@needs_postgres
def test_a_schema_of_somebody_else_stays_as_it_was(places: Places) -> None:
    open_store(places("lmdb", "source")).close()
    target = places("postgres", "target")
    with psycopg.connect(target) as connection:
        connection.execute("CREATE SCHEMA titanic; CREATE TABLE titanic.ship (name text)")
    with pytest.raises(NotAStore, match="a schema 'titanic' that is not Titanic's"):
        migrate(places("lmdb", "source"), target)
    with psycopg.connect(target) as connection:
        assert connection.execute("SELECT count(*) FROM titanic.ship").fetchone() == (0,)


class ForgetsKey(LmdbImport):
    def put_keys(self, keys: list[StoredKey]) -> None:
        super().put_keys(keys[1:])


class ForgetsReady(postgres_export.PostgresImport):
    def _copy(self, tables: dict[str, Any]) -> None:
        super()._copy(tables | {"ready": []})


@pytest.mark.parametrize(
    ("to", "import_", "fault"),
    [
        ("lmdb", ForgetsKey, r"27 keys.* instead of .*28 keys"),
        pytest.param("postgres", ForgetsReady, r"problems?, the first: .+: ", marks=needs_postgres),
    ],
)
def test_what_is_lost_on_the_way_is_noticed(places: Places, to: str, import_: Any, fault: str) -> None:
    source, target = places("lmdb", "source"), places(to, "target")
    with open_store(source) as store:
        fill(store)
    with pytest.raises(StoreCorrupt, match=fault), open_export(source) as out, import_(target) as into:
        move(out, into, lambda doing, done, total: None)
    with pytest.raises(NotAStore):
        open_store(target)


def test_a_store_that_was_too_small_gets_the_room_that_it_needs(places: Places) -> None:
    with open_store(places("lmdb", "source"), capacity=64 << 20) as store, store.write() as tx:
        accept_all(tx, [NewRequest(b"a", [bytes(1 << 20)])] * 40, START)
    with open_store(places("lmdb", "source"), capacity=16 << 20) as store, store.read() as tx:
        assert tx.space().full
    migrate(places("lmdb", "source"), places("lmdb", "target"))
    with open_store(places("lmdb", "target")) as store, store.read() as tx:
        assert not tx.space().full
        assert tx.counts().requests == 40


@needs_postgres
def test_times_that_a_database_has_no_room_for_are_the_latest_there_are(places: Places) -> None:
    far = 2**64 - 1
    with open_store(places("lmdb", "source")) as store, store.write() as tx:
        new = NewRequest(b"a", [], not_before=far, expires_at=far, key=b"k", key_until=far)
        uuid, ended, _ = accept_all(tx, [new, NewRequest(b"a", []), NewRequest(b"a", [])], START)
        tx.finish(ended, Status.DONE, [], attempts=1, dispatched_at=far, finished_at=far)
    migrate(places("lmdb", "source"), places("postgres", "target"))
    with open_store(places("postgres", "target")) as store, store.read() as tx:
        moved = tx.describe(uuid)
        assert moved is not None
        assert (moved.state, moved.due, moved.expires_at) == (State.DELAYED, LATEST, LATEST)
        assert holder_of(tx, b"k") == uuid
        assert is_sound(store)
