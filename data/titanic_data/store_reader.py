"""Reads the tables of a store as Arrow batches, in parts for different processes.

A process opens a store for reading only, and once: a second LMDB environment on the same file would take away the locks
of the first. Each batch is a transaction of its own, about a millisecond long: a long one would make the file grow.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from socket import gethostname
from typing import Any

from titanic.errors import NotAStore
from titanic.store import Store, closed_histories, open_read_only
from titanic_data.columns import closed_batch, waiting_batch
from titanic_data.errors import DataLoss
from titanic_data.tables import HISTORY

log = logging.getLogger(__name__)

BATCH = 4000
"""Rows of a batch: with fewer, a row costs more; with more, it costs no less."""

_stores: dict[str, tuple[tuple[int, int, int], Store]] = {}


def store_at(path: str | Path) -> Store:
    """The store in a directory, opened for reading. Raises a StoreError."""
    name = str(path)
    try:
        found = Path(name, "data.mdb").stat()
    except OSError as error:
        what, advice = f"there is no store at {name}", "name another directory"
        if on_executor():
            what += f", on the executor {gethostname()}"
            advice = "tasks must run on the machine of the queue, where its directory is"
        raise NotAStore(what, error.strerror or "", advice) from error
    identity = (os.getpid(), found.st_dev, found.st_ino)
    known, store = _stores.get(name, (None, None))
    if known == identity and store is not None:
        return store
    if known is not None and store is not None and known[0] == identity[0]:
        store.close()  # the file was replaced, by a restored store for example
    store = open_read_only(name)
    _stores[name] = identity, store
    return store


def on_executor() -> bool:
    """Whether this is a task of Spark."""
    spark = sys.modules.get("pyspark")  # else there is none
    return spark is not None and spark.TaskContext.get() is not None


def forget(path: str | Path) -> None:
    """Close a store that this process reads, so that it can be opened for writing."""
    known, store = _stores.pop(str(path), (None, None))
    if store is not None and known is not None and known[0] == os.getpid():
        store.close()


def closed_range(path: str | Path) -> tuple[int, int]:
    """The first and the last number in the ring, which a power cut does not undo: what a stream or an archive has, the
    store must have, too, or it would give out the number again."""
    store = store_at(path)
    with store.read() as transaction:
        found = transaction.archive()
    store.sync()
    return found.first, found.last


def identity(path: str | Path) -> str:
    """The id of a store, 32 hexadecimal digits; empty before a server of this version has opened it."""
    with store_at(path).read() as transaction:
        found = transaction.identity()
    return found.hex() if found else ""


def split(first: int, last: int, rows: int, least: int = 1) -> list[tuple[int, int]]:
    """The numbers from `first` to `last` in parts of about the same size: each of `rows` at most, and at least `least`
    parts if there are as many numbers."""
    count = last - first + 1
    if count <= 0:
        return []
    parts = min(count, max(least, -(-count // rows)))
    bounds = [first + count * n // parts for n in range(parts + 1)]
    return [(begin, end - 1) for begin, end in pairwise(bounds)]


def read_closed(
    path: str | Path,
    first: int,
    last: int,
    columns: Sequence[str],
    *,
    batch: int = BATCH,
    fail_on_loss: bool = True,
    instead: str = "",
) -> Iterator[Any]:
    """The closed requests number `first` to `last` as RecordBatches.

    Raises DataLoss when some have left the ring; without `fail_on_loss` they are skipped, and logged. `instead` is
    further advice for the error, as in `lost`.
    """
    store, number = store_at(path), first
    while number <= last:
        with store.read() as transaction:
            bulk = transaction.closed_bulk(number, min(last, number + batch - 1))
            ring = None if bulk.starts else transaction.archive()
            reads = HISTORY in columns
            histories = closed_histories(transaction, number, number + len(bulk.starts) - 1) if reads else {}
        if ring is None:
            yield closed_batch(bulk, columns, histories)
            number += len(bulk.starts)
        elif number > ring.last or fail_on_loss:
            raise lost(path, number, last, ring.first, ring.last, instead)
        else:
            number = skip(path, number, last, ring.first)


def lost(path: str | Path, first: int, last: int, oldest: int, newest: int, instead: str = "") -> DataLoss:
    """The error for numbers that the ring does not have. `instead` is further advice."""
    if first > newest:
        fact, advice = f"its last number is {newest}", "is it a different store?"
    else:
        fact = f"they were dropped to free space; the ring now begins at {oldest}"
        advices = ["read the archive", "register one, so that none is dropped before it is archived", instead]
        advice = ", or ".join(filter(None, advices))
    return DataLoss(f"closed requests {first} to {last} are not in the store {path}", fact, advice)


def skip(path: str | Path, first: int, last: int, oldest: int) -> int:
    """Log that numbers are skipped because failOnDataLoss is false, and return the number to go on with. In a task the
    log is Spark's."""
    what = "closed requests %d to %d are skipped: failOnDataLoss=false, and the store %s begins at %d"
    log.warning(what, first, min(last, oldest - 1), path, oldest)
    return oldest


def await_number(path: str | Path, first: int, newest: int) -> None:
    """Log that a store has not reached the number where reading begins."""
    log.warning("no closed requests from number %d on: the last number of the store %s is %d", first, path, newest)


def beyond(path: str | Path, first: int, newest: int) -> DataLoss:
    """The error for a start that the store has not reached: it was another ring that came so far."""
    advice = f"start at {newest + 1} at most, to read what comes next; failOnDataLoss=false reads nothing instead"
    what = f"startingOffsets is {first}, which the store {path} has not reached"
    return DataLoss(what, f"its last number is {newest}", f"is it a different store? {advice}")


def split_waiting(path: str | Path, rows: int) -> list[tuple[bytes, bytes | None]]:
    """The stored requests in parts of `rows`: the ids at which each part begins and ends."""
    with store_at(path).read() as transaction:
        begins = transaction.request_ids(rows)
    return list(zip_longest(begins, begins[1:]))


def read_waiting(
    path: str | Path, begin: bytes, end: bytes | None, columns: Sequence[str], *, batch: int = BATCH
) -> Iterator[Any]:
    """The requests with ids from `begin` up to `end` that have not ended, as RecordBatches."""
    store, following = store_at(path), begin
    while following is not None:
        with store.read() as transaction:
            rows, following = transaction.unended(following, end, batch)  # type: ignore[assignment]
        if rows:
            yield waiting_batch(rows, columns)
