"""Values for options from a TOML file.

In order of increasing weight: the default, the file named by `--config` (or TITANIC_CONFIG), the environment
variable TITANIC_<NAME>, the command line. KeyPath at the top of the file count for every command that has the
option, keys in a table `[COMMAND]` for that command alone. deploy/titanic.toml is an example.

Every key of the file must be known, also those for other commands: a misspelt one would be a setting that is not set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import click

from broker import KeyPath, NotToml, TomlFile, nearest
from titanic.cli.endpoint import EndpointType
from titanic.errors import Contradiction
from titanic.util.text import quoted

Rule = Callable[[Mapping[str, Any], Set[str]], Iterable[Contradiction]]
"""Finds contradictions among a command's values, by parameter; the set has those of the command's own table."""


class Options(dict[str, click.Option]):
    """A command's options by their names in a file. `rule` finds contradictions among them."""

    rule: Rule | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict; an option is found by its old names, too."""
        found = super().get(key, default)
        if found is None:
            return next((one for one in self.values() if f"--{key}" in getattr(one, "old", ())), default)
        return found

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None


class Commands(Mapping[str, Options]):
    """All commands of a program, each with its options by their names in a file. A command is imported when its options
    are wanted."""

    def __init__(self, context: click.Context, group: click.Group) -> None:
        self._context, self._group, self._names = context, group, group.list_commands(context)

    def __getitem__(self, name: str) -> Options:
        if (command := self._group.get_command(self._context, name)) is None:
            raise KeyError(name)
        return options_of(command)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class FileValue(NamedTuple):
    """The value that a file has for one option of a command."""

    option: click.Option
    value: Any
    keys: KeyPath
    meant: Any
    """The value as the option reads it."""


class Document:
    """A settings file, and the mistakes in it."""

    def __init__(self, path: Path, commands: Commands, *others: Commands) -> None:
        """`others`: commands of other programs, whose settings may be in the file. Raises click.UsageError for a file
        that cannot be read, NotToml for one that is not TOML."""
        try:
            self._file = TomlFile(path)
        except OSError as error:
            raise click.UsageError(f"cannot read {path}: {error.strerror}") from error
        self.values = self._file.values
        self._commands = commands
        self._others = others
        self._reported: set[tuple[KeyPath, str]] = set()
        self._check_keys()

    @property
    def mistakes(self) -> list[str]:
        """Those found so far, each as FILE:LINE: TEXT."""
        return [str(mistake) for mistake in self._file.mistakes]

    def place(self, value: FileValue) -> str:
        """The file and line of a value."""
        return f"{self._file.path}:{self._file.line(value.keys)}"

    def of(self, name: str) -> dict[str, FileValue]:
        """The values for a command, by parameter. Adds to `mistakes`."""
        options = self._commands.get(name, Options())
        found: dict[str, FileValue] = {}
        for key, value in self.values.items():
            option = options.get(key)
            if option is not None and not (isinstance(value, dict) and key in self._commands):
                self._take(found, option, (key,), value, name)
        table = self.values.get(name)
        for key, value in table.items() if isinstance(table, dict) else ():
            if (option := options.get(key)) is not None:
                self._take(found, option, (name, key), value, name)
        if options.rule is not None:
            self._check_together(options.rule, options, found)
        return found

    def check(self) -> list[str]:
        """All mistakes, in the values for every command."""
        for name in self._commands:
            self.of(name)
        return self.mistakes

    def _take(self, found: dict[str, FileValue], option: click.Option, keys: KeyPath, value: Any, name: str) -> None:
        if len(keys) == 1 and isinstance(value, list) and len(value) == 1 and not option.multiple:
            value = value[0]  # it is for other commands, too, which may take several
        meant, fault = convert(option, value)
        if not fault:
            values = [value] if option.multiple and not isinstance(value, list) else value
            found[option.name or ""] = FileValue(option, values, keys, meant)
        elif (keys, fault) not in self._reported:  # a key above the tables has the same fault for each command
            self._reported.add((keys, fault))
            command = "" if len(keys) == 2 else f" (of titanic {name})"
            self._file.add_mistake(keys, f"{_shown(keys)}{command}{fault}")

    def _check_together(self, rule: Rule, options: Options, found: Mapping[str, FileValue]) -> None:
        context = click.Context(click.Command(""))
        values = {
            one.name or "": one.type_cast_value(context, one.get_default(context)) for one in options.values()
        } | {name: one.meant for name, one in found.items()}
        own = {name for name, one in found.items() if len(one.keys) == 2}
        for wrong in rule(values, own):
            where = max(
                (found[name] for name in wrong.settings if name in found), key=lambda one: self._file.line(one.keys)
            )
            text = str(wrong)
            for name in wrong.settings:
                text = text.replace(name, name.replace("_", "-"))
            self._file.add_mistake(where.keys, f"{_shown(where.keys)}: {text}")

    def _check_keys(self) -> None:
        programs = (self._commands, *self._others)
        for key, value in self.values.items():
            here = [commands for commands in programs if key in commands]
            if isinstance(value, dict):
                if not here:
                    self._unknown((key,), f"[{key}]", {name for commands in programs for name in commands})
                for inner in value if here else ():
                    if not any(inner in commands[key] for commands in here):
                        known = {name for commands in here for name in commands[key]}
                        self._unknown((key, inner), _shown((key, inner)), known)
            elif any(key in options for commands in programs for options in commands.values()):
                continue
            elif key in self._commands:
                self._file.add_mistake((key,), f"unknown key {key}; it is a command: its settings belong under [{key}]")
            else:
                known = {name for commands in programs for options in commands.values() for name in options}
                self._unknown((key,), key, known)

    def _unknown(self, keys: KeyPath, shown: str, known: Iterable[str]) -> None:
        meant = str(keys[-1]).replace("_", "-")
        owners = [name for name, options in self._commands.items() if len(keys) == 2 and meant in options]
        advice = self._file.suggestion(meant, known, f"it is an option of {', '.join(owners)}" if owners else "")
        self._file.add_mistake(keys, f"unknown key {shown}{advice and f'; {advice}'}")


def load(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Read the file and make its values the defaults of the command."""
    if value is None:
        return
    others = [Commands(context, group) for group in getattr(context.find_root().command, "neighbours", ())]
    try:
        document = Document(Path(value), commands_of(context), *others)
    except NotToml as error:
        raise click.UsageError(str(error)) from error
    found = document.of(context.command.name or "")
    if document.mistakes:
        raise click.UsageError("\n".join(document.check()))  # so that all can be corrected at once
    context.default_map = {name: one.value for name, one in found.items()}


