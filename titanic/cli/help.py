"""`--help` in groups: what users need first stands first, rare options follow below headings of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

ARGUMENTS = "titanic.arguments"
"""The key of a context's `meta` for the arguments of the command."""


class Option(click.Option):
    """An option that can belong to a group."""

    def __init__(self, *names: Any, group: str = "", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """As click does; an error about a value of the environment names the variable."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if ctx.get_parameter_source(self.name or "") is not ParameterSource.ENVIRONMENT:
                raise
            where = f"{error.message} (from {self.envvar} in the environment)"
            raise click.BadParameter(where, ctx, self) from error


class GroupedCommand(click.Command):
    """Lists its options by group: those without one first, then the groups in the order of their first options."""

    def __init__(self, *arguments: Any, rule: Callable[..., Any] | None = None, **settings: Any) -> None:
        """`rule`: finds contradictions among its options in a file, see `config_file`."""
        super().__init__(*arguments, **settings)
        self.rule = rule

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        groups: dict[str, list[tuple[str, str]]] = {"": []}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(option, "group", ""), []).append(record)
        for group, records in groups.items():
            with formatter.section(group or "Options"):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; the arguments are kept for `parse_again`."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


def parse_again(context: click.Context) -> dict[str, Any]:
    """A command's parameters, read again: its file may have changed. Raises UsageError."""
    with context.command.make_context(context.info_name, list(context.meta[ARGUMENTS]), context.parent) as again:
        return dict(again.params)


command = partial(click.command, cls=GroupedCommand)
"""The decorator for commands."""
