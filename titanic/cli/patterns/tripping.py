"""`titanic pattern tripping`."""

from __future__ import annotations

import click

from broker.patterns import KINDS, MissingDrafts, trip
from titanic.cli.help import GroupedCommand
from titanic.cli.options import option
from titanic.cli.printing import print_table
from titanic.cli.running import say


@click.command(cls=GroupedCommand)
@option(
    "--kind",
    type=click.Choice(list(KINDS)),
    multiple=True,
    default=tuple(KINDS),
    help="What to measure; repeatable.",
    show_default="all",
)
@option("--synchronous", type=click.IntRange(1), metavar="N", default=10_000, help="Calls that wait for each reply.")
@option("--asynchronous", type=click.IntRange(1), metavar="N", default=100_000, help="Calls that do not wait.")
def tripping(kind: tuple[str, ...], synchronous: int, asynchronous: int) -> None:
    """Measure round trips on this machine: waiting for each reply, and with many requests in flight.

    REQ, DEALER and CLIENT sockets are answered by a process that gives back what comes; majordomo goes through a broker
    to a worker. CLIENT sockets are left out where there are none.

    \b
    Example:
      titanic pattern tripping
      titanic pattern tripping --kind dealer --kind majordomo --asynchronous 2000
    """
    rows = []
    for one in dict.fromkeys(kind):
        try:
            found = trip(one, synchronous, asynchronous)
        except MissingDrafts as error:
            say(f"without {one}: {error}", "missing")
            continue
        many = "–" if found.asynchronous is None else f"{found.asynchronous:,.0f}"
        rows.append((one, f"{found.synchronous:,.0f}", many))
    print_table(("CALLS/S", "SYNCHRONOUS", "ASYNCHRONOUS"), rows, right=("SYNCHRONOUS", "ASYNCHRONOUS"))
