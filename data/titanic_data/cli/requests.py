"""`titanic-data submit`, `collect`, `replay` and `work`: tables as requests, replies as tables, and a Spark worker."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from titanic import logs
from titanic.cli.options import json_flag, log_options, option, seconds
from titanic.cli.printing import print_done, print_json, print_table
from titanic.cli.running import EXIT_PENDING, StopSignal, say
from titanic.util.text import counted
from titanic_data.cli.options import archive_option, command, endpoint_option, key_options, only
from titanic_data.session import as_file

if TYPE_CHECKING:  # the help needs no pyspark
    from pyspark.sql import DataFrame, SparkSession

READERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".orc": "orc"}
CSV = {
    "header": "true",
    "escape": '"',
    "multiLine": "true",
    "mode": "FAILFAST",
    "unescapedQuoteHandling": "RAISE_ERROR",
}
"""RFC 4180. Spark's own defaults end values at quotes and rows at line breaks in them."""

file_argument = click.argument("source", type=click.Path(path_type=Path, exists=True), metavar="FILE")
key_option = option("--key-column", metavar="NAME", default="key", help="The column with the key.")


@command()
@file_argument
@json_flag
@option("--window", type=click.IntRange(1, 100_000), metavar="N", default=256, help="Rows in flight, per Spark task.")
@option("--body-column", metavar="NAME", default="body", help="The column with the body.")
@key_option
@option("--service", metavar="SERVICE", help="Service for all rows; default: the column `service`.")
@endpoint_option
@key_options
def submit(
    source: Path,
    endpoint: str,
    keys: dict[str, Any],
    service: str | None,
    key_column: str,
    body_column: str,
    window: int,
    as_json: bool,
) -> None:
    """Submit each row of FILE as a request: Parquet, CSV with a header, JSON lines, ORC, or a directory of them.

    The key makes each row one request, however often you run this. The columns ttl, delay, priority and max_attempts
    are used if present; other columns are refused.

    --json prints {rows}.

    \b
    Example:
      titanic-data submit orders.csv --service invoice --key-column order
    """
    from titanic_data.session import session
    from titanic_data.submission import SETTINGS

    rows = _read(session(quick=True), source)
    numbers = [name for name, kind in rows.dtypes if name in SETTINGS and kind == "string"]  # all of CSV is text
    casts = {name: rows[name].cast("double" if "double" in SETTINGS[name].types else "bigint") for name in numbers}
    rows = rows.withColumns(casts)
    options: dict[str, Any] = {
        "keyColumn": key_column,
        "bodyColumn": body_column,
        "window": window,
        "endpoint": endpoint,
        **({} if service is None else {"service": service}),
        **({"keyFile": keys["key"], "serverKey": keys["server_key"]} if keys else {}),
    }
    rows.write.format("titanic").mode("append").options(**options).save()
    count = rows.count()
    print_done({"rows": count}, f"{counted(count, 'row')} of {source} submitted", as_json)


@command()
@file_argument
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@json_flag
@option("--close", "close_them", is_flag=True, help="Close the requests once their replies are written.")
@seconds("--wait", least=0, default=0.0, help="Maximum time to wait for pending replies.")
@key_option
@endpoint_option
@key_options
def collect(
    source: Path,
    out: Path,
    endpoint: str,
    keys: dict[str, Any],
    key_column: str,
    wait: float,
    close_them: bool,
    as_json: bool,
) -> None:
    """Write the replies to the requests with the keys in FILE to the new directory OUT, as Parquet.

    OUT has the columns key, request_id, state (ok, failed, expired, pending, closed, unknown), reply, reply_sizes,
    error. Exits with 3 if some replies are pending.

    --json prints {state: number of keys}.

    \b
    Example:
      titanic-data collect orders.csv invoices --key-column order --wait 600 --close
    """
    from titanic_data import spark_client
    from titanic_data.session import session

    if out.exists():
        raise click.UsageError(f"{out} already exists")
    spark = session(quick=True)
    replies = spark_client.collect(_read(spark, source), endpoint, key_column=key_column, timeout=wait, **keys)
    replies.write.parquet(f"file:{out.absolute()}")
    written = spark.read.parquet(as_file(out))
    states = {row["state"]: row["count"] for row in written.groupBy("state").count().orderBy("state").collect()}
    if close_them:
        spark_client.close(written.where("state IN ('ok', 'failed', 'expired')"), endpoint, **keys)
    shown = ", ".join(f"{count} {state}" for state, count in states.items())
    print_done(states, f"{out}: {shown or 'no keys'}", as_json)
    if "pending" in states:
        sys.exit(EXIT_PENDING)


