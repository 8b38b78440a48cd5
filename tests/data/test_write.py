"""Rows become requests, exactly one for each key; replies become rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udf, col, concat, lit, when
from support.each import each
from support.serving import serving
from support.waiting import until

from broker import RemoteError, Worker
from titanic import Client, Server, TimedOut
from titanic_data.errors import InvalidRows, PipelineError
from titanic_data.spark_client import close, collect
from titanic_data.spark_options import write_options
from titanic_data.submission import layout, submit

pytestmark = pytest.mark.settings(max_attempts=2)


def orders(spark: SparkSession, count: int, parts: int = 2) -> DataFrame:
    """Rows with a key and a body."""
    frame = spark.range(0, count, 1, parts)
    return frame.select(concat(lit("order "), col("id")).alias("key"), concat(lit("body "), col("id")).alias("body"))


def write(frame: DataFrame, server: Server, **options: Any) -> None:
    writer = frame.write.format("titanic").mode("append").option("endpoint", server.endpoints[0])
    writer.options(**options).save()


def stored(client: Client) -> int:
    count: int = client.stats()["store"]["requests"]
    return count


ARROW = {"string": pa.string(), "int": pa.int32(), "double": pa.float64(), "array<binary>": pa.list_(pa.binary())}


def types_of(columns: str) -> dict[str, str]:
    """The columns of a frame, as the writer gets them."""
    found = re.findall(r"(\w+) ([A-Z]+(?:<[^>]*>)?)", columns)
    return {name: kind.lower().replace(" ", "") for name, kind in found}


def bodies(server: Server) -> dict[bytes, list[bytes]]:
    """The bodies of what waits for `upper`, by key."""
    with server.store.read() as txn:
        rows, _ = txn.unended(b"", None, 100_000)
    return {row.key: body for row, body in rows}


def test_a_row_is_a_request(spark: SparkSession, server: Server, client: Client) -> None:
    write(orders(spark, 1000), server, service="upper", window=64)
    assert bodies(server) == {b"order %d" % n: [b"body %d" % n] for n in range(1000)}
    write(orders(spark, 1200), server, service="upper")
    assert stored(client) == 1200
    assert client.stats()["since_start"]["repeated"] == 1000


def test_columns_and_options(spark: SparkSession, server: Server, client: Client) -> None:
    rows = [
        (1, "upper", [bytearray(b"a"), bytearray(b"b")], 9, None),
        (2, "lower", [bytearray(b"c")], None, 1000.0),
        (3, "lower", [], None, None),
    ]
    columns = "id INT, service STRING, frames ARRAY<BINARY>, priority INT, ttl DOUBLE"
    write(spark.createDataFrame(rows, columns), server, keyColumn="id", bodyColumn="frames", max_attempts=7)
    assert bodies(server) == {b"1": [b"a", b"b"], b"2": [b"c"], b"3": [b""]}
    first, second, third = client.list()[0] if client.list()[0][0]["key"] == "1" else client.list()[0][::-1]
    by_key = {row["key"]: row for row in (first, second, third)}
    assert [by_key[key]["service"] for key in "123"] == ["upper", "lower", "lower"]
    assert [by_key[key]["priority"] for key in "123"] == [9, 4, 4]
    assert [by_key[key]["max_attempts"] for key in "123"] == [7, 7, 7]
    assert by_key["2"]["expires_at"] - by_key["2"]["submitted_at"] == 1_000_000_000
    assert by_key["3"]["expires_at"] == 0


def failing(frame: DataFrame, fail: Callable[[int, int, int], bool]) -> DataFrame:
    """The same rows, and a task fails where `fail(partition, attempt, batch)` says so."""

    def step(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        context = TaskContext.get()
        assert context is not None
        for number, column in enumerate(columns):
            if fail(context.partitionId(), context.attemptNumber(), number):
                raise RuntimeError("injected")
            yield column

    return frame.select("key", arrow_udf(step, returnType="STRING")("body").alias("body"))


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Spark hands over 100 rows at a time."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.usefixtures("small_batches")
def test_tasks_that_fail_are_done_again(spark: SparkSession, server: Server, client: Client) -> None:
    frame = orders(spark, 3200, 2).withColumn("body", concat(lit("x" * 500), col("body")))
    endpoint = server.endpoints[0]

    def in_the_middle(part: int, attempt: int, batch: int) -> bool:
        if attempt == 2 or batch != 10 + attempt:
            return False
        with Client(endpoint) as client:  # it is one of two tasks that send as much
            until(lambda: client.stats()["since_start"]["accepted"] > 400)
        return True

    flaky = failing(frame, in_the_middle)
    write(flaky, server, service="upper", window=20)
    done = client.stats()["since_start"]
    assert stored(client) == done["accepted"] == 3200
    assert done["repeated"] > 200
    assert len(bodies(server)) == 3200


def test_a_job_that_fails_for_good_is_run_again(spark: SparkSession, server: Server, client: Client) -> None:
    frame = orders(spark, 4000, 2)
    broken = failing(frame, lambda part, attempt, batch: part == 1)
    with pytest.raises(Exception, match="injected"):
        write(broken, server, service="upper")
    assert stored(client) <= 2000
    write(frame, server, service="upper")
    assert stored(client) == len(bodies(server)) == 4000


def test_rows_with_the_same_key_are_one_request(spark: SparkSession, server: Server, client: Client) -> None:
    twice = orders(spark, 100).union(orders(spark, 100))
    write(twice.coalesce(1), server, service="upper")
    assert stored(client) == 100


@each(
    ("columns", "rows", "fault"),
    [
        (
            "key STRING, body STRING",
            [("a", "x"), (None, "y")],
            "a row has no key; its column key is null, its body 'y';",
        ),
        ("key STRING, body STRING", [("", "y")], "a row has no key; its column key is empty"),
        (
            "key STRING, body STRING",
            [("k" * 256, "y")],
            "the row with the key 'kkk.* has a key that is too long; .* 256 bytes",
        ),
        (
            "key STRING, body STRING",
            [("a", None)],
            "the row with the key 'a' has no body; it is null; filter such rows",
        ),
        (
            "key INT, body ARRAY<BINARY>",
            [(7, [None])],
            "the row with the key '7' has frames that are null in its column b",
        ),
        (
            "key INT, body STRING, priority INT",
            [(1, "x", 4), (2, "x", 12)],
            "the key '2' cannot have 12 in its column pri",
        ),
        (
            "key INT, body STRING, ttl DOUBLE",
            [(1, "x", float("nan"))],
            "the key '1' cannot have nan in its column ttl;",
        ),
        (
            "key INT, body STRING, delay INT",
            [(1, "x", -1)],
            "the key '1' cannot have -1 in its column delay; it is a num",
        ),
        ("key INT, body STRING, max_attempts INT", [(1, "x", 65536)], "cannot have 65536 in its column max_attempts"),
        (
            "key INT, body STRING, service STRING",
            [(1, "x", "a"), (2, "x", "")],
            "the key '2' cannot go to the service ''",
        ),
        (
            "key INT, body STRING, service STRING",
            [(1, "x", "a"), (2, "x", "mmi.x")],
            "the key '2' cannot go to the service 'mmi.x'; .* cannot be stored; change its column service",
        ),
    ],
)
def test_a_row_that_cannot_be_a_request(
    server: Server, client: Client, columns: str, rows: list[Any], fault: str
) -> None:
    """What a task of Spark does with its rows; that the driver tells of it is the next test's."""
    types = types_of(columns)
    values = [
        pa.array(list(column), ARROW[kind])
        for column, kind in zip(zip(*rows, strict=True), types.values(), strict=True)
    ]
    options = write_options({"endpoint": server.endpoints[0], "service": "upper"})
    with pytest.raises(InvalidRows, match=fault):
        submit(layout(types, options), [pa.RecordBatch.from_arrays(values, names=[*types])])
    assert stored(client) == 0


