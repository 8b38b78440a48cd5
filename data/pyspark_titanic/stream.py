"""Reads a stream: closed requests as they come, in micro-batches.

An offset is the last number that was read, with the id of the store, for in another store it means nothing. The stream
acknowledges nothing to the queue: Spark's `commit` comes a micro-batch late, and never for the last one. To keep every
request, archive the ring (`titanic-data archive`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_titanic.batch import ClosedParts
from titanic_data.errors import OtherStore, PipelineError
from titanic_data.spark_options import ReadOptions, first_number
from titanic_data.store_reader import await_number, closed_range, identity, lost

SEQ, STORE = "seq", "store"

Offset = dict[str, Any]
"""{"seq": the last number that was read, "store": the id of its store}"""


class ClosedStream(ClosedParts, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The ring as a stream."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self.target: int | None = None
        self._told = False

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a query without a checkpoint begins."""
        oldest, newest = closed_range(self.options.path)
        return self._offset(first_number(self.options, oldest, newest) - 1)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option maxOffsetsPerTrigger."""
        most = self.options.maxoffsetspertrigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next micro-batch."""
        before = self._number(start)
        oldest, newest = closed_range(self.options.path)
        if newest < before:
            if self.options.failondataloss:
                raise lost(self.options.path, newest + 1, before, oldest, newest)
            if not self._told:  # once, not at every trigger
                await_number(self.options.path, before + 1, newest)
            self._told = True
        if self.target is not None:
            newest = self.target
        if isinstance(limit, ReadMaxRows):
            newest = min(newest, before + limit.max_rows)
        return self._offset(max(newest, before))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the stream with what is there now."""
        self.target = closed_range(self.options.path)[1]

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """For the query's progress."""
        return self._offset(closed_range(self.options.path)[1])

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """A micro-batch, in parts."""
        first, last = self._number(start) + 1, self._number(end)
        oldest, newest = closed_range(self.options.path)
        if last > newest:
            raise lost(self.options.path, first, last, oldest, newest)
        return self.parts(first, last, oldest, newest)

    def _offset(self, number: int) -> Offset:
        path = self.options.path
        if not (found := identity(path)):
            fact, advice = "no server of this version has opened it", "start its server once"
            raise OtherStore(f"the store {path} has no id; a stream's checkpoint needs one", fact, advice)
        return {SEQ: number, STORE: found}

    def _number(self, offset: Offset) -> int:
        """The number of an offset. Raises OtherStore unless it is of this store, also with failOnDataLoss=false."""
        path, number, found = self.options.path, int(offset[SEQ]), identity(self.options.path)
        if STORE not in offset:
            fact = f"its offset is {json.dumps(offset)}"
            advice = f"if it was this one, begin with another checkpointLocation and startingOffsets={number + 1}"
            raise OtherStore("the checkpoint does not have the id of its store", fact, advice)
        if offset[STORE] != found:
            fact = f"its id is {offset[STORE]}, that of {path} is {found or 'none yet'}"
            advice = "name the right path; a stream of this one needs another checkpointLocation"
            raise OtherStore(f"the stream has read a store other than {path}", fact, advice)
        return number


class RefusedStream(DataSourceStreamReader):
    """Raises an error as soon as Spark calls it.

    When the source itself raises, Spark 4 reports that it has no reader, not the error.
    """

    def __init__(self, error: PipelineError) -> None:
        self._error = error

    def initialOffset(self) -> Offset:  # noqa: N802
        """Raises the error."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raises the error."""
        raise self._error

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Raises the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raises the error."""
        raise self._error
