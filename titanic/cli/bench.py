"""`titanic bench`."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from titanic.cli.help import command
from titanic.cli.options import configured, json_flag, option
from titanic.cli.output import print_json, print_table


@command()
@json_flag
@option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    default=None,
    help="Where the store goes; the disk there is what is measured. Default: the temporary folder.",
)
@option("--requests", type=click.IntRange(10), metavar="N", default=20_000, help="Requests per measurement, about.")
@configured
def bench(requests: int, folder: Path | None, as_json: bool) -> None:
    """Measure this machine: accepted requests, whole lives and plain echoes per second.

    --json prints {figure: per second}.

    \b
    Example:
      titanic bench --folder /var/lib
    """
    from titanic import bench as benchmark  # its name is taken by the command

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it cleans up then, too

    def progress(figure: str) -> None:
        click.echo(f"measuring {figure} …", err=True)

    results = benchmark.run(requests, folder, progress)
    if as_json:
        print_json({result.name: round(result.per_second, 1) for result in results})
        return
    print_table(
        ("FIGURE", "PER SECOND", "WHAT"),
        [(result.name, f"{result.per_second:,.0f}", result.what) for result in results],
        right=("PER SECOND",),
    )
