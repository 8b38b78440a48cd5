"""Options that commands share: `--config` is one of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from broker import DEFAULT_ENDPOINT
from titanic.cli.help import command as plain_command
from titanic.cli.options import FOLDER, configured, option
from titanic.config import ServerConfig


def command(name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """The decorator for commands. Their settings may stand in the server's file, which has the store's place."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        made: click.Command = plain_command(name)(function)
        return configured(made)

    return decorate


archive_option = option(
    "--archive",
    type=FOLDER,
    metavar="DIR",
    default="titanic-archive",
    help="Directory of the archive.",
)
store_option = option(
    "--store",
    type=FOLDER,
    metavar="DIR",
    default=ServerConfig().store,
    help="Directory of the store.",
)
endpoint_option = option(
    "--endpoint", metavar="ENDPOINT", default=DEFAULT_ENDPOINT, help="Where the queue is, if its server runs."
)
