"""The engines that tests run with, where all must do the same: LMDB, the engine in memory, PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.store_memory import DamageableStore

from titanic.store import Store, open_store
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check
from titanic.store.postgres import tools as postgres_tools
from titanic.store.postgres.store import PostgresStore

_databases: dict[Path, str] = {}


def open_postgres(path: Path, **settings: Any) -> Store:
    """Opens a store in a database that stands for this path: another one for each, and the same one again."""
    if path not in _databases:
        _databases[path] = postgres.shared_server().new_store()
    return open_store(place_of("postgres", path), **settings)


def place_of(engine: str, path: Path) -> str:
    """Where `open_store` finds the store of an engine that stands for a path, or makes it."""
    if engine != "postgres":
        return str(path)
    if path not in _databases:
        _databases[path] = postgres.shared_server().new_database()
    return postgres.shared_server().url(_databases[path])


def forget_databases() -> None:
    """The test has ended: nobody needs its databases."""
    while _databases:
        postgres.shared_server().drop_database(_databases.popitem()[1])


ENGINES: dict[str, Callable[..., Store]] = {"lmdb": open_store, "memory": DamageableStore, "postgres": open_postgres}

PARAMETERS = [pytest.param(name, marks=postgres.needs_postgres if name == "postgres" else ()) for name in ENGINES]


def is_sound(store: Store) -> bool:
    """Whether a check finds nothing; where there is nothing to check, all is well."""
    if isinstance(store, PostgresStore):
        return postgres_tools.check(store) == []
    return not isinstance(store, LmdbStore) or check(store) == []


def damage_reply(store: Store, uuid: bytes) -> None:
    """What can be read of the reply is not what was stored."""
    if isinstance(store, DamageableStore):
        store.damaged.add(uuid)
        return
    with store.write() as transaction:
        if isinstance(store, PostgresStore):
            longer = "UPDATE titanic.reply SET frames_bytes = frames_bytes + 1 WHERE uuid = %s::uuid RETURNING 1"
            assert transaction.fetch(longer, uuid.hex()) == [(1,)]
            return
        record = bytearray(transaction.raw.get(uuid, db=transaction.db.replies))
        record[-1] ^= 1
        transaction.raw.put(uuid, bytes(record), db=transaction.db.replies)
