"""Variables of the environment that look like settings and are none."""

from __future__ import annotations

import difflib
import os

import click

from titanic.cli.config_file import commands_of, options_of

PREFIX = "TITANIC_"
NOT_OPTIONS = {"TITANIC_CONFIG"}
"""Variables that are no option's."""


def strangers(context: click.Context) -> list[str]:
    """A line about each variable that no option has: misspelt, most likely."""
    unknown = _ours() - _variables(context.command)
    if not unknown:
        return []  # without importing every command
    known = {str(one.envvar) for options in commands_of(context).values() for one in options.values()}
    texts = []
    for variable in sorted(unknown - known):
        near = difflib.get_close_matches(variable.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known], 1)
        advice = f"did you mean {PREFIX}{near[0]}?" if near else "no option has it"
        texts.append(f"{variable} in the environment is not used; {advice}")
    return texts


def _ours() -> set[str]:
    return {variable for variable in os.environ if variable.startswith(PREFIX)} - NOT_OPTIONS


def _variables(command: click.Command) -> set[str]:
    return {str(option.envvar) for option in options_of(command).values()}