def commands_of(context: click.Context) -> Commands:
    """All commands of the program."""
    root = context.find_root()
    return Commands(root, root.command if isinstance(root.command, click.Group) else click.Group())


def options_of(command: click.Command) -> Options:
    """A command's options by their names in a file."""
    options = [one for one in command.params if isinstance(one, click.Option) and one.name != "config"]
    found = Options({getattr(one, "in_file", "") or max(one.opts, key=len).lstrip("-"): one for one in options})
    found.rule = getattr(command, "rule", None)
    return found


def _shown(keys: KeyPath) -> str:
    return str(keys[0]) if len(keys) == 1 else f"[{keys[0]}] {keys[1]}"


def convert(option: click.Option, value: Any) -> tuple[Any, str]:
    """A value as the option reads it, and what is wrong with it, to be printed after the key; empty: nothing."""
    values = value if isinstance(value, list) and option.multiple else [value]
    if not all(_fits(option, one) for one in values):
        return None, f" cannot be {quoted(value)}; it must be {_kind(option)}"
    if not values and option.default:
        return None, f" is empty; it must be {_kind(option)}"
    if any(isinstance(one, str) and "\0" in one for one in values):
        return None, f" cannot be {quoted(value)}: a string cannot contain NUL"
    if isinstance(option.type, click.File):
        return value, ""  # checking it would open it
    if isinstance(option.type, EndpointType):
        given = values if option.multiple else value
        return given, next((f": {fault}" for one in values if (fault := option.type.fault(one))), "")
    # The key may be for another command, which another user runs: that one checks whether it can read the file, and
    # whether a URL of a database is allowed.
    if isinstance(option.type, click.Path):
        kind, option = copy(option.type), copy(option)
        kind.readable, option.type = False, kind
    context = click.Context(click.Command(""))
    try:
        given = option.type_cast_value(context, values if option.multiple else value)
        if option.callback is not None:
            given = option.callback(context, option, given)
    except click.BadParameter as error:
        return None, f": {error.message}"
    return given, ""


def _fits(option: click.Option, value: Any) -> bool:
    """Whether a TOML value is of a kind that the option can read; its type checks the rest."""
    if option.is_flag:
        return isinstance(value, bool)
    if _is_text(option):
        return isinstance(value, str)
    if isinstance(option.type, click.types.IntParamType):
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def _is_text(option: click.Option) -> bool:
    return isinstance(option.type, (click.types.StringParamType, click.Choice, click.Path, click.File, EndpointType))


def _kind(option: click.Option) -> str:
    if option.is_flag:
        return "true or false"
    if _is_text(option):
        return "a string in quotes" + (", or a list of these" if option.multiple else "")
    if isinstance(option.type, click.types.IntParamType):
        return "a whole number"
    return _KINDS.get(option.metavar or "", "a number")


_KINDS = {"SIZE": "a size like 500, 64MiB or 1.5GB", "HOST:PORT": 'a string like "127.0.0.1:8080"'}
"""What options of a type of their own read."""


PREFIX = "TITANIC_"
NOT_OPTIONS = {
    "TITANIC_CONFIG",
    "TITANIC_UUID",
    "TITANIC_ATTEMPT",
    "TITANIC_ATTEMPTS",
    "TITANIC_DELIVERY",
    "TITANIC_DEADLINE",
}
"""Variables that belong to no option: all but the first are for the commands of `titanic work`."""


def strangers(context: click.Context) -> list[str]:
    """A line about each unknown TITANIC_ variable: it may be misspelt."""
    unknown = _ours() - _variables(context.command)
    if not unknown:
        return []  # so that not every command is imported
    known = _variables_below(context.find_root(), context.find_root().command)
    texts = []
    for variable in sorted(unknown - known):
        near = nearest(variable.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known])
        advice = f"did you mean {PREFIX}{near}?" if near else "no option uses it"
        texts.append(f"unknown environment variable {variable}; {advice}")
    return texts


def _ours() -> set[str]:
    return {variable for variable in os.environ if variable.startswith(PREFIX)} - NOT_OPTIONS


def _variables(command: click.Command) -> set[str]:
    return {name for option in options_of(command).values() for name in variables(option)}


def _variables_below(context: click.Context, command: click.Command) -> set[str]:
    """Those of a command, and of all that belong to it."""
    found = _variables(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                found |= _variables_below(context, below)
    return found


def variables(option: click.Option) -> list[str]:
    """The variables of the environment that an option reads, the first of them that is set."""
    return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
