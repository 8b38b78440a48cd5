"""The server ends, comes back, stands still, or loses a connection: nothing is half done, and all goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import psycopg
import pytest
from psycopg import errors
from support.postgres import PASSWORD, needs_postgres, new_server, shared_server, spare_server
from support.postgres_pair import new_pair
from support.relay import relay
from support.store_facts import accept_all
from support.waiting import until

from titanic.errors import DiskFull, NotInMemory, OutcomeUnknown, StoreFailed, StoreTooNew, StoreUnwritable
from titanic.store import LeaseConfig, NewRequest, NodeFacts, open_read_only, open_store
from titanic.store.postgres import connection_pool, database_session
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.transaction import Statement
from titanic.store.postgres.writing import PostgresWriting

pytestmark = needs_postgres

NOW = 1_795_258_520_106_479


@pytest.fixture
def name() -> Iterator[str]:
    """Of a database with a store."""
    name = shared_server().new_store()
    yield name
    shared_server().drop_database(name)


@pytest.fixture
def empty() -> Iterator[str]:
    """The name of a database with nothing in it."""
    name = shared_server().new_database()
    yield name
    shared_server().drop_database(name)


@pytest.fixture
def store(name) -> Iterator[PostgresStore]:
    with PostgresStore.open(shared_server().url(name)) as store:
        yield store


def accept(store, n=1):
    with store.write() as txn:
        return accept_all(txn, [NewRequest(b"x", [b"body"])] * n, NOW)


def requests(store):
    with store.read() as txn:
        return txn.counts().requests


def test_a_server_that_ends_is_found_again_when_it_is_back(monkeypatch):
    monkeypatch.setattr(connection_pool, "AGAIN", 0.05)
    with spare_server() as server, PostgresStore.open(server.url(server.new_database(), tcp=True)) as store:
        accept(store)
        server.stop()
        for _ in range(3):
            with pytest.raises(StoreFailed, match=f"127.0.0.1:{server.port}.* can't be reached; .*; retrying"):
                accept(store)
            with pytest.raises(StoreFailed, match="can't be reached"):
                requests(store)
        assert store.usable
        server.start()
        until(lambda: not failure(accept, store))
        assert requests(store) == 2


def failure(function, *arguments):
    try:
        function(*arguments)
    except StoreFailed as error:
        return error
    return None


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ('connection to server at "db", port 5432 failed: FATAL: the database system is starting up', "wait until it"),
        ("FATAL: the database system is not yet accepting connections", "wait until it has started"),
        ("FATAL: the database system is shutting down", "start it"),
        ('connection to server at "db", port 5432 failed: Connection refused', "start it"),
        ('FATAL: password authentication failed for user "titanic"', "set the right one"),
        ("FATAL: sorry, too many clients already", "raise its max_connections"),
        ("session is read-only", "connect to the primary"),
        ('prepared statement "_pg3_0" already exists', "a pooler in transaction mode"),
        ("FATAL: no pg_hba.conf entry for host", "check its log"),
    ],
)
def test_it_is_said_what_to_do_about_a_server_that_is_away(reason, advice):
    error = database_session.unreachable("postgresql://db/titanic", reason)
    assert f"; retrying every second; {advice}" in str(error)


def test_one_caller_tries_and_all_others_fail_at_once(monkeypatch):
    monkeypatch.setattr(connection_pool, "AGAIN", 1000.0)
    with spare_server() as server, PostgresStore.open(server.url(server.new_database())) as store:
        server.stop()
        assert failure(accept, store)
        monkeypatch.setattr(connection_pool, "connect", lambda *_: pytest.fail("it was just tried"))
        assert "can't be reached" in str(failure(requests, store))


def test_a_restart_between_transactions_is_not_noticed(store, name):
    accept(store)
    requests(store)
    shared_server().cut_connections(name)
    accept(store)
    shared_server().cut_connections(name)
    assert requests(store) == 2


def interrupt(store, name, then):
    """A transaction that has begun loses its connection, and goes on with `then`."""
    with store.write() as txn:
        accept_all(txn, [NewRequest(b"x", [])], NOW)
        txn.counts()
        shared_server().cut_connections(name)
        then(txn)


def test_a_transaction_that_has_lost_its_connection_is_over(store, name):
    def go_on(txn):
        assert failure(txn.counts)
        assert failure(txn.counts)
        assert failure(txn.accept, [NewRequest(b"y", [], key=b"k", key_until=NOW + 1)], NOW)

    with pytest.raises(StoreFailed, match="can't be reached"):
        interrupt(store, name, go_on)
    assert requests(store) == 0


def test_who_loses_the_connection_in_a_commit_says_that_it_is_not_known(store, name):
    def change(txn):
        accept_all(txn, [NewRequest(b"x", [])], NOW)

    with pytest.raises(StoreFailed, match=r"during a commit; .*; whether its changes"):
        interrupt(store, name, change)
    accept(store)
    assert requests(store) == 1


@pytest.mark.parametrize(
    "error", [psycopg.OperationalError("cannot exit pipeline mode while busy"), errors.AdminShutdown("terminating")]
)
def test_a_connection_that_was_ended_after_the_commit_says_nothing_of_it(store, monkeypatch, error):
    """libpq may not know yet that it is over. A claim that was wrongly taken for undone was nobody's."""
    exchange = PostgresWriting.exchange

    def ended(self, statements):
        exchange(self, statements)
        raise error

    monkeypatch.setattr(PostgresWriting, "exchange", ended)
    told = failure(accept, store)
    assert isinstance(told, OutcomeUnknown)
    assert told.fact in ("the server ended the connection", "terminating")
    monkeypatch.setattr(PostgresWriting, "exchange", exchange)
    assert requests(store) == 1
    accept(store)
    assert requests(store) == 2


