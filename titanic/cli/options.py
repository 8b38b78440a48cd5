"""Commands and their options: the groups of `--help`, options that several commands share, and the types of their
values. Where values come from: `config_file`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Protocol, TypeVar, cast

import click
from click.core import ParameterSource

import broker
from broker import DEFAULT_ENDPOINT, settings_of
from titanic import logs
from titanic.cli import config_file
from titanic.cli.endpoint import PEER, EndpointReach, separate
from titanic.cli.printing import say
from titanic.errors import TimedOut
from titanic.protocol.submit_options import NEVER
from titanic.util import ids, units
from titanic.util.text import has_password, is_like_url, is_url
from titanic.util.units import MAX_SECONDS, MAX_SIZE

Function = TypeVar("Function", bound=Callable[..., Any])


class Decorator(Protocol):
    """Adds options to a command."""

    def __call__(self, function: Function, /) -> Function: ...


CONNECTION = "Connection"
"""The group of options that say how to reach a broker."""

MIN_SIZE = 1 << 16

ARGUMENTS = "titanic.arguments"
"""The key of a context's `meta` for the arguments of the command."""


class Option(click.Option):
    """An option that can belong to a group. `in_file` is its name in files: by default its longest one."""

    def __init__(
        self,
        names: Sequence[str],
        group: str = "",
        in_file: str = "",
        unlisted: Sequence[str] = (),
        old: Sequence[str] = (),
        is_live: bool = False,
        **settings: Any,
    ) -> None:
        """`unlisted`: names that the help does not show. `old`: those that are replaced, with a warning. `is_live`:
        SIGHUP applies a new value."""
        self.is_live = is_live
        self.old = tuple(old)
        self.unlisted = {*unlisted, *old}
        super().__init__([*names, *unlisted, *old], **settings)
        self.group = group
        self.in_file = in_file

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names = self.opts
        self.opts = [name for name in names if name not in self.unlisted]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """As click does; an error about a value of the environment names the variable."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if ctx.get_parameter_source(self.name or "") is not ParameterSource.ENVIRONMENT:
                raise
            where = f"{error.message} (from {' or '.join(config_file.variables(self))} in the environment)"
            raise click.BadParameter(where, ctx, self) from error


class GroupedCommand(click.Command):
    """Lists its options by group: those without one first, then the groups in the order of their first options."""

    def __init__(self, *arguments: Any, rule: config_file.Rule | None = None, **settings: Any) -> None:
        """`rule`: finds contradictions among its options in a file, see `config_file`."""
        super().__init__(*arguments, **settings)
        self.rule = rule

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"": []}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(option, "group", ""), []).append(record)
        for group, records in groups.items():
            with formatter.section(group or "Options"):
                formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, after a line about each unknown TITANIC_ variable."""
        if self.name not in getattr(ctx.find_root().command, "reloadable", ()):  # those log it
            for text in config_file.strangers(ctx):
                say(text)
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; the arguments are kept for `parse_again`."""
        ctx.meta[ARGUMENTS] = list(args)
        given = {arg.partition("=")[0] for arg in (args[: args.index("--")] if "--" in args else args)}
        for option in self.params:
            for name in given.intersection(getattr(option, "old", ())):
                say(f"{name} is now called {option.opts[0]}")
        return super().parse_args(ctx, args)


def parse_again(context: click.Context) -> dict[str, Any]:
    """A command's parameters, read again: its file may have changed. Raises UsageError."""
    with context.command.make_context(context.info_name, list(context.meta[ARGUMENTS]), context.parent) as again:
        return dict(again.params)


def names_in_file(context: click.Context, parameters: set[str]) -> list[str]:
    """The names that a file has for these parameters, sorted."""
    options = [one for one in context.command.params if isinstance(one, click.Option) and one.name in parameters]
    return sorted(getattr(one, "in_file", "") or max(one.opts, key=len).lstrip("-") for one in options)


