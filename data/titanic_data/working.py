"""A Spark session as the worker of a service: batches of requests in, a transformation, replies out.

    def transform(requests):                       # columns: id, body, frames
        return requests.selectExpr("id", "upper(CAST(body AS STRING)) AS reply")

    SparkWorker(session(), "upper", transform, "tcp://queue:5555").run()

The worker registers `lanes` times, so that as many requests come at once. While Spark is at one batch the next gathers:
under load batches grow by themselves. Heartbeats go on in a thread of their own. As with any worker a request is
executed at least once: a batch that fails fails its requests as attempts, which the queue tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from broker import DEFAULT_ENDPOINT, RemoteError, Worker, WorkerConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

LANES = 256

LINGER = 0.02
"""Seconds that a batch waits for one more: a job of Spark takes several times as long, also for a single request."""

REQUESTS = pa.schema([("id", pa.int64()), ("body", pa.binary()), ("frames", pa.list_(pa.binary()))])
"""What a transformation gets: `body` is all frames, joined. It must return `id` and `reply` (text, binary or a list of
binaries), and may return `error`: where that is not null, the attempt has failed with this text."""

Transform = Callable[["DataFrame"], "DataFrame"]


class _Asked:
    """A request in the hands of a lane, which waits until it is answered."""

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames
        self.reply: list[bytes] | RemoteError = RemoteError(500, "the transformation gave no reply")
        self.answered = threading.Event()


class SparkWorker:
    """Serves a service with a transformation of DataFrames."""

    def __init__(
        self,
        spark: SparkSession,
        service: str,
        transform: Transform,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        lanes: int = LANES,
        config: WorkerConfig | None = None,
    ) -> None:
        self._spark = spark
        self._transform = transform
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._lanes = lanes
        self._worker = Worker(service, self._handle, endpoint, jobs=lanes, config=config)
        self._jobs = threading.Thread(target=self._work, name="spark jobs", daemon=True)
        self.batches: list[int] = []
        """How many requests each batch had, the last hundred."""

    def run(self) -> None:
        """Serve until `stop`."""
        self._jobs.start()
        try:
            self._worker.run()
        finally:
            self._asked.put(None)
            self._jobs.join()

    def start(self) -> SparkWorker:
        """Serve in threads of its own."""
        self._jobs.start()
        self._worker.start()
        return self

    def stop(self) -> None:
        """Take no more requests and finish those in hand."""
        self._worker.stop()
        self._asked.put(None)

    def abandon(self) -> None:
        """End without finishing: the broker gives what is in hand to another worker."""
        self._worker.abandon()
        self._asked.put(None)
        self._spark.sparkContext.cancelAllJobs()

    def __enter__(self) -> SparkWorker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _handle(self, frames: list[bytes]) -> list[bytes]:
        """Runs in a lane's thread."""
        asked = _Asked(frames)
        self._asked.put(asked)
        asked.answered.wait()
        if isinstance(asked.reply, RemoteError):
            raise asked.reply
        return asked.reply

    def _work(self) -> None:
        while (first := self._asked.get()) is not None:
            batch = self._gather(first)
            self.batches = [*self.batches[-99:], len(batch)]
            try:
                self._answer(batch)
            except Exception as error:
                text = (str(error).strip().splitlines() or [type(error).__name__])[0]
                log.warning("a batch of %d requests failed: %s", len(batch), text)
                for asked in batch:
                    asked.reply = RemoteError(500, f"the batch failed: {text[:500]}")
            for asked in batch:
                asked.answered.set()

    def _gather(self, first: _Asked) -> list[_Asked]:
        """A request and those that are there with it."""
        batch = [first]
        while len(batch) < self._lanes:
            try:
                one = self._asked.get(timeout=LINGER)
            except Empty:
                break
            if one is None:
                self._asked.put(None)  # it ends after this batch
                break
            batch.append(one)
        return batch

    def _answer(self, batch: list[_Asked]) -> None:
        rows = [{"id": n, "body": b"".join(one.frames), "frames": one.frames} for n, one in enumerate(batch)]
        requests = self._spark.createDataFrame(pa.Table.from_pylist(rows, REQUESTS))
        seen: set[int] = set()
        for row in self._transform(requests).toArrow().to_pylist():
            number = row["id"]
            asked = batch[number]
            if number in seen:
                asked.reply = RemoteError(500, "the transformation gave more than one reply")
            elif row.get("error") is not None:
                asked.reply = RemoteError(500, str(row["error"]))
            elif row["reply"] is not None:
                asked.reply = _frames(row["reply"])
            seen.add(number)


def arrow(function: Callable[[Any], Any]) -> Transform:
    """A transformation from a function that takes an Arrow array of bodies (binary) and returns one of replies, as
    long: it runs in Spark's tasks. A null is an attempt that has failed."""

    def transform(requests: DataFrame) -> DataFrame:
        from pyspark.sql.pandas.functions import arrow_udf

        def call(bodies: pa.Array) -> pa.Array:
            return function(bodies)

        udf = arrow_udf(call, "BINARY")  # type: ignore[call-overload]
        return requests.select("id", udf("body").alias("reply"))

    return transform


def _frames(value: Any) -> list[bytes]:
    if isinstance(value, list):
        return [bytes(one) for one in value]
    return [value.encode() if isinstance(value, str) else bytes(value)]
