"""Help, version, and how quickly a short command starts."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import click
import pytest
from support.cli_titanic import here, titanic

from titanic.cli import main
from titanic.cli.main import COMMANDS

CONTEXT = click.Context(main)


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> click.Command:
    found = main.get_command(CONTEXT, request.param)
    assert found is not None
    return found


def test_every_command_has_help(command: click.Command) -> None:
    done = here(command.name or "", "--help")
    assert done.code == 0
    assert done.out.decode().startswith(f"Usage: titanic {command.name} ")
    assert command.help


def test_every_option_has_help_and_a_variable(command: click.Command) -> None:
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            assert str(option.envvar).startswith("TITANIC_"), option.name


def test_json_is_documented_where_it_is_offered(command: click.Command) -> None:
    if any(option.name == "as_json" for option in command.params):
        assert "--json prints" in (command.help or "")


def test_the_list_of_commands() -> None:
    done = here("--help")
    lines = [line.split() for line in done.out.decode().partition("Commands:\n")[2].splitlines()]
    assert [line[0] for line in lines] == list(COMMANDS)
    assert "..." not in done.out.decode().partition("Commands:")[2]
    assert here().code == 2


def test_the_version() -> None:
    expected = f"titanic, version {version('titanic-queue')}\n".encode()
    assert titanic("--version") == (0, expected, "")  # python -m titanic
    assert here("--version").out == expected


def test_a_short_command_imports_nothing_heavy() -> None:
    heavy = {"rich", "multiprocessing", "titanic.bench", "titanic.demo", "titanic.cli.serve"}
    program = "import sys, titanic.cli.queue, titanic.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert not heavy & set(done.stdout.split())
