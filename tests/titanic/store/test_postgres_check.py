"""A check of a store in PostgreSQL finds what must not be."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest
from support.postgres import needs_postgres, shared_server
from support.postgres_mirror import mirror
from support.store_facts import accept_all
from support.store_lives import live

from titanic.store import NewRequest
from titanic.store.memory import MemoryStore
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import USAGE, check, check_all, repair
from titanic.store.postgres.transaction import REQUEST_SIZE

pytestmark = needs_postgres

FAULTS = {
    "it is in no queue and has no reply": "DELETE FROM titanic.later",
    "it is in ready and reply": "INSERT INTO titanic.ready"
    " SELECT r.service, 9 - priority, uuid, 0, 0, 0, NULL, '' FROM titanic.request r JOIN titanic.reply USING (uuid)",
    "its frames are not those that were counted": "UPDATE titanic.request SET body_frames = body_frames + 1",
    "it would never expire": "DELETE FROM titanic.expiring",
    "it does not expire then": "UPDATE titanic.ready SET expires_at = 0",
    "it is in the queue of another service or priority": "UPDATE titanic.ready SET rank = 9 - rank",
    "it is claimed by node 7, which does not exist": "ALTER TABLE titanic.ready DROP CONSTRAINT ready_incarnation;"
    "UPDATE titanic.ready SET incarnation = 7",
    "it has another service or priority": "UPDATE titanic.later SET service = 'x'",
    "there is no such request": "DELETE FROM titanic.request",
    "it is invalid": "UPDATE titanic.reply SET frames = array_append(frames, 'x')",
    "it stands for no request": "UPDATE titanic.key SET uuids = '{}'",
    "number 3: it is missing": "DELETE FROM titanic.closed WHERE seq = 3",
    "number 3: it is missing, and all up to 5": "DELETE FROM titanic.closed WHERE seq BETWEEN 3 AND 5",
    "number 1: it is missing": "DELETE FROM titanic.closed WHERE seq = 1",
    "number 6: it is missing, and all up to": "DELETE FROM titanic.closed WHERE seq > 5",
    "it was never given out": "UPDATE titanic.meta SET closed_last = closed_last - 1",
    "number 2: it is invalid": "UPDATE titanic.closed SET reply_bytes = 99 WHERE seq = 2",
    "archived_upto: it is 999": "UPDATE titanic.meta SET archived_upto = 999",
    "closed_first: it is 999": "UPDATE titanic.meta SET closed_first = 999",
    "service ab: it counts": "UPDATE titanic.load SET ready = ready + 1 WHERE kind = 's' AND name = 'ab'",
    "service a: it counts 0": "DELETE FROM titanic.load WHERE kind = 's' AND name = 'a'",
    "owner eve: it counts": "UPDATE titanic.load SET bytes = bytes - 1 WHERE kind = 'o' AND name = 'eve'",
    "usage waiting: it counts": "UPDATE titanic.usage SET waiting = waiting + 1",
    "usage used: it counts": "UPDATE titanic.usage SET used = used - 1",
}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    server = shared_server()
    name = server.new_database()
    with PostgresStore.open(server.url(name)), psycopg.connect(server.url(name)) as connection:
        model = MemoryStore()
        live(model, random.Random(5), 300)
        mirror(model, connection)
        used = f"SELECT found FROM ({USAGE.format(size=REQUEST_SIZE)}) one WHERE what = 'used'"
        connection.execute(f"UPDATE titanic.usage SET used = ({used})")
    yield server.url(name)
    server.drop_database(name)


def test_a_sound_store(database: str) -> None:
    told: list[tuple[str, int, int]] = []
    with PostgresStore.open(database) as store:
        assert check(store, lambda *one: told.append(one)) == []
    assert told[0][:2] == ("request", 0)
    assert {"reply", "closed", "load", "usage"} < {table for table, _, _ in told}


def found(database: str, fault: str, most: int = 1000) -> list[str]:
    """What is found after a change that is not kept."""
    with psycopg.connect(database) as connection:
        connection.execute(fault)
        problems = check_all(lambda query: connection.execute(query).fetchall(), most=most)
        connection.rollback()
    return [f"{problem.where}: {problem.what}" for problem in problems]


@pytest.mark.parametrize("problem", FAULTS)
def test_what_must_not_be(problem: str, database: str) -> None:
    assert any(problem in line for line in found(database, FAULTS[problem]))


def test_many_of_a_kind(database: str) -> None:
    lines = found(database, "DELETE FROM titanic.ready", 2)
    assert sum("it is in no queue" in line for line in lines) == 2
    assert "request: there are more of this kind" in lines


def test_a_repair_corrects_loads() -> None:
    """Those of services, of users, and of those that are gone; by how much they are wrong."""
    url = shared_server().url(shared_server().new_store())
    with PostgresStore.open(url) as store:
        with store.write() as transaction:
            accept_all(transaction, [NewRequest(b"a", [b"x"], owner=b"eve")] * 3, 1)
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE titanic.load SET bytes = bytes - 5, waiting = waiting + 2")
            connection.execute("INSERT INTO titanic.load VALUES ('s', 'gone', 3, 1, 7, 1)")
        assert [problem.repair for problem in check(store)] == ["it is corrected"] * 3
        repair(store)
        assert check(store) == []
