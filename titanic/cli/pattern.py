"""`titanic pattern NAME ROLE`: the other reliability patterns. Each pattern's module is imported when it is wanted."""

from __future__ import annotations

from importlib import import_module

import click

PATTERNS = {
    "lazy-pirate": ("pirate", "A client that asks again; a server to ask."),
    "simple-pirate": ("pirate", "A queue for least recently used workers."),
    "paranoid-pirate": ("pirate", "The same with heartbeats both ways."),
    "majordomo-async": ("majordomo", "A client with many requests in flight."),
    "idempotent": ("majordomo", "A worker that executes no request twice."),
    "freelance": ("freelance", "Clients that know several servers."),
    "binary-star": ("binary_star", "Two servers, one of them active."),
    "generaldomo": ("generaldomo", "Majordomo with sockets that threads share."),
    "tripping": ("tripping", "Measures round trips."),
    "scatter-gather": ("scatter_gather", "Messages one way, each to one of many."),
}
"""Each pattern's module in `titanic.cli.patterns`, and its line in the help. Its command there is called like it."""


class Patterns(click.Group):
    """Finds the patterns."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the Guide."""
        return list(PATTERNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import it."""
        if cmd_name not in PATTERNS:
            return None
        module = import_module(f"titanic.cli.patterns.{PATTERNS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them without importing them."""
        with formatter.section("Patterns"):
            formatter.write_dl([(name, text) for name, (_, text) in PATTERNS.items()])


@click.group(cls=Patterns, subcommand_metavar="NAME ROLE [ARGS]...")
def pattern() -> None:
    """The reliability patterns of the ZeroMQ Guide's chapter 4, other than Majordomo and Titanic.

    They store nothing. They speak with programs in other languages that follow the Guide. Servers and workers run a
    command for each request, with its body on standard input; without a command the reply is the request itself.

    \b
    Example:
      titanic pattern lazy-pirate server --bind tcp://127.0.0.1:5555 -- tr a-z A-Z &
      titanic pattern lazy-pirate client hello --endpoint tcp://127.0.0.1:5555
    """
