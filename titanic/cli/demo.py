"""`titanic demo`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from titanic.cli.demonstration import Demo
from titanic.cli.help import command
from titanic.cli.output import EXIT_FAILED


@command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
def demo(folder: Path) -> None:
    """Show what Titanic is for, in under a minute.

    Submits a request per file below FOLDER (default: here) to a service that has no worker, kills the server,
    starts it again, starts workers, kills one of them, and checks every reply. Exits with 0 only when all are
    right. Everything runs on this machine, in a temporary folder.

    \b
    Example:
      titanic demo ~/Documents
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it cleans up then, too
    if not Demo(folder).run():
        sys.exit(EXIT_FAILED)
