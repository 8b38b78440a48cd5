"""Values for options from a TOML file.

In order of increasing weight: the default, the file named by `--config` (or TITANIC_CONFIG), the environment
variable TITANIC_<NAME>, the command line. Keys at the top of the file count for every command that has the
option, keys in a table `[COMMAND]` for that command alone:

    endpoint = "tcp://10.0.0.5:5555"

    [serve]
    bind = ["tcp://10.0.0.5:5555", "ipc:///run/titanic/titanic.sock"]
    retry-first = 0.5

Every key of the file must be known, also those for other commands: a misspelt one would be a setting that is not set.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from titanic.cli.endpoint import Endpoint
from titanic.cli.toml_lines import Keys, line_of_error, lines_of
from titanic.quoting import quoted

Options = dict[str, click.Option]
Commands = Mapping[str, Options]
"""All commands, each with its options by the names that they have in a file."""

PLACES = "titanic.places"
"""Where a context keeps, by parameter, where in which file its default stands."""


class Place(NamedTuple):
    """A line of a file."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class Fault(NamedTuple):
    """Something in a file that is not right."""

    place: Place
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class Found(NamedTuple):
    """What a file says about one option of a command."""

    option: click.Option
    value: Any
    place: Place


class Document:
    """A file that was read, and what is wrong with it."""

    def __init__(self, path: Path, commands: Commands) -> None:
        """Raises click.UsageError for a file that cannot be read at all."""
        self.path = path
        self.faults: list[Fault] = []
        self._commands = commands
        try:
            self._text = path.read_text("utf-8")
            self.values = tomllib.loads(self._text)
        except OSError as error:
            raise click.UsageError(f"cannot read {path}: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            where = Place(path, line_of_error(self._text, error))
            fact = re.sub(r" \(at (line .*|end of document)\)$", "", str(error))
            raise click.UsageError(f"{where}: this is not TOML: {fact}") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise click.UsageError(f"{Place(path, line)}: this is not TOML: it is not UTF-8") from error
        self._lines = lines_of(self._text)
        self._check_keys()

    def of(self, name: str) -> dict[str, Found]:
        """What it says for a command, by the option's name. Adds to `faults`."""
        options = self._commands.get(name, {})
        found: dict[str, Found] = {}
        for key, value in self.values.items():
            option = options.get(_dashed(key))
            if option is not None and not (isinstance(value, dict) and key in self._commands):
                self._take(found, option, (key,), value, name)
        table = self.values.get(name)
        for key, value in table.items() if isinstance(table, dict) else ():
            if (option := options.get(_dashed(key))) is not None:
                self._take(found, option, (name, key), value, name)
        return found

    def _take(self, found: dict[str, Found], option: click.Option, keys: Keys, value: Any, name: str) -> None:
        fault = _fault(option, value)
        if fault:
            whose = "" if len(keys) == 2 else f" (of titanic {name})"
            self._complain(keys, f"{_shown(keys)}{whose}{fault}")
        else:
            values = [value] if option.multiple and not isinstance(value, list) else value
            found[option.name or ""] = Found(option, values, Place(self.path, self._lines[keys]))

    def _check_keys(self) -> None:
        everywhere = {name for options in self._commands.values() for name in options}
        for key, value in self.values.items():
            if isinstance(value, dict):
                if key not in self._commands:
                    self._unknown((key,), f"[{key}]", self._commands)
                    continue
                for inner in value:
                    if _dashed(inner) not in self._commands[key]:
                        self._unknown((key, inner), _shown((key, inner)), self._commands[key])
            elif _dashed(key) not in everywhere:
                self._unknown((key,), key, everywhere)

    def _unknown(self, keys: Keys, shown: str, known: Iterable[str]) -> None:
        near = difflib.get_close_matches(_dashed(keys[-1]), known, n=1)
        if near:
            advice = f"; did you mean {near[0]}?"
        else:
            owners = [name for name, options in self._commands.items() if _dashed(keys[-1]) in options]
            advice = f"; it is an option of {', '.join(owners)}" if len(keys) == 2 and owners else ""
        self._complain(keys, f"unknown key {shown}{advice}")

    def _complain(self, keys: Keys, text: str) -> None:
        fault = Fault(Place(self.path, self._lines[keys]), text)
        if fault not in self.faults:
            self.faults.append(fault)


def load(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Read the file and make its values the defaults of the command that is about to run."""
    if value is None:
        return
    document = Document(Path(value), commands_of(context))
    found = document.of(context.command.name or "")
    if document.faults:
        raise click.UsageError("\n".join(str(fault) for fault in document.faults))
    context.default_map = {name: one.value for name, one in found.items()}
    context.meta[PLACES] = {name: one.place for name, one in found.items()}


def commands_of(context: click.Context) -> Commands:
    """All commands that this one is among."""
    root = context.find_root()
    group = root.command
    if not isinstance(group, click.Group):
        return {}
    commands = {name: group.get_command(root, name) for name in group.list_commands(root)}
    return {name: options_of(command) for name, command in commands.items() if command is not None}


def options_of(command: click.Command) -> Options:
    """A command's options by the names that they have in a file."""
    options = [one for one in command.params if isinstance(one, click.Option) and one.name != "config"]
    return {max(one.opts, key=len).lstrip("-"): one for one in options}


def _dashed(key: str) -> str:
    return key.replace("_", "-")


def _shown(keys: Keys) -> str:
    return keys[0] if len(keys) == 1 else f"[{keys[0]}] {keys[1]}"


def _fault(option: click.Option, value: Any) -> str:
    """What is wrong with a value, to be put behind the key's name. Empty: nothing."""
    many = isinstance(value, list) and option.multiple
    values = value if many else [value]
    if not all(_fits(option, one) for one in values):
        return f" cannot be {quoted(value)}; it must be {_kind(option)}"
    if isinstance(option.type, click.File):
        return ""  # to look closer would be to open it
    if isinstance(option.type, Endpoint):
        return next((f": {fault}" for one in values if (fault := option.type.fault(one))), "")
    context = click.Context(click.Command(""))
    try:
        given = option.type_cast_value(context, values if option.multiple else value)
        if option.callback is not None:
            option.callback(context, option, given)
    except click.BadParameter as error:
        return f": {error.message}"
    return ""


def _fits(option: click.Option, value: Any) -> bool:
    """Whether a TOML value is of a kind that the option can make something of; its type looks closer."""
    if option.is_flag:
        return isinstance(value, bool)
    if _is_text(option):
        return isinstance(value, str)
    if isinstance(option.type, click.types.IntParamType):
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def _is_text(option: click.Option) -> bool:
    return isinstance(option.type, (click.types.StringParamType, click.Choice, click.Path, click.File, Endpoint))


def _kind(option: click.Option) -> str:
    if option.is_flag:
        return "true or false"
    if _is_text(option):
        return "a text in quotes" + (", or a list of them" if option.multiple else "")
    if isinstance(option.type, click.types.IntParamType):
        return "a whole number"
    return "a size like 500, 64MiB or 1.5GB" if option.metavar == "SIZE" else "a number"
