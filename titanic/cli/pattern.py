"""`titanic pattern NAME ROLE`: the other reliability patterns. Each pattern's module is imported when it is wanted."""

from __future__ import annotations

from importlib import import_module

import click

PATTERNS = {
    "lazy-pirate": "A client that asks again; a server to ask.",
    "simple-pirate": "A queue for least recently used workers.",
    "paranoid-pirate": "The same with heartbeats both ways.",
    "majordomo-async": "A client with many requests in flight.",
    "idempotent": "A worker that does nothing twice.",
    "freelance": "Clients that know several servers.",
    "binary-star": "Two servers, one of them active.",
    "generaldomo": "Majordomo with sockets that threads share.",
    "tripping": "Measures round trips.",
    "scatter-gather": "Messages one way, each to one of many.",
}
"""Each pattern and its line in the help. Its module in `titanic.cli.patterns`, and its command there, are called so."""


class Patterns(click.Group):
    """Finds the patterns."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the Guide."""
        return list(PATTERNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import it."""
        if cmd_name not in PATTERNS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"titanic.cli.patterns.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them without importing them."""
        with formatter.section("Patterns"):
            formatter.write_dl(list(PATTERNS.items()))


@click.group(cls=Patterns, subcommand_metavar="NAME ROLE [ARGS]...")
def pattern() -> None:
    """The reliability patterns of the ZeroMQ Guide's chapter 4, other than Majordomo and Titanic.

    They store nothing, and speak with programs in other languages that follow the Guide. Servers and workers run a
    command for each request, its body on standard input; without a command they answer with the request itself.

    \b
    Example:
      titanic pattern lazy-pirate server --bind tcp://127.0.0.1:5555 -- tr a-z A-Z &
      titanic pattern lazy-pirate client hello --endpoint tcp://127.0.0.1:5555
    """
