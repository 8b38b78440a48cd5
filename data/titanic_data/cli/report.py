"""`titanic-data report`: answers from closed requests, as a table, as JSON, or as a picture (with matplotlib, from the
extra `spark`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from titanic import Client
from titanic.cli.options import json_flag, option
from titanic.cli.printing import print_table, pyplot
from titanic.util.text import counted
from titanic_data.cli.options import archive_option, command, key_options, only, store_option
from titanic_data.errors import suggest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from titanic_data.reports import ServiceLevel


Rows = Sequence[dict[str, Any]]
Picture = Callable[[Any, Rows], Any]
"""Draws rows with matplotlib's pyplot."""
TIMES = {"second": "%Y-%m-%d %H:%M:%S", "minute": "%Y-%m-%d %H:%M", "hour": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d"}
"""How the beginning of a period is written."""
PICTURES = (".png", ".svg", ".pdf")


def print_answer(answer: Any, by: str, as_json: bool) -> None:
    """Print an Arrow table with periods of the length `by`: as a table, or as a JSON list of objects."""
    rows = answer.to_pylist()
    if as_json:
        click.echo(json.dumps(rows, default=lambda value: value.isoformat() if isinstance(value, date) else str(value)))
        return
    names = answer.column_names
    print_table(
        [name.upper() for name in names],
        [[_cell(row[name], by if name == by else "second") for name in names] for row in rows],
        right=[name.upper() for name in names if not isinstance(rows and rows[0][name], (str, date))],
    )


def _cell(value: Any, length: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:{TIMES[length]}}" if isinstance(value, datetime) else str(value)


def draw(name: str, rows: Rows, path: Path) -> None:
    """Draw the answer of a report; the suffix of the file says what kind of picture it is."""
    plotter = pyplot("spark")
    picture = _PICTURES[name](plotter, rows)
    picture.savefig(path)
    plotter.close(picture)


def _latency(plotter: Any, rows: Rows) -> Any:
    picture, panes = plotter.subplots(1, 3, figsize=(15, 5), layout="constrained", sharey=True)
    titles = {"waiting": "Waiting", "running": "Running", "fetched": "Until fetched"}
    for axes, (span, title) in zip(panes, titles.items(), strict=True):
        for service, some in _by_service(rows).items():
            hours = _times(some)
            (line,) = axes.plot(hours, [row[f"{span}_p50"] for row in some], marker=".", label=f"{service}, p50")
            tails = [row[f"{span}_p99"] for row in some]
            axes.plot(hours, tails, linestyle=":", color=line.get_color(), label=f"{service}, p99")
        axes.set(title=title, yscale="log")
        _finish(axes)
    panes[0].set_ylabel("seconds")
    return picture


def _lines(column: str, title: str, label: str) -> Picture:
    def make(plotter: Any, rows: Rows) -> Any:
        picture, axes = plotter.subplots(figsize=(10, 5), layout="constrained")
        for service, some in _by_service(rows).items():
            hours = _times(some)
            axes.plot(hours, [row[column] for row in some], drawstyle="steps-post", label=service)
        axes.set(title=title, ylabel=label)
        axes.set_ylim(bottom=0)
        _finish(axes)
        return picture

    return make


def _bars(column: str, title: str, label: str, *names: str) -> Picture:
    def make(plotter: Any, rows: Rows) -> Any:
        some = rows[:30]
        picture, axes = plotter.subplots(figsize=(10, 1.5 + 0.3 * len(some)), layout="constrained")
        texts = [", ".join(str(row[name]) for name in names if row[name] != "") for row in some]
        axes.barh(range(len(some)), [row[column] for row in some])
        axes.set_yticks(range(len(some)), texts)
        axes.invert_yaxis()
        axes.set(title=title, xlabel=label)
        axes.grid(visible=True, axis="x", alpha=0.3)
        return picture

    return make


_PICTURES: dict[str, Picture] = {
    "latency": _latency,
    "throughput": _lines("closed", "Throughput", "closed requests"),
    "backlog": _lines("backlog", "Backlog", "requests that have not ended"),
    "failures": _bars("requests", "Failures", "requests", "service", "status", "reason"),
    "retries": _bars("requests", "Attempts", "requests", "service", "attempts"),
    "breaches": _bars("share", "Service levels missed", "share of requests", "service", "within"),
    "duplicates": _bars("executed_again", "Executed again despite a key", "requests", "service"),
    "bodies": _bars("bytes", "Largest requests", "bytes", "service", "request_id"),
}


def _times(rows: Rows) -> list[Any]:
    """The beginnings of the periods."""
    return [next(value for value in row.values() if isinstance(value, datetime)) for row in rows]


def _by_service(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    services: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        services[row["service"]].append(row)
    return services


def _finish(axes: Any) -> None:
    axes.grid(visible=True, alpha=0.3)
    axes.tick_params(axis="x", rotation=30)
    if axes.has_data():
        axes.legend(fontsize="small")


BY_TIME = ("latency", "throughput", "backlog")
NAMES = (*BY_TIME, "failures", "retries", "breaches", "duplicates", "bodies")
OUT = click.Path(path_type=Path, dir_okay=False)


@command()
@click.argument("name", type=click.Choice(NAMES), metavar="NAME")
@json_flag
@option("--plot", type=OUT, metavar="FILE", help="Save a plot, as .png, .svg or .pdf.")
@option("--parquet-out", type=OUT, metavar="FILE", help="Write the report as Parquet.")
@option(
    "--sla",
    "levels",
    multiple=True,
    metavar="SERVICE<TIME",
    help="For breaches: the time limit of a service, such as 'resize<2s'; repeatable.",
)
@option(
    "--by",
    type=click.Choice([*TIMES]),
    default="hour",
    help="For latency, throughput and backlog: the period of a row.",
)
@option(
    "--endpoint",
    metavar="ENDPOINT",
    help="For duplicates: also print how many duplicates this queue avoided.",
)
@key_options
@option("--where", metavar="SQL", help="Only requests for which this condition is true.")
@option("--live", is_flag=True, help="Read the ring of --store instead of an archive.")
@option(
    "--parquet",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read this Parquet file of closed requests instead.",
)
@store_option
@archive_option
def report(
    name: str,
    archive: Path,
    store: Path,
    parquet: Path | None,
    live: bool,
    where: str | None,
    endpoint: str | None,
    keys: dict[str, Any],
    by: str,
    levels: tuple[str, ...],
    parquet_out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Print a report on an archive, or on the ring with --live. NAME is one of

    \b
      latency      percentiles of waiting, running and fetch times, per service and hour
      throughput   closed requests, per service, hour and status
      backlog      requests submitted, ended and remaining, per service and hour
      failures     reasons, the most frequent first
      retries      requests by number of attempts
      breaches     requests that took longer than the limits of --sla
      duplicates   keys, and requests executed twice despite a key
      bodies       the largest requests

    Give one source: --archive, --live or --parquet. Durations are in seconds, times in UTC. --json prints a list of
    objects.

    \b
    Examples:
      titanic-data report latency --archive /archive --where "date >= '2026-11-01'" --plot latency.png
      titanic-data report breaches --archive /archive --sla 'resize<2s' --sla 'mail<1m'
    """
    from titanic_data.reports import REPORTS, breaches, service_level

    _expect_one_source(parquet, live)
    for out, suffixes in ((plot, PICTURES), (parquet_out, ())):
        _expect_writable(out, suffixes, parquet)
    promised = [service_level(level) for level in levels]
    if (name == "breaches") != bool(promised):
        raise click.UsageError("breaches needs --sla, and only breaches takes it: --sla 'resize<2s'")
    if plot is not None:
        pyplot("spark")  # raises its error before the work
    avoided = None
    if endpoint is not None and name == "duplicates":
        with Client(endpoint, **keys) as client:
            avoided = client.stats()["since_start"]["repeated"]
    closed = _closed(archive, store, parquet, live)
    if where is not None:
        closed = only(closed, where)
    if name == "breaches":
        answer = breaches(closed, promised).toArrow()
        _tell_absent(closed, promised, set(answer["service"].to_pylist()))
    else:
        answer = REPORTS[name](closed, *([by] if name in BY_TIME else [])).toArrow()
    if parquet_out is not None:
        import pyarrow.parquet as pq

        pq.write_table(answer, parquet_out)
    if plot is not None:
        draw(name, answer.to_pylist(), plot)
    print_answer(answer, by, as_json)
    if avoided is not None and not as_json:
        click.echo(f"the queue has avoided {counted(avoided, 'duplicate')} since its start", err=True)


def _expect_one_source(parquet: Path | None, live: bool) -> None:
    given = click.get_current_context().get_parameter_source
    named = [
        *(["--archive"] if given("archive") is ParameterSource.COMMANDLINE else []),
        *(["--parquet"] if parquet is not None else []),
        *(["--live"] if live else []),
    ]
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(named)} name different sources: give one of them")


def _expect_writable(out: Path | None, suffixes: Sequence[str], source: Path | None) -> None:
    """Raise UsageError before the work, not after it."""
    if out is None:
        return
    if suffixes and out.suffix.lower() not in suffixes:
        raise click.UsageError(f"{out} cannot be a plot: its name must end with {', '.join(suffixes)}")
    if not out.absolute().parent.is_dir():
        raise click.UsageError(f"there is no directory {out.parent} for {out.name}")
    if source is not None and out.exists() and source.exists() and out.samefile(source):
        raise click.UsageError(f"{out} is the file that the report reads: write to another one")


def _expect_closed(file: Path) -> None:
    """Raise InvalidRows unless a Parquet file has the columns of closed requests."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from titanic_data.errors import InvalidRows
    from titanic_data.tables import ADDED, CLOSED

    advice = "name a file with the columns of an archive"
    try:
        found = pq.read_schema(file).names
    except pa.ArrowInvalid as error:
        raise InvalidRows(f"{file} is not a Parquet file", str(error).splitlines()[0], advice) from error
    if missing := [name for name in CLOSED.schema.names if name not in (*found, *ADDED)]:
        raise InvalidRows(f"{file} has no closed requests", f"it lacks the column {missing[0]}", advice)


def _closed(archive: Path, store: Path, parquet: Path | None, live: bool) -> DataFrame:
    from titanic_data.archive import Archive, archive_frame
    from titanic_data.session import as_file, session
    from titanic_data.store_reader import forget, store_at

    if live:
        store_at(store)  # raises its errors before Spark starts
        forget(store)
    elif parquet is None:
        Archive.open(archive)
    elif not parquet.exists():
        raise click.UsageError(f"there is no file {parquet}")
    elif parquet.is_file():
        _expect_closed(parquet)
    spark = session(quick=True)
    if live:
        ring = spark.read.format("titanic").option(
            "failOnDataLoss", "false"
        )  # what leaves the ring meanwhile does not count
        return ring.load(str(store))
    return archive_frame(spark, archive) if parquet is None else spark.read.parquet(as_file(parquet))


def _tell_absent(closed: DataFrame, promised: Sequence[ServiceLevel], found: set[str]) -> None:
    """Name the services of --sla that have no requests: they may be misspelt."""
    absent = [level.service for level in promised if level.service not in found]
    if not absent:
        return
    there = sorted(row.service for row in closed.select("service").distinct().collect())
    for service in absent:
        if service in there:
            click.echo(f"all requests of {service} were cancelled; cancelled requests do not count", err=True)
        else:
            fact, advice = suggest(service, there)
            said = [f"no requests of {service!r}", fact if there else "there are none at all", advice]
            click.echo("; ".join(filter(None, said)), err=True)
