"""Options that several commands share, and where their values come from.

In order of increasing weight: the default, the file named by `--config` (or TITANIC_CONFIG), the environment
variable TITANIC_<NAME>, the command line. The file is TOML: keys at its top count for every command that has
the option, keys in a table `[COMMAND]` for that command alone.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from broker import DEFAULT_ENDPOINT
from titanic import ids

Function = TypeVar("Function", bound=Callable[..., Any])


def option(name: str, *aliases: str, **settings: Any) -> Callable[[Function], Function]:
    """A click option that can also come from the environment as TITANIC_<NAME>."""
    variable = "TITANIC_" + name.lstrip("-").split("/")[0].replace("-", "_").upper()
    return click.option(name, *aliases, envvar=variable, show_default=settings.pop("show_default", True), **settings)


def configured(function: Function) -> Function:
    """Add `--config` to a command."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TITANIC_CONFIG",
        is_eager=True,
        expose_value=False,
        callback=_load,
        help="TOML file with values for these options.",
    )(function)


def _load(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} is not TOML: {error}") from error
    command = context.command.name or ""
    mine = {one.name for one in context.command.params if isinstance(one, click.Option)}
    shared = {key: value for key, value in document.items() if not isinstance(value, dict)}
    group = context.parent.command if context.parent is not None else None
    commands = group.commands if isinstance(group, click.Group) else {}
    everywhere = {one.name for each in commands.values() for one in each.params if isinstance(one, click.Option)}
    for key, value in document.items():
        known = set(commands) if isinstance(value, dict) else everywhere
        _refuse_unknown(path, key.replace("-", "_") if not isinstance(value, dict) else key, known)
    table = document.get(command, {})
    for key in table:
        _refuse_unknown(path, key.replace("-", "_"), mine, f"[{command}] ")
    values = {key.replace("-", "_"): value for key, value in {**shared, **table}.items()}
    context.default_map = {key: value for key, value in values.items() if key in mine}


def _refuse_unknown(path: Path, key: str, known: set[Any], where: str = "") -> None:
    if key in known:
        return
    near = difflib.get_close_matches(key, sorted(map(str, known)), n=1)
    raise click.UsageError(f"{path}: unknown key {where}{key}" + (f"; did you mean {near[0]}?" if near else ""))


def endpoint(function: Function) -> Function:
    """`--endpoint`, `--timeout` and `--mdp`: how to reach a broker."""
    for add in (
        option("--mdp", type=click.Choice(["0.2", "0.1", "majortomo"]), default="0.2", help="Version of MDP to speak."),
        option("--timeout", type=float, default=5.0, metavar="S", help="Wait for an answer, at each of 3 tries."),
        option("--endpoint", default=DEFAULT_ENDPOINT, help="Where the broker is."),
    ):
        function = add(function)
    return configured(function)


json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1 << (10 * power) for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}


def size(value: str | int) -> int:
    """Bytes, written as a number with an optional unit: 500, 64MiB, 1.5GB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).lower())
    if match is None or match[2] not in UNITS:
        raise click.BadParameter(f"{value!r} is not a size; write it like 500, 64MiB or 1.5GB")
    return int(float(match[1]) * UNITS[match[2]])


def uuid(value: str) -> str:
    """A request's UUID, checked: 32 hexadecimal digits, no dashes."""
    if ids.parse(value.encode()) is None:
        raise click.BadParameter(f"{value!r} is not a UUID: it must be 32 hexadecimal digits")
    return value
