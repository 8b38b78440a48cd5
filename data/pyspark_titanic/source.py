"""The source as Spark sees it: it checks the options, then returns readers and writers.

It runs on the driver, in a process that Spark starts for it, so errors are raised before any task begins. A batch is
the ring between two numbers, or the waiting requests; a stream is closed requests as they come, in micro-batches. A
writer makes each row a request; `titanic_data.submission` says why its task may be repeated.

A stream's offset is the last number that was read, with the id of the store, for in another store it means nothing. A
stream acknowledges nothing to the queue: Spark's `commit` comes a micro-batch late, and never for the last one. To keep
every request, archive the ring (`titanic-data archive`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from titanic_data.errors import InvalidOption, InvalidRows, OtherStore, PipelineError
from titanic_data.spark_options import LATEST, LOSS_ALLOWED, ReadOptions, first_number, read_options, write_options
from titanic_data.store_reader import (
    await_number,
    beyond,
    closed_range,
    identity,
    lost,
    read_closed,
    read_waiting,
    skip,
    split,
    split_waiting,
    store_at,
)
from titanic_data.submission import Layout, layout, submit
from titanic_data.tables import TABLES


class ClosedParts:
    """The ring, in parts of consecutive numbers, for a batch or a stream."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = columns

    def parts(self, first: int, last: int, oldest: int, newest: int) -> list[InputPartition]:
        """The numbers from `first` to `last`, cut. Raises DataLoss when the first ones have left the ring; with
        failOnDataLoss=false they are skipped."""
        options = self.options
        if first < oldest and first <= last:
            if options.failondataloss:
                raise lost(options.path, first, min(last, oldest - 1), oldest, newest, LOSS_ALLOWED)
            first = skip(options.path, first, last, oldest)
        return [InputPartition(part) for part in split(first, last, options.rowsperpartition, options.minpartitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: the part, in Arrow batches."""
        if partition.value is None:  # Spark's substitute when there are no parts
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


class ClosedReader(ClosedParts, DataSourceReader):
    """Reads the ring."""

    least, most = 1, 1 << 62
    """The range that conditions on `seq` leave."""

    def partitions(self) -> Sequence[InputPartition]:
        """The range as it is now, cut."""
        options = self.options
        oldest, newest = closed_range(options.path)
        first = first_number(options, oldest, newest)
        last = newest if options.endingoffsets == LATEST else int(options.endingoffsets)
        if last > newest:
            raise lost(options.path, newest + 1, last, oldest, newest)
        if first > newest + 1:
            if options.failondataloss:
                raise beyond(options.path, first, newest)
            await_number(options.path, first, newest)
        return self.parts(max(first, self.least), min(last, self.most), oldest, newest)


class FilteringReader(ClosedReader):
    """Reads the part of the ring that conditions on `seq` leave.

    A class of its own: Spark refuses a reader that has `pushFilters` unless pushing down is enabled.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the conditions on `seq`, and return the others."""
        for one in filters:
            if getattr(one, "attribute", None) != ("seq",):
                yield one
            elif isinstance(one, EqualTo):
                self._narrow(one.value, one.value)
            elif isinstance(one, GreaterThan):
                self._narrow(one.value + 1, self.most)
            elif isinstance(one, GreaterThanOrEqual):
                self._narrow(one.value, self.most)
            elif isinstance(one, LessThan):
                self._narrow(self.least, one.value - 1)
            elif isinstance(one, LessThanOrEqual):
                self._narrow(self.least, one.value)
            else:
                yield one

    def _narrow(self, least: int, most: int) -> None:
        self.least, self.most = max(self.least, least), min(self.most, most)


class WaitingReader(DataSourceReader):
    """Reads the requests that have not ended."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of ids."""
        return [InputPartition(part) for part in split_waiting(self.options.path, self.options.rowsperpartition)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: the requests of a part that still wait."""
        if partition.value is None:
            return iter(())
        begin, end = partition.value
        return read_waiting(self.options.path, begin, end, self.columns, batch=self.options.batchsize)


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


@dataclass
class AcceptedRows(WriterCommitMessage):
    """The number of rows of a task that are on the disk of the queue."""

    rows: int


class _Writer:
    """Makes rows requests. There is nothing to commit or to undo: the keys of what is repeated are taken."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def write(self, iterator: Iterator[Any]) -> AcceptedRows:
        """In a task."""
        return AcceptedRows(submit(self._layout, iterator))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of df.write."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of df.writeStream."""


class DefaultSource(DataSource):
    """The format `titanic`."""

    @classmethod
    def name(cls) -> str:
        """What `format(…)` takes."""
        return "titanic"

    def schema(self) -> str:
        """The columns of the table, or those of the option `columns`."""
        options = self._read_options()
        table = TABLES[options.table]
        return table.ddl(table.columns(options.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For spark.read."""
        options = self._read_options()
        columns = _columns(options, schema)
        if options.table == "waiting":
            return WaitingReader(options, columns)
        return (FilteringReader if options.pushfilters else ClosedReader)(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For spark.readStream."""
        try:
            options = self._read_options()
            if options.table != "closed":
                what = f"the table {options.table} cannot be streamed"
                raise InvalidOption(what, "it has no order", "read it as a batch: spark.read")
            if any(name.lower() == "endingoffsets" for name in self.options):
                advice = "leave it out; .trigger(availableNow=True) stops at the current end"
                raise InvalidOption("endingOffsets is for spark.read", "a stream has no end", advice)
            return ClosedStream(options, _columns(options, schema))
        except PipelineError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For df.write."""
        return BatchWriter(self._layout(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """For df.writeStream."""
        return StreamWriter(self._layout(schema, overwrite))

    def _read_options(self) -> ReadOptions:
        options = read_options(self.options)
        store_at(options.path)
        return options

    def _layout(self, schema: StructType, overwrite: bool) -> Layout:
        if overwrite:
            raise InvalidOption("requests cannot be overwritten", "the mode is overwrite", 'use .mode("append")')
        return layout({field.name: field.dataType.simpleString() for field in schema}, write_options(self.options))


def _columns(options: ReadOptions, schema: StructType) -> list[str]:
    """The columns of a user's own schema, or of ours. Raises InvalidRows for another type than the table's."""
    table = TABLES[options.table]
    columns = table.columns(schema.names)
    for field in schema:
        found, right = field.dataType.simpleString().upper(), table.sql_type(field.name)
        if found != right:
            raise InvalidRows(
                f"the column {field.name} cannot be read as {found}", f"it is {right}", "change the schema"
            )
    return columns
