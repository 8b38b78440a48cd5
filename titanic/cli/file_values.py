"""Whether an option can take a value of a TOML file, and what it makes of it."""

from __future__ import annotations

from typing import Any

import click

from titanic.cli.endpoint import Endpoint
from titanic.util.quoting import quoted


def convert(option: click.Option, value: Any) -> tuple[Any, str]:
    """What the option makes of a value, and what is wrong with it, to be put behind the key's name. Empty: nothing."""
    values = value if isinstance(value, list) and option.multiple else [value]
    if not all(_fits(option, one) for one in values):
        return None, f" cannot be {quoted(value)}; it must be {_kind(option)}"
    if not values and option.default:
        return None, f" names nothing; it must be {_kind(option)}"
    if any(isinstance(one, str) and "\0" in one for one in values):
        return None, f" cannot be {quoted(value)}: no text may have a NUL in it"
    if isinstance(option.type, click.File):
        return value, ""  # to look closer would be to open it
    if isinstance(option.type, Endpoint):
        given = values if option.multiple else value
        return given, next((f": {fault}" for one in values if (fault := option.type.fault(one))), "")
    context = click.Context(click.Command(""))
    try:
        given = option.type_cast_value(context, values if option.multiple else value)
        if option.callback is not None:
            given = option.callback(context, option, given)
    except click.BadParameter as error:
        return None, f": {error.message}"
    return given, ""


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
