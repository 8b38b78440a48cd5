"""The ways that SQL and Spark's writers have to a source: each works, or is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.ring import ring

from titanic import Client, Server
from titanic_data.errors import InvalidOption
from titanic_data.spark_options import read_options


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ring(tmp_path_factory.mktemp("sql") / "store", 50)


@pytest.fixture(autouse=True)
def clean(spark: SparkSession) -> Iterator[None]:
    """Nothing is left in the catalog."""
    yield
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.collect())


def waiting(server: Server) -> set[bytes]:
    with server.store.read() as txn:
        return {row.key for row, _ in txn.unended(b"", None, 1000)[0]}


def orders(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("order 1", "body")], "key STRING, body STRING")


def test_a_view_of_the_ring(spark: SparkSession, store: Path) -> None:
    where = f"file://{store}"
    spark.sql(f"CREATE TEMPORARY VIEW ring USING titanic OPTIONS (path '{where}', columns 'seq, status')")
    assert numbers(spark.sql("SELECT seq FROM ring WHERE seq > 48")) == [49, 50]
    assert spark.table("ring").columns == ["seq", "status"]
    assert numbers(spark.read.format("titanic").option("startingOffsets", 50).load(where)) == [50]


def test_a_view_with_columns_and_one_of_what_waits(spark: SparkSession, store: Path) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW ring (seq BIGINT) USING titanic OPTIONS (path '{store}')")
    assert len(numbers(spark.table("ring"))) == 50
    spark.sql(f"CREATE TEMPORARY VIEW later USING titanic OPTIONS (path '{store}', table 'waiting')")
    assert spark.sql("SELECT count(*) FROM later").collect() == [(0,)]


def test_rows_are_inserted_into_a_view(spark: SparkSession, server: Server) -> None:
    options = f"OPTIONS (endpoint '{server.endpoints[0]}', service 'upper')"
    spark.sql(f"CREATE TEMPORARY VIEW queue (key STRING, body STRING) USING titanic {options}")
    spark.sql("INSERT INTO queue VALUES ('a', 'x'), ('b', 'y')")
    spark.sql("INSERT INTO queue SELECT concat('c', id), 'z' FROM range(2)")
    orders(spark).write.insertInto("queue")
    assert waiting(server) == {b"a", b"b", b"c0", b"c1", b"order 1"}
    with pytest.raises(Exception, match="titanic: requests cannot be overwritten"):
        spark.sql("INSERT OVERWRITE queue VALUES ('d', 'x')")
    with pytest.raises(Exception, match=r"titanic: unknown option '(endpoint|service)' for reading"):
        spark.sql("SELECT * FROM queue").collect()


def test_a_view_to_insert_into_needs_columns(spark: SparkSession, store: Path) -> None:
    fault = r"titanic: unknown option 'service' for reading; .*\(key STRING, body STRING\) USING titanic"
    with pytest.raises(Exception, match=fault):
        spark.sql("CREATE TEMPORARY VIEW queue USING titanic OPTIONS (service 'upper')")
    spark.sql(f"CREATE TEMPORARY VIEW ring USING titanic OPTIONS (path '{store}')")
    with pytest.raises(Exception, match="titanic: there is no column 'body' for the body"):
        spark.sql("INSERT INTO ring SELECT * FROM ring")


NO_TABLES = "titanic: a table in Spark's catalog cannot be read or written as titanic; .*CREATE TEMPORARY VIEW"
CREATIONS: dict[str, Callable[[SparkSession, Path], Any]] = {
    "options": lambda spark, path: spark.sql(f"CREATE TABLE t USING titanic OPTIONS (path '{path}')"),
    "location": lambda spark, path: spark.sql(f"CREATE TABLE t USING titanic LOCATION '{path}'"),
    "catalog": lambda spark, path: spark.catalog.createTable("t", source="titanic", path=str(path)),
    "nothing": lambda spark, path: spark.sql("CREATE TABLE t USING titanic"),
}


@pytest.mark.parametrize("way", CREATIONS)
def test_a_table_of_the_catalog_is_refused_at_once(spark: SparkSession, store: Path, way: str) -> None:
    """Spark keeps the table's options and does not give them to the source again."""
    with pytest.raises(Exception, match=NO_TABLES):
        CREATIONS[way](spark, store)
    assert spark.catalog.listTables() == []


USES: dict[str, Callable[[SparkSession], Any]] = {
    "select": lambda spark: spark.sql("SELECT * FROM t").collect(),
    "insert": lambda spark: spark.sql("INSERT INTO t VALUES ('a', 'x', 'upper')"),
    "append": lambda spark: orders(spark).selectExpr("*", "'upper' AS service").writeTo("t").append(),
    "select as": lambda spark: spark.sql(
        "CREATE TABLE u USING titanic OPTIONS (service 'upper') AS SELECT 'a' AS key, 'x' AS body, 'upper' AS service"
    ),
}


@pytest.mark.parametrize("way", USES)
def test_a_table_with_columns_is_refused_when_it_is_used(spark: SparkSession, way: str) -> None:
    """Its creation asks nobody. Its rows must not go to some queue that happens to be at the default endpoint."""
    options = "OPTIONS (path '/somewhere', endpoint 'tcp://127.0.0.1:1', timeout '0.2')"
    spark.sql(f"CREATE TABLE t (key STRING, body STRING, service STRING) USING titanic {options}")
    with pytest.raises(Exception, match=r"titanic: there (is no path to read from|are no options); .*TEMPORARY VIEW"):
        USES[way](spark)


def test_a_table_is_not_streamed(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE t (seq BIGINT) USING titanic OPTIONS (path '{store}')")
    writer = spark.readStream.table("t").writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match=r"titanic: there is no path to read from; .*TEMPORARY VIEW"):
        writer.trigger(availableNow=True).start().awaitTermination(60)


def test_a_mode_is_wanted(spark: SparkSession, server: Server) -> None:
    writer = orders(spark).write.format("titanic").option("service", "upper").option("endpoint", server.endpoints[0])
    refused = r'"titanic" cannot be written in the "(ErrorIfExists|Ignore)" mode.*"Append"'
    for mode in ("", "error", "ignore"):
        with pytest.raises(Exception, match=refused):
            (writer.mode(mode) if mode else writer).save()
    writer.mode("append").save()
    with Client(server.endpoints[0]) as client:
        assert client.stats()["store"]["requests"] == 1


def test_a_path_in_from_is_refused(spark: SparkSession, store: Path) -> None:
    with pytest.raises(Exception, match="Unsupported data source type for direct query on files: titanic"):
        spark.sql(f"SELECT * FROM titanic.`{store}`")


@pytest.mark.parametrize("path", ["hdfs://here/store", "s3a://bucket/store", "file://elsewhere/store", "dbfs:/store"])
def test_a_store_is_on_this_machine(path: str) -> None:
    with pytest.raises(InvalidOption, match=f"the option path cannot be '{path}'; it must be a directory, or file:///"):
        read_options({"path": path})


@pytest.mark.parametrize("path", ["{}", "file://{}", "file:{}"])
def test_ways_to_write_a_path(store: Path, path: str) -> None:
    assert read_options({"path": path.format(store)}).path == str(store)
