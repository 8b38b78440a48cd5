"""deploy/titanic.toml: every key of the servers, commented out at the default that the code has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from support.cli_titanic import here
from support.settings_documents import TABLES, TOML

from titanic.cli import main
from titanic.cli.config_file import commands_of
from titanic.cli.serve import ServedQueue

FILE = TOML

COMMENTED = re.compile(r"^#([a-z-]+ = .+)$", re.MULTILINE)
"""A comment for people has a space behind its #."""


@pytest.fixture
def commented() -> dict[str, Any]:
    """What it says once it is not commented out any more."""
    return tomllib.loads(COMMENTED.sub(r"\1", FILE.read_text()))


def test_as_it_is_it_sets_nothing() -> None:
    assert tomllib.loads(FILE.read_text()) == {name: {} for name in TABLES}
    assert here("config", "check", FILE).code == 0


@pytest.mark.parametrize("name", TABLES)
def test_every_key_is_there_at_its_default(name: str, commented: dict[str, Any]) -> None:
    options = commands_of(click.Context(main))[name]
    assert set(commented[name]) | ({"store"} & set(options)) == set(options)
    defaults = here("config", "show", "--json", name).json
    for key in commented[name]:
        if defaults[key]["value"] is not None:
            assert commented[name][key] == defaults[key]["value"], key


def test_with_all_of_it_set_it_is_right(tmp_path: Path) -> None:
    path = tmp_path / "titanic.toml"
    (tmp_path / "access.toml").write_text("[users.shop]\n")
    all_of_it = COMMENTED.sub(r"\1", FILE.read_text()).replace("/etc/titanic/access", f"{tmp_path}/access")
    all_of_it = all_of_it.replace("login-from = []", 'login-from = ["127.0.0.1"]')
    path.write_text(all_of_it)
    (fault,) = here("config", "check", path).err.splitlines()
    assert "bind is for the integrated broker; broker names another one; leave one out" in fault
    path.write_text(all_of_it.replace("\nbroker = ", "\n#broker = "))
    assert here("config", "check", path).code == 0


def test_what_is_marked_live_can_be_changed_alive() -> None:
    text = FILE.read_text().partition("[broker]")[0]
    marked = set(re.findall(r"\(live\)\n#([a-z-]+) = ", text))
    options = commands_of(click.Context(main))["serve"]
    assert marked == {key for key, option in options.items() if option.name in ServedQueue.live | {"log_level"}}
