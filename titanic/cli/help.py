"""`--help` in groups: what people need first stands first, what is rare has a heading of its own behind it."""

from __future__ import annotations

from functools import partial
from typing import Any

import click


class Option(click.Option):
    """An option that can belong to a group."""

    def __init__(self, *names: Any, group: str = "", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group


class Command(click.Command):
    """Lists its options by group: those without one first, then the groups in the order of their first options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        groups: dict[str, list[tuple[str, str]]] = {"": []}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(option, "group", ""), []).append(record)
        for group, records in groups.items():
            with formatter.section(group or "Options"):
                formatter.write_dl(records)


command = partial(click.command, cls=Command)
"""The decorator for commands."""
