"""`titanic bench`."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path

import click

from titanic.cli.options import DATABASE, command, configured, json_flag, option
from titanic.cli.printing import print_json, print_table, pyplot
from titanic.errors import TitanicError


@command()
@json_flag
@click.argument("figures", nargs=-1, metavar="[FIGURE|GROUP]...")
@option("--list", "listing", is_flag=True, help="List the benchmarks.")
@option("--all", "everything", is_flag=True, help="Run all benchmarks; takes a few minutes, and a few GB on disk.")
@option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory for the stores, on the disk to measure; default: the temporary directory.",
)
@option(
    "--database",
    "url",
    type=DATABASE,
    metavar="URL",
    help="Keep the stores in this PostgreSQL database, postgresql://…, which must not contain a store; they are"
    " removed afterwards.",
)
@option(
    "--requests",
    type=click.IntRange(10),
    metavar="N",
    default=20_000,
    help="Approximate number of requests per figure.",
)
@option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Plot the figures of `latency` and `curves` (both by default). Needs the extra `bench`.",
)
@configured
def bench(
    figures: tuple[str, ...],
    requests: int,
    folder: Path | None,
    url: str | None,
    plot: Path | None,
    as_json: bool,
    everything: bool,
    listing: bool,
) -> None:
    """Measure Titanic on this machine: submission, the whole life cycle of a request, plain echo.

    By default it measures the most important figures, in less than a minute. FIGURE and GROUP select others.

    CPU is the processor time per request in each process. Some figures also show the server's thread switches and store
    commits per request. --json prints a list of objects.

    \b
    Example:
      titanic bench limits accept latency --folder /var/lib
      titanic bench accept life --database postgresql://titanic@db.example/titanic
    """
    from titanic.bench.programme import (
        PROGRAMME,
        Benchmark,
        choose,
        draw,  # not before it is wanted: others start faster
        run,
    )

    if listing:
        print_table(("GROUP", "FIGURE", "WHAT"), [benchmark[:3] for benchmark in PROGRAMME])
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it cleans up then, too
    if plot is not None:
        pyplot("bench")  # raises its error before the work
        figures = figures or ("latency", "curves")
    try:
        benchmarks = list(PROGRAMME) if everything else choose(figures)
    except TitanicError as error:
        raise click.UsageError(str(error)) from error

    def progress(benchmark: Benchmark) -> None:
        click.echo(f"measuring {benchmark.name} …", err=True)

    found = list(run(benchmarks, requests, folder, progress, url))
    if plot is not None:
        draw(pyplot("bench"), found, plot)
    if as_json:
        print_json([asdict(figure) for figure in found])
        return
    print_table(
        ("FIGURE", "VALUE", "", "CPU, µs", "WHAT"),
        [
            (
                figure.name,
                f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.2f}",
                figure.unit,
                " ".join(f"{process} {used:.0f}" for process, used in figure.cpu.items()),
                "; ".join([figure.what, *(f"{label} {value:,.2f}" for label, value in figure.detail.items())]),
            )
            for figure in found
        ],
        right=("VALUE",),
    )