@pytest.mark.usefixtures("small_batches")
def test_a_bad_row_deep_in_the_data(spark: SparkSession, server: Server, client: Client) -> None:
    good = orders(spark, 800, 1)
    bad = good.withColumn("body", when(col("key") == "order 642", None).otherwise(col("body")))
    with pytest.raises(Exception, match="titanic: the row with the key 'order 642' has no body"):
        write(bad, server, service="upper", window=100)
    assert 400 < stored(client) <= 642
    write(good, server, service="upper")
    assert len(bodies(server)) == stored(client) == 800
    assert client.stats()["since_start"]["accepted"] == 800


def test_a_row_without_a_service(spark: SparkSession, server: Server) -> None:
    rows = spark.createDataFrame([(1, "x", "a"), (2, "x", None)], "key INT, body STRING, service STRING")
    with pytest.raises(Exception, match="the row with the key '2' has no service; its column service is null"):
        write(rows.coalesce(1), server)


def test_a_column_goes_before_the_option(spark: SparkSession, server: Server, client: Client) -> None:
    rows = spark.createDataFrame([(1, "x", "lower"), (2, "x", None)], "key INT, body STRING, service STRING")
    write(rows, server, service="upper")
    assert {row["key"]: row["service"] for row in client.list()[0]} == {"1": "lower", "2": "upper"}


