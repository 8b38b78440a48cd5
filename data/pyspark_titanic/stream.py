"""Reading on the move: closed requests as they come, in micro-batches.

An offset is the last number that was read. Nothing is acknowledged to the queue from here: Spark's `commit` comes a
micro-batch late, and never for the last. What must not be missed is for the archive to hold (`titanic-data archive`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from titanic_data.errors import PipelineError
from titanic_data.options import LOSS_ALLOWED, ReadOptions, first_number
from titanic_data.reading import closed_range, lost, read_closed, split

SEQ = "seq"


class ClosedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The ring as a stream."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = columns
        self.target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where a query without a checkpoint begins."""
        oldest, newest = closed_range(self.options.path)
        return {SEQ: first_number(self.options, oldest, newest) - 1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """maxOffsetsPerTrigger."""
        most = self.options.maxoffsetspertrigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next micro-batch."""
        oldest, newest = closed_range(self.options.path)
        if newest < start[SEQ] and self.options.failondataloss:
            raise lost(self.options.path, newest + 1, start[SEQ], oldest, newest)
        if self.target is not None:
            newest = self.target
        if isinstance(limit, ReadMaxRows):
            newest = min(newest, start[SEQ] + limit.max_rows)
        return {SEQ: max(newest, start[SEQ])}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is all."""
        self.target = closed_range(self.options.path)[1]

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """For the query's progress."""
        return {SEQ: closed_range(self.options.path)[1]}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """A micro-batch, in parts."""
        options = self.options
        first, last = start[SEQ] + 1, end[SEQ]
        oldest, newest = closed_range(options.path)
        if last > newest:
            raise lost(options.path, first, last, oldest, newest)
        if first < oldest and first <= last:
            if options.failondataloss:
                raise lost(options.path, first, min(last, oldest - 1), oldest, newest, LOSS_ALLOWED)
            first = oldest
        return [InputPartition(part) for part in split(first, last, options.rowsperpartition, options.minpartitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: the part, in Arrow batches."""
        if partition.value is None:
            return iter(())
        first, last = partition.value
        options = self.options
        return read_closed(
            options.path,
            first,
            last,
            self.columns,
            batch=options.batchsize,
            fail_on_loss=options.failondataloss,
            instead=LOSS_ALLOWED,
        )


class RefusedStream(DataSourceStreamReader):
    """Says what is wrong with a stream as soon as Spark asks it something.

    When the source raises instead of handing out a reader, Spark 4 trips over the reader that it has not got, and
    reports that.
    """

    def __init__(self, error: PipelineError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Never."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Never."""
        raise self._error

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Never."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Never."""
        raise self._error
