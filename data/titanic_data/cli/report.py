"""`titanic-data report`: answers from closed requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from titanic import Client
from titanic.cli.options import json_flag, option
from titanic.cli.output import print_table
from titanic.util.text import counted
from titanic_data.cli.options import archive_option, command, store_option
from titanic_data.cli.sparks import only
from titanic_data.suggest import suggest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from titanic_data.reports import ServiceLevel

BY_TIME = ("latency", "throughput", "backlog")
TIMES = {"second": "%Y-%m-%d %H:%M:%S", "minute": "%Y-%m-%d %H:%M", "hour": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d"}
"""How the beginning of a period is written."""
PICTURES = (".png", ".svg", ".pdf")
NAMES = ("latency", "throughput", "backlog", "failures", "retries", "breaches", "duplicates", "bodies")


@command()
@click.argument("name", type=click.Choice(NAMES), metavar="NAME")
@json_flag
@option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw a picture: .png, .svg, .pdf."
)
@option(
    "--parquet-out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the answer as Parquet.",
)
@option("--sla", "levels", multiple=True, metavar="SERVICE<TIME", help="For breaches: what was promised, 'resize<2s'.")
@option(
    "--by",
    type=click.Choice([*TIMES]),
    default="hour",
    help="For latency, throughput and backlog: of what length the times are.",
)
@option("--endpoint", metavar="ENDPOINT", default=None, help="For duplicates: ask this queue how many it avoided.")
@option("--where", metavar="SQL", default=None, help="Only requests of which this is true.")
@option("--live", is_flag=True, help="Look at the ring of --store instead of an archive.")
@option("--parquet", type=click.Path(path_type=Path), metavar="FILE", default=None, help="Look at such a file instead.")
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
    by: str,
    levels: tuple[str, ...],
    parquet_out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Answer a question over an archive, or over the ring with --live. NAME is one of

    \b
      latency      waiting, running and until fetched, per service and hour: percentiles
      throughput   how many were closed, per service and hour, by how they ended
      backlog      how many came, ended and were left, per service and hour
      failures     reasons, the most frequent first
      retries      how many attempts it took
      breaches     requests that took longer than was promised: --sla
      duplicates   keys, and what was executed twice in spite of one
      bodies       the largest

    It looks at --archive, or at --live or --parquet: name one. Spans are seconds, times are UTC. --json prints a list
    of objects.

    \b
    Examples:
      titanic-data report latency --archive /archive --where "date >= '2026-11-01'" --plot latency.png
      titanic-data report breaches --archive /archive --sla 'resize<2s' --sla 'mail<1m'
    """
    from titanic_data.plots import draw, require
    from titanic_data.reports import REPORTS, breaches, service_level

    _expect_one_source(parquet, live)
    for out, suffixes in ((plot, PICTURES), (parquet_out, ())):
        _expect_writable(out, suffixes, parquet)
    promised = [service_level(level) for level in levels]
    if (name == "breaches") != bool(promised):
        raise click.UsageError("breaches needs --sla, and only breaches takes it: --sla 'resize<2s'")
    if plot is not None:
        require()
    avoided = None
    if endpoint is not None and name == "duplicates":
        with Client(endpoint) as client:
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
    rows = answer.to_pylist()
    if plot is not None:
        draw(name, rows, plot)
    if as_json:
        click.echo(json.dumps(rows, default=_moment))
        return
    numbers = [column for column in answer.column_names if not isinstance(rows and rows[0][column], (str, date))]
    print_table(
        [column.upper() for column in answer.column_names],
        [[_cell(row[column], by if column == by else "second") for column in answer.column_names] for row in rows],
        right=[column.upper() for column in numbers],
    )
    if avoided is not None:
        click.echo(f"since its start the queue has avoided {counted(avoided, 'duplicate')}", err=True)


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
    """Complain before the work, not after it."""
    if out is None:
        return
    if suffixes and out.suffix.lower() not in suffixes:
        raise click.UsageError(f"{out} can be no picture: its name must end with {', '.join(suffixes)}")
    if not out.absolute().parent.is_dir():
        raise click.UsageError(f"there is no directory {out.parent} for {out.name}")
    if source is not None and out.exists() and source.exists() and out.samefile(source):
        raise click.UsageError(f"{out} is what the report looks at: write to another file")


def _expect_closed(file: Path) -> None:
    """Raise InvalidRows unless a Parquet file has closed requests in it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from titanic_data.errors import InvalidRows
    from titanic_data.tables import CLOSED

    advice = "name a file with the columns of an archive"
    try:
        found = pq.read_schema(file).names
    except pa.ArrowInvalid as error:
        raise InvalidRows(f"{file} is no Parquet file", str(error).splitlines()[0], advice) from error
    if missing := [name for name in CLOSED.schema.names if name not in found]:
        raise InvalidRows(f"{file} has no closed requests", f"it lacks the column {missing[0]}", advice)


def _closed(archive: Path, store: Path, parquet: Path | None, live: bool) -> DataFrame:
    from titanic_data.archive import Archive, archive_frame
    from titanic_data.reading import forget, store_at
    from titanic_data.session import as_file, session

    if live:
        store_at(store)  # complains at once, before Spark has started
        forget(store)
    elif parquet is None:
        Archive.open(archive)
    elif not parquet.exists():
        raise click.UsageError(f"there is no file {parquet}")
    elif parquet.is_file():
        _expect_closed(parquet)
    spark = session(quick=True)
    if live:
        ring = spark.read.format("titanic").option("failOnDataLoss", "false")  # what goes meanwhile is not live
        return ring.load(str(store))
    return archive_frame(spark, archive) if parquet is None else spark.read.parquet(as_file(parquet))


def _tell_absent(closed: DataFrame, promised: Sequence[ServiceLevel], found: set[str]) -> None:
    """Say which services of --sla have no requests: it may be a slip of the pen."""
    absent = [level.service for level in promised if level.service not in found]
    if not absent:
        return
    there = sorted(row.service for row in closed.select("service").distinct().collect())
    for service in absent:
        if service in there:
            click.echo(f"all requests of {service} were cancelled: they do not count", err=True)
        else:
            fact, advice = suggest(service, there)
            said = [f"no requests of {service!r}", fact if there else "there are none at all", advice]
            click.echo("; ".join(filter(None, said)), err=True)


def _cell(value: Any, length: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:{TIMES[length]}}" if isinstance(value, datetime) else str(value)


def _moment(value: Any) -> str:
    return str(value.isoformat()) if isinstance(value, date) else str(value)
