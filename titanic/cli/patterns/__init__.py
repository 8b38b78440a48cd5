"""`titanic pattern NAME ROLE`: the other reliability patterns."""

from __future__ import annotations

import click

from titanic.cli.main import LazyGroup

PATTERNS = {
    "lazy-pirate": ("pirate", "A client that tries again; a server for it."),
    "simple-pirate": ("pirate", "A queue for least recently used workers."),
    "paranoid-pirate": ("pirate", "The same with heartbeats both ways."),
    "majordomo-async": ("majordomo", "A client with many requests in flight."),
    "idempotent": ("majordomo", "A worker that executes no request twice."),
    "freelance": ("fail_over", "Clients that know several servers."),
    "binary-star": ("fail_over", "Two servers, one of them active."),
    "generaldomo": ("drafts", "Majordomo with sockets that threads share."),
    "tripping": ("drafts", "Measures round trips."),
    "scatter-gather": ("drafts", "Messages one way, each to one of many."),
}
"""In the order of the Guide."""


class Patterns(LazyGroup):
    table = PATTERNS
    package = "titanic.cli.patterns"
    title = "Patterns"


@click.group(cls=Patterns, subcommand_metavar="NAME ROLE [ARGS]...")
def pattern() -> None:
    """The reliability patterns of the ZeroMQ Guide's chapter 4, other than Majordomo and Titanic.

    They store nothing. They work with programs in other languages that follow the Guide. Servers and workers run a
    command for each request, with its body on standard input; without a command the reply is the request itself.

    \b
    Example:
      titanic pattern lazy-pirate server --bind tcp://127.0.0.1:5555 -- tr a-z A-Z &
      titanic pattern lazy-pirate client hello --endpoint tcp://127.0.0.1:5555
    """
