"""A store in PostgreSQL that is only looked at: nothing is made or changed, and a standby will do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from support.postgres import needs_postgres, shared_server
from support.postgres_pair import new_pair
from support.store_facts import accept_all, state_of
from support.waiting import until

from titanic.errors import NotAStore, StoreError, StoreReadOnly, StoreTooNew, StoreTooOld, StoreUnwritable
from titanic.store import NewRequest, State, open_read_only, open_store

pytestmark = needs_postgres


@pytest.fixture
def url() -> Iterator[str]:
    server = shared_server()
    name = server.new_database()
    yield server.url(name)
    server.drop_database(name)


def accept(url: str) -> bytes:
    with open_store(url) as store, store.write() as transaction:
        return accept_all(transaction, [NewRequest(b"echo", [b"hello"])], 1000)[0]


def test_it_is_read_and_not_written(url: str) -> None:
    uuid = accept(url)
    with open_read_only(url) as store:
        with store.read() as transaction:
            assert state_of(transaction, uuid) is State.WAITING
            assert transaction.counts().capacity == store.capacity
        with pytest.raises(StoreReadOnly):
            store.write()
        store.sync()


def test_nothing_is_made(url: str) -> None:
    with pytest.raises(NotAStore, match="there is no store in postgresql://"):
        open_read_only(url)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regnamespace('titanic')").fetchone() == (None,)


@pytest.mark.parametrize(("format_", "error"), [(0, StoreTooOld), (99, StoreTooNew)])
def test_another_format_is_refused(url: str, format_: int, error: type[Exception]) -> None:
    accept(url)
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE titanic.meta SET store_format = %s, oldest = %s", [format_, format_])
    with pytest.raises(error, match=f"it has format {format_}, this version reads"):
        open_read_only(url)


def test_no_server(url: str) -> None:
    with pytest.raises(StoreUnwritable, match="can't be opened"):
        open_read_only("postgresql://titanic:secret@127.0.0.1:1/none")


def test_a_standby_will_do() -> None:
    with new_pair() as pair:
        name = pair.primary.new_database()
        uuid = accept(pair.url(name))
        here = pair.standby.url(name)

        def is_there() -> bool:
            with suppress(StoreError), open_read_only(here) as store, store.read() as transaction:
                return state_of(transaction, uuid) is State.WAITING
            return False

        until(is_there)
