"""A check of many rows at a time finds what a check of each row by itself finds."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from support.store_contents import fill
from support.store_damage import edit

from titanic.store.lmdb.schema import Databases
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import batches, check, findings
from titanic.store.lmdb.tools.check import check_all

SEEDS = 40
DAMAGES = ("flip", "drop", "move", "empty", "append", "swap")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("sound") / "store"
    with LmdbStore.open(path, capacity=16 << 20) as store:
        fill(store)
        assert check(store) == []
    return path


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "store")
    return tmp_path / "store"


def damage(path: Path, chance: random.Random) -> None:
    """Change some rows at random."""

    def change(txn, databases):
        for _ in range(chance.randrange(1, 4)):
            database = databases[chance.choice([name for name in Databases._fields if name not in ("meta", "aside")])]
            rows = list(txn.cursor(database).iternext())
            if not rows:
                continue
            (key, value), what = chance.choice(rows), chance.choice(DAMAGES)
            spoiled = bytearray(value)
            if what == "flip" and value:
                spoiled[chance.randrange(min(len(value), chance.choice([8, 50, 5000])))] ^= 1 << chance.randrange(8)
                txn.put(key, bytes(spoiled), db=database)
            elif what == "drop":
                txn.delete(key, db=database)
            elif what == "move":
                txn.delete(key, db=database)
                other = bytearray(key)
                other[chance.randrange(len(other))] ^= 1 << chance.randrange(8)
                txn.put(bytes(other), value, db=database)
            elif what == "empty":
                txn.put(key, value[: chance.randrange(len(value) + 1)], db=database)
            elif what == "append":
                txn.put(key, value + b"x", db=database)
            else:
                other, others = chance.choice(rows)
                txn.put(key, others, db=database)
                txn.put(other, value, db=database)

    edit(path, change)


def found(path: Path, *, light: bool) -> tuple[list[findings.Problem], list[findings.Remedy], dict[bytes, list[int]]]:
    with LmdbStore.open_read_only(path) as store, store.read() as tx:
        views = findings.Walk(tx, light=light)
        check_all(views)
    with LmdbStore.open_read_only(path) as store, findings.CopyingReading(store.environment) as tx:
        walk = findings.Walk(tx, light=light)
        check_all(walk)
    problems = sorted(walk.across if light else walk.problems)
    assert problems == sorted(views.across if light else views.problems), "views of rows are the same as copies"
    remedies = [] if light else sorted(walk.remedies, key=repr)
    return problems, remedies, walk.owned


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_together_are_checked_as_each_by_itself(damaged: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    damage(damaged, chance)
    monkeypatch.setattr(findings, "SLICE", chance.choice([2, 7, 250]))
    together = [found(damaged, light=light) for light in (False, True)]
    for name in ("requests", "replies", "keys"):
        monkeypatch.setattr(batches, name, lambda walk, rows: rows)
    monkeypatch.setattr(batches, "closed", lambda walk, rows, charged: {key for key, _ in rows})
    apart = [found(damaged, light=light) for light in (False, True)]
    assert together == apart


def test_plain_rows_are_not_examined_by_themselves(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd: dict[str, int] = {}
    for name in ("requests", "replies", "keys", "closed"):
        whole = getattr(batches, name)

        def count(walk, rows, *more, name=name, whole=whole):
            rest = whole(walk, rows, *more)
            odd[name] = odd.get(name, 0) + len(rest)
            return rest

        monkeypatch.setattr(batches, name, count)
    with LmdbStore.open_read_only(sound) as store:
        assert check(store) == []
        with store.read() as tx:
            rows = {name: tx.raw.stat(getattr(tx.db, name))["entries"] for name in odd}
    assert all(odd[name] < rows[name] for name in odd), (odd, rows)
