"""What the commands share: their options, and a condition on rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker import DEFAULT_ENDPOINT, UsageError, credentials
from titanic.cli.options import FOLDER, configured, key_file_options, option
from titanic.cli.options import command as plain_command
from titanic.settings import ServerConfig
from titanic_data.session import explain, is_of_spark

if TYPE_CHECKING:  # the help needs no pyspark
    from pyspark.sql import DataFrame


Function = Callable[..., Any]


def command(name: str | None = None) -> Callable[[Function], click.Command]:
    """The decorator for commands. It adds `--config`: that file may be the server's, which names the store."""

    def decorate(function: Function) -> click.Command:
        made: click.Command = plain_command(name)(function)
        return configured(made)

    return decorate


archive_option = option(
    "--archive", type=FOLDER, metavar="DIR", default="titanic-archive", help="Directory of the archive."
)
store_option = option(
    "--store", type=FOLDER, metavar="DIR", default=ServerConfig().store, help="Directory of the store."
)
endpoint_option = option("--endpoint", metavar="ENDPOINT", default=DEFAULT_ENDPOINT, help="Endpoint of the queue.")


def key_options(function: Function) -> Function:
    """`--key` and `--server-key`, which a command gets as `keys`: arguments of the calls to the queue. They are checked
    here, before Spark's tasks use them."""

    @functools.wraps(function)
    def with_keys(*args: Any, key_file: str | None, server_key: str | None, **settings: Any) -> Any:
        keys = {}
        try:
            if (curve := credentials(key_file, server_key)) is not None:
                keys = {"key": str(Path(str(key_file)).absolute()), "server_key": curve.server.decode()}
        except UsageError as error:
            raise click.UsageError(str(error)) from error
        return function(*args, keys=keys, **settings)

    return key_file_options()(with_keys)


def only(frame: DataFrame, where: str) -> DataFrame:
    """The rows for which the condition of --where is true. Raises UsageError when Spark cannot read it."""
    try:
        return frame.where(where)
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise click.UsageError(f"--where cannot be {where!r}: {explain(error)}") from error
