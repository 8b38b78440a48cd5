"""A program: what a client of Spark Connect does with Titanic. A process has one kind of session, so it has its own.

spark_remote.py REMOTE archive STORE ARCHIVE      archives a store, and prints how many rows the archive has
spark_remote.py REMOTE write ENDPOINT COUNT       rows become requests
spark_remote.py REMOTE work ENDPOINT SERVICE      Spark is the worker of a service, until its input ends
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit


def archive(spark: SparkSession, store: str, path: str) -> None:
    from support.archiving import run

    from titanic_data.archive import SparkEngine, archive_frame

    run(Path(store), Path(path), SparkEngine(spark))
    print(archive_frame(spark, path).count())


def write(spark: SparkSession, endpoint: str, count: str) -> None:
    frame = spark.range(0, int(count), 1, 4)
    frame = frame.select(concat(lit("order "), col("id")).alias("key"), concat(lit("body "), col("id")).alias("body"))
    options = {"endpoint": endpoint, "service": "upper", "window": "1", "timeout": "300"}
    frame.write.format("titanic").mode("append").options(**options).save()
    print("written")


def upper(requests: DataFrame) -> DataFrame:
    return requests.selectExpr("id", "upper(CAST(body AS STRING)) AS reply")


def work(spark: SparkSession, endpoint: str, service: str) -> None:
    from titanic_data.spark_worker import SparkWorker

    with SparkWorker(spark, service, upper, endpoint, lanes=8):
        sys.stdin.read()
    print("worked")


if __name__ == "__main__":
    remote, verb, *arguments = sys.argv[1:]
    session = SparkSession.builder.remote(remote).getOrCreate()
    {"archive": archive, "write": write, "work": work}[verb](session, *arguments)
    session.stop()
