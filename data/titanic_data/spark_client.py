"""A client of the queue for DataFrames: collect replies, close requests, submit archived requests again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from broker import DEFAULT_ENDPOINT
from titanic import Client, RequestFailed, TimedOut
from titanic_data.errors import Incomplete, InvalidOption
from titanic_data.submission import ANSWER, connect

if TYPE_CHECKING:  # pyspark is needed only where a DataFrame comes from
    from pyspark.sql import DataFrame

REPLIES = "key STRING, request_id STRING, state STRING, reply BINARY, reply_sizes ARRAY<INT>, error STRING"
"""The columns of what `collect` returns. `state` is ok, failed, expired, pending, closed (the reply was fetched and the
request closed), or unknown (no such key, or a forgotten one). `reply` is what the worker sent, also with an error; its
frames are joined, and `reply_sizes` says where to cut when there isn't exactly one."""

_REPLY = pa.struct(
    [
        ("key", pa.string()),
        ("request_id", pa.string()),
        ("state", pa.string()),
        ("reply", pa.binary()),
        ("reply_sizes", pa.list_(pa.int32())),
        ("error", pa.string()),
    ]
)

FRAMES = """
    CASE WHEN request_sizes IS NULL THEN array(request)
    ELSE transform(request_sizes, (size, n) ->
        substring(request, 1 + aggregate(slice(request_sizes, 1, n), 0, (sum, one) -> sum + one), size)) END"""
"""The frames of an archived request, in SQL."""

MOST_NAME = 200
"""Bytes of the name of a replay: a key has 255, with the UUID in it."""


class Replayed(NamedTuple):
    """How many requests were submitted, and how many of them were `new`: the queue had the others under this name."""

    requests: int
    new: int


def collect(
    keys: DataFrame,
    endpoint: str = DEFAULT_ENDPOINT,
    *,
    key_column: str = "key",
    timeout: float = 0.0,
    key: str | None = None,
    server_key: str | None = None,
) -> DataFrame:
    """The replies to the requests that were submitted with the keys in a column, one row for each: see REPLIES.

    Waits for pending replies, and for a queue that is away, until `timeout` seconds after this call. In each task a
    queue that does not answer has at least five of these seconds, however late the task begins; five are the default.
    Nothing is closed: replies can be read again until `close`. The queue remembers a key for as long as the option
    keyFor says.

    `key`, `server_key`: as of `titanic.Client`, here and below. The tasks read the files: they must be where tasks run.
    """
    until, least = time.time() + timeout, min(timeout or ANSWER, ANSWER)
    found = _ask(
        keys,
        key_column,
        REPLIES,
        lambda: connect(endpoint, max(until - time.time(), least), key, server_key),
        lambda client, names: pa.array(_replies(client, names, until), _REPLY),
    )
    return found.select("answer.*")


def known(
    keys: DataFrame,
    endpoint: str = DEFAULT_ENDPOINT,
    *,
    key_column: str = "key",
    key: str | None = None,
    server_key: str | None = None,
) -> int:
    """How many of the keys in a column the queue remembers."""
    connected = partial(Client, endpoint, key=key, server_key=server_key)

    def find(client: Client, names: list[Any]) -> pa.Array:
        found, _ = client.find([key for key in names if key])
        return pa.array([key in found for key in names])

    return _ask(keys, key_column, "BOOLEAN", connected, find).where("answer").count()


def close(
    requests: DataFrame,
    endpoint: str = DEFAULT_ENDPOINT,
    *,
    id_column: str = "request_id",
    key: str | None = None,
    server_key: str | None = None,
) -> int:
    """Close the requests with the UUIDs in a column, and return their number. They move to the ring."""
    connected = partial(Client, endpoint, key=key, server_key=server_key)

    def end(client: Client, uuids: list[Any]) -> pa.Array:
        client.close_many(uuid for uuid in uuids if uuid is not None)
        return pa.array(uuids, pa.string())

    return _ask(requests, id_column, "STRING", connected, end).where("answer IS NOT NULL").count()