def test_a_server_that_stands_still_is_given_up(monkeypatch):
    monkeypatch.setattr(database_session, "CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(connection_pool, "AGAIN", 0.05)
    with spare_server() as server:
        url = f"{server.url(server.new_database(), tcp=True)}?connect_timeout=5"
        with PostgresStore.open(url) as store:
            accept(store)
            with monkeypatch.context() as quick:
                quick.setattr(database_session, "PATIENCE", 0.2)
                server.pause()
                assert failure(accept, store)
            server.go_on()
            until(lambda: not failure(accept, store))


def test_a_server_that_stands_still_before_a_reader_is_done_is_given_up(monkeypatch):
    """What the reader wanted was there before; only its ROLLBACK has no answer."""
    monkeypatch.setattr(database_session, "CHECK_INTERVAL", 0.05)
    with (
        spare_server() as server,
        PostgresStore.open(f"{server.url(server.new_database(), tcp=True)}?connect_timeout=5") as store,
    ):
        monkeypatch.setattr(database_session, "PATIENCE", 0.2)

        def reads():
            with store.read() as txn:
                txn.counts()
                server.pause()

        with ThreadPoolExecutor(1) as thread:
            try:
                until(thread.submit(reads).done)
            finally:
                server.go_on()


def test_a_server_that_falls_silent_while_a_connection_is_made_is_given_up(monkeypatch):
    monkeypatch.setattr(connection_pool, "AGAIN", 0.05)
    monkeypatch.setattr(database_session, "CHECK_INTERVAL", 0.05)
    server = shared_server()
    silent = []

    def stalls(data, answers):
        if silent and b"full_page_writes" in data:
            line.stall()
        return False

    with relay(f"tcp://127.0.0.1:{server.port}", breaks=stalls) as line:
        port = line.endpoint.rpartition(":")[2]
        ways = f"127.0.0.1:{port},127.0.0.1:{server.port}/"
        url = server.url(server.new_database(), tcp=True).replace(f"127.0.0.1:{server.port}/", ways)
        with PostgresStore.open(f"{url}?connect_timeout=5") as store:
            store.caretaker.stop()  # it might make the connection
            monkeypatch.setattr(database_session, "PATIENCE", 0.3)
            began = time.monotonic()
            silent.append(True)
            line.reset()
            until(lambda: "can't be reached" in str(failure(accept, store)))  # the cut may be later than a commit
            until(lambda: not failure(accept, store))  # by the other way
            assert time.monotonic() - began < 60


def test_what_was_silent_for_the_lease_is_given_up_by_all(name, monkeypatch):
    """The connections of before fall silent. As soon as the lease has a new one, nobody waits for an answer on them."""
    monkeypatch.setattr(database_session, "PATIENCE", 1000.0)
    monkeypatch.setattr(database_session, "CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(connection_pool, "AGAIN", 0.05)
    server = shared_server()
    config = LeaseConfig(lease=1000.0, renew=2.0)
    with relay(f"tcp://127.0.0.1:{server.port}") as line, ThreadPoolExecutor(2) as threads:
        port = line.endpoint.rpartition(":")[2]
        ways = f"127.0.0.1:{port},127.0.0.1:{server.port}/"
        with PostgresStore.open(server.url(name, tcp=True).replace(f"127.0.0.1:{server.port}/", ways)) as store:
            until(lambda: not failure(store.join, 1, None, [], NodeFacts("n", "1"), config))
            with store.read() as one, store.read() as other:  # two connections, of which nobody uses one
                one.counts()
                other.counts()
            line.stall()
            waits = threads.submit(failure, requests, store)
            try:
                until(lambda: not failure(store.renew, 1, [], NodeFacts("n", "1"), config))
                until(waits.done)
                assert threads.submit(failure, accept, store).result() is None
            finally:
                line.go_on()


def test_what_no_standby_has_yet_is_told_to_nobody(monkeypatch):
    """The standby was away while a request was closed, and the primary dies before anybody was told, comes back, and
    dies for good. Who asks again meanwhile is not to hear that it is closed."""
    monkeypatch.setattr(connection_pool, "AGAIN", 0.05)
    monkeypatch.setattr(database_session, "CHECK_INTERVAL", 0.05)

    def close():
        with store.write() as txn:
            txn.close(uuid)
        return True

    with new_pair() as pair, PostgresStore.open(pair.url(pair.primary.new_database())) as store:
        (uuid,) = accept(store)
        pair.standby.stop("kill")
        with monkeypatch.context() as quick:
            quick.setattr(database_session, "PATIENCE", 1.0)
            until(lambda: "is unknown" in str(failure(close)))  # a slow machine may give up earlier
            pair.primary.restart("kill")
            asked = [failure(close) for _ in range(3)]
        pair.fence()
        pair.standby.start()
        pair.promote()
        until(lambda: failure(requests, store) is None)
        assert (requests(store), None in asked) in ((1, False), (0, True))
        until(lambda: not failure(close))
        assert requests(store) == 0


def test_a_commit_that_was_not_waited_for_is_not_told_as_done():
    """Somebody cancels a commit that waits for the standby. PostgreSQL only warns: it is done at the primary alone."""
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = %s"
    with (
        new_pair() as pair,
        PostgresStore.open(pair.url(pair.primary.new_database())) as store,
        ThreadPoolExecutor(1) as thread,
    ):
        name = store.place.rpartition("/")[2]
        store.caretaker.stop()  # its connection might wait for the standby, too
        pair.standby.stop("kill")
        told = thread.submit(failure, accept, store)
        pair.primary.sql("SELECT pg_cancel_backend(%s)", until(lambda: pair.primary.sql(waiting, name)))
        assert isinstance(told.result(), OutcomeUnknown)
        assert "did not wait for its standby" in str(told.result())
        pair.standby.start()
        until(lambda: not failure(accept, store))
        assert requests(store) == 2


def test_what_another_node_has_closed_is_told_when_the_standby_has_it():
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = %s AND query = 'COMMIT'"

    def close(store):
        with store.write() as txn:
            txn.close(uuid)

    with new_pair() as pair, ThreadPoolExecutor(1) as thread:
        url = pair.url(pair.primary.new_database())
        with PostgresStore.open(url) as one, PostgresStore.open(url) as other:
            (uuid,) = accept(one)
            assert requests(other) == 1
            for store in (one, other):
                store.caretaker.stop()  # a caller that finds the connection taken opens one, and waits for the standby
            pair.standby.stop("kill")
            told = thread.submit(failure, close, one)
            name = one.place.rpartition("/")[2]
            pair.primary.sql("SELECT pg_cancel_backend(%s)", until(lambda: pair.primary.sql(waiting, name)))
            assert isinstance(told.result(), OutcomeUnknown)
            assert requests(other) == 0, "it is gone, here"
            told = thread.submit(failure, close, other)
            until(lambda: told.done() or pair.primary.sql(waiting, name))
            assert not told.done()
            pair.standby.start()
            assert told.result() is None


def test_a_server_that_becomes_read_only_is_away():
    with spare_server() as server, PostgresStore.open(server.url(server.new_database())) as store:
        accept(store)
        server.reload(default_transaction_read_only="on")
        assert "read-only" in str(failure(accept, store))
        assert "read-only" in str(failure(accept, store))


def raising(state: str, name: str, times: int = 1000) -> None:
    """From now on the database refuses requests, so often, with this SQLSTATE."""
    shared_server().sql(
        f"""
        CREATE SEQUENCE refused;
        GRANT ALL ON SEQUENCE refused TO titanic;
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('public.refused') <= {times} THEN RAISE 'no' USING ERRCODE = '{state}'; END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON titanic.key FOR EACH STATEMENT EXECUTE FUNCTION refuse()""",
        database=name,
    )


def accept_with_key(store, key):
    with store.write() as txn:
        accept_all(txn, [NewRequest(b"x", [b"body"], key=key, key_until=NOW + 1)], NOW)


def test_a_full_disk_is_told_by_its_name(store, name):
    raising("53100", name, 1)
    with pytest.raises(DiskFull, match=r"the disk of the database .* is full; no; the transaction was rolled back"):
        accept_with_key(store, b"k")
    accept_with_key(store, b"k")
    assert requests(store) == 1


def test_a_deadlock_at_the_beginning_is_not_noticed(store, name):
    raising("40P01", name, 1)
    accept_with_key(store, b"k")
    assert requests(store) == 1


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_would_lose_what_it_has_is_refused(setting):
    with spare_server() as server:
        server.reload(**{setting: "off"})
        url = server.url(server.new_database())
        for durability in ("synced", "relaxed"):  # relaxed may lose commits, but never damages the store
            with pytest.raises(
                StoreUnwritable, match=f"its {setting} is off; a power failure could damage it: turn it on$"
            ):
                open_store(url, durability=durability)
        with pytest.raises(NotInMemory):
            open_store(url, durability="memory")


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_such_a_server_can_be_looked_at(setting):
    with spare_server() as server:
        url = server.url(server.new_database())
        open_store(url).close()
        server.reload(**{setting: "off"})
        with open_read_only(url) as store, store.read() as transaction:
            assert transaction.counts().requests == 0


def test_the_reason_is_a_fact_and_no_question():
    url = "postgresql://titanic@127.0.0.1:1/titanic"
    with pytest.raises(StoreUnwritable, match=r"Connection refused; start PostgreSQL, or correct the URL$"):
        open_store(url)


def test_the_advice_is_about_the_reason():
    server = shared_server()
    with pytest.raises(StoreUnwritable, match=r"\"none\" does not exist; create it with createdb, or correct the URL$"):
        open_store(server.url("none"))
    with pytest.raises(StoreUnwritable, match=r"password auth.*; set the right one in ~/.pgpass or PGPASSWORD$"):
        open_store(server.url("postgres", tcp=True, password="wrong"))


def test_a_server_that_cannot_be_written_or_has_no_place_is_no_server_to_be_started(name):
    server = shared_server()
    server.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(StoreUnwritable, match=r"session is read-only; connect to the primary"):
        open_store(server.url(name))
    server.sql(f"ALTER DATABASE {name} RESET ALL")
    server.sql(f"ALTER DATABASE {name} CONNECTION LIMIT 0")
    with pytest.raises(StoreUnwritable, match=r"too many connections for .*; raise .* or close other connections$"):
        open_store(server.url(name))
    with new_server(max_connections="4", superuser_reserved_connections="1", max_wal_senders="0") as small:
        url = small.url(small.new_database())
        with ExitStack() as others:
            with suppress(psycopg.OperationalError):
                while True:
                    others.enter_context(psycopg.connect(url))
            with pytest.raises(StoreUnwritable, match=r"raise its max_connections, or close other connections$"):
                open_store(url)


def test_a_disk_that_is_full_at_the_start_is_no_question_of_permission(empty):
    server = shared_server()
    server.sql(
        """CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE 'No space left on device' USING ERRCODE = '53100';
        END $$;
        CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse()""",
        database=empty,
    )
    with pytest.raises(StoreUnwritable, match=r"can't be written; No space left on device; free some disk space$"):
        open_store(server.url(empty))


def test_a_pooler_in_transaction_mode_is_named(store):
    """It gives a transaction a connection on which another client has, or has not, prepared statements."""
    advice = r'"_pg3_\w+" does not exist; the transaction .*pooler in transaction mode.* pool_mode = session$'
    with store.pool.borrow() as connection:
        connection.execute("SELECT 1")
        connection.pgconn.exec_(b"DEALLOCATE ALL")  # psycopg does not see it
    with pytest.raises(StoreFailed, match=advice), store.pool.borrow() as connection:
        connection.execute("SELECT 1")


def test_a_database_whose_transactions_are_serializable_is_used_as_read_committed(name):
    server = shared_server()
    server.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = serializable")
    with open_store(server.url(name)) as store, store.pool.borrow() as connection:
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


def test_psycopg_says_nothing_of_an_error_that_is_raised(store, caplog):
    large = Statement("SELECT octet_length(%s::bytea)", (bytes(32 << 20),))  # the first has failed before it is sent
    with pytest.raises(StoreFailed, match="division by zero"), store.read() as txn:
        txn.fetch_all(Statement("SELECT 1 / 0"), large)
    assert [record.name for record in caplog.records if record.name.startswith("psycopg")] == []


def test_a_server_that_may_lose_commits_is_warned_of(name, caplog):
    server = shared_server()
    server.sql(f"ALTER DATABASE {name} SET synchronous_commit = local")
    open_store(server.url(name)).close()
    assert "may lose the last commits: its synchronous_commit is local" in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://titanic:{}@127.0.0.1:{}/nothing",
        "postgresql://titanic@127.0.0.1:{1}/nothing?password={0}",
        "postgresql://titanic:{}%@127.0.0.1:{}/nothing",
        "postgresql://titanic:{}@[127.0.0.1:{}/nothing",
        "postgresql://titanic@127.0.0.1:{1}/nothing?passwor={0}",
    ],
)
def test_a_password_is_in_no_text(url, caplog):
    word = PASSWORD.replace(" ", "%20")
    with pytest.raises(StoreUnwritable) as refused:
        open_store(url.format(word, shared_server().port))
    error: BaseException | None = refused.value
    while error is not None:
        assert word not in str(error)
        assert PASSWORD not in str(error)
        error = error.__cause__ or error.__context__
    assert PASSWORD not in caplog.text
    assert word not in caplog.text


