"""`titanic migrate`: what users see of it; what moves is in tests/titanic/store/test_moving.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_titanic import here, on_terminal, serving
from support.postgres import PASSWORD, needs_postgres, shared_server

from broker import Worker


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with requests that wait, one that is done, one that is closed, and settings of services."""
    folder = tmp_path_factory.mktemp("migrate")
    with serving(folder) as (_, endpoint):
        at = ("--endpoint", endpoint)
        assert here("submit", "absent", "--lines", "-", *at, stdin=b"1\n2\n3\n").code == 0
        with Worker("echo", lambda frames: frames, endpoint):
            for body in ("kept", "closed"):
                done = here("submit", "echo", body, "--wait", "20", *at)
                assert done.out == body.encode()
        here("close", done.err.split()[0], *at)
        here("pause", "parked", *at)
        here("limits", "absent", "--running", "2", *at)
    return folder / "store"


def test_the_other_store_serves(store: Path, tmp_path: Path) -> None:
    before = here("ls", "--json", "--store", store).json
    done = here("migrate", store, tmp_path / "store")
    assert done.code == 0
    first, second = done.out.decode().splitlines()
    assert first.startswith(f"{tmp_path / 'store'}: 4 requests (3 waiting, 0 delayed, 1 ended), ")
    assert first.endswith(", 1 closed request")
    assert second.startswith(f"compared with {store}: identical, SHA-256 ")
    assert "do not start a server on it again" in done.err
    with serving(tmp_path) as (_, endpoint):
        assert here("ls", "--json", "--endpoint", endpoint).json == before
        (ended,) = (row["uuid"] for row in before if row["state"] == "done")
        assert here("reply", ended, "--endpoint", endpoint).out == b"kept"


@needs_postgres
def test_to_a_database_and_back(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = shared_server()
    name = server.new_database()
    place = f"postgresql://titanic@127.0.0.1:{server.port}/{name}"
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    there = here("migrate", store, place, "--json")
    assert there.json["to"] == place
    back = here("migrate", place, tmp_path / "store")
    assert f"compared with {place}: identical, SHA-256 " in back.out.decode()
    refused = here("migrate", store, place)
    assert refused.err.startswith(f"titanic: cannot write to {place}; it already has a store")
    for one in (there, back, refused):
        assert "secret" not in one.out.decode() + one.err
    assert here("ls", "--json", "--store", tmp_path / "store").json == here("ls", "--json", "--store", store).json
    with serving(tmp_path) as (_, endpoint):
        assert here("limits", "absent", "--json", "--endpoint", endpoint).json["limits"]["running"] == 2
        assert here("status", "--json", "--endpoint", endpoint).json["settings"]["parked"]["paused"]
    server.drop_database(name)


@needs_postgres
def test_a_database_in_which_nothing_may_be_made(store: Path) -> None:
    server = shared_server()
    name = server.new_database()
    server.sql(f"ALTER DATABASE {name} OWNER TO CURRENT_USER")
    done = here("migrate", store, server.url(name))
    assert (done.code, done.out) == (1, b"")
    assert f"permission denied for database {name}; grant its user CREATE on the database" in done.err
    server.drop_database(name)


def test_a_password_on_the_command_line_is_refused(tmp_path: Path) -> None:
    url = "postgresql://titanic:hidden@127.0.0.1/titanic"
    for places, name in (((url, tmp_path / "new"), "FROM"), ((tmp_path / "old", url), "TO")):
        done = here("migrate", *places)
        assert (done.code, done.out) == (2, b"")
        assert done.err == (
            f"titanic: invalid value for '{name}': the URL has a password, and other users can see the command"
            " line; put the password in ~/.pgpass or PGPASSWORD\n"
        )


def test_the_same_for_programs(store: Path, tmp_path: Path) -> None:
    found = here("migrate", store, tmp_path / "new", "--json").json
    assert found.pop("keys") > 0
    assert len(found.pop("checksum")) == 64
    places = {"from": str(store), "to": str(tmp_path / "new")}
    assert found == {**places, "requests": 4, "waiting": 3, "delayed": 0, "ended": 1, "closed": 1}


def test_on_a_terminal_it_says_how_far_it_is(store: Path, tmp_path: Path) -> None:
    text = on_terminal("migrate", store, tmp_path / "new")
    assert "comparing closed requests" in text
    assert "100 %" in text


def test_refusals_have_one_line(store: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "letters").touch()
    done = here("migrate", store, tmp_path / "target")
    assert (done.code, done.out) == (1, b"")
    assert done.err == f"titanic: {tmp_path / 'target'} is not a store; it holds 'letters'; choose an empty directory\n"
    done = here("migrate", tmp_path / "absent", tmp_path / "new")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    with serving(tmp_path) as (server, _):
        done = here("migrate", tmp_path / "store", tmp_path / "new")
        assert done.code == 1
        assert f"is in use; it is open in the process with pid {server.process.pid}" in done.err
    assert not (tmp_path / "new").exists()