def requests_again(closed: DataFrame, name: str = "replay") -> DataFrame:
    """Archived requests as rows for `df.write.format("titanic").option("bodyColumn", "frames")`.

    Each has a key made of `name` and its old UUID: under one name it is submitted once, however often this is run.
    """
    from pyspark.sql.functions import concat, lit

    if not 0 < len(name.encode()) <= MOST_NAME:
        raise InvalidOption(f"the name cannot be {name!r}", f"it must have 1 to {MOST_NAME} bytes")
    key = concat(lit(f"{name} "), "request_id").alias("key")
    return closed.selectExpr("*", f"{FRAMES} AS frames").select(key, "service", "frames", "priority")


def replay(
    closed: DataFrame,
    endpoint: str = DEFAULT_ENDPOINT,
    *,
    name: str = "replay",
    skip_missing: bool = False,
    key: str | None = None,
    server_key: str | None = None,
) -> Replayed:
    """Submit archived requests again. Raises Incomplete, before anything is submitted, when some bodies were too large
    for the ring to keep; with `skip_missing` these requests are left out."""
    rows = requests_again(closed.where("request IS NOT NULL"), name)
    missing = closed.where("request IS NULL").count()
    if missing and not skip_missing:
        fact = f"the bodies of {missing} were larger than the ring keeps"
        raise Incomplete("not all of these requests can be submitted again", fact, "leave them out with --skip-missing")
    count = rows.count()
    before = known(rows, endpoint, key=key, server_key=server_key)
    writer = rows.write.format("titanic").mode("append").option("bodyColumn", "frames")
    for option, value in (("endpoint", endpoint), ("keyFile", key), ("serverKey", server_key)):
        if value is not None:
            writer = writer.option(option, value)
    writer.save()
    return Replayed(count, count - before)


def _ask(
    frame: DataFrame,
    column: str,
    kind: str,
    connected: Callable[[], Client],
    answer: Callable[[Client, list[Any]], pa.Array],
) -> DataFrame:
    """A column `answer` of the SQL type `kind`: what `answer` returns for each batch of a column, in Spark's tasks."""
    from pyspark.sql.pandas.functions import arrow_udf

    def call(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        with connected() as client:
            for values in columns:
                yield answer(client, values.to_pylist())

    # Its kind follows from its type hints, which the stubs do not know. Nondeterministic: called once for each row.
    udf = arrow_udf(call, kind).asNondeterministic()  # type: ignore[call-overload]
    return frame.select(udf(column).alias("answer"))


def _replies(client: Client, values: list[Any], until: float) -> list[dict[str, Any]]:
    keys = [None if value is None else str(value) for value in values]
    uuids, states = client.find([key for key in keys if key])
    rows = []
    outcomes: dict[str, Any] = {}
    pending = [uuid for uuid in uuids.values() if uuid in states]
    try:
        for uuid, answer in client.replies(pending, timeout=max(0.0, until - time.time())):
            outcomes[uuid] = answer
    except TimedOut:
        pass
    for key in keys:
        found = uuids.get(key or "")
        row: dict[str, Any] = {"key": key, "request_id": found}
        outcome = outcomes.get(found or "")
        if found is None:
            row["state"] = "unknown"
        elif isinstance(outcome, list):
            row |= {"state": "ok", **_reply(outcome)}
        elif isinstance(outcome, RequestFailed):
            word, _, reason = str(outcome).partition(": ")
            row |= {"state": word, "error": reason, **_reply(outcome.detail)}
        else:
            row["state"] = "pending" if found in states and outcome is None else "closed"
        rows.append(row)
    return rows


def _reply(frames: list[bytes]) -> dict[str, Any]:
    return {"reply": b"".join(frames), "reply_sizes": None if len(frames) == 1 else list(map(len, frames))}
