"""`titanic pattern NAME ROLE`: the other reliability patterns."""

from __future__ import annotations

import click

from titanic.cli.main import LazyGroup

PATTERNS = {
    "lazy-pirate": ("pirate", "A client that retries, and a server for it."),
    "simple-pirate": ("pirate", "A queue that picks the least recently used worker."),
    "paranoid-pirate": ("pirate", "Simple pirate, with heartbeats in both directions."),
    "majordomo-async": ("majordomo", "A client with many requests in flight."),
    "idempotent": ("majordomo", "A worker that never executes a request twice."),
    "freelance": ("fail_over", "Clients that know several servers."),
    "binary-star": ("fail_over", "Two servers, one of them active."),
    "generaldomo": ("drafts", "Majordomo with thread-safe sockets."),
    "tripping": ("drafts", "Measure round-trip times."),
    "scatter-gather": ("drafts", "One-way messages, each to one of many receivers."),
}
"""In the order of the Guide."""


class Patterns(LazyGroup):
    table = PATTERNS
    package = "titanic.cli.patterns"
    title = "Patterns"


@click.group(cls=Patterns, subcommand_metavar="NAME ROLE [ARGS]...")
def pattern() -> None:
    """The reliability patterns of chapter 4 of the ZeroMQ Guide, other than Majordomo and Titanic.

    They store nothing. They work with programs in other languages that follow the Guide. Servers and workers run a
    command for each request, with its body on standard input; without a command, they send the request back.

    \b
    Example:
      titanic pattern lazy-pirate server --bind tcp://127.0.0.1:5555 -- tr a-z A-Z &
      titanic pattern lazy-pirate client hello --endpoint tcp://127.0.0.1:5555
    """
