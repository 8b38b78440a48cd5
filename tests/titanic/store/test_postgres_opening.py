"""Opening a store in PostgreSQL: for reading, by another user, without psycopg."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from support.postgres import needs_postgres, shared_server
from support.store_facts import accept_all

from titanic.errors import CapacityTooSmall, NotAStore, StoreFailed, StoreReadOnly, StoreTooNew, StoreUnwritable
from titanic.store import MIN_CAPACITY, NewRequest, open_read_only, open_store
from titanic.util.text import has_password, is_url

pytestmark = needs_postgres

NOW = 1_795_258_520_106_479


@pytest.fixture
def url() -> Iterator[str]:
    """Of an empty database."""
    name = shared_server().new_database()
    yield shared_server().url(name)
    shared_server().drop_database(name)


def test_what_was_stored_is_there_when_it_is_opened_again(url):
    with open_store(url, capacity=MIN_CAPACITY) as store, store.write() as txn:
        (uuid,) = accept_all(txn, [NewRequest(b"x", [b"body", b""])], NOW)
        identity = txn.identity()
    with open_store(url) as store, store.read() as txn:
        assert store.capacity == MIN_CAPACITY
        assert txn.identity() == identity
        assert txn.request(uuid).body == [b"body", b""]
        assert txn.counts().requests == 1
    with open_store(url, capacity=2 * MIN_CAPACITY) as store, store.write() as txn:
        assert store.capacity == txn.counts().capacity == 2 * MIN_CAPACITY
        (later,) = accept_all(txn, [NewRequest(b"x", [])], NOW - 10**12)
        assert later > uuid, "the clock was set back"


def test_a_capacity_that_is_too_small_is_refused_before_anything_is_made(url):
    with pytest.raises(CapacityTooSmall):
        open_store(url, capacity=MIN_CAPACITY - 1)
    with pytest.raises(NotAStore):
        open_read_only(url)


def test_room_is_not_taken_beforehand(url):
    with pytest.raises(StoreUnwritable, match="a store in PostgreSQL cannot be preallocated"):
        open_store(url, preallocate=True)
    with pytest.raises(NotAStore):
        open_read_only(url)


def test_who_reads_changes_nothing_and_sees_what_others_commit(url):
    with open_store(url) as store, open_read_only(url) as reader:
        with store.write() as txn:
            (uuid,) = accept_all(txn, [NewRequest(b"x", [b"body"])], NOW)
        with reader.read() as txn:
            assert txn.request(uuid).body == [b"body"]
            with pytest.raises(StoreFailed, match="read-only"):
                txn.fetch("DELETE FROM titanic.request")
        with pytest.raises(StoreReadOnly):
            reader.write()
    with pytest.raises(StoreFailed, match="closed"):
        store.write().__enter__()


def test_a_reader_refuses_a_later_format(url):
    open_store(url).close()
    name = url.rpartition("@/")[2].partition("?")[0]
    shared_server().sql("UPDATE titanic.meta SET store_format = 99, oldest = 99", database=name)
    with pytest.raises(StoreTooNew):
        open_read_only(url)


def test_a_schema_of_somebody_else_is_left_alone(url):
    name = url.rpartition("@/")[2].partition("?")[0]
    shared_server().sql("CREATE SCHEMA titanic AUTHORIZATION titanic", database=name)
    for open_it in (open_store, open_read_only):
        with pytest.raises(NotAStore):
            open_it(url)


def test_who_may_not_make_the_tables_is_told(url):
    name = url.rpartition("@/")[2].partition("?")[0]
    shared_server().sql(f"ALTER DATABASE {name} OWNER TO postgres", database="postgres")
    with pytest.raises(StoreUnwritable, match=r"permission denied .*; grant its user CREATE"):
        open_store(url)


def test_without_psycopg_it_is_told_what_to_install(url, monkeypatch):
    for name in [*sys.modules]:
        if name == "psycopg" or name.startswith("titanic.store.postgres"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreUnwritable, match=r"needs psycopg; .* -m pip install 'psycopg\[binary\]>=3\.2'"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("postgresql://h/d", False),
        ("postgresql://u@h:5/d", False),
        ("postgresql:///d?host=/tmp:x", False),
        ("postgresql://u:p@h/d", True),
        ("postgresql://u:@h/d", True),
        ("postgres://u@h/d?password=p", True),
        ("postgres://u@h/d?sslmode=require&sslpassword=p", True),
        ("postgresql://u:p@h,i/d", True),
        ("postgresql://u:p@[::1]:5/d", True),
        ("postgresql://u:p@[h/d", True),
        ("postgresql://u:a#b@h/d", True),
        ("postgresql://u:a?b@h/d", True),
        ("postgresql://u:a/b@h/d", True),
        ("postgresql://u:a@b@h/d", True),
        ("postgresql://u@h/d?p%61ssword=p", True),
        ("postgresql://h:5/d?options=-c%20a=b@c", False),
        ("postgresql://h/d?application_name=a@b:c", False),
    ],
)
def test_a_password_in_a_url_is_seen(url, secret):
    assert is_url(url)
    assert has_password(url) == secret
    assert not is_url("titanic-data")


@pytest.mark.parametrize("place", ["titanic:a@hid@127.0.0.1:1/titanic", "titanic:hid/b@127.0.0.1:1/x", "titanic:hid"])
def test_a_password_that_libpq_would_misread_is_not_shown(place: str) -> None:
    with pytest.raises(StoreUnwritable, match="is invalid; libpq cannot parse it") as error:
        open_store(f"postgresql://{place}")
    assert "hid" not in str(error.value)
