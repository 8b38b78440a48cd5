"""Writing: every row becomes a request. See titanic_data.requests for why a task may be done twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from titanic_data.requests import Layout, submit


@dataclass
class Accepted(WriterCommitMessage):
    """So many rows of a task are on the queue's disk."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """Of df.write. There is nothing to commit or to take back: a job that is run again adds what is missing."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def write(self, iterator: Iterator[Any]) -> Accepted:
        """In a task."""
        return Accepted(submit(self._layout, iterator))


class StreamWriter(DataSourceStreamArrowWriter):
    """Of df.writeStream: the same. A micro-batch that is replayed after a crash finds its keys taken."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def write(self, iterator: Iterator[Any]) -> Accepted:
        """In a task."""
        return Accepted(submit(self._layout, iterator))
