"""A store that is sound at the end. `pytest.mark.settings(capacity=…)` says how it is opened.

It is LMDB's, unless the test uses `engine`: then the test runs with each of support/store_engines.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.postgres import needs_postgres, shared_server
from support.serving import settings_of
from support.store_engines import ENGINES, PARAMETERS, forget_databases, is_sound

from titanic.store import Store
from titanic.store.lmdb.store import LmdbStore
from titanic.store.postgres.transaction import PostgresReading


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        names = ["lmdb"] if metafunc.definition.get_closest_marker("lmdb") else PARAMETERS
        if metafunc.definition.get_closest_marker("lasting"):
            names = [parameter for parameter in PARAMETERS if parameter.values != ("memory",)]
        metafunc.parametrize("engine", names, indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Callable[..., Store]]:
    """Opens a store, as `open_store` does. A test or a file that uses it runs with each engine."""
    yield ENGINES[request.param]
    forget_databases()


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    engine = request.getfixturevalue("engine") if "engine" in request.fixturenames else LmdbStore.open
    with engine(tmp_path / "store", **settings_of(request)) as store:
        yield store
        assert is_sound(store)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder that is not in memory."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def url() -> Iterator[str]:
    """Of a database with a new store."""
    name = shared_server().new_store()
    yield shared_server().url(name)
    shared_server().drop_database(name)


@pytest.fixture(params=["lmdb", pytest.param("postgres", marks=needs_postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a server of its own process has its store."""
    if request.param == "lmdb":
        yield str(tmp_path / "store")
        return
    name = shared_server().new_database()
    yield shared_server().url(name)
    shared_server().drop_database(name)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements each round trip to PostgreSQL had, besides BEGIN."""
    found: list[int] = []
    exchange = PostgresReading.exchange

    def counted(tx: PostgresReading, statements: Any) -> Any:
        found.append(len(statements))
        return exchange(tx, statements)

    monkeypatch.setattr(PostgresReading, "exchange", counted)
    return found
