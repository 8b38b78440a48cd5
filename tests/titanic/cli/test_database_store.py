"""Commands whose store is in a database."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from support.cli_titanic import here, running
from support.postgres import PASSWORD, needs_postgres, new_server, shared_server

from titanic import Client
from titanic.errors import Refused
from titanic.store import open_store
from titanic.util.text import how_to_install

pytestmark = needs_postgres


@pytest.fixture
def database() -> Iterator[str]:
    name = shared_server().new_database()
    yield name
    shared_server().drop_database(name)


def test_a_server_says_where_its_store_is_and_others_look_at_it(tmp_path: Path, database: str) -> None:
    server = shared_server()
    place = f"postgresql://titanic@127.0.0.1:{server.port}/{database}"
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[serve]\nstore = "{server.url(database, tcp=True)}"\n')
    settings.chmod(0o600)
    with running(tmp_path / "log", "serve", "--config", settings, "--bind", "tcp://127.0.0.1:*") as one:
        endpoint = one.says(r"serving at (\S+); store " + place + ": new, for 1GiB").group(1)
        with Client(endpoint, timeout=30) as client:
            uuid = client.submit("nobody", "x")
            assert client.stats()["store"]["path"] == place
    for command in ("status", "ls"):
        found = here(command, "--store", server.url(database), "--json")
        assert found.code == 0, found
        assert (uuid.encode() in found.out) == (command == "ls")
    assert PASSWORD not in (tmp_path / "log").read_text()


def test_a_server_outlives_its_database(tmp_path: Path) -> None:
    options = ("--bind", "tcp://127.0.0.1:*", "--metrics", "127.0.0.1:0")
    with (
        new_server() as database,
        running(tmp_path / "log", "serve", "--store", database.url(database.new_database()), *options) as one,
    ):
        endpoint = one.says(r"serving at (\S+);").group(1)
        health = one.says(r"metrics at (\S+)/metrics").group(1)
        with Client(endpoint, timeout=30) as client:
            database.stop()
            one.says("cannot use the database: the database .* can't be reached")
            with pytest.raises(Refused, match="can't be reached"):
                client.submit("nobody", "x")
            with pytest.raises(HTTPError, match="503"):
                urlopen(f"{health}/readyz")
            assert urlopen(f"{health}/healthz").read() == b"ok\n"
            database.start()
            one.says("can use the database again")
            client.submit("nobody", "x")
            assert urlopen(f"{health}/readyz").read() == b"ok\n"


def test_a_password_on_the_command_line_is_refused(database: str) -> None:
    url = shared_server().url(database, tcp=True)
    for command in ("serve", "ls"):
        refused = here(command, "--store", url)
        assert refused.code == 2
        assert "other users can see" in refused.err
        assert url.partition("@")[0].rpartition(":")[2] not in refused.err
    open_store(url).close()
    found = here("status", "--offline", TITANIC_STORE=url)
    assert found.code == 0, found
    assert b"0 requests" in found.out


def test_without_psycopg_each_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "titanic.store.engine_choice.find_spec", lambda name: None if name == "psycopg" else found(name)
    )
    for name in [name for name in sys.modules if name.startswith(("psycopg", "titanic.store.postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    url = "postgresql://titanic@127.0.0.1/titanic"
    commands = [(name, "--store", url) for name in ("serve", "status", "ls", "check")]
    commands += [("migrate", url, tmp_path / "new"), ("migrate", tmp_path / "old", url)]
    open_store(tmp_path / "old").close()
    for command in commands:
        done = here(*command)
        assert (done.code, done.out) == (1, b""), command
        assert done.err == (
            f"titanic: a store in PostgreSQL needs psycopg; it is not installed; {how_to_install('postgres')}\n"
        ), command
    assert not (tmp_path / "new").exists()


def test_commands_for_directories_say_so(tmp_path: Path, database: str) -> None:
    refused = here("backup", tmp_path / "B", "--store", shared_server().url(database))
    assert refused.code == 2
    assert "a directory is needed, not the URL of a database" in refused.err


@pytest.mark.parametrize("place", ["postgresql:titanic", "postgresql:/titanic@db/titanic", "PostgreSQL://db/titanic"])
def test_what_looks_like_the_url_of_a_database_is_no_directory(place: str) -> None:
    """A server with a store of its own is not one of the nodes that share a database."""
    done = here("serve", "--store", place, "--bind", "tcp://127.0.0.1:*")
    assert (done.code, done.out) == (2, b"")
    assert done.err == (
        "titanic: invalid value for '--store': it is not the URL of a database: write postgresql://USER@HOST/DATABASE\n"
    )
