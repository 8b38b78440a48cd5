"""`titanic config show`: what counts, and what says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_titanic import here


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "titanic.toml"
    path.write_text('endpoint = "tcp://10.0.0.5:5555"\n\n[serve]\ngrace = 1\nretry-first = 2\nmax-attempts = 3\n')
    return path


def test_each_value_with_its_source(toml: Path) -> None:
    variables = {"TITANIC_CONFIG": str(toml), "TITANIC_RETRY_FIRST": "4", "TITANIC_MAX_ATTEMPTS": "5"}
    shown = here("config", "show", "--json", "serve", "--max-attempts", "6", **variables).json
    assert shown["retry-most"] == {"value": 300.0, "source": "default"}
    assert shown["grace"] == {"value": 1, "source": f"{toml}:4"}
    assert shown["retry-first"] == {"value": "4", "source": "environment TITANIC_RETRY_FIRST"}
    assert shown["max-attempts"] == {"value": "6", "source": "command line"}
    assert shown["capacity"] == {"value": None, "source": "default"}
    assert shown["drop-unarchived"] == {"value": False, "source": "default"}


def test_as_a_table(toml: Path) -> None:
    lines = here("config", "show", "--config", toml).out.decode().splitlines()
    assert lines[0].split() == ["OPTION", "VALUE", "FROM"]
    assert ["grace", "1", f"{toml}:4"] in [line.split() for line in lines]
    assert ["bind", '["tcp://127.0.0.1:5555"]', "default"] in [line.split() for line in lines]


def test_of_another_command(toml: Path) -> None:
    """Also of one that takes arguments, which are not needed here."""
    shown = here("config", "show", "--json", "--config", toml, "work", "-j", "4").json
    assert shown["endpoint"] == {"value": ["tcp://10.0.0.5:5555"], "source": f"{toml}:1"}
    assert shown["jobs"] == {"value": "4", "source": "command line"}


def test_what_is_wrong_is_said(toml: Path) -> None:
    assert here("config", "show", "serv").err.endswith("no such command: serv; did you mean serve?\n")
    assert "--grace" in here("config", "show", "serve", "--grace", "soon").err
    err = here("config", "show", "serve", "--garce", "1").err
    assert err == "titanic: no such option: --garce; did you mean --access or --gather or --grace?\n"
    toml.write_text("[serve]\ngarce = 1\n")
    done = here("config", "show", "--config", toml)
    assert (done.code, done.out) == (1, b"")
    assert done.err == f"{toml}:2: unknown key [serve] garce; did you mean grace?\n"


def test_a_variable_that_nobody_reads() -> None:
    done = here("config", "show", TITANIC_CAPACTIY="1GiB", TITANIC_XYZZY="1")
    assert done.code == 0
    assert done.err.splitlines() == [
        "titanic: unknown environment variable TITANIC_CAPACTIY; did you mean TITANIC_CAPACITY?",
        "titanic: unknown environment variable TITANIC_XYZZY; no option uses it",
    ]


def test_what_is_not_set_is_shown_as_nothing() -> None:
    shown = here("config", "show", "--json", "submit").json
    assert shown["lines"] == {"value": None, "source": "default"}


@pytest.mark.parametrize("command", ["serve", "broker"])
def test_the_servers_key_is_key_wherever_it_is_given(command: str, tmp_path: Path) -> None:
    toml = tmp_path / "titanic.toml"
    toml.write_text(f"[{command}]\nkey = 'a'\n")
    show = ("config", "show", "--json", command)
    assert here(*show, "--config", toml).json["key"] == {"value": "a", "source": f"{toml}:2"}
    assert here(*show, TITANIC_KEY="b").json["key"] == {"value": "b", "source": "environment TITANIC_KEY"}
    for option in ("--key", "--key-file"):
        assert here(*show, option, "c").json["key"] == {"value": "c", "source": "command line"}
