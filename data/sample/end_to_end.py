"""The example of data/README.md: rows go through queue and worker and back, into an archive and a report.

    python data/sample/end_to_end.py [ROWS] [FOLDER]

Everything is real: `titanic serve` and the worker are processes of their own, `titanic-data` is run as a command.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat, lit, sha2

from titanic_data.session import session
from titanic_data.spark_client import close, collect

SERVICE = "sha256"
WORKER = """
import hashlib
from broker import Worker
Worker("sha256", lambda frames: hashlib.sha256(frames[0]).hexdigest(), {endpoint!r}, jobs=32).run()
"""


def run(spark: SparkSession, rows: int, folder: Path) -> None:
    """Run the whole example in an empty folder."""
    with (
        serving(folder) as endpoint,
        started(folder / "worker.log", "-c", WORKER.format(endpoint=endpoint)),
    ):
        # A table, with a key in each row.
        orders = spark.range(rows).select(
            concat(lit("order "), col("id")).alias("key"), concat(lit("what is in order "), col("id")).alias("body")
        )

        # Every row becomes a request.
        begin = time.monotonic()
        to_queue = orders.write.format("titanic").mode("append").option("endpoint", endpoint)
        to_queue.option("service", SERVICE).save()
        say(f"{rows:,} rows are on the queue's disk after", begin)

        # Their replies become rows.
        replies = collect(orders, endpoint, timeout=900).cache()
        replies.groupBy("state").count().show()
        say("the last reply was there after", begin)
        right = orders.join(replies, "key").where(sha2("body", 256) == col("reply").cast("string")).count()
        print(f"{right:,} replies are what Spark's own sha2 says")

        # Closed requests move to the ring of the store, and from there to the archive.
        print(f"{close(replies, endpoint):,} requests closed")
        where = ("--archive", folder / "archive")
        data("archive", "--store", folder / "store", "--endpoint", endpoint, *where)
        data("verify", *where)
        data("report", "latency", "--by", "second", *where, "--plot", folder / "latency.png")


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run `titanic serve` on a store in a folder; gives its endpoint."""
    log = folder / "serve.log"
    with started(
        log, "-m", "titanic", "serve", "--bind", "tcp://127.0.0.1:*", "--store", str(folder / "store")
    ) as server:
        while (found := re.search(r"titanic .* serving at (\S+);.*", log.read_text())) is None:
            if server.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.05)
        print(found[0])
        yield found[1]


@contextmanager
def started(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python process as long as the block."""
    with log.open("wb") as errors, subprocess.Popen([sys.executable, *arguments], stderr=errors) as process:
        try:
            yield process
        finally:
            process.terminate()


def data(*arguments: object) -> None:
    """Run `titanic-data`."""
    words = [str(one) for one in arguments]
    print("$ titanic-data", *words, flush=True)
    subprocess.run([sys.executable, "-m", "titanic_data", *words], check=True, stderr=subprocess.DEVNULL)


def say(what: str, begin: float) -> None:
    """Print a text and the seconds since `begin`."""
    print(f"{what} {time.monotonic() - begin:.1f} s", flush=True)


def main() -> None:
    """Read the command line and run the example."""
    usage = argparse.ArgumentParser(
        description="Send rows through queue and worker and back, into an archive and a report."
    )
    usage.add_argument("rows", metavar="ROWS", nargs="?", type=int, default=100_000, help="default 100000")
    usage.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, help="an empty folder, for the results")
    given = usage.parse_args()
    with tempfile.TemporaryDirectory(prefix="titanic-example-") as temporary:
        folder: Path = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run(session("end to end"), given.rows, folder)
    print(f"the picture is {folder / 'latency.png'}" if given.folder else "removed all of it; give a FOLDER to keep it")


if __name__ == "__main__":
    main()
