"""`titanic config show` and `check`: settings, where they come from, and whether a file is right."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource, augment_usage_errors

from broker import NotToml, nearest
from titanic.cli.config_file import Commands, Document, commands_of, variables
from titanic.cli.options import Option, command, json_flag
from titanic.cli.printing import print_json, print_table
from titanic.cli.running import EXIT_FAILED
from titanic.util.text import counted

_file_option = click.option(
    "--config",
    "path",
    cls=Option,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    envvar="TITANIC_CONFIG",
    help="TOML file with values.",
)


@click.group("config")
def config() -> None:
    """Show the effective settings and where they come from, or check a file.

    \b
    Example:
      titanic config show
      titanic config check /etc/titanic/titanic.toml
    """


@command("show", context_settings={"ignore_unknown_options": True})
@json_flag
@_file_option
@click.argument("name", metavar="[COMMAND]", default="serve")
@click.argument("arguments", metavar="[OPTIONS-OF-COMMAND]...", nargs=-1, type=click.UNPROCESSED)
def show(name: str, arguments: tuple[str, ...], path: str | None, as_json: bool) -> None:
    """Print the values that COMMAND (default: serve) would run with, and where each comes from.

    TITANIC_ environment variables override the file, and options override both.

    --json prints {option: {value, source}}.

    \b
    Example:
      titanic config show --config /etc/titanic/titanic.toml
      titanic config show work --jobs 4
    """
    context = click.get_current_context()
    commands = commands_of(context)
    if name not in commands:
        near = nearest(name, commands)
        raise click.UsageError(f"no such command: {name}" + (f"; did you mean {near}?" if near else ""))
    document = None if path is None else _read(Path(path), commands)
    rows = list(_effective(context, name, arguments, document))
    if as_json:
        print_json({name: {"value": value, "source": source} for name, value, source in rows})
    else:
        print_table(("OPTION", "VALUE", "FROM"), [(name, _shown(value), source) for name, value, source in rows])


def _effective(
    context: click.Context, name: str, arguments: tuple[str, ...], document: Document | None
) -> Iterator[tuple[str, Any, str]]:
    """The values that count, and where each comes from."""
    found = {} if document is None else document.of(name)
    if document is not None and document.mistakes:
        _stop(document.check())
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    subject = root.command.get_command(root, name)
    assert subject is not None
    defaults = {key: one.value for key, one in found.items()}
    with click.Context(subject, parent=root, info_name=name, default_map=defaults) as inner:
        inner.params.clear()
        given, _, _ = subject.make_parser(inner).parse_args(list(arguments))
        for key, option in commands_of(context)[name].items():
            raw, source = option.consume_value(inner, given)
            inner.set_parameter_source(option.name or "", source)
            with augment_usage_errors(inner, param=option):
                value = option.process_value(inner, raw)
            if source is ParameterSource.DEFAULT_MAP:
                where = document.place(found[option.name or ""]) if document else ""
            else:
                variable = next((one for one in variables(option) if os.environ.get(one)), "")
                where = _WHERE.get(source, "default").format(variable=variable)
            yield key, value if option.is_flag else _plain(raw), where


_WHERE = {ParameterSource.COMMANDLINE: "command line", ParameterSource.ENVIRONMENT: "environment {variable}"}


def _plain(raw: Any) -> Any:
    """A value as it would be written in a file."""
    if isinstance(raw, (list, tuple)):
        return [_plain(one) for one in raw]
    return raw if raw is None or isinstance(raw, (bool, int, float)) else str(raw)


def _shown(value: Any) -> str:
    if isinstance(value, (list, bool)):
        return json.dumps(value, ensure_ascii=False)
    return "–" if value is None else str(value)


@command("check")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@json_flag
def check(path: Path, as_json: bool) -> None:
    """Check every key and value in a TOML file, for all commands. Nothing is started or changed.

    Prints each error on its own line, with file and line number, and exits with 1 if there are any. The systemd units
    run this before they reload.

    --json prints {ok, settings, errors: [{line, text}]}; settings is their number.

    \b
    Example:
      titanic config check /etc/titanic/titanic.toml
    """
    settings = 0
    try:
        document = Document(path, commands_of(click.get_current_context()))
    except NotToml as error:
        mistakes = [str(error)]
    else:
        mistakes = document.check()
        settings = sum(len(value) if isinstance(value, dict) else 1 for value in document.values.values())
    if as_json:
        parts = [mistake.removeprefix(f"{path}:").partition(": ") for mistake in mistakes]
        errors = [{"line": int(line), "text": text} for line, _, text in parts]
        print_json({"ok": not errors, "settings": settings, "errors": errors})
        sys.exit(EXIT_FAILED if errors else 0)
    if mistakes:
        _stop(mistakes)
    click.echo(f"{path}: {counted(settings, 'setting')}, no errors")


def _read(path: Path, commands: Commands) -> Document:
    try:
        return Document(path, commands)
    except NotToml as error:
        _stop([str(error)])


def _stop(mistakes: Sequence[str]) -> NoReturn:
    """Report the mistakes in a file, and end."""
    for mistake in mistakes:
        click.echo(mistake, err=True)
    sys.exit(EXIT_FAILED)


config.add_command(show)
config.add_command(check)
