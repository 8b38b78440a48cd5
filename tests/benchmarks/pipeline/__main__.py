"""Runs them, round by round, and prints the table."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.pipeline.ring import filled
from benchmarks.processor import processor_seconds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit
from support.cli_titanic import serving

from broker import Pipeline
from titanic import Client
from titanic.protocol import tsp
from titanic.store import open_read_only
from titanic_data.archive import Archive, Archiver, Engine, PyArrowEngine, Queue, SparkEngine, archive_frame
from titanic_data.session import session
from titanic_data.store_reader import forget, read_closed
from titanic_data.tables import CLOSED

ROOT = Path(__file__).parents[3]
BODY = "x" * 100
WINDOW = 256
IN_FLIGHT = 8
"""Messages of the pipelined client, of WINDOW rows each."""
CPU = ", CPU"
ALL = CLOSED.schema.names
TARGETS = [
    ("Spark reads", "LMDB cursor", 0.15),
    ("archive by pyarrow", "rows in memory to Parquet", 0.1),
    ("archive by Spark", "rows in memory to Parquet", 0.1),
    ("Spark writes", "client, pipelined", 0.4),
]
"""What, beside the limit of this machine, and the least ratio that is wanted when it is quiet. What else is measured
are steps on the way there: they say where the rest of the time goes, and are no limits."""


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--rows", type=click.IntRange(1000), default=1_000_000, show_default=True, help="In the ring.")
@click.option("--requests", type=click.IntRange(1000), default=40_000, show_default=True, help="For the sink.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def main(rounds: int, rows: int, requests: int, path: Path | None) -> None:
    """Rows a second that Spark reads, archives and writes, beside what could be had."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "data")])
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="pipeline-") as name:
        folder = Path(name)
        print(f"closing {rows:,} requests", file=sys.stderr)
        ring = filled(folder / "ring", rows)
        spark = session("bench", settings={"spark.local.dir": str(folder), "spark.driver.memory": "2g"})
        # A part for each processor: each costs Spark some 40 ms.
        parts = {"minPartitions": os.cpu_count() or 1, "rowsPerPartition": rows}
        frame = spark.read.format("titanic").options(**parts).load(str(ring))
        memory = pa.Table.from_batches(list(read_closed(ring, 1, rows, ALL)), CLOSED.schema)
        forget(ring)  # a process has a store open once
        reads: dict[str, Callable[[], object]] = {
            "LMDB cursor": lambda: cursor(ring),
            "one Python process to Arrow": lambda: sum(batch.num_rows for batch in read_closed(ring, 1, rows, ALL)),
            "Spark reads": lambda: frame.write.format("noop").mode("overwrite").save(),
            "rows in memory to Parquet": lambda: pq.write_table(memory, folder / "memory.parquet", compression="zstd"),
            "ring by pyarrow to Parquet": lambda: by_pyarrow(ring, rows, folder / "plain.parquet"),
            "ring by Spark to Parquet": lambda: plain_parquet(frame, folder),
            "archive by pyarrow": lambda: archive(ring, folder, PyArrowEngine()),
            "archive by Spark": lambda: archive(ring, folder, SparkEngine(spark)),
            "Spark reads the archive": lambda: archived(spark, folder),
        }
        for number in range(rounds + 1):  # the first is for warming up
            for what, work in reads.items():
                measure(figures, what, rows, work, number)
            sinks = {"client, one message at a time": by_client, "client, pipelined": by_pipeline}
            for what, sink in {**sinks, "Spark writes": by_spark}.items():
                with serve(folder / f"{what} {number}") as endpoint:
                    measure(
                        figures,
                        what,
                        requests,
                        lambda sink=sink, endpoint=endpoint: sink(spark, endpoint, requests),
                        number,
                    )
        spark.stop()
    print(table(figures))
    if path is not None:
        path.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def measure(figures: dict[str, list[float]], what: str, count: int, work: Callable[[], object], number: int) -> None:
    print(f"round {number}: {what}", file=sys.stderr)
    begin, used = time.perf_counter(), processor_seconds(os.getpid())
    work()
    if number:
        figures.setdefault(what, []).append(count / (time.perf_counter() - begin))
        figures.setdefault(f"{what}{CPU}", []).append((processor_seconds(os.getpid()) - used) / count * 1e6)


