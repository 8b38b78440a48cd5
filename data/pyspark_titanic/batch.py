"""Reads a batch: the ring between two numbers, or the waiting requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from titanic_data.spark_options import LATEST, LOSS_ALLOWED, ReadOptions, first_number
from titanic_data.store_reader import (
    await_number,
    beyond,
    closed_range,
    lost,
    read_closed,
    read_waiting,
    skip,
    split,
    split_waiting,
)


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
