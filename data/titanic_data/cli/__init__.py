"""The command line of the pipeline: `titanic-data COMMAND`. Each file here has the commands of one subject.

The group of all commands is in this file. Errors of Spark become a line on stderr, as all others do.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from titanic.cli.main import Titanic
from titanic.cli.main import main as titanic
from titanic.cli.printing import say
from titanic.cli.running import EXIT_FAILED
from titanic.version import __version__
from titanic_data.session import explain, is_of_spark, silence_query_logs

__all__ = ["main"]

COMMANDS = {
    "archive": ("archive", "Copy closed requests to Parquet files."),
    "verify": ("archive", "Verify that an archive is intact."),
    "compact": ("archive", "Merge small files into larger ones."),
    "vacuum": ("archive", "Delete files that are no longer needed."),
    "restore-range": ("archive", "Rewrite damaged files from a store."),
    "rebuild-manifest": ("archive", "Rebuild a lost manifest from the files."),
    "unregister": ("archive", "Detach a store from its archive."),
    "files": ("archive", "List the files of an archive, for other tools."),
    "report": ("report", "Report latency, throughput, failures and more."),
    "submit": ("requests", "Submit the rows of a file as requests."),
    "collect": ("requests", "Write replies to a file."),
    "replay": ("requests", "Resubmit archived requests."),
    "work": ("requests", "Run a Spark worker for a service."),
}
"""Each command's module, and its line in the help. The function is called like the command."""


class TitanicData(Titanic):
    """Finds the commands, and explains errors of Spark."""

    table = COMMANDS
    meant = {"reports": "report", "check": "verify", "ls": "files", "list": "files"}  # noqa: RUF012
    package = "titanic_data.cli"
    program = "titanic-data"
    neighbours = (titanic,)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        silence_query_logs()
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
    """The data pipeline of Titanic: history and analytics of closed requests, and bulk submission of tables.

    \b
    Quick start, with a running `titanic serve --store S`:
      titanic-data archive --store S --archive A     copies closed requests to A
      titanic-data verify --archive A                checks A
      titanic-data report latency --archive A        shows how long requests took

    Every option can also be set by an environment variable, TITANIC_ and the option's name in capitals,
    or in the TOML file given by --config or TITANIC_CONFIG. This can be the server's file: settings of `titanic` are
    skipped. The commands report, submit, collect, replay and work, and archive with --engine spark, require the extra
    `spark` and Java 17 or newer. SPARK_MASTER sets where Spark runs; default: all CPU cores of this machine.

    \b
    Exit codes:
      0  success                            2  wrong usage
      1  refused, failed, or damaged      130  interrupted
      3  collect: some replies are pending
    """
