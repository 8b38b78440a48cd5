"""`titanic check` of a store in PostgreSQL; what it finds is in tests/titanic/store/test_postgres_check.py."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.cli_titanic import here
from support.postgres import needs_postgres, shared_server
from support.store_facts import accept_all

from titanic.store import NewRequest, open_store

pytestmark = needs_postgres


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = shared_server()
    name = server.new_database()
    with open_store(server.url(name)) as store, store.write() as transaction:
        accept_all(transaction, [NewRequest(b"echo", [b"hello"])] * 3, 1000)
    yield server.url(name)
    server.drop_database(name)


def test_a_sound_store(url: str) -> None:
    done = here("check", "--store", url)
    assert done.code == 0
    assert done.out.decode().startswith("postgresql://titanic@")
    assert done.out.decode().endswith(": 3 requests, 0 replies: no problems\n")


def test_a_problem(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE titanic.usage SET waiting = 7")
    done = here("check", "--store", url, "--json")
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE titanic.usage SET waiting = 3")
    assert done.code == 1
    problem = {"where": "usage waiting", "what": "it counts 7, but there are 3", "repair": ""}
    assert done.json == {"requests": 3, "replies": 0, "problems": [problem], "left": 1}


def test_claims_of_a_node_that_does_not_exist_are_released_and_other_problems_are_left(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("ALTER TABLE titanic.ready DROP CONSTRAINT ready_incarnation")
        connection.execute("UPDATE titanic.ready SET incarnation = 7")
        connection.execute("UPDATE titanic.usage SET waiting = 7")
    done = here("check", "--store", url, "--repair", "--json")
    assert done.code == 1
    *claimed, counter = done.json["problems"]
    assert [(one["what"], one["repair"]) for one in claimed] == [
        ("it is claimed by node 7, which does not exist", "its claim is released")
    ] * 3
    assert (counter["where"], done.json["left"]) == ("usage waiting", 1)
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE titanic.usage SET waiting = 3")
    assert here("check", "--store", url, "--repair").out.endswith(b": no problems\n")


def test_a_password_is_not_shown() -> None:
    url = "postgresql://titanic:secret@127.0.0.1:1/none"
    refused = here("check", "--store", url)
    assert refused.code == 2
    assert "secret" not in refused.err
    done = here("check", TITANIC_STORE=url)
    assert done.code == 1
    assert "can't be opened" in done.err
    assert "secret" not in done.err + done.out.decode()
