"""A Spark session as the worker of a service: batches of requests in, a transformation, replies out.

    def transform(requests):                       # columns: id, body, frames
        return requests.selectExpr("id", "upper(CAST(body AS STRING)) AS reply")

    SparkWorker(session(), "upper", transform, "tcp://queue:5555").run()

The worker registers `lanes` times, so that it gets as many requests at once. The next batch gathers while Spark runs
one, so batches grow under load. Heartbeats have a thread of their own. As with any worker, a request is executed at
least once: when a batch fails, the attempt of each of its requests has failed, and the queue retries them. When Spark
itself ends, the worker answers nothing and ends, and the broker gives its requests to another worker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from broker import DEFAULT_ENDPOINT, Key, RemoteError, Worker, WorkerConfig
from titanic_data.errors import InvalidRows, SparkEnded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

LANES = 256

LINGER = 0.02
"""Seconds that a batch waits for one more request: a Spark job takes several times as long, even for one request."""

CHECK_INTERVAL = 5.0
"""Seconds after which an idle worker checks again whether Spark still runs."""

REQUESTS = pa.schema([("id", pa.int64()), ("body", pa.binary()), ("frames", pa.list_(pa.binary()))])
"""The columns that a transformation gets; `body` is all frames, joined. It returns `id` and `reply` (text, binary or a
list of binaries), and may return `error`: where that is not null, the attempt has failed with this text."""

REPLIES = (pa.string(), pa.binary(), pa.list_(pa.binary()), pa.list_(pa.string()))
"""The types that `reply` may have."""

Transform = Callable[["DataFrame"], "DataFrame"]


class _Asked(NamedTuple):
    """A request that a lane has, and the reply that it waits for."""

    frames: list[bytes]
    reply: Future[list[bytes]]


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
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        self._spark = spark
        self._transform = transform
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._lanes = lanes
        keys: dict[str, Any] = {"key": key, "server_key": server_key}
        self._worker = Worker(service, self._handle, endpoint, jobs=lanes, config=config, **keys)
        self._started, self._fault = False, ""
        self._jobs = threading.Thread(target=self._work, name="spark jobs", daemon=True)
        self.batches: list[int] = []
        """The number of requests of each of the last hundred batches."""

    def run(self) -> None:
        """Serve until `stop`. Raises SparkEnded when Spark ends first: other workers get the requests of this one."""
        self._jobs.start()
        try:
            self._worker.run()
        finally:
            self._asked.put(None)
            self._jobs.join()
        if self._fault:
            advice = "its requests go to another worker; check Spark's log, and start this worker again"
            raise SparkEnded("Spark has stopped", self._fault, advice)

    def start(self) -> SparkWorker:
        """Serve in other threads."""
        self._started = True
        self._jobs.start()
        self._worker.start()
        return self

    def stop(self) -> None:
        """Take no more requests, and finish those in hand."""
        self._worker.stop()
        if self._started:  # the lanes have ended; `run` waits for them, and ends the jobs then
            self._asked.put(None)

    def abandon(self) -> None:
        """End without finishing: the broker gives the requests in hand to another worker."""
        self._worker.abandon()
        self._asked.put(None)
        with suppress(Exception):  # it may have ended itself
            self._spark.interruptAll()

    def __enter__(self) -> SparkWorker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _handle(self, frames: list[bytes]) -> list[bytes]:
        """Wait for the reply to a request, in the thread of a lane."""
        asked = _Asked(frames, Future())
        self._asked.put(asked)
        return asked.reply.result()

    def _work(self) -> None:
        while (first := self._next()) is not None:
            batch = self._gather(first)
            self.batches = [*self.batches[-99:], len(batch)]
            try:
                replies = self._replies(batch)
            except Exception as error:
                text = (str(error).strip().splitlines() or [type(error).__name__])[0]
                if self._has_ended():
                    self._give_up(text)
                    return  # without an answer: the batch itself may be fine
                log.warning("a batch of %d requests failed: %s", len(batch), text)
                replies = [RemoteError(500, f"the batch failed: {text[:500]}") for _ in batch]
            for asked, reply in zip(batch, replies, strict=True):
                if isinstance(reply, RemoteError):
                    asked.reply.set_exception(reply)
                else:
                    asked.reply.set_result(reply)

    def _next(self) -> _Asked | None:
        """The next request; None when there are no more."""
        while True:
            try:
                return self._asked.get(timeout=CHECK_INTERVAL)
            except Empty:
                if self._has_ended():
                    self._give_up("while there was nothing to do")
                    return None

    def _has_ended(self) -> bool:
        """Whether Spark has ended."""
        try:
            if (context := getattr(self._spark, "sparkContext", None)) is not None:
                return bool(context._jsc.sc().isStopped())
            return not self._spark.version  # Spark Connect: asks the server, without a job
        except Exception:  # no answer, or stopped by this process
            return True

    def _give_up(self, why: str) -> None:
        self._fault = why
        log.error("Spark has stopped: %s; stopping the worker", why)
        self._worker.abandon()

    def _gather(self, first: _Asked) -> list[_Asked]:
        """A request and those that came with it."""
        batch = [first]
        while len(batch) < self._lanes:
            try:
                one = self._asked.get(timeout=LINGER)
            except Empty:
                break
            if one is None:
                self._asked.put(None)  # for `_next`: this batch is the last
                break
            batch.append(one)
        return batch

    def _replies(self, batch: list[_Asked]) -> list[list[bytes] | RemoteError]:
        rows = [{"id": n, "body": b"".join(one.frames), "frames": one.frames} for n, one in enumerate(batch)]
        requests = self._spark.createDataFrame(pa.Table.from_pylist(rows, REQUESTS))
        found: dict[int, list[bytes] | RemoteError] = {}
        replies = self._transform(requests).toArrow()
        _expect_columns(replies.schema)
        for row in replies.to_pylist():
            number = row["id"]
            if number is None or not 0 <= number < len(batch):
                what = f"the transformation returned the id {number}"
                raise InvalidRows(what, f"the ids of the batch are 0 to {len(batch) - 1}", "return each id unchanged")
            if number in found:
                found[number] = RemoteError(500, "the transformation returned more than one reply")
            elif row.get("error") is not None:
                found[number] = RemoteError(500, str(row["error"]))
            else:
                found[number] = _no_reply() if row["reply"] is None else _frames(row["reply"])
        return [found[number] if number in found else _no_reply() for number in range(len(batch))]


def _no_reply() -> RemoteError:
    return RemoteError(500, "the transformation gave no reply")


def _expect_columns(schema: Any) -> None:
    """Raise InvalidRows unless a transformation has returned the right columns."""
    for name in ("id", "reply"):
        if name not in schema.names:
            fact = f"it returned {', '.join(schema.names) or 'none'}"
            advice = "return id and reply (text, binary or an array of these), and optionally error"
            raise InvalidRows(f"the transformation returned no column {name}", fact, advice)
    kind = schema.field("id").type
    if not pa.types.is_integer(kind):
        raise InvalidRows("the transformation returned other ids", f"they are {kind}", "return each id unchanged")
    kind = schema.field("reply").type
    if _plain(kind) not in REPLIES:
        advice = "cast it to text, binary, or an array of these"
        raise InvalidRows("the transformation's replies cannot be sent", f"they are {kind}", advice)


def _plain(kind: Any) -> Any:
    """An Arrow type without its size."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def arrow(function: Callable[[Any], Any]) -> Transform:
    """A transformation from a function that runs in Spark's tasks: it takes an Arrow array of bodies (binary) and
    returns one of replies, of the same length. A null is a failed attempt."""

    def transform(requests: DataFrame) -> DataFrame:
        from pyspark.sql.pandas.functions import arrow_udf

        def call(bodies: pa.Array) -> pa.Array:
            return function(bodies)

        udf = arrow_udf(call, "BINARY")  # type: ignore[call-overload]
        return requests.select("id", udf("body").alias("reply"))

    return transform


def _frames(value: Any) -> list[bytes]:
    frames = value if isinstance(value, list) else [value]
    return [b"" if one is None else one.encode() if isinstance(one, str) else bytes(one) for one in frames]
