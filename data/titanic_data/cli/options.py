"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from broker import DEFAULT_ENDPOINT
from titanic.cli.options import option
from titanic.config import ServerConfig

archive_option = option(
    "--archive",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default="titanic-archive",
    help="Directory of the archive.",
)
store_option = option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=ServerConfig().store,
    help="Directory of the store.",
)
endpoint_option = option(
    "--endpoint", metavar="ENDPOINT", default=DEFAULT_ENDPOINT, help="Where the queue is, if its server runs."
)
