"""Closed requests as a stream, and streams into the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.ring import fill, ring, wait_for_room
from support.serving import serving
from support.store_facts import closed_range

from pyspark_titanic.source import ClosedStream
from titanic import Client
from titanic.store import open_store
from titanic_data.errors import OtherStore
from titanic_data.spark_options import read_options
from titanic_data.store_reader import forget, identity


def stream(spark: SparkSession, store: Path, **options: Any) -> DataFrame:
    options = {"columns": "seq,status", "maxOffsetsPerTrigger": 200, **options}
    return spark.readStream.format("titanic").options(**options).load(str(store))


def drain(frame: DataFrame, folder: Path) -> list[int]:
    """Let a query read all there is, from where its checkpoint says; the rows of each of its micro-batches."""
    sizes: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        batch.write.mode("append").parquet(str(folder / "out"))

    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    sizes += [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    return sizes


def numbers(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.seq for row in spark.read.parquet(str(folder / "out")).collect())


def test_all_there_is_and_what_comes_later(spark: SparkSession, tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 500)
    assert drain(stream(spark, store), tmp_path) == [200, 200, 100]
    assert numbers(spark, tmp_path) == list(range(1, 501))
    with open_store(store) as opened:
        fill(opened, 50, at=500)
    assert drain(stream(spark, store), tmp_path) == [50]
    assert drain(stream(spark, store), tmp_path) == []
    assert numbers(spark, tmp_path) == list(range(1, 551))


def test_where_it_begins(spark: SparkSession, tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 100)
    assert drain(stream(spark, store, startingOffsets=91, minPartitions=3), tmp_path / "number") == [10]
    assert drain(stream(spark, store, startingOffsets="latest"), tmp_path / "latest") == []


def test_a_ring_that_did_not_wait(spark: SparkSession, tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 100, capacity=16 << 20)
    assert drain(stream(spark, store), tmp_path) == [100]
    with open_store(store, capacity=16 << 20) as opened:
        wait_for_room(opened, 150)
        with opened.read() as txn:
            first, last = closed_range(txn)
    fault = f"titanic: closed requests 101 to .* are not in the store .*; the ring now begins at {first}"
    with pytest.raises(Exception, match=fault):
        drain(stream(spark, store, maxOffsetsPerTrigger=10_000), tmp_path)
    assert sum(drain(stream(spark, store, maxOffsetsPerTrigger=10_000, failOnDataLoss=False), tmp_path)) > 0
    assert numbers(spark, tmp_path)[100:] == list(range(first, last + 1))


def test_what_a_stream_skips_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ring(tmp_path / "store", 100, capacity=16 << 20)
    reader = ClosedStream(read_options({"path": str(store), "failOnDataLoss": "false"}), ["seq"])
    begin = reader.initialOffset()
    ahead = {**begin, "seq": 120}
    for _ in range(2):  # once, not with each trigger
        assert reader.latestOffset(ahead, ReadAllAvailable()) == ahead
    assert caplog.messages == [f"no closed requests from number 121 on: the last number of the store {store} is 100"]
    forget(store)
    with open_store(store, capacity=16 << 20) as opened:
        wait_for_room(opened, 50)
    end = reader.latestOffset(begin, ReadAllAvailable())
    first = reader.partitions(begin, end)[0].value[0]
    skipped = (
        f"closed requests 1 to {first - 1} are skipped: failOnDataLoss=false, and the store {store} begins at {first}"
    )
    assert first > 50
    assert caplog.messages[1:] == [skipped]


def test_the_checkpoint_of_another_store(spark: SparkSession, tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 100)
    before = identity(store)
    drain(stream(spark, store), tmp_path)
    for count in (10, 150):  # less than was read, and more
        store.rename(tmp_path / f"before {count}")
        now = identity(ring(store, count))
        fault = f"the stream has read a store other than {store}; its id is {before}, that of {store} is {now}"
        for loss in ("true", "false"):
            reader = ClosedStream(read_options({"path": str(store), "failOnDataLoss": loss}), ["seq"])
            with pytest.raises(OtherStore, match=fault):
                reader.latestOffset({"seq": 100, "store": before}, ReadAllAvailable())
    with pytest.raises(Exception, match=f"titanic: {fault}"):
        drain(stream(spark, store, failOnDataLoss=False), tmp_path)
    assert numbers(spark, tmp_path) == list(range(1, 101))


def test_a_checkpoint_that_names_no_store(spark: SparkSession, tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 100)
    drain(stream(spark, store), tmp_path)
    (noted,) = (tmp_path / "checkpoint" / "offsets").glob("0")
    named = f', "store": "{identity(store)}"'
    assert named in noted.read_text()
    noted.write_text(noted.read_text().replace(named, ""))
    (noted.parent / ".0.crc").unlink(missing_ok=True)
    fault = r'titanic: the checkpoint does not have the id of its store; its offset is \{"seq": 100\}; .*101'
    with pytest.raises(Exception, match=fault):
        drain(stream(spark, store), tmp_path)


def test_a_store_without_an_id_is_not_streamed(tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 5)
    with lmdb.open(str(store), max_dbs=16) as env, env.begin(write=True) as txn:
        txn.delete(b"identity", db=env.open_db(b"meta", txn))
    options = read_options({"path": str(store)})
    with pytest.raises(OtherStore, match=r"has no id; .*; start its server once"):
        ClosedStream(options, ["seq"]).initialOffset()


def test_a_micro_batch_that_is_replayed(spark: SparkSession, tmp_path: Path) -> None:
    store = ring(tmp_path / "ring", 300)
    checkpoint = tmp_path / "checkpoint"
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:

        def run() -> None:
            rows = stream(spark, store).select(concat(lit("k"), col("seq")).alias("key"), col("status").alias("body"))
            writer = rows.writeStream.format("titanic").option("endpoint", server.endpoints[0])
            writer = writer.option("service", "audit").option("checkpointLocation", str(checkpoint))
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(300)

        run()
        assert client.stats()["since_start"]["accepted"] == 300
        for file in (checkpoint / "commits").iterdir():  # as if it had been killed before it noted the last one
            if "1" in file.name:
                file.unlink()
        run()
        done = client.stats()["since_start"]
        assert done["accepted"] == client.stats()["store"]["requests"] == 300
        assert done["repeated"] == 100


def test_what_cannot_be_streamed(spark: SparkSession, tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 5)
    waiting = spark.readStream.format("titanic").option("table", "waiting").load(str(store))
    with pytest.raises(
        Exception, match="titanic: the table waiting cannot be streamed; it has no order; read it as a"
    ) as caught:
        drain(waiting, tmp_path)
    assert "UnboundLocalError" not in str(caught.value)
    ending = stream(spark, store, endingOffsets=3)
    with pytest.raises(
        Exception, match=r"titanic: endingOffsets is for spark\.read; a stream has no end; leave it out"
    ):
        drain(ending, tmp_path)
    odd = spark.readStream.format("titanic").schema("seq INT").load(str(store))
    with pytest.raises(Exception, match="titanic: the column seq cannot be read as INT; it is BIGINT"):
        drain(odd, tmp_path)
