"""Spark as the worker of a service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from support.processes import PYTHONPATH
from support.serving import QUICK
from support.spark import JAVA
from support.waiting import until

import broker
from broker import Broker, BrokerConfig, WorkerConfig
from titanic import Client, RequestFailed, Server
from titanic_data.spark_worker import SparkWorker, Transform, arrow

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.settings(max_attempts=3)


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


def test_what_is_abandoned_is_another_workers(
    spark: SparkSession, server: Server, client: Client, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"

    def endless(bodies: pa.Array) -> pa.Array:
        begun.touch()
        threading.Event().wait(300)
        return bodies

    uuid = client.submit("upper", "a")
    worker = working(spark, server, arrow(endless)).start()
    until(begun.exists)
    worker.abandon()
    with broker.Worker("upper", lambda frames: b"another's", server.endpoints[0], config=QUICK):
        assert client.wait(uuid, 60) == [b"another's"]
    until(lambda: not worker._jobs.is_alive())


def test_what_a_lane_gets_while_the_worker_stops_is_answered(
    spark: SparkSession, server: Server, client: Client
) -> None:
    begun, stopped = threading.Event(), threading.Event()

    class SlowLane(SparkWorker):
        def _handle(self, frames: list[bytes]) -> list[bytes]:
            begun.set()
            stopped.wait()
            return super()._handle(frames)

    uuid = client.submit("upper", "a")
    worker = SlowLane(spark, "upper", upper, server.endpoints[0], lanes=4)
    serving = threading.Thread(target=worker.run, daemon=True)
    serving.start()
    begun.wait()
    worker.stop()
    stopped.set()
    assert client.wait(uuid, 60) == [b"A"]
    until(lambda: not serving.is_alive())


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
        "failed: the transformation returned more than one reply",
    ]


def test_heartbeats_go_on_while_spark_is_busy(spark: SparkSession) -> None:
    calls: list[int] = []
    busy = threading.Event()

    def slow(requests: DataFrame) -> DataFrame:
        calls.append(1)
        busy.wait(7.0)  # who is silent for five seconds is gone
        return upper(requests)

    with Broker(BrokerConfig(heartbeat_interval=0.5, liveness=10)) as running:
        endpoint = running.bind("tcp://127.0.0.1:*")
        config = WorkerConfig(heartbeat_interval=0.5, liveness=10)
        worker = SparkWorker(spark, "upper", slow, endpoint, lanes=4, config=config)
        with worker, broker.Client(endpoint) as asking:
            assert asking.call("upper", b"x", timeout=200, retries=0) == [b"X"]
    assert calls == [1]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (["id - 1 AS id", "'x' AS reply"], "the transformation returned the id -1; the ids of the batch are 0 to "),
        (["id + 900 AS id", "'x' AS reply"], "the transformation returned the id 90"),
        (["CAST(NULL AS BIGINT) AS id", "'x' AS reply"], "the transformation returned the id None"),
        (["'0' AS id", "'x' AS reply"], "the transformation returned other ids; they are string"),
        (["id", "body AS answer"], "no column reply; it returned id, answer; return id and reply (text, binary"),
        (["body AS reply"], "the transformation returned no column id; it returned reply"),
        (["id", "id AS reply"], "the transformation's replies cannot be sent; they are int64; cast it to text"),
    ],
)
def test_what_a_transformation_must_not_return(
    spark: SparkSession, server: Server, client: Client, columns: list[str], why: str
) -> None:
    uuids = client.submit_batch("upper", [b"a", b"b"], max_attempts=1)
    with working(spark, server, lambda requests: requests.selectExpr(*columns)):
        replies = dict(client.replies(uuids, timeout=200))
    for uuid in uuids:
        assert isinstance(replies[uuid], RequestFailed)
        assert why in str(replies[uuid])


def test_frames_of_text(spark: SparkSession, server: Server, client: Client) -> None:
    uuid = client.submit("upper", b"a")
    with working(spark, server, lambda requests: requests.selectExpr("id", "array('x', 'y') AS reply")):
        assert client.wait(uuid, 200) == [b"x", b"y"]


SLOW = """
import time

def transform(requests):
    open("begun", "a").write("x")
    time.sleep(float(open("pause").read()))
    return requests.selectExpr("id", "upper(CAST(body AS STRING)) AS reply")
"""


@pytest.mark.parametrize("busy", [True, pytest.param(False, marks=pytest.mark.torture)], ids=["busy", "idle"])
def test_a_worker_without_its_spark_ends_and_answers_nothing(
    server: Server, client: Client, tmp_path: Path, busy: bool
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "pause").write_text("0")
    words = ["work", "upper", "slow:transform", "--endpoint", server.endpoints[0], "--lanes", "4"]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "SPARK_MASTER": "local[1]", "JAVA_TOOL_OPTIONS": JAVA}
    log = tmp_path / "work.log"
    with log.open("wb") as opened:
        command = [sys.executable, "-m", "titanic_data", *words]
        worker = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=opened, stderr=opened)
    try:
        uuids = client.submit_batch("upper", [b"a", b"b"], max_attempts=1)
        assert sorted(reply for _, (reply,) in client.replies(uuids, timeout=200)) == [b"A", b"B"]  # type: ignore[misc]
        if busy:
            (tmp_path / "begun").unlink()
            (tmp_path / "pause").write_text("5")
            uuids = client.submit_batch("upper", [b"a", b"b"], max_attempts=1)
            until((tmp_path / "begun").exists, 200)
        for java in children(worker.pid):
            with suppress(ProcessLookupError):  # it has ended with the one before
                os.kill(java, signal.SIGKILL)
        assert worker.wait(100) == 1, log.read_text()
    finally:
        worker.kill()
        worker.wait()
    said = log.read_text()
    assert said.splitlines()[-1].startswith("titanic-data: Spark has stopped; ")
    assert "Traceback" not in said
    if busy:
        with broker.Worker("upper", lambda frames: b"another's", server.endpoints[0], config=QUICK):
            assert [reply for _, reply in client.replies(uuids, timeout=200)] == [[b"another's"]] * 2


def children(pid: int) -> list[int]:
    """The processes that a process has started, also indirectly."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # threads of Java come and go
            found += map(int, (task / "children").read_text().split())
    return found + [one for child in found for one in children(child)]