command = partial(click.command, cls=GroupedCommand)
"""The decorator for commands."""


def option(name: str, *aliases: str, **settings: Any) -> Decorator:
    """A click option that can also come from the environment as TITANIC_<NAME>. One value that is not given is None."""
    usual: dict[str, Any] = {"cls": Option, "show_default": True}
    usual["envvar"] = "TITANIC_" + name.lstrip("-").replace("-", "_").upper()
    if settings.keys().isdisjoint(("is_flag", "multiple", "required")):
        usual["default"] = None
    return click.option(name, *aliases, **{**usual, **settings})


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, in the order of the help."""

    def decorate(function: Function) -> Function:
        for add in reversed(options):
            function = add(function)
        return function

    return decorate


def configured(function: Function) -> Function:
    """Add `--config` to a command."""
    return click.option(
        "--config",
        cls=Option,
        type=click.Path(dir_okay=False),
        metavar="FILE",
        envvar="TITANIC_CONFIG",
        is_eager=True,
        expose_value=False,
        callback=config_file.load,
        help="TOML file with values for these options.",
    )(function)


class Duration(click.ParamType[float]):
    """Seconds, written as a number with an optional unit: 90, 250ms, 1.5h, 30d."""

    name = "time"

    def __init__(self, *, least: float, most: float = MAX_SECONDS) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return units.read_duration(value, least=self._least, most=self._most)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Keep(Duration):
    """How long a reply is kept: a time, or never."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return NEVER if value == NEVER else super().convert(value, param, ctx)


