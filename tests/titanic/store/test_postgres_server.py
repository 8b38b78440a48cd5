"""The servers of PostgreSQL that other tests use do what those tests rely on."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from support.ports import OWN, free_port
from support.postgres import PostgresServer, needs_postgres, new_server, shared_server
from support.postgres_pair import new_pair
from support.processes import ROOT
from support.waiting import until

pytestmark = needs_postgres


def test_servers_that_start_later_have_ports_of_their_own() -> None:
    some = len(OWN) // 2
    assert len({free_port() for _ in range(some)}) == some


def test_each_database_is_empty_and_belongs_to_titanic() -> None:
    server = shared_server()
    names = [server.new_database(), server.new_database()]
    for name in names:
        with psycopg.connect(server.url(name)) as connection:
            connection.execute("CREATE TABLE mine ()")
    for name in names:
        server.drop_database(name)


def test_a_password_is_asked_for_over_tcp_only() -> None:
    server = shared_server()
    psycopg.connect(server.url("template1")).close()
    psycopg.connect(server.url("template1", tcp=True)).close()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url("template1", tcp=True, password="wrong"))


def test_what_was_committed_survives_any_end() -> None:
    with new_server() as server:
        assert server.sql("SHOW fsync") == "on"
        name = server.new_database()
        server.sql("CREATE TABLE kept (number int)", database=name)
        for number, mode in enumerate(("immediate", "fast", "kill")):
            server.sql("INSERT INTO kept VALUES (%s)", number, database=name)
            server.restart(mode)
        assert server.sql("SELECT array_agg(number) FROM kept", database=name) == [0, 1, 2]


def test_a_server_that_stands_still_keeps_its_connections() -> None:
    with new_server() as server, closing(server.connect(name := server.new_database())) as connection:
        server.pause()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(server.url("template1", tcp=True) + "?connect_timeout=2")
        server.go_on()
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert server.cut_connections(name) == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_setting_can_change_while_it_runs() -> None:
    with new_server(full_page_writes="off") as server:
        assert server.sql("SHOW full_page_writes") == "off"
        server.reload(full_page_writes="on")
        assert server.sql("SHOW full_page_writes") == "on"


def _has_ended(stat: Path) -> bool:
    """Whether a process is gone, or only waits for whoever is its parent now to hear of it."""
    try:
        return stat.read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def test_it_ends_with_the_process_that_started_it() -> None:
    lines = (
        "import sys; sys.path.insert(0, ''); from support.postgres import PostgresServer as S;"
        " s = S().create(); print(s.folder, s._process.pid); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT / "tests"
    ) as process:
        assert process.stdout is not None
        folder, _, pid = process.stdout.readline().strip().rpartition(" ")
        process.send_signal(signal.SIGKILL)
        until(lambda: _has_ended(Path(f"/proc/{pid}/stat")))
    with PostgresServer() as _:  # it removes what is left, unless another one has begun to
        until(lambda: not Path(folder).exists())


def test_a_standby_has_all_that_was_committed_when_it_takes_over() -> None:
    with new_pair() as pair:
        name = pair.primary.new_database()
        with psycopg.connect(pair.url(name), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
            connection.execute("INSERT INTO kept VALUES (2)")
        for number in (3, 4):  # there and back
            pair.fail_over()
            with psycopg.connect(pair.url(name), autocommit=True) as connection:
                connection.execute("INSERT INTO kept VALUES (%s)", (number,))
                assert connection.info.port == pair.primary.port
            pair.follow()
        assert pair.standby.sql("SELECT array_agg(number) FROM kept", database=name) == [1, 2, 3, 4]


def test_a_commit_waits_for_the_standby() -> None:
    with new_pair() as pair, pair.primary.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
        pair.standby.pause()
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(connection.execute, "INSERT INTO kept VALUES (2)")
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            until(lambda: pair.primary.sql(waits))
            assert not done.done()
            pair.standby.go_on()
            done.result(60)
