"""Options that several commands share, and the types of their values. Where values come from: `config_file`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from broker import DEFAULT_ENDPOINT
from titanic import ids
from titanic.cli import config_file
from titanic.cli.help import Option

Function = TypeVar("Function", bound=Callable[..., Any])

MOST_SECONDS = 1e8
"""Three years: what is longer overflows a clock somewhere."""

CONNECTION = "Connection"
"""The group of options that say how to reach a broker."""

LEAST_SIZE, MOST_SIZE = 1 << 16, 1 << 44

UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1 << (10 * power) for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}


def option(name: str, *aliases: str, **settings: Any) -> Callable[[Function], Function]:
    """A click option that can also come from the environment as TITANIC_<NAME>."""
    variable = "TITANIC_" + name.lstrip("-").replace("-", "_").upper()
    return click.option(name, *aliases, **{"cls": Option, "envvar": variable, "show_default": True, **settings})


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


def seconds(name: str, *aliases: str, least: float, **settings: Any) -> Callable[[Function], Function]:
    """An option that is a time span."""

    def convert(value: Any) -> float:
        try:
            span = float(value)
        except ValueError:
            span = math.nan
        if not least <= span <= MOST_SECONDS:
            raise click.BadParameter(f"{value!r} is not a number of seconds from {least:g} to {MOST_SECONDS:g}")
        return span

    return option(name, *aliases, type=convert, metavar="S", **settings)


def size(name: str, *, least: int = LEAST_SIZE, **settings: Any) -> Callable[[Function], Function]:
    """An option that is a number of bytes."""
    return option(name, type=lambda value: read_size(value, least=least), metavar="SIZE", **settings)


def endpoint_option(group: str = "") -> Callable[[Function], Function]:
    """`--endpoint` alone."""
    return option(
        "--endpoint",
        multiple=True,
        metavar="ENDPOINT",
        default=(DEFAULT_ENDPOINT,),
        group=group,
        help="Where the broker is; given repeatedly, the next one is used when one fails.",
    )


def endpoint(function: Function) -> Function:
    """`--endpoint`, `--timeout` and `--mdp`: how to reach a broker."""
    versions = click.Choice(["0.2", "0.1", "majortomo"])
    for add in (
        configured,
        option("--mdp", type=versions, default="0.2", group=CONNECTION, help="Version of MDP to speak."),
        seconds(
            "--timeout", least=0.001, default=5.0, group=CONNECTION, help="Wait for an answer, at each of 3 tries."
        ),
        endpoint_option(CONNECTION),
    ):
        function = add(function)
    return function


json_flag = option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def uuid(value: str) -> str:
    """The type of a request's UUID: 32 hexadecimal digits, with or without the usual dashes."""
    plain = ids.plain(value)
    if re.fullmatch("[0-9a-fA-F]{32}", plain) is None:
        raise click.BadParameter(f"{value!r} is not a UUID: it must be 32 hexadecimal digits")
    return plain.lower()


def read_size(value: Any, *, least: int = LEAST_SIZE) -> int:
    """Bytes, written as a number with an optional unit: 500, 64MiB, 1.5GB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).lower())
    if match is None or match[2] not in UNITS:
        raise click.BadParameter(f"{value!r} is not a size; write it like 500, 64MiB or 1.5GB")
    count = int(float(match[1]) * UNITS[match[2]])
    if not least <= count <= MOST_SIZE:
        raise click.BadParameter(f"{value} is not a size from {least} to 16TiB")
    return count
