"""Where options get their values from: command line, environment, file, default."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_titanic import here, running, titanic

pytestmark = pytest.mark.usefixtures("workers")


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "titanic.toml"


def complaint(toml: Path, text: str, command: str = "status") -> str:
    """What is said about a file that is not right; its last line."""
    toml.write_text(text)
    done = here(command, "--config", toml, *(["s"] if command in ("submit", "call") else []))
    assert (done.code, done.out) == (2, b"")
    return done.err.splitlines()[-1]


def test_from_the_environment(endpoint: str) -> None:
    assert here("call", "echo", "x", TITANIC_ENDPOINT=endpoint, TITANIC_JSON="1").json["body"] == ["x"]
    assert titanic("call", "echo", "x", TITANIC_ENDPOINT=endpoint).out == b"x"


def test_a_variable_that_is_wrong_is_named() -> None:
    done = here("status", TITANIC_TIMEOUT="soon")
    assert done.code == 2
    assert "'--timeout'" in done.err
    assert "'soon' is not a number of seconds" in done.err


def test_from_the_top_of_a_file(endpoint: str, toml: Path) -> None:
    toml.write_text(f'endpoint = "{endpoint}"\ncapacity = "1GiB"  # for another command\n')
    assert here("call", "echo", "x", "--config", toml).out == b"x"
    assert here("call", "echo", "x", TITANIC_CONFIG=str(toml)).out == b"x"


def test_from_the_table_of_the_command(endpoint: str, toml: Path) -> None:
    toml.write_text(f'endpoint = "tcp://nowhere"\n[call]\nendpoint = "{endpoint}"\njson = true\n[ls]\nlimit = 3\n')
    assert here("call", "echo", "x", "--config", toml).json["body"] == ["x"]


def test_the_table_outweighs_the_top_wherever_it_stands(endpoint: str, toml: Path) -> None:
    toml.write_text(f'call = {{endpoint = "{endpoint}"}}\nendpoint = "tcp://nowhere"\n')
    assert here("call", "echo", "x", "--config", toml).out == b"x"


def test_the_environment_outweighs_the_file_and_the_command_line_all(endpoint: str, toml: Path) -> None:
    toml.write_text('endpoint = "nonsense-in-file"\n')
    file = {"TITANIC_CONFIG": str(toml)}
    assert "nonsense-in-file" in here("status", **file).err
    environment = {**file, "TITANIC_ENDPOINT": "nonsense-in-environment"}
    assert "nonsense-in-environment" in here("status", **environment).err
    assert here("call", "echo", "x", "--endpoint", endpoint, **environment).out == b"x"


def test_lists_dashes_numbers_and_sizes(tmp_path: Path, toml: Path) -> None:
    toml.write_text(
        'bind = ["tcp://127.0.0.1:*", "tcp://127.0.0.1:*"]\n'
        '[broker]\nlog-level = "debug"\nmax_waiting = 5\nrequest-expiry = 1.5\nmax-body = 1000000\n'
    )
    with running(tmp_path / "log", "broker", "--config", toml) as broker:
        broker.says(r"broker at tcp://127.0.0.1:\d+, tcp://127.0.0.1:\d+\n")


def test_one_value_is_a_list_of_one(tmp_path: Path, toml: Path) -> None:
    toml.write_text('bind = "tcp://127.0.0.1:*"\n')
    with running(tmp_path / "log", "broker", "--config", toml) as broker:
        broker.says(r"broker at tcp://127.0.0.1:\d+\n")


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("endpiont = 'x'", "unknown key endpiont; did you mean endpoint?"),
        ("[serv]\nbind = 'x'", "unknown key [serv]; did you mean serve?"),
        ("[status]\ntimeuot = 1", "unknown key [status] timeuot; did you mean timeout?"),
        ("[serve]\nretry_frist = 1", "unknown key [serve] retry_frist; did you mean retry-first?"),
        ("[status]\nbind = 'x'", "unknown key [status] bind"),
        ("as_json = true", "unknown key as_json; did you mean json?"),
        ("config = 'x'", "unknown key config"),
        ("zzz = 1", "unknown key zzz"),
    ],
)
def test_unknown_keys(toml: Path, text: str, fact: str) -> None:
    said = complaint(toml, text)
    assert said.startswith(f"Error: {toml}: ")
    assert fact in said


@pytest.mark.parametrize(
    ("command", "text", "fact"),
    [
        ("status", "endpoint = 5", "endpoint cannot be 5"),
        ("status", "timeout = ['a', 'b']", "timeout cannot be ['a', 'b']"),
        ("status", "timeout = true", "timeout cannot be True"),
        ("status", "timeout = 'soon'", "timeout: 'soon' is not a number of seconds"),
        ("status", "timeout = nan", "timeout: nan is not a number of seconds"),
        ("status", "timeout = 2026-01-01", "timeout cannot be"),
        ("status", "json = 'yes'", "json cannot be 'yes'"),
        ("status", "[status]\nmdp = '9'", "[status] mdp: '9' is not one of"),
        ("ls", "limit = 0.5", "limit cannot be 0.5"),
        ("ls", "limit = 0", "limit: 0 is not in the range"),
        ("serve", "bind = [1]", "bind cannot be [1]"),
        ("serve", "capacity = '1 parsec'", "capacity: '1 parsec' is not a size"),
        ("serve", "capacity = 0", "capacity: 0 is not a size"),
        ("serve", "[serve]\nstore = 3", "[serve] store cannot be 3"),
    ],
)
def test_values_that_do_not_fit(toml: Path, command: str, text: str, fact: str) -> None:
    said = complaint(toml, text, command)
    assert said.startswith(f"Error: {toml}: ")
    assert fact in said


def test_files_that_cannot_be_read(toml: Path, tmp_path: Path) -> None:
    assert "is not TOML" in complaint(toml, "endpoint = ")
    toml.write_bytes(b"a = '\xff'")
    assert "is not TOML" in here("status", "--config", toml).err
    assert "No such file" in here("status", "--config", tmp_path / "absent").err
    assert here("status", "--config", tmp_path).code == 2


@pytest.mark.parametrize("value", ["1", "-5", "12XB", "", "99999TiB", "1e5", "1.5.5GB"])
def test_sizes_that_are_none(value: str) -> None:
    done = here("serve", "--capacity", value)
    assert done.code == 2
    assert "is not a size" in done.err
