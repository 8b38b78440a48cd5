"""Stores of other formats: earlier ones are upgraded, and who may touch those of later versions is in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.postgres import needs_postgres, shared_server

from titanic.errors import NotAStore, StoreTooNew, StoreTooOld
from titanic.store import NewRequest, open_read_only, open_store
from titanic.store.postgres.tables.schema import FORMAT

pytestmark = needs_postgres

NOW = 1_795_258_520_106_479

_CATALOG = """
SELECT table_name::text, column_name::text, data_type::text, is_nullable::text, column_default::text,
    col_description(format('titanic.%I', table_name)::regclass, ordinal_position::integer)
FROM information_schema.columns WHERE table_schema = 'titanic'
UNION ALL SELECT conrelid::regclass::text, conname::text, pg_get_constraintdef(oid), '', '', '' FROM pg_constraint
WHERE connamespace = 'titanic'::regnamespace
UNION ALL SELECT tablename::text, indexname::text, indexdef, '', '', '' FROM pg_indexes WHERE schemaname = 'titanic'
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


def test_a_store_of_format_1_becomes_one_like_those_of_today(url):
    sql(url, Path(__file__).with_name("postgres_format_1.sql").read_text())
    sql(url, f"INSERT INTO titanic.ready VALUES ('x', 5, '{1:032}', 0, 0, 0, 77, '')")
    with pytest.raises(StoreTooOld, match=f"it has format 1, this version knows {FORMAT}"):
        open_read_only(url)
    with open_store(url) as store, store.write() as txn:
        (uuid,) = txn.accept_many([NewRequest(b"x", [b"body"])], NOW)
    with open_read_only(url) as store, store.read() as txn:
        assert txn.request(uuid).body == [b"body"]
    assert sql(url, "SELECT count(*) FROM titanic.ready WHERE incarnation IS NOT NULL") == [(0,)], "node 77 is gone"
    upgraded = sql(url, _CATALOG)
    sql(url, "DROP SCHEMA titanic CASCADE")
    open_store(url).close()
    assert upgraded == sql(url, _CATALOG)


def test_a_later_format_is_served_if_it_says_so(url):
    with open_store(url) as store, store.write() as txn:
        (uuid,) = txn.accept_many([NewRequest(b"x", [b"body"])], NOW)
    sql(url, f"UPDATE titanic.meta SET format = 99, oldest = {FORMAT}")
    with open_store(url) as store, store.read() as txn:
        assert txn.request(uuid).body == [b"body"]
    open_read_only(url).close()
    assert sql(url, "SELECT format, oldest FROM titanic.meta") == [(99, FORMAT)]
    sql(url, f"UPDATE titanic.meta SET oldest = {FORMAT + 1}")
    for open_it in (open_store, open_read_only):
        with pytest.raises(StoreTooNew, match=f"it has format 99, this version knows {FORMAT}"):
            open_it(url)


def test_a_format_that_nobody_made_is_refused(url):
    open_store(url).close()
    sql(url, "UPDATE titanic.meta SET format = 0, oldest = 0")
    with pytest.raises(NotAStore, match="it has format 0, which no version has made"):
        open_store(url)