def cursor(ring: Path) -> int:
    """Touch each record of the ring, and make nothing of it."""
    with open_read_only(ring) as store, store.read() as txn:
        return sum(len(record) for record in txn.raw.cursor(txn.db.closed).iternext(keys=False))


def by_pyarrow(ring: Path, rows: int, file: Path) -> None:
    """Into one file, as it comes."""
    with pq.ParquetWriter(file, CLOSED.schema, compression="zstd") as writer:
        for batch in read_closed(ring, 1, rows, ALL, batch=100_000):
            writer.write_batch(batch)


def plain_parquet(frame: DataFrame, folder: Path) -> None:
    frame.write.mode("overwrite").option("compression", "zstd").parquet(str(folder / "plain"))


def archive(ring: Path, folder: Path, engine: Engine) -> None:
    """Archive the whole ring anew, with everything that makes it safe."""
    forget(ring)
    number = len(list(folder.glob("archive-*")))
    queue = Queue(ring)
    Archiver(Archive.create(folder / f"archive-{number}"), queue, engine).run()
    queue.unregister()  # the next one is another archive
    forget(ring)


def archived(spark: SparkSession, folder: Path) -> None:
    archive_frame(spark, folder / "archive-0").write.format("noop").mode("overwrite").save()


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    folder.mkdir()
    with serving(folder, "--capacity", "1GiB") as (_, endpoint):
        yield endpoint


def by_client(spark: SparkSession, endpoint: str, count: int) -> None:
    """What a task of the sink does, in this process: it waits for each message's answer."""
    with Client(endpoint) as client:
        for begin in range(0, count, WINDOW):
            some = range(begin, min(begin + WINDOW, count))
            client.submit_batch("absent", [BODY] * len(some), keys=[f"key {n}" for n in some], key_for=604_800.0)


def by_pipeline(spark: SparkSession, endpoint: str, count: int) -> None:
    """The same messages, and the next ones are on their way before the first is answered."""
    options = {"many": True, "key_for": 604_800.0}
    parts = (range(begin, min(begin + WINDOW, count)) for begin in range(0, count, WINDOW))
    messages = (
        [json.dumps({**options, "keys": [f"key {n}" for n in some]}), "absent", *[BODY] * len(some)] for some in parts
    )
    with Pipeline(endpoint) as pipeline:
        for status, *said in pipeline.map(tsp.SUBMIT, messages, window=IN_FLIGHT):
            if status != b"200":
                raise SystemExit(f"{status.decode()} {said}")


def by_spark(spark: SparkSession, endpoint: str, count: int) -> None:
    rows = spark.range(count).select(concat(lit("key "), col("id")).alias("key"), lit(BODY).alias("body"))
    writer = rows.write.format("titanic").mode("append").option("endpoint", endpoint)
    writer.option("service", "absent").option("window", WINDOW).save()


def table(figures: dict[str, list[float]]) -> str:
    """A table in Markdown."""
    limits = {what: (limit, least) for what, limit, least in TARGETS}
    lines = ["| | rows a second | lowest – highest | CPU, µs a row | of its limit |", "|---|--:|--:|--:|---|"]
    for what, rates in figures.items():
        if what.endswith(CPU):
            continue
        ratio = ""
        if what in limits:
            limit, least = limits[what]
            found = median(rates) / median(figures[limit])
            ratio = f"{found:.2f} × {limit}" + ("" if found >= least else f", below {least}")
        used = median(figures[f"{what}{CPU}"])
        lines.append(
            f"| {what} | {median(rates):,.0f} | {min(rates):,.0f} – {max(rates):,.0f} | {used:.2f} | {ratio} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
