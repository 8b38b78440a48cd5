"""Values for options from a TOML file.

In order of increasing weight: the default, the file named by `--config` (or TITANIC_CONFIG), the environment
variable TITANIC_<NAME>, the command line. Keys at the top of the file count for every command that has the
option, keys in a table `[COMMAND]` for that command alone:

    endpoint = "tcp://10.0.0.5:5555"

    [serve]
    bind = ["tcp://10.0.0.5:5555", "ipc:///run/titanic.sock"]
    retry-first = 0.5
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from titanic.quoting import quoted

Options = dict[str, click.Option]


def load(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Read the file and make its values the defaults of the command that is about to run."""
    if value is None:
        return
    path = Path(value)
    document = _read(path)
    commands = _commands(context)
    everywhere: Options = {key: one for options in commands.values() for key, one in options.items()}
    mine = commands[context.command.name or ""]
    defaults: dict[str, Any] = {}
    for key, found in document.items():
        if not isinstance(found, dict):
            name = _known(path, key.replace("_", "-"), everywhere, key)
            if name in mine:
                defaults.setdefault(*_default(path, key, mine[name], found, context))
            continue
        options = commands[_known(path, key, commands, f"[{key}]")]
        for inner, setting in found.items():
            where = f"[{key}] {inner}"
            name = _known(path, inner.replace("_", "-"), options, where)
            if options is mine:
                defaults.update([_default(path, where, mine[name], setting, context)])
    context.default_map = defaults


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise click.UsageError(f"{path} is not TOML: {error}") from error


def _commands(context: click.Context) -> dict[str, Options]:
    """All commands, each with its options by the names that they have in a file."""
    group = context.parent.command if context.parent is not None else None
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    commands = {name: group.get_command(context, name) for name in names} if isinstance(group, click.Group) else {}
    return {name: _options(command) for name, command in commands.items() if command is not None}


def _options(command: click.Command) -> Options:
    options = [one for one in command.params if isinstance(one, click.Option) and one.name != "config"]
    return {max(one.opts, key=len).lstrip("-"): one for one in options}


def _known(path: Path, key: str, known: Iterable[str], where: str) -> str:
    if key in known:
        return key
    near = difflib.get_close_matches(key, known, n=1)
    raise click.UsageError(f"{path}: unknown key {where}" + (f"; did you mean {near[0]}?" if near else ""))


def _default(path: Path, where: str, option: click.Option, value: Any, context: click.Context) -> tuple[str, Any]:
    """The option's parameter and the value for it, checked here: a complaint has to name the file."""
    values = value if isinstance(value, list) and option.multiple else [value]
    if not all(_fits(option, one) for one in values):
        raise click.UsageError(f"{path}: {where} cannot be {quoted(value)}")
    given = values if option.multiple else value
    try:
        option.type_cast_value(context, given)
    except click.BadParameter as error:
        raise click.UsageError(f"{path}: {where}: {error.message}") from error
    return option.name or "", given


def _fits(option: click.Option, value: Any) -> bool:
    """Whether a TOML value is of a kind that the option can make something of; its type looks closer."""
    if option.is_flag:
        return isinstance(value, bool)
    if isinstance(option.type, (click.types.StringParamType, click.Choice, click.Path, click.File)):
        return isinstance(value, str)
    if isinstance(option.type, click.types.IntParamType):
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)