def test_a_queue_that_is_full(spark: SparkSession, tmp_path: Path) -> None:
    with serving(tmp_path, capacity=16 << 20) as server, Client(server.endpoints[0]) as client:
        large = orders(spark, 400, 1).select("key", concat(lit("x" * 90_000), col("body")).alias("body"))
        with pytest.raises(Exception, match="store full"):
            write(large, server, service="upper", timeout=5)
        before = stored(client)
        assert 0 < before < 400
        client.purge("waiting")
        write(large.limit(20), server, service="upper", timeout=60)
        assert stored(client) <= 20


def test_an_absent_queue_is_waited_for_as_long_as_was_said(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = "tcp://127.0.0.1:1"
    with pytest.raises(Exception, match=r"no answer from tcp://127\.0\.0\.1:1; waited \d+(\.\d+)? (ms|s)"):
        collect(orders(spark, 1), absent, timeout=0.5).collect()
    monkeypatch.setattr("titanic_data.submission.ANSWER", 0.5)  # two tries, neither of which takes as long
    options = write_options({"endpoint": absent, "service": "upper", "timeout": "0.7"})
    rows = pa.record_batch({"key": ["a"], "body": ["b"]})
    with pytest.raises(TimedOut, match=r"waited ([7-9]\d\d ms|[1-9][\d.]* s)"):
        submit(layout({"key": "string", "body": "string"}, options), [rows])


def test_replies_come_back(spark: SparkSession, server: Server, client: Client) -> None:
    def work(frames: list[bytes]) -> list[bytes]:
        if frames[0].endswith(b"7"):
            raise RemoteError(500, "no sevens", [b"said the worker"])
        return [frames[0].upper()] if not frames[0].endswith(b"8") else [b"two", b"frames"]

    frame = orders(spark, 100)
    write(frame, server, service="upper")
    write(orders(spark, 101).where("key = 'order 100'"), server, service="absent")
    with Worker("upper", work, server.endpoints[0], jobs=4):
        keys = frame.select("key").union(spark.createDataFrame([("order 100",), ("nobody",)], "key STRING"))
        found = collect(keys.where("key != 'order 100'"), server.endpoints[0], timeout=200)
        rows = {row.key: row for row in found.collect()}
    assert len(rows) == 101
    assert (rows["order 1"].state, rows["order 1"].reply, rows["order 1"].reply_sizes) == ("ok", b"BODY 1", None)
    assert (rows["order 8"].state, rows["order 8"].reply, rows["order 8"].reply_sizes) == ("ok", b"twoframes", [3, 6])
    failed = rows["order 17"]
    assert (failed.state, failed.error, failed.reply) == ("failed", "no sevens", b"said the worker")
    assert (rows["nobody"].state, rows["nobody"].request_id) == ("unknown", None)
    states = {row.key: row.state for row in collect(keys, server.endpoints[0]).collect()}
    assert states["order 100"] == "pending"
    assert close(found.where("state = 'ok'"), server.endpoints[0]) == 90
    states = {row.key: row.state for row in collect(keys, server.endpoints[0]).collect()}
    assert (states["order 1"], states["order 17"]) == ("closed", "failed")


@pytest.mark.parametrize(
    ("columns", "options", "fault"),
    [
        ("kei STRING, body STRING", {}, "there is no column 'key' for the key; known: kei, body; did you mean kei?"),
        ("key STRING, text STRING", {}, "there is no column 'body' for the body; .*; name another with bodyColumn"),
        ("key DOUBLE, body STRING", {}, "the column key cannot be the key; its type is double"),
        ("key STRING, body MAP<STRING, INT>", {}, "the column body cannot be the body"),
        ("key STRING, body STRING, colour INT", {}, "the column colour would be lost; a request has body, .*; put it"),
        ("key STRING, body STRING, priority STRING", {}, "the column priority cannot be used; its type is string"),
        ("key STRING, body STRING", {"service": None}, "no service is given for the rows"),
        ("key STRING, body STRING", {"windw": 3}, "unknown option 'windw'; known: .*; did you mean window?"),
        ("key STRING, body STRING", {"window": 0}, "the option window cannot be '0'; it must be a number from 1 to"),
        ("key STRING, body STRING", {"keyFor": 0}, "the option keyFor cannot be '0'; it must be a number of seconds"),
        ("key STRING, body STRING", {"ttl": "nan"}, "the option ttl cannot be 'nan'; it must be a number of seconds"),
        (
            "key STRING, body STRING",
            {"endpoint": "localhost:5555"},
            "the option endpoint cannot be 'localhost:5555'; it",
        ),
        (
            "key STRING, body STRING",
            {"endpoint": "tcp://a:99999"},
            "the option endpoint cannot be 'tcp://a:99999'; it must be",
        ),
        (
            "key STRING, body STRING",
            {"service": "a\0b"},
            "the option service cannot be .*; service name has unprintable characters",
        ),
        (
            "key STRING, body STRING",
            {"service": "mmi.x"},
            "the option service cannot be 'mmi.x'; .* cannot be stored",
        ),
        ("key STRING, body STRING", {"service": "titanic.submit"}, "the option service cannot be 'titanic.submit'; "),
        (
            "key STRING, body STRING",
            {"priority": 10},
            "the option priority cannot be '10'; it must be a number from 0 to 9",
        ),
    ],
)
def test_bad_input_is_refused(columns: str, options: dict[str, Any], fault: str) -> None:
    given = {"service": "upper", "endpoint": "tcp://127.0.0.1:1", **options}
    with pytest.raises(PipelineError, match=fault):
        layout(
            types_of(columns), write_options({name: str(value) for name, value in given.items() if value is not None})
        )


def test_bad_input_is_refused_on_the_driver(spark: SparkSession) -> None:
    writer = spark.createDataFrame([], "kei STRING, body STRING").write.format("titanic").mode("append")
    with pytest.raises(Exception, match="titanic: there is no column 'key' for the key; known: kei, body; did you"):
        writer.options(service="upper", endpoint="tcp://127.0.0.1:1").save()


def test_overwriting_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="titanic: requests cannot be overwritten"):
        orders(spark, 1).write.format("titanic").mode("overwrite").option("service", "upper").save()
