"""Every report, against an independent engine."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from titanic_data import reports
from titanic_data.cli.report import draw
from titanic_data.errors import InvalidOption
from titanic_data.reports import REPORTS, ServiceLevel, service_level
from titanic_data.tables import ADDED, CLOSED

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "closed.parquet"
LEVELS = [
    ServiceLevel("resize", 2.0),
    ServiceLevel("report", 60.0),
    ServiceLevel("mail", 0.5),
    ServiceLevel("none", 1.0),
    service_level("resize<2000ms"),  # the first again
]

SPAN = "greatest(0, epoch_us({1}) - epoch_us({0})) / 1e6"
WAITING = SPAN.format("submitted_at", "dispatched_at")
RUNNING = f"CASE WHEN status <> 'expired' THEN {SPAN.format('dispatched_at', 'replied_at')} END"
FETCHED = f"CASE WHEN NOT unclaimed THEN {SPAN.format('replied_at', 'closed_at')} END"


def percentiles(span: str) -> str:
    return ", ".join([*(f"quantile_cont({span}, {p})" for p in (0.5, 0.9, 0.99)), f"max({span})"])


def nulls(begin: str, end: str, span: str) -> str:
    return f"CASE WHEN {begin} IS NOT NULL AND {end} IS NOT NULL THEN {span} END"


ORACLES = {
    "latency": f"""
        SELECT service, date_trunc('hour', submitted_at), count(*),
          {percentiles(nulls("submitted_at", "dispatched_at", WAITING))},
          {percentiles(nulls("dispatched_at", "replied_at", RUNNING))},
          {percentiles(nulls("replied_at", "closed_at", FETCHED))}
        FROM closed GROUP BY ALL ORDER BY 1, 2""",
    "throughput": """
        SELECT service, date_trunc('hour', closed_at), count(*),
          count(*) FILTER (status = 'ok'), count(*) FILTER (status = 'failed'), count(*) FILTER (status = 'expired'),
          count(*) FILTER (status = 'cancelled'), count(*) / 3600.0
        FROM closed GROUP BY ALL ORDER BY 1, 2""",
    "backlog": """
        WITH events AS (
          SELECT service, date_trunc('hour', submitted_at) AS hour, 1 AS came, 0 AS went FROM closed
          UNION ALL
          SELECT service, date_trunc('hour', coalesce(replied_at, closed_at)), 0, 1 FROM closed),
        hours AS (SELECT service, hour, sum(came) AS came, sum(went) AS went FROM events GROUP BY ALL)
        SELECT a.service, a.hour, a.came, a.went, sum(b.came - b.went)
        FROM hours a JOIN hours b ON a.service = b.service AND b.hour <= a.hour GROUP BY ALL ORDER BY 1, 2""",
    "failures": """
        SELECT service, status, coalesce(split_part(error, chr(10), 1),
            CASE status WHEN 'cancelled' THEN 'closed before it had ended' ELSE 'no reason was given' END), count(*),
          round(count(*) / (SELECT count(*) FROM closed c WHERE c.service = closed.service), 4),
          min(closed_at), max(closed_at)
        FROM closed WHERE status <> 'ok' GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3""",
    "retries": """
        SELECT service, attempts, count(*),
          round(count(*) / (SELECT count(*) FROM closed c WHERE c.service = closed.service), 4),
          count(*) FILTER (status = 'ok')
        FROM closed GROUP BY 1, 2 ORDER BY 1, 2""",
    "breaches": f"""
        WITH levels(service, within) AS (VALUES ('resize', 2.0), ('report', 60.0), ('mail', 0.5), ('none', 1.0)),
        found AS (
          SELECT service, within, status, {SPAN.format("submitted_at", "replied_at")} AS took
          FROM closed JOIN levels USING (service) WHERE status <> 'cancelled')
        SELECT service, within, count(*), count(*) FILTER (status <> 'ok' OR took > within),
          round(count(*) FILTER (status <> 'ok' OR took > within) / count(*), 4), max(took) FILTER (status = 'ok')
        FROM found GROUP BY 1, 2 ORDER BY 5 DESC, 1, 2""",
    "duplicates": """
        WITH keyed AS (SELECT service, idempotency_key AS key, coalesce(owner, '') || idempotency_key AS whole
          FROM closed)
        SELECT service, count(*), count(key), count(DISTINCT whole), count(key) - count(DISTINCT whole)
        FROM keyed GROUP BY 1 ORDER BY 1""",
    "bodies": """
        SELECT request_id, service, status, request_bytes, reply_bytes, closed_at, request_bytes + reply_bytes
        FROM closed ORDER BY 7 DESC, 1 LIMIT 20""",
}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with owners, with keys that several requests have, and with requests that expired after an attempt."""
    file = tmp_path_factory.mktemp("reports") / "closed.parquet"
    duckdb.sql(f"""
        COPY (SELECT * REPLACE (
          nullif('owner ' || seq % 3, 'owner 0') AS owner,
          left(idempotency_key, 8) AS idempotency_key,
          coalesce(dispatched_at, if(status = 'expired', submitted_at, NULL)) AS dispatched_at
        ) FROM '{SAMPLE}') TO '{file}'""")
    return file