@command()
@option("--name", metavar="NAME", default="replay", help="Name of this replay; a request is submitted once per name.")
@option("--skip-missing", is_flag=True, help="Skip requests without a body in the ring.")
@option("--dry-run", is_flag=True, help="Only show what would be submitted.")
@json_flag
@option(
    "--where",
    metavar="SQL",
    required=True,
    help="Only requests for which this condition on the archive's columns is true.",
)
@endpoint_option
@key_options
@archive_option
def replay(
    archive: Path,
    endpoint: str,
    keys: dict[str, Any],
    where: str,
    dry_run: bool,
    skip_missing: bool,
    name: str,
    as_json: bool,
) -> None:
    """Resubmit archived requests. Each becomes one request per --name, however often you run this.

    --json prints {requests, new}; with --dry-run a list of {service, status, requests, bytes, missing}.

    \b
    Examples:
      titanic-data replay --archive /archive --where "service = 'mail' AND status = 'failed'" --dry-run
      titanic-data replay --archive /archive --where "service = 'mail' AND date = '2026-11-21'" --name 'second try'
    """
    from titanic_data import spark_client
    from titanic_data.archive import Archive, archive_frame
    from titanic_data.session import session

    Archive.open(archive)
    chosen = only(archive_frame(session(quick=True), archive), where)
    if not dry_run:
        done = spark_client.replay(chosen, endpoint, name=name, skip_missing=skip_missing, **keys)
        others = f", the others were submitted before under the name {name!r}" if done.new < done.requests else ""
        text = f"{counted(done.requests, 'request')} submitted again: {done.new} new{others}"
        print_done({"requests": done.requests, "new": done.new}, text, as_json)
        return
    totals = "count(*) AS requests, sum(request_bytes) AS bytes, count_if(request IS NULL) AS missing"
    chosen.createOrReplaceTempView("chosen")
    found = chosen.sparkSession.sql(
        f"SELECT service, status, {totals} FROM chosen GROUP BY 1, 2 ORDER BY 1, 2"
    ).collect()
    if as_json:
        print_json([row.asDict() for row in found])
        return
    numbers = ("REQUESTS", "BYTES", "BODY MISSING")
    print_table(("SERVICE", "STATUS", *numbers), [[str(value) for value in row] for row in found], right=numbers)


def _read(spark: SparkSession, source: Path) -> DataFrame:
    some = next(iter(sorted(source.rglob("[!._]*.*"))), source) if source.is_dir() else source
    kind = READERS.get(some.suffix)
    if kind is None:
        raise click.UsageError(f"{some} is not one of {', '.join(READERS)}")
    return spark.read.format(kind).options(**(CSV if kind == "csv" else {})).load(as_file(source))


@command()
@click.argument("service")
@click.argument("function", metavar="MODULE:FUNCTION")
@option("--lanes", type=click.IntRange(1, 500), metavar="N", default=256, help="Maximum number of requests per batch.")
@option("--arrow", is_flag=True, help="FUNCTION takes and returns an Arrow array of bodies, in Spark's tasks.")
@endpoint_option
@key_options
@log_options
def work(
    service: str,
    function: str,
    endpoint: str,
    keys: dict[str, Any],
    arrow: bool,
    lanes: int,
    log_level: str,
    log_format: str,
) -> None:
    """Serve SERVICE with Spark: FUNCTION takes a batch of requests as a DataFrame and returns the replies.

    The DataFrame has the columns id, body (binary) and frames. The returned one has id and reply (text, binary or an
    array of binaries) and may have error: where it is not null, the attempt fails. If a batch fails, the attempts of
    all its requests fail, and the queue retries them.

    On SIGTERM or SIGINT it stops after the current batch; on a second signal it stops at once, and the batch goes to
    another worker. If Spark itself stops, the worker exits with 1; a supervisor should restart it.

    \b
    Example, with this file upper.py in the current directory:
      def transform(requests):
          return requests.selectExpr("id", "upper(CAST(body AS STRING)) AS reply")

    \b
      titanic-data work upper upper:transform
    """
    from titanic_data import spark_worker
    from titanic_data.session import session

    found = _find(function)
    logs.begin(log_level, log_format)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs its connections; an error is reported anyway
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)  # some of it goes to the root logger
    transform = spark_worker.arrow(found) if arrow else found
    worker = spark_worker.SparkWorker(session(), service, transform, endpoint, lanes=lanes, **keys)
    ending = StopSignal(worker.stop, worker.abandon)
    say(f"connecting to {endpoint} to work on {service} with Spark", "serving")
    worker.run()
    sys.exit(ending.code)


def _find(name: str) -> Any:
    """A function by its module and name. The present directory is searched, too."""
    module, colon, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"there is no {name}: {error}") from error
    if not callable(found):
        raise click.UsageError(f"{name} is not a function; write it as MODULE:FUNCTION")
    return found
