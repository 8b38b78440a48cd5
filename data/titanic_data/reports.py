"""Answers from closed requests: pure functions, a DataFrame of tables.CLOSED in, a small DataFrame out.

    from titanic_data.archive import archive_frame
    from titanic_data.reports import latency

    latency(archive_frame(spark, "/archive")).where("service = 'resize'").show()

Spans are seconds. An hour (day, minute, second: `by`) is named by its beginning, in the session's time zone.
Percentiles are exact. A store keeps only the last attempt of a request that was tried several times: `waiting` is the
time until that one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as f

from titanic_data.errors import InvalidOption

PERCENTILES = (0.5, 0.9, 0.99)
PERIODS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
"""What `by` may be, in seconds."""

CANCELLED, NONE = "closed before it had ended", "no reason was given"
"""The reasons of requests that were noted with none."""

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class ServiceLevel(NamedTuple):
    """What was promised: requests of a service have their reply within so many seconds."""

    service: str
    seconds: float


def service_level(text: str) -> ServiceLevel:
    """Read `resize<2s`; units are ms, s, m and h. Raises InvalidOption."""
    match = re.fullmatch(r"(.+?)\s*<\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)", text.strip())
    if match is None:
        raise InvalidOption(f"{text!r} is not a service level", "", "write it like 'resize<2s'; units are ms, s, m, h")
    return ServiceLevel(match[1], float(match[2]) * UNITS[match[3]])


def latency(closed: DataFrame, by: str = "hour") -> DataFrame:
    """For each service and hour of submission: how long requests waited for their (last) attempt, how long that ran,
    and how long the reply was kept until the request was closed. p50, p90, p99 and max of each."""
    spans = {
        "waiting": _seconds("submitted_at", "dispatched_at"),
        "running": f.when(f.col("status") != "expired", _seconds("dispatched_at", "replied_at")),  # it waited to retry
        "fetched": f.when(~f.col("unclaimed"), _seconds("replied_at", "closed_at")),
    }
    columns: list[Column] = [f.count("*").alias("requests")]
    for name, span in spans.items():
        found = f.percentile(span, f.array(*map(f.lit, PERCENTILES)))
        columns += [found[n].alias(f"{name}_p{round(100 * p)}") for n, p in enumerate(PERCENTILES)]
        columns.append(f.max(span).alias(f"{name}_max"))
    return _grouped(closed, "submitted_at", by).agg(*columns).orderBy("service", by)


def throughput(closed: DataFrame, by: str = "hour") -> DataFrame:
    """For each service and hour of closing: how many were closed, by status, and how many a second."""
    statuses = [_count(f.col("status") == name).alias(name) for name in ("ok", "failed", "expired", "cancelled")]
    rate = (f.count("*") / PERIODS[by]).alias("per_second")
    counts = _grouped(closed, "closed_at", by).agg(f.count("*").alias("closed"), *statuses, rate)
    return counts.orderBy("service", by)


def backlog(closed: DataFrame, by: str = "hour") -> DataFrame:
    """For each service and hour: how many came, how many ended, and how many had not ended when the hour was over. Of
    those that were closed meanwhile: what still waits is not in the ring."""
    ended = f.coalesce("replied_at", "closed_at")
    came = closed.select("service", f.date_trunc(by, "submitted_at").alias(by), f.lit(1).alias("n"))
    went = closed.select("service", f.date_trunc(by, ended).alias(by), f.lit(-1).alias("n"))
    hours = (
        came.union(went)
        .groupBy("service", by)
        .agg(_count(f.col("n") > 0).alias("submitted"), _count(f.col("n") < 0).alias("ended"))
    )
    until_now = Window.partitionBy("service").orderBy(by).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    left = f.sum(f.col("submitted") - f.col("ended")).over(until_now)
    return hours.withColumn("backlog", left).orderBy("service", by)


def failures(closed: DataFrame) -> DataFrame:
    """For each service, status and reason (the first line of the error): how many failed, expired or were cancelled,
    their share of the service's requests, when first and last. The most frequent first."""
    total = closed.groupBy(f.col("service").alias("of")).agg(f.count("*").alias("total"))
    reason = f.split("error", "\n", 2)[0]
    reason = f.coalesce(f.when(reason != "", reason), f.when(f.col("status") == "cancelled", CANCELLED), f.lit(NONE))
    return (
        closed.where("status != 'ok'")
        .groupBy("service", "status", reason.alias("reason"))
        .agg(f.count("*").alias("requests"), f.min("closed_at").alias("first"), f.max("closed_at").alias("last"))
        .join(total, f.col("service") == f.col("of"))
        .select("service", "status", "reason", "requests", _share("total"), "first", "last")
        .orderBy(f.desc("requests"), "service", "status", "reason")
    )


