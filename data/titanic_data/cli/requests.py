"""`titanic-data submit`, `collect` and `replay`: from tables into the queue, and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from titanic.cli.options import option, seconds
from titanic.cli.output import EXIT_PENDING, print_table
from titanic.util.text import counted
from titanic_data.cli.options import archive_option, command, endpoint_option
from titanic_data.cli.sparks import only
from titanic_data.session import as_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".orc": "orc"}


@command()
@click.argument("source", type=click.Path(path_type=Path, exists=True), metavar="FILE")
@option(
    "--window", type=click.IntRange(1, 100_000), metavar="N", default=256, help="Rows on their way at once, per task."
)
@option("--body-column", metavar="NAME", default="body", help="The column with the body.")
@option("--key-column", metavar="NAME", default="key", help="The column with the key.")
@option("--service", metavar="SERVICE", default=None, help="The service of all rows; else there is a column `service`.")
@endpoint_option
def submit(source: Path, endpoint: str, service: str | None, key_column: str, body_column: str, window: int) -> None:
    """Make a request of each row of FILE: Parquet, CSV with a header, JSON lines or ORC, or a directory of these.

    The key makes it one request, however often this is run. Columns ttl, delay, priority and max_attempts count, if
    there are any; other columns are refused.

    \b
    Example:
      titanic-data submit orders.csv --service invoice --key-column order
    """
    from titanic_data.session import session

    rows = _read(session(quick=True), source)
    options: dict[str, Any] = {
        "keyColumn": key_column,
        "bodyColumn": body_column,
        "window": window,
        "endpoint": endpoint,
    }
    if service is not None:
        options["service"] = service
    rows.write.format("titanic").mode("append").options(**options).save()
    click.echo(f"{counted(rows.count(), 'row')} of {source} handed in")


@command()
@click.argument("source", type=click.Path(path_type=Path, exists=True), metavar="FILE")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@option("--close", "close_them", is_flag=True, help="Close the requests whose replies were written.")
@seconds("--wait", least=0, default=0.0, help="Wait so long for those that are pending.")
@option("--key-column", metavar="NAME", default="key", help="The column with the key.")
@endpoint_option
def collect(source: Path, out: Path, endpoint: str, key_column: str, wait: float, close_them: bool) -> None:
    """Write the replies to the requests with the keys in FILE into the new directory OUT, as Parquet.

    Its columns are key, request_id, state (ok, failed, expired, pending, closed, unknown), reply, reply_sizes, error.
    Exits with 3 when some are pending.

    \b
    Example:
      titanic-data collect orders.csv invoices --key-column order --wait 600 --close
    """
    from titanic_data.collecting import close
    from titanic_data.collecting import collect as fetch
    from titanic_data.session import session

    if out.exists():
        raise click.UsageError(f"{out} is there already")
    spark = session(quick=True)
    fetch(_read(spark, source), endpoint, key_column=key_column, timeout=wait).write.parquet(f"file:{out.absolute()}")
    written = spark.read.parquet(as_file(out))
    states = {row["state"]: row["count"] for row in written.groupBy("state").count().orderBy("state").collect()}
    if close_them:
        close(written.where("state IN ('ok', 'failed', 'expired')"), endpoint)
    click.echo(f"{out}: " + (", ".join(f"{count} {state}" for state, count in states.items()) or "no keys"))
    if "pending" in states:
        sys.exit(EXIT_PENDING)


@command()
@option("--name", metavar="NAME", default="replay", help="Under the same name a request is submitted once.")
@option("--skip-missing", is_flag=True, help="Leave out requests whose bodies the ring did not keep.")
@option("--dry-run", is_flag=True, help="Only show what would be submitted.")
@option("--where", metavar="SQL", required=True, help="Which requests: a condition on the columns of the archive.")
@endpoint_option
@archive_option
def replay(archive: Path, endpoint: str, where: str, dry_run: bool, skip_missing: bool, name: str) -> None:
    """Submit archived requests again, with keys: each comes once, also when this is run a second time.

    \b
    Examples:
      titanic-data replay --archive /archive --where "service = 'mail' AND status = 'failed'" --dry-run
      titanic-data replay --archive /archive --where "service = 'mail' AND date = '2026-11-21'" --name 'second try'
    """
    from titanic_data.archive import Archive, archive_frame
    from titanic_data.replaying import replay as again
    from titanic_data.session import session

    Archive.open(archive)
    chosen = only(archive_frame(session(quick=True), archive), where)
    if not dry_run:
        done = again(chosen, endpoint, name=name, skip_missing=skip_missing)
        others = f", the others had been under the name {name!r} before" if done.new < done.requests else ""
        click.echo(f"{counted(done.requests, 'request')} handed in again: {done.new} new{others}")
        return
    totals = "count(*) AS requests, sum(request_bytes) AS bytes, count_if(request IS NULL) AS missing"
    chosen.createOrReplaceTempView("chosen")
    found = chosen.sparkSession.sql(
        f"SELECT service, status, {totals} FROM chosen GROUP BY 1, 2 ORDER BY 1, 2"
    ).collect()
    numbers = ("REQUESTS", "BYTES", "BODY MISSING")
    print_table(("SERVICE", "STATUS", *numbers), [[str(value) for value in row] for row in found], right=numbers)


def _read(spark: SparkSession, source: Path) -> DataFrame:
    some = next(iter(sorted(source.rglob("[!._]*.*"))), source) if source.is_dir() else source
    kind = READERS.get(some.suffix)
    if kind is None:
        raise click.UsageError(f"{some} is none of {', '.join(READERS)}")
    return spark.read.format(kind).option("header", "true").load(as_file(source))
