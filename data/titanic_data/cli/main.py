"""The group that all commands belong to. What Spark has to say is put into a line, as all other errors are."""

from __future__ import annotations

import sys
from typing import Any

import click

from titanic.cli.main import Titanic
from titanic.cli.main import main as titanic
from titanic.cli.output import EXIT_FAILED, say
from titanic.version import __version__
from titanic_data.cli.sparks import explain, is_of_spark, quiet

COMMANDS = {
    "archive": ("archive", "Move what was closed into Parquet, for good."),
    "verify": ("archive", "Check that an archive is whole."),
    "compact": ("archive", "Make fewer, larger files."),
    "vacuum": ("archive", "Delete files that nobody needs any more."),
    "restore-range": ("archive", "Write damaged files again, from a store."),
    "rebuild-manifest": ("archive", "Note again what an archive's files are."),
    "unregister": ("archive", "Let the ring go on without an archive."),
    "files": ("archive", "List an archive's files, for other engines."),
    "report": ("report", "Latency, throughput, backlog, failures and more."),
    "submit": ("requests", "Rows of a file become requests."),
    "collect": ("requests", "Replies become rows of a file."),
    "replay": ("requests", "Submit archived requests again."),
    "work": ("work", "Serve a service with Spark."),
}
"""Each command's module, and its line in the help. The function is called like the command."""


class TitanicData(Titanic):
    """Finds the commands, and knows what Spark raises."""

    table = COMMANDS
    meant = {"reports": "report", "check": "verify", "ls": "files", "list": "files"}  # noqa: RUF012
    package = "titanic_data.cli"
    program = "titanic-data"
    neighbours = (titanic,)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        quiet()
        try:
            return super().invoke(ctx)
        except Exception as error:
            if not is_of_spark(error):
                raise
            say(explain(error))
            sys.exit(EXIT_FAILED)


@click.group(cls=TitanicData, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="titanic-data")
def main() -> None:
    """The data pipeline of Titanic: what went through the queue as tables, and tables as requests.

    \b
    A first walk, beside a `titanic serve --store S`:
      titanic-data archive --store S --archive A     what was closed moves into A
      titanic-data verify --archive A                and is all there
      titanic-data report latency --archive A        how long did things take?

    Every option can also be given as an environment variable, TITANIC_ and its name in capitals, and in a TOML file
    named by --config or TITANIC_CONFIG. That may be the server's: what is for `titanic` is passed over. Spark is
    needed for report, submit, collect, replay and work, and for archive with --engine spark: Java 17 or newer and
    the extra `spark`. SPARK_MASTER says where it runs, by default on all processors of this machine.

    \b
    Exit codes:
      0  fine                               2  wrong usage
      1  refused, failed, or not whole    130  interrupted
    """
