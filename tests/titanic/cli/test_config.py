"""Where options get their values from: command line, environment, file, default."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_titanic import here, running, titanic
from support.each import each

pytestmark = pytest.mark.usefixtures("workers")


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "titanic.toml"


def test_from_the_environment(endpoint: str) -> None:
    assert here("call", "echo", "x", TITANIC_ENDPOINT=endpoint, TITANIC_JSON="1").json["body"] == ["x"]
    assert titanic("call", "echo", "x", TITANIC_ENDPOINT=endpoint).out == b"x"


def test_a_variable_that_is_wrong_is_named() -> None:
    done = here("status", TITANIC_TIMEOUT="soon")
    assert done.code == 2
    assert "'--timeout'" in done.err
    assert "'soon' is not a time from 0.001 s to 1157 days; write seconds, or a unit: 250ms, " in done.err


def test_from_the_top_of_a_file(endpoint: str, toml: Path) -> None:
    toml.write_text(f'endpoint = "{endpoint}"\ncapacity = "1GiB"  # for another command\n')
    assert here("call", "echo", "x", "--config", toml).out == b"x"
    assert here("call", "echo", "x", TITANIC_CONFIG=str(toml)).out == b"x"


def test_from_the_table_of_the_command(endpoint: str, toml: Path) -> None:
    toml.write_text(f'endpoint = "tcp://nowhere:1"\n[call]\nendpoint = "{endpoint}"\njson = true\n[ls]\nlimit = 3\n')
    assert here("call", "echo", "x", "--config", toml).json["body"] == ["x"]


def test_the_table_outweighs_the_top_wherever_it_stands(endpoint: str, toml: Path) -> None:
    toml.write_text(f'call = {{endpoint = "{endpoint}"}}\nendpoint = "tcp://nowhere:1"\n')
    assert here("call", "echo", "x", "--config", toml).out == b"x"


def test_the_environment_outweighs_the_file_and_the_command_line_all(endpoint: str, toml: Path) -> None:
    toml.write_text('endpoint = "ipc:///nonsense-in-file"\n')
    file = {"TITANIC_CONFIG": str(toml)}
    assert "ipc:///nonsense-in-file" in here("status", **file).err
    environment = {**file, "TITANIC_ENDPOINT": "ipc:///nonsense-in-environment"}
    assert "ipc:///nonsense-in-environment" in here("status", **environment).err
    assert here("call", "echo", "x", "--endpoint", endpoint, **environment).out == b"x"


def test_lists_dashes_numbers_and_sizes(tmp_path: Path, toml: Path) -> None:
    toml.write_text(
        'bind = ["tcp://127.0.0.1:*", "tcp://127.0.0.1:*"]\n'
        '[broker]\nlog-level = "debug"\nmax-waiting = 5\nrequest-expiry = 1.5\nmax-body = 1000000\n'
    )
    with running(tmp_path / "log", "broker", "--config", toml) as broker:
        broker.says(r"broker at tcp://127.0.0.1:\d+, tcp://127.0.0.1:\d+\n")


def test_one_value_is_a_list_of_one(tmp_path: Path, toml: Path) -> None:
    toml.write_text('bind = "tcp://127.0.0.1:*"\n')
    with running(tmp_path / "log", "broker", "--config", toml) as broker:
        broker.says(r"broker at tcp://127.0.0.1:\d+\n")


@pytest.mark.parametrize("value", ["90", "90s", "1.5m", "0.025h", "90000ms", "1.5 min"])
def test_a_time_has_a_unit_or_is_seconds(endpoint: str, value: str) -> None:
    uuid = here("submit", "absent", "x", "--ttl", value, "--endpoint", endpoint).line
    row = here("show", uuid, "--json", "--endpoint", endpoint).json
    assert row["expires_at"] - row["submitted_at"] == pytest.approx(90e6, abs=1e6)


@each("value", ["", "s", "5x", "1 h 5 m", "1e9", "-1s", "nan", "inf", "9999d"])
def test_times_that_are_none(value: str) -> None:
    done = here("submit", "s", "--ttl", value)
    assert done.code == 2
    assert f"{value!r} is not a time from 0.001 s to 1157 days" in done.err


def test_the_bounds_of_a_capacity_are_those_of_the_store() -> None:
    assert "1KiB is not a size from 16MiB to 16TiB" in here("serve", "--capacity", "1KiB").err
    assert "1KiB is not a size from 64KiB to 16TiB" in here("serve", "--max-body", "1KiB").err


@each("value", ["1", "-5", "12XB", "", "99999TiB", "1e5", "1.5.5GB"])
def test_sizes_that_are_none(value: str) -> None:
    done = here("serve", "--capacity", value)
    assert done.code == 2
    assert "is not a size" in done.err


def test_a_database_at_the_top_of_a_file_is_right_though_a_backup_needs_a_directory(tmp_path: Path, toml: Path) -> None:
    toml.write_text('store = "postgresql://titanic@db/titanic"\n')
    assert here("config", "check", toml).code == 0
    ended = here("backup", tmp_path / "copy", "--config", toml)
    assert ended.code == 2
    assert "a directory is needed, not the URL of a database" in ended.err