def test_the_place_has_no_password(name):
    server = shared_server()
    with open_store(f"{server.url(name, tcp=True)}?application_name=other") as store:
        assert store.place == f"postgresql://titanic@127.0.0.1:{server.port}/{name}"


def test_a_later_format_is_refused_and_left_alone(name):
    server = shared_server()
    open_store(server.url(name)).close()
    server.sql("UPDATE titanic.meta SET store_format = 99, oldest = 99", database=name)
    with pytest.raises(StoreTooNew, match="it has format 99"):
        open_store(server.url(name))
    assert server.sql("SELECT store_format FROM titanic.meta", database=name) == 99


def test_two_that_open_an_empty_database_make_its_tables_once(name):
    url = shared_server().url(name)
    with psycopg.connect(url) as connection:
        connection.execute("BEGIN")
        began = time.monotonic()
        stores = [open_store(url) for _ in range(2)]
        assert time.monotonic() - began < 30
    for store in stores:
        store.close()


def test_discarding_removes_the_tables_that_were_never_used(empty):
    url = shared_server().url(empty)
    open_store(url).discard()
    there = "SELECT count(*) FROM pg_namespace WHERE nspname = 'titanic'"
    assert shared_server().sql(there, database=empty) == 0
    store = open_store(url)
    accept(store)
    store.discard()
    assert shared_server().sql(there, database=empty) == 1
