"""Replies as a DataFrame: what became of the requests that were submitted with some keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from broker import DEFAULT_ENDPOINT
from titanic import Client, RequestFailed, TimedOut
from titanic_data.connecting import ANSWER, connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPLIES = "key STRING, request_id STRING, state STRING, reply BINARY, reply_sizes ARRAY<INT>, error STRING"
"""The columns of what `collect` returns. `state` is ok, failed, expired, pending, closed (the reply was fetched and the
request closed), or unknown (no such key, or forgotten). `reply` is what the worker sent, with an error too; its frames
are joined, `reply_sizes` says where to cut when there isn't exactly one."""

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


def collect(
    keys: DataFrame, endpoint: str = DEFAULT_ENDPOINT, *, key_column: str = "key", timeout: float = 0.0
) -> DataFrame:
    """The replies to the requests that were submitted with the keys in a column, one row for each: see REPLIES.

    Waits for those that are pending, and for a queue that is away, until `timeout` seconds have passed since this call.
    A queue that does not answer has up to five seconds of them in each task, however late that begins; those are the
    default. Nothing is closed: it can be read again, until `close`. Keys are remembered by the queue for as long as the
    option keyFor said.
    """
    from pyspark.sql.pandas.functions import arrow_udf

    until, least = time.time() + timeout, min(timeout or ANSWER, ANSWER)

    def fetch(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        with connect(endpoint, max(until - time.time(), least)) as client:
            for column in columns:
                names = [None if key is None else str(key) for key in column.to_pylist()]
                yield pa.array(_replies(client, names, until), _REPLY)

    # Its kind follows from its type hints, which the stubs do not know. Nondeterministic: called once for each key.
    udf = arrow_udf(fetch, REPLIES).asNondeterministic()  # type: ignore[call-overload]
    return keys.select(udf(key_column).alias("reply")).select("reply.*")


def known(keys: DataFrame, endpoint: str = DEFAULT_ENDPOINT, *, key_column: str = "key") -> int:
    """How many of the keys in a column the queue remembers."""
    from pyspark.sql.pandas.functions import arrow_udf

    def find(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        with Client(endpoint) as client:
            for column in columns:
                names = column.to_pylist()
                found, _ = client.find([key for key in names if key])
                yield pa.array([key in found for key in names])

    udf = arrow_udf(find, "BOOLEAN").asNondeterministic()  # type: ignore[call-overload]
    return keys.select(udf(key_column).alias("known")).where("known").count()


def close(requests: DataFrame, endpoint: str = DEFAULT_ENDPOINT, *, id_column: str = "request_id") -> int:
    """Close the requests whose UUIDs are in a column, and return how many these were. They move to the ring."""
    from pyspark.sql.pandas.functions import arrow_udf

    def end(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        with Client(endpoint) as client:
            for column in columns:
                client.close_many(uuid for uuid in column.to_pylist() if uuid is not None)
                yield column

    udf = arrow_udf(end, "STRING").asNondeterministic()  # type: ignore[call-overload]
    return requests.select(udf(id_column).alias("id")).where("id IS NOT NULL").count()


def _replies(client: Client, keys: list[str | None], until: float) -> list[dict[str, Any]]:
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
            row |= {"state": "ok", **_frames(outcome)}
        elif isinstance(outcome, RequestFailed):
            word, _, reason = str(outcome).partition(": ")
            row |= {"state": word, "error": reason, **_frames(outcome.detail)}
        else:
            row["state"] = "pending" if found in states and outcome is None else "closed"
        rows.append(row)
    return rows


def _frames(frames: list[bytes]) -> dict[str, Any]:
    return {"reply": b"".join(frames), "reply_sizes": None if len(frames) == 1 else list(map(len, frames))}
