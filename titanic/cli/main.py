"""The group that all commands belong to, and what an error becomes: a line on stderr and an exit code."""

from __future__ import annotations

import sys
from typing import Any

import click

import broker
from titanic.cli import bench, demo, inspect, queue, serve, store, work
from titanic.cli.output import EXIT_FAILED, EXIT_PENDING, EXIT_UNKNOWN
from titanic.errors import TimedOut, TitanicError, UnknownRequest
from titanic.version import __version__


class Titanic(click.Group):
    """Turns the exceptions of this project into messages and exit codes, and keeps the commands in reading order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were added."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (TimedOut, broker.TimedOut) as error:
            _say(error)
            sys.exit(EXIT_PENDING)
        except UnknownRequest as error:
            _say(error)
            sys.exit(EXIT_UNKNOWN)
        except (TitanicError, broker.BrokerError) as error:
            _say(error)
            sys.exit(EXIT_FAILED)


def _say(error: Exception) -> None:
    click.echo(f"titanic: {error}", err=True)


@click.group(cls=Titanic, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="titanic")
def main() -> None:
    """Titanic, a persistent request queue: submit, go away, come back for the reply.

    \b
    A first walk:
      titanic serve &                              the queue, storing in ./titanic-data
      titanic submit upper hello                   prints the request's UUID
      titanic work upper -- tr a-z A-Z &           somebody who does the work
      titanic reply UUID --wait 5                  prints HELLO
      titanic close UUID                           deletes request and reply

    Every option can also be given as an environment variable, TITANIC_ and its name in capitals, and in a TOML
    file named by --config or TITANIC_CONFIG.
    """


for command in (
    serve.serve,
    serve.broker_command,
    queue.submit,
    queue.reply,
    queue.close,
    queue.call,
    work.work,
    inspect.status,
    inspect.ls,
    inspect.show,
    store.check,
    bench.bench,
    demo.demo,
):
    main.add_command(command)
