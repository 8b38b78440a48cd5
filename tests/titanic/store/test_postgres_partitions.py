"""Closed requests in PostgreSQL: partitions are there before they are needed, and go as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.types.json import Jsonb
from support.postgres import needs_postgres, shared_server

from titanic.errors import StoreFailed
from titanic.store.postgres import partitions as partitions_module
from titanic.store.postgres import store as store_module
from titanic.store.postgres.connection_pool import ConnectionPool
from titanic.store.postgres.partitions import AHEAD, LARGE, PARTITION, keep_partitions
from titanic.store.postgres.rows import CLOSED_COLUMNS, listed
from titanic.store.postgres.store import PostgresStore

pytestmark = needs_postgres


@pytest.fixture
def database() -> Iterator[str]:
    server = shared_server()
    name = server.new_store()
    with PostgresStore.open(server.url(name)):
        pass
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def partitions(connection: Connection) -> list[int]:
    rows = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'titanic' AND tablename LIKE 'closed\\_%'"
    ).fetchall()
    return sorted(int(name.removeprefix("closed_")) for (name,) in rows)


NOTHING = {name: {"boolean": False, "bytea": ""}.get(type_, 0) for name, type_ in CLOSED_COLUMNS.items()}


def close(connection: Connection, *numbers: int, cost: int = 300) -> None:
    for number in numbers:
        row = Jsonb({**NOTHING, "seq": number, "uuid": str(uuid4()), "cost": cost})
        connection.execute(
            f"INSERT INTO titanic.closed ({listed(CLOSED_COLUMNS)}, request, reply)"
            f" SELECT {listed(CLOSED_COLUMNS)}, '{{}}', '{{}}' FROM jsonb_populate_record(NULL::titanic.closed, %s)",
            [row],
        )


def numbers(connection: Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT seq FROM titanic.closed ORDER BY seq").fetchall()]


def note(connection: Connection, first: int, last: int) -> None:
    connection.execute("UPDATE titanic.meta SET closed_first = %s, closed_last = %s", [first, last])


def test_they_are_made_ahead_and_dropped_whole(connection: Connection) -> None:
    assert partitions(connection) == [*range(AHEAD + 1)]
    close(connection, 1, PARTITION - 1, PARTITION, PARTITION + 1)
    note(connection, 1, PARTITION + 1)
    assert keep_partitions(connection)
    assert partitions(connection) == [*range(AHEAD + 2)]
    note(connection, PARTITION - 1, 3 * PARTITION - 1)
    assert keep_partitions(connection)
    assert partitions(connection) == [*range(AHEAD + 4)], (
        "the next number is in the partition behind, and one counts yet"
    )
    note(connection, PARTITION, 3 * PARTITION)
    assert keep_partitions(connection)
    assert partitions(connection) == [*range(1, AHEAD + 4)]
    assert numbers(connection) == [PARTITION, PARTITION + 1]


def test_large_ones_are_deleted_before(connection: Connection) -> None:
    """They may be more than the capacity."""
    close(connection, *range(1, 10), cost=LARGE)
    close(connection, 10, 11)
    close(connection, 12, 13, cost=LARGE)
    note(connection, 12, 13)
    assert keep_partitions(connection)
    assert numbers(connection) == [10, 11, 12, 13]


def test_each_has_its_index(connection: Connection) -> None:
    close(connection, 7)
    note(connection, 1, 2 * PARTITION)
    keep_partitions(connection)
    with pytest.raises(psycopg.errors.UniqueViolation):
        close(connection, 7)
    close(connection, 4 * PARTITION + 1)
    with pytest.raises(psycopg.errors.UniqueViolation):
        close(connection, 4 * PARTITION + 1)


def test_a_reader_in_the_way_is_waited_for_later(connection: Connection, database: str) -> None:
    """Meanwhile requests are closed, and new partitions are made."""
    close(connection, 1)
    note(connection, PARTITION, 2 * PARTITION)
    with psycopg.connect(database) as reader:
        assert reader.execute("SELECT count(*) FROM titanic.closed").fetchone() == (1,)
        assert not keep_partitions(connection)
        assert partitions(connection) == [*range(AHEAD + 3)]
        close(connection, 2 * PARTITION)
    assert keep_partitions(connection)
    assert partitions(connection) == [*range(1, AHEAD + 3)]


def test_nobody_waits_for_a_reader_while_they_are_made(connection: Connection, database: str) -> None:
    with psycopg.connect(database) as reader:
        reader.execute("SELECT count(*) FROM titanic.closed")
        note(connection, 1, 5 * PARTITION)
        connection.execute("SET lock_timeout = '1ms'")
        assert keep_partitions(connection)


def test_several_make_them_at_once(connection: Connection, database: str) -> None:
    note(connection, 1, 5 * PARTITION)
    with psycopg.connect(database) as other:
        partitions_module.make_partitions(other)
        connection.execute("SET lock_timeout = '10ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            keep_partitions(connection)
    assert keep_partitions(connection)


def test_the_store_looks_after_them(database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module, "EVERY", 0.0)
    with PostgresStore.open(database) as store:
        note(connection, PARTITION, 2 * PARTITION)
        store.look_after()
    assert partitions(connection) == [*range(1, AHEAD + 3)]


def test_they_are_looked_after_also_when_dead_nodes_cannot_be_forgotten(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pool: ConnectionPool) -> None:
        raise StoreFailed("the nodes are locked", "for a test", "wait")

    monkeypatch.setattr(partitions_module, "EVERY", 0.0)
    monkeypatch.setattr(store_module, "FORGET_EVERY", 0.0)
    monkeypatch.setattr(store_module, "forget_dead", fail)
    with PostgresStore.open(database) as store:
        store.caretaker.stop()
        note(connection, PARTITION, 2 * PARTITION)
        with pytest.raises(StoreFailed, match="nodes"):
            store.look_after()
    assert partitions(connection) == [*range(1, AHEAD + 3)]


def test_what_is_in_their_way_is_said_once(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(partitions_module, "EVERY", 0.0)
    with PostgresStore.open(database) as store:
        connection.execute(f"CREATE TABLE titanic.closed_{AHEAD + 1} ()")
        note(connection, 1, PARTITION)
        for _ in range(2):
            with pytest.raises(StoreFailed, match="already exists"):
                store.look_after()
        connection.execute(f"DROP TABLE titanic.closed_{AHEAD + 1}")
        store.look_after()
    assert partitions(connection) == [*range(AHEAD + 2)]
    assert [text for text in caplog.messages if "cannot create a partition" in text and "already exists" in text] == [
        f'cannot create a partition for closed requests in {store.place}: relation "closed_{AHEAD + 1}" already exists'
    ]