class Size(click.ParamType[int]):
    """Bytes, written as a number with an optional unit: 500, 64MiB, 1.5GB."""

    name = "size"

    def __init__(self, *, least: int = MIN_SIZE) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return units.read_size(value, least=self._least, most=MAX_SIZE)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def read_time(context: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    """The callback of an option that is a time with its zone."""
    if text is None:
        return None
    with suppress(ValueError):
        if (at := datetime.fromisoformat(text)).utcoffset() is not None:
            return at
    raise click.UsageError(
        f"{option.opts[0]} is {text!r}; it must be a time with its zone, as in 2026-12-01T08:00+01:00"
    )


def no_key_file(context: click.Context, option: click.Parameter, key: str | None) -> str | None:
    """An idempotency key. What other commands take as --key would make all requests one, without a word."""
    if key is not None and key.endswith(".key_secret") and Path(key).is_file():
        raise click.UsageError(
            f"--key is the idempotency key of a request, and {key} is a key file; give it as --key-file"
        )
    return key


def seconds(name: str, *aliases: str, least: float, most: float = MAX_SECONDS, **settings: Any) -> Decorator:
    """An option that is a duration."""
    return option(name, *aliases, type=Duration(least=least, most=most), metavar="TIME", **settings)


def size(name: str, *, least: int = MIN_SIZE, **settings: Any) -> Decorator:
    """An option that is a number of bytes."""
    return option(name, type=Size(least=least), metavar="SIZE", **settings)


def declared(config: Any, name: str, *aliases: str, help: str = "", **settings: Any) -> Decorator:
    """The option of a setting that the dataclass `config` declares. `help` replaces its sentences; `settings` are what
    only the command line knows."""
    fact, default = settings_of(config)[name], config.__dataclass_fields__[name].default
    given: dict[str, Any] = {"default": default, "group": fact.group, "is_live": fact.is_live}
    if fact.unit == "s":
        most = MAX_SECONDS if fact.most is None else fact.most
        given |= {"type": Duration(least=fact.least or 0, most=most), "metavar": "TIME"}
    elif fact.unit == "B":
        given |= {"type": Size(least=MIN_SIZE if fact.least is None else int(fact.least)), "metavar": "SIZE"}
        given["default"] = None if default is None else units.write_size(default)
    elif fact.choices:
        given["type"] = click.Choice(fact.choices)
    elif isinstance(default, bool):
        given["is_flag"] = True
    elif isinstance(default, int):
        given |= {
            "type": click.IntRange(
                1 if fact.least is None else int(fact.least), None if fact.most is None else int(fact.most)
            ),
            "metavar": "N",
        }
    elif not isinstance(default, (str, tuple, Path, NoneType)):  # it is made by a factory
        given["default"] = ()
    if fact.written:
        given["default"] = fact.written
    elif default == "":
        given["default"] = None
    given |= settings
    given["multiple"] = isinstance(given["default"], tuple)
    text = _option_names(help or fact.help)
    text = text.removesuffix(".")
    text += "." if not given["multiple"] else ". Repeatable." if ". " in text else "; repeatable."
    if fact.otherwise:
        text = f"{text.removesuffix('.')}; default: {fact.otherwise}."
    option_name = "--" + (fact.option or name).replace("_", "-")
    names = [option_name] if option_name == f"--{name.replace('_', '-')}" else [option_name, name]
    return option(*names, *aliases, help=text, **given)


def _option_names(text: str) -> str:
    """Sentences with the names of settings as options: `retry_most` is --retry-most."""
    return re.sub(
        r"`([a-z_]+)`", lambda match: "--key-file" if match[1] == "key" else f"--{match[1].replace('_', '-')}", text
    )


ENDPOINTS = {
    "type": PEER,
    "multiple": True,
    "metavar": "ENDPOINT",
    "default": (DEFAULT_ENDPOINT,),
    "callback": separate,
}
BROKER_ENDPOINTS = "Endpoint of the broker. With a list, a,b,c, one is picked at random; on failure the next is tried."


def endpoint_option(group: str = "", *, show_default: bool | str = True) -> Decorator:
    """`--endpoint` alone."""
    return option("--endpoint", **ENDPOINTS, group=group, show_default=show_default, help=BROKER_ENDPOINTS)


FILE = click.Path(dir_okay=False, path_type=Path)


KEY_NAMES: dict[str, Any] = {"unlisted": ("--key",), "envvar": "TITANIC_KEY", "in_file": "key"}
"""How the option --key-file of what listens is called elsewhere."""


def key_option(help: str) -> Decorator:
    """`--key-file` of what listens."""
    return option("--key-file", "key", type=FILE, metavar="FILE", help=help, **KEY_NAMES)


def key_options(group: str = "", *, unlisted: Sequence[str] = ("--key",)) -> Decorator:
    """`--key-file` and `--server-key`, which a command gets as `curve`. `unlisted`: other names of the first."""
    return together(key_file_options(group, unlisted), _with_keys)


def key_file_options(group: str = "", unlisted: Sequence[str] = ("--key",)) -> Decorator:
    """The same, which a command gets as `key_file` and `server_key`: as they were given."""
    return together(
        option(
            "--key-file",
            "key_file",
            unlisted=unlisted,
            type=click.Path(dir_okay=False),
            metavar="FILE",
            envvar="TITANIC_KEY",
            group=group,
            in_file="key",
            help="Your secret key file, for a server with access control.",
        ),
        option(
            "--server-key",
            metavar="FILE|Z85",
            group=group,
            help="Public key of the server, as Z85 or a file.",
        ),
    )


def _with_keys(function: Function) -> Function:
    """Give a command its two options as one `curve`."""

    @functools.wraps(function)
    def with_keys(*args: Any, key_file: str | None, server_key: str | None, **settings: Any) -> Any:
        curve = None
        if key_file is not None or server_key is not None:
            try:
                curve = broker.credentials(key_file, server_key)
            except broker.UsageError as error:
                raise click.UsageError(str(error)) from error
        return function(*args, curve=curve, **settings)

    return cast("Function", with_keys)


MDP_HELP = "Majordomo Protocol version; default: detected by sending an MDP 0.1 request."


def reaching(timeout: float, patience: str, keys: Callable[..., Any] | None = None) -> Decorator:
    """`--endpoint`, `--timeout`, `--mdp` and `key_options`, which a command gets as `reach`.

    `patience`: what the time-out is for. `keys`: options for the keys, if others.
    """
    return together(
        endpoint_option(CONNECTION),
        seconds("--timeout", least=0.001, default=timeout, group=CONNECTION, help=patience),
        option(
            "--mdp",
            type=click.Choice(["0.2", "0.1", "majortomo"]),
            group=CONNECTION,
            help=MDP_HELP,
        ),
        keys or key_options(CONNECTION),
        configured,
        _reaching,
    )


def _reaching(function: Function) -> Function:
    """Give these options to a command as its `reach`; have a time-out say so when another version would do."""

    @functools.wraps(function)
    def asking(*args: Any, **settings: Any) -> Any:
        reach = EndpointReach(*(settings.pop(name) for name in EndpointReach._fields))
        try:
            return function(*args, reach=reach, **settings)
        except (TimedOut, broker.TimedOut) as error:
            from titanic.cli.connect import name_version  # brings all that a client needs

            name_version(error, reach)
            raise

    return cast("Function", asking)


PATIENCE = "Maximum time to wait for an answer; unanswered requests are resent meanwhile."

endpoint = reaching(15.0, PATIENCE)


class Folder(click.Path):
    """A directory, which need not exist. An empty name is refused: it would mean the present directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self is FOLDER and is_url(value):
            self.fail("a directory is needed, not the URL of a database", param, ctx)
        if not str(value):
            self.fail("the name of a directory must not be empty; . is the current one", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = Folder(path_type=Path, readable=False)  # opening it shows whether it is readable


_NO_URL = "it is not the URL of a database: write postgresql://USER@HOST/DATABASE"


class StorePlace(Folder):
    """The directory of a store, or the URL of a database, which stays a text."""

    name = "store"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not is_url(value):
            if is_like_url(value):
                self.fail(_NO_URL, param, ctx)
            return super().convert(value, param, ctx)
        source = ctx.get_parameter_source(param.name) if ctx and param and param.name else None
        if source is ParameterSource.COMMANDLINE and has_password(str(value)):
            # An argument has no variable of the environment.
            instead = ", PGPASSWORD or TITANIC_STORE" if isinstance(param, click.Option) else " or PGPASSWORD"
            fault = "the URL has a password, and other users can see the command line; put the password in ~/.pgpass"
            self.fail(fault + instead, param, ctx)
        return str(value)


STORE = StorePlace(path_type=Path, readable=False)


class Database(StorePlace):
    """The URL of a database."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not is_url(value):
            self.fail(_NO_URL, param, ctx)
        return super().convert(value, param, ctx)


DATABASE = Database()


def broker_version(*versions: str, group: str = "", help: str = MDP_HELP) -> Decorator:
    """`--mdp` of a command that registers workers; None: the broker is asked which version it speaks."""
    return option(
        "--mdp",
        type=click.Choice(versions),
        group=group,
        help=help,
    )


LOGGING = "Log"
"""The group of options that say what is logged, and how."""

log_level_option = option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    group=LOGGING,
    is_live=True,
    help="Minimum severity of events to log.",
)

log_options = together(
    log_level_option,
    option(
        "--log-format",
        type=click.Choice(logs.FORMATS),
        default="auto",
        group=LOGGING,
        help="Format of the log on stderr; auto: journal if stderr is the systemd journal, else text.",
    ),
)
"""Options of commands that run until they are stopped."""

json_flag = option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def uuid(value: str) -> str:
    """The type of a request's UUID: 32 hexadecimal digits, with or without the usual dashes."""
    plain = ids.plain(value)
    if re.fullmatch("[0-9a-fA-F]{32}", plain) is None:
        raise click.BadParameter(f"{value!r} is not a UUID: it must be 32 hexadecimal digits")
    return plain.lower()