@pytest.fixture
def closed(spark: SparkSession, history: Path) -> DataFrame:
    return spark.read.parquet(str(history))


@pytest.fixture
def oracle(history: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE VIEW closed AS SELECT * FROM '{history}'")
    return connection


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return one is not None and other is not None and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


@pytest.mark.parametrize("name", REPORTS)
def test_another_engine_says_the_same(
    closed: DataFrame, oracle: duckdb.DuckDBPyConnection, name: str, tmp_path: Path
) -> None:
    """And the report has its picture."""
    report = reports.breaches(closed, LEVELS) if name == "breaches" else REPORTS[name](closed)
    rows = report.toArrow().to_pylist()
    draw(name, rows, picture := tmp_path / "picture.svg")
    assert "<svg" in picture.read_text()
    found = [tuple(row.values()) for row in rows]
    answer = oracle.sql(ORACLES[name]).to_arrow_table()
    expected = list(zip(*(column.to_pylist() for column in answer.columns), strict=True))
    assert len(found) == len(expected) > 2
    for row, values in zip(found, expected, strict=True):
        assert all(alike(one, other) for one, other in zip(row, values, strict=True)), f"{row} is not {values}"


@pytest.mark.parametrize("by", ["day", *(pytest.param(by, marks=pytest.mark.torture) for by in ("second", "minute"))])
def test_other_lengths_of_time(closed: DataFrame, oracle: duckdb.DuckDBPyConnection, by: str) -> None:
    found = [tuple(row.values()) for row in reports.throughput(closed, by).toArrow().to_pylist()]
    oracle_sql = ORACLES["throughput"].replace("'hour'", f"'{by}'").replace("3600.0", f"{reports.PERIODS[by]}.0")
    answer = oracle.sql(oracle_sql).to_arrow_table()
    expected = list(zip(*(column.to_pylist() for column in answer.columns), strict=True))
    assert len(found) == len(expected)
    for row, values in zip(found, expected, strict=True):
        assert all(alike(one, other) for one, other in zip(row, values, strict=True)), f"{row} is not {values}"


def test_no_rows_give_no_answers(closed: DataFrame) -> None:
    nothing = closed.limit(0).drop(*ADDED)  # which files of earlier versions lack
    for name, report in REPORTS.items():
        assert (report(nothing, LEVELS) if name == "breaches" else report(nothing)).isEmpty()


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("resize<2s", ServiceLevel("resize", 2.0)),
        ("a b < 1.5m", ServiceLevel("a b", 90.0)),
        ("x<250ms", ServiceLevel("x", 0.25)),
    ],
)
def test_service_levels(text: str, level: ServiceLevel) -> None:
    assert service_level(text) == level


@pytest.mark.parametrize("text", ["resize", "resize<2", "<2s", "resize>2s", "resize<-1s", ""])
def test_what_is_no_service_level(text: str) -> None:
    with pytest.raises(InvalidOption, match="is not a service level"):
        service_level(text)


def test_the_sample_is_what_its_maker_makes() -> None:
    made: dict[str, Any] = {"__file__": str(SAMPLE.with_name("make.py")), "__name__": "make"}
    exec(compile(SAMPLE.with_name("make.py").read_text(), "make.py", "exec"), made)
    table = pq.read_table(SAMPLE)
    assert table.schema.names == CLOSED.schema.names
    again = type(table).from_pylist(made["rows"](), table.schema)
    assert again.equals(table)


def test_the_sample_is_made_anew_and_says_where_it_cannot_be(tmp_path: Path) -> None:
    def make(file: Path) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SAMPLE.parents[2], SAMPLE.parents[1])))}
        words = [sys.executable, str(SAMPLE.with_name("make.py")), str(file)]
        return subprocess.run(words, capture_output=True, text=True, env=env, timeout=200, check=False)

    done = make(tmp_path / "made.parquet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'made.parquet'}: 2400 rows, ")
    assert pq.read_table(tmp_path / "made.parquet").equals(pq.read_table(SAMPLE))
    done = make(tmp_path / "absent" / "made.parquet")
    assert done.returncode == 2
    assert f"{tmp_path / 'absent' / 'made.parquet'} cannot be written: " in done.stderr
    assert "Traceback" not in done.stderr