def retries(closed: DataFrame) -> DataFrame:
    """For each service and number of attempts: how many requests took as many, and how many of them succeeded."""
    whole = Window.partitionBy("service")
    return (
        closed.groupBy("service", "attempts")
        .agg(f.count("*").alias("requests"), _count(f.col("status") == "ok").alias("ok"))
        .withColumn("total", f.sum("requests").over(whole))
        .select("service", "attempts", "requests", _share("total"), "ok")
        .orderBy("service", "attempts")
    )


def breaches(closed: DataFrame, levels: Sequence[ServiceLevel]) -> DataFrame:
    """For each service level: how many requests came under it, how many had no reply in time (failed and expired ones
    never have), their share, and the longest time to a reply. Cancelled requests do not count. A service without
    requests has no row."""
    promised = closed.sparkSession.createDataFrame([*dict.fromkeys(levels)], "promised STRING, within DOUBLE")
    took = _seconds("submitted_at", "replied_at")
    late = (f.col("status") != "ok") | (took > f.col("within"))
    return (
        closed.where("status != 'cancelled'")
        .join(f.broadcast(promised), f.col("service") == f.col("promised"))
        .groupBy("service", "within")
        .agg(
            f.count("*").alias("total"),
            _count(late).alias("requests"),
            f.max(f.when(f.col("status") == "ok", took)).alias("worst"),
        )
        .select("service", "within", "total", f.col("requests").alias("breaches"), _share("total"), "worst")
        .orderBy(f.desc("share"), "service", "within")
    )


def duplicates(closed: DataFrame) -> DataFrame:
    """For each service: how many requests had a key, how many different keys these were, and how many requests were
    executed under a key that had been used before, because that was forgotten already (`key_for`). Submissions that
    were repeated while their key was known left no trace here: the queue counts them (`since_start.repeated`)."""
    keyed = f.col("idempotency_key").isNotNull() & ~f.col("idempotency_key").startswith("~")
    key = f.when(keyed, f.col("idempotency_key"))
    owner = f.coalesce("owner", f.lit("")) if "owner" in closed.columns else f.lit("")  # each has keys of its own
    distinct = f.countDistinct(f.when(keyed, f.struct(owner, key)))
    return (
        closed.groupBy("service")
        .agg(
            f.count("*").alias("requests"),
            f.count(key).alias("with_key"),
            distinct.alias("keys"),
            (f.count(key) - distinct).alias("executed_again"),
        )
        .orderBy("service")
    )


def bodies(closed: DataFrame, limit: int = 20) -> DataFrame:
    """The requests with the largest bodies, request and reply together, in bytes."""
    total = (f.col("request_bytes") + f.col("reply_bytes")).alias("bytes")
    columns = ("request_id", "service", "status", "request_bytes", "reply_bytes", "closed_at")
    return closed.select(*columns, total).orderBy(f.desc("bytes"), "request_id").limit(limit)


REPORTS: dict[str, Callable[..., DataFrame]] = {
    "latency": latency,
    "throughput": throughput,
    "backlog": backlog,
    "failures": failures,
    "retries": retries,
    "breaches": breaches,
    "duplicates": duplicates,
    "bodies": bodies,
}


def _seconds(begin: str, end: str) -> Column:
    """The span between two columns; null when one of them is. Clocks can be set back: it is not negative."""
    return f.when(
        f.col(begin).isNotNull() & f.col(end).isNotNull(),
        f.greatest(f.lit(0.0), (f.unix_micros(end) - f.unix_micros(begin)) / 1e6),
    )


def _grouped(closed: DataFrame, moment: str, by: str) -> GroupedData:
    return closed.groupBy("service", f.date_trunc(by, moment).alias(by))


def _count(condition: Column) -> Column:
    return f.count(f.when(condition, 1))


def _share(total: str) -> Column:
    return f.round(f.col("requests") / f.col(total), 4).alias("share")
