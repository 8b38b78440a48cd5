"""Help, version, and how quickly a short command starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest
import zmq
from support.cli_titanic import here, titanic
from support.each import each

from broker import is_compiled
from titanic.cli import main
from titanic.cli.config_file import variables
from titanic.cli.main import COMMANDS
from titanic.version import __version__
from titanic_data.cli import main as data

CONTEXT = click.Context(main, **main.context_settings)


def found(name: str) -> click.Command:
    command = main.get_command(CONTEXT, name)
    assert command is not None
    return command


@each("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    command = found(name)
    done = here(name, "--help")
    assert done.code == 0
    assert done.out.decode().startswith(f"Usage: titanic {name} ")
    assert command.help


@each("name", COMMANDS)
def test_every_option_has_help_and_a_variable(name: str) -> None:
    command = found(name)
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            assert all(one.startswith("TITANIC_") for one in variables(option)), option.name
            assert variables(option)


@each("name", COMMANDS)
def test_json_is_documented_where_it_is_offered(name: str) -> None:
    command = found(name)
    if any(option.name == "as_json" for option in command.params):
        assert "--json prints" in (command.help or "")


WITHOUT_JSON = {
    **dict.fromkeys(
        ("serve", "broker", "work", "worker", "dev", "web", "titanic-data work"), "run until they are ended"
    ),
    "demo": "shows; nothing is to be read by programs",
    "drain": "its exit code says all",
    "change": "its exit code says all",
    "titanic-data unregister": "its exit code says all",
    "pattern": "programs that show the Guide's patterns",
}
"""Commands that do not print a result, or not for programs; and why."""


def all_commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Each command that is no group, by its words."""
    context = click.Context(group)
    for word in group.list_commands(context):
        one = group.get_command(context, word)
        assert one is not None
        if isinstance(one, click.Group):
            yield from all_commands(one, f"{name}{word} ")
        else:
            yield f"{name}{word}", one


def test_every_result_can_be_had_as_json() -> None:
    commands = {**dict(all_commands(main, "")), **dict(all_commands(data, "titanic-data "))}
    without = {name for name, command in commands.items() if not any("--json" in one.opts for one in command.params)}
    excepted = {name for name in commands if name in WITHOUT_JSON or name.partition(" ")[0] in WITHOUT_JSON}
    assert without - excepted == set()
    assert set(WITHOUT_JSON) - {"pattern"} <= without  # no exception that is none any more


@each("name", COMMANDS)
def test_the_metavars_are_few(name: str) -> None:
    command = found(name)
    known = {"N", "TIME", "SIZE", "DIR", "FILE", "ENDPOINT", "SERVICE", "KEY", "FILE|Z85", "NAME:WHAT=N,…", "HOST:PORT"}
    known |= {"DIR|URL", "URL", "PATH", "NAME", "TRACEPARENT", "CODES", "TYPE", "CIDR", "TEXT", "NAME=VALUE"}
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag and not isinstance(option.type, click.Choice):
            assert option.metavar in known, option.name


def test_what_a_server_needs_first_stands_first() -> None:
    text = here("serve", "--help").out.decode()
    order = ["--store", "--capacity", "--bind", "--broker", "--config", "--help", "--keep-replies", "--max-deliveries"]
    names = ("-h, --help" if name == "--help" else name for name in order)
    places = [text.index(f"\n  {name} ") for name in names]
    assert places == sorted(places)
    for name in ("submit", "ls", "reply"):
        assert here(name, "--help").out.decode().count("--endpoint ENDPOINT ") == 1


def test_help_is_a_command_too() -> None:
    assert here("help", "serve") == here("serve", "--help")
    assert here("help") == here("--help")
    assert here("help", "nothing").code == 2


@pytest.mark.parametrize(("typed", "meant"), [("statsu", "status"), ("sumbit", "submit"), ("list", "ls")])
def test_a_command_that_was_meant(typed: str, meant: str) -> None:
    done = here(typed, "x")
    assert done.code == 2
    assert f"no such command: {typed}; did you mean {meant}?" in done.err
    assert "titanic --help lists them" in here("xyzzy").err


def test_completion_for_the_shell() -> None:
    assert b"complete -o nosort -F _titanic_completion titanic" in here(_TITANIC_COMPLETE="bash_source").out


def test_the_list_of_commands() -> None:
    done = here("--help")
    lines = [line.split() for line in done.out.decode().partition("Commands:\n")[2].splitlines()]
    assert [line[0] for line in lines] == list(COMMANDS)
    assert "..." not in done.out.decode().partition("Commands:")[2]
    assert here().code == 2


def test_the_version() -> None:
    build = "compiled" if is_compiled() else "pure Python"
    expected = f"titanic, version {version('titanic-queue')} ({build})\n".encode()
    assert titanic("--version") == (0, expected, "")  # python -m titanic
    assert here("--version").out == expected


def test_what_it_consists_of() -> None:
    said = titanic("version", "--json").json
    assert said["version"] == __version__
    assert (said["commit"], said["build"]) == (None, "compiled" if is_compiled() else "pure")
    assert {name: said["libraries"][name] for name in ("lmdb", "pyzmq")} == {
        name: version(name) for name in ("lmdb", "pyzmq")
    }
    assert "pytest" not in said["libraries"]
    lines = here("version").out.decode().splitlines()
    assert lines[0].split() == ["PART", "VERSION"]
    assert f"libzmq {zmq.zmq_version()}" in [" ".join(line.split()) for line in lines]


def test_a_short_command_imports_nothing_heavy() -> None:
    heavy = {"rich", "multiprocessing", "titanic.bench", "titanic.cli.demo", "titanic.cli.serve"}
    program = "import sys, titanic.cli.submit_reply, titanic.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert not heavy & set(done.stdout.split())


def test_a_settings_file_imports_only_commands_whose_settings_it_has(tmp_path: Path) -> None:
    file = tmp_path / "titanic.toml"
    file.write_text("[serve]\n[web]\n[keys]\n[submit]\ntimeout = 0.01\nendpoint = 'tcp://127.0.0.1:1'\n")
    words = ["submit", "a", "b", "--config", str(file)]
    program = (
        f"import atexit, sys\natexit.register(lambda: print(*sys.modules))\nfrom titanic.cli import main\nmain({words})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 3, done.stderr
    assert {one for one in done.stdout.split() if one.startswith("titanic.cli.")} & {
        *("titanic.cli.submit_reply", "titanic.cli.serve", "titanic.cli.web", "titanic.cli.keys", "titanic.cli.bench")
    } == {"titanic.cli.submit_reply"}
