"""Spark as the worker of a service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from support.titanic_serving import serving

import broker
from broker import Broker, BrokerConfig, WorkerConfig
from titanic import Client, RequestFailed, Server
from titanic_data.working import SparkWorker, Transform, arrow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, max_attempts=3) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.endpoints[0]) as client:
        yield client


def working(spark: SparkSession, server: Server, transform: Transform, lanes: int = 64) -> SparkWorker:
    return SparkWorker(spark, "upper", transform, server.endpoints[0], lanes=lanes)


def upper(requests: DataFrame) -> DataFrame:
    return requests.selectExpr("id", "upper(CAST(body AS STRING)) AS reply")


def test_batches_of_requests(spark: SparkSession, server: Server, client: Client) -> None:
    uuids = client.submit_batch("upper", [b"body %d" % n for n in range(300)])
    with working(spark, server, upper) as worker:
        replies = dict(client.replies(uuids, timeout=200))
    assert [replies[uuid] for uuid in uuids] == [[b"BODY %d" % n] for n in range(300)]
    assert len(worker.batches) < 60
    assert max(worker.batches) <= 64


def test_a_function_of_arrow_arrays(spark: SparkSession, server: Server, client: Client) -> None:
    def reverse(bodies: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        texts = pc.utf8_reverse(bodies.cast("string")).cast("binary")
        return pc.if_else(pc.equal(bodies, pa.scalar(b"bad", pa.binary())), pa.scalar(None, pa.binary()), texts)

    assert reverse(pa.array([b"ab"])).to_pylist() == [b"ba"]
    assert pc.is_null(reverse(pa.array([b"bad"]))).to_pylist() == [True]
    good, bad = client.submit("upper", "stressed"), client.submit("upper", "bad", max_attempts=1)
    with working(spark, server, arrow(reverse)):
        assert client.wait(good, 200) == [b"desserts"]
        with pytest.raises(RequestFailed, match="the transformation gave no reply"):
            client.wait(bad, 200)


def test_frames_in_and_out(spark: SparkSession, server: Server, client: Client) -> None:
    uuid = client.submit("upper", b"a", b"", b"c")
    with working(spark, server, lambda requests: requests.selectExpr("id", "reverse(frames) AS reply")):
        assert client.wait(uuid, 200) == [b"c", b"", b"a"]


def test_a_batch_that_fails_is_tried_again(spark: SparkSession, server: Server, client: Client) -> None:
    batches = 0

    def second_time(requests: DataFrame) -> DataFrame:
        nonlocal batches
        batches += 1
        return requests.selectExpr("id", "raise_error('oh no') AS reply") if batches == 1 else upper(requests)

    uuids = client.submit_batch("upper", [b"a", b"b"])
    with working(spark, server, second_time):
        assert sorted(reply for _, (reply,) in client.replies(uuids, timeout=200)) == [b"A", b"B"]  # type: ignore[misc]
    assert max(client.show(uuid)["attempts"] for uuid in uuids) == 2


def test_single_requests_that_fail(spark: SparkSession, server: Server, client: Client) -> None:
    def picky(requests: DataFrame) -> DataFrame:
        rows = requests.selectExpr("id", "CAST(body AS STRING) AS reply")
        rows = rows.selectExpr("*", "IF(reply = 'bad', 'no such thing', NULL) AS error").where("reply != 'left out'")
        return rows.union(rows.where("reply = 'twice'"))

    bodies = (b"good", b"bad", b"left out", b"twice")
    uuids = client.submit_batch("upper", bodies, max_attempts=1)
    with working(spark, server, picky):
        replies = dict(client.replies(uuids, timeout=200))
    assert replies[uuids[0]] == [b"good"]
    assert [str(replies[uuid]) for uuid in uuids[1:]] == [
        "failed: no such thing",
        "failed: the transformation gave no reply",
        "failed: the transformation gave more than one reply",
    ]


def test_heartbeats_go_on_while_spark_is_busy(spark: SparkSession) -> None:
    calls: list[int] = []
    busy = threading.Event()

    def slow(requests: DataFrame) -> DataFrame:
        calls.append(1)
        busy.wait(3.0)  # six heartbeats; who is silent for four is gone
        return upper(requests)

    with Broker(BrokerConfig(heartbeat_interval=0.5)) as running:
        endpoint = running.bind("tcp://127.0.0.1:*")
        worker = SparkWorker(spark, "upper", slow, endpoint, lanes=4, config=WorkerConfig(heartbeat_interval=0.5))
        with worker, broker.Client(endpoint) as asking:
            assert asking.call("upper", b"x", timeout=200, retries=0) == [b"X"]
    assert calls == [1]
