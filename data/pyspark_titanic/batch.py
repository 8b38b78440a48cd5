"""Reading at rest: the ring between two numbers, and what waits."""

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

from titanic_data.options import LATEST, LOSS_ALLOWED, ReadOptions, first_number
from titanic_data.reading import (
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


class ClosedReader(DataSourceReader):
    """The ring, in parts of consecutive numbers."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = columns
        self.least, self.most = 1, 1 << 62

    def partitions(self) -> Sequence[InputPartition]:
        """The range as it is now, cut."""
        options = self.options
        oldest, newest = closed_range(options.path)
        first = first_number(options, oldest, newest)
        last = newest if options.endingoffsets == LATEST else options.endingoffsets
        if int(last) > newest:
            raise lost(options.path, newest + 1, int(last), oldest, newest)
        if first > newest + 1:
            if options.failondataloss:
                raise beyond(options.path, first, newest)
            await_number(options.path, first, newest)
        first, last = max(first, self.least), min(int(last), self.most)
        if first < oldest and first <= last:
            if options.failondataloss:
                raise lost(options.path, first, min(last, oldest - 1), oldest, newest, LOSS_ALLOWED)
            skip(options.path, first, min(last, oldest - 1), oldest)
            first = oldest
        parts = split(first, last, options.rowsperpartition, options.minpartitions)
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: the part, in Arrow batches."""
        if partition.value is None:  # what Spark makes of no parts at all
            return iter(())
        first, last = partition.value
        return read_closed(
            self.options.path,
            first,
            last,
            self.columns,
            batch=self.options.batchsize,
            fail_on_loss=self.options.failondataloss,
            instead=LOSS_ALLOWED,
        )


class FilteringReader(ClosedReader):
    """The same, with conditions on `seq` choosing the range.

    A class of its own: a reader that has `pushFilters` at all is refused by Spark unless pushing down is enabled.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take those on `seq`; the others are returned."""
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
    """The requests that have not ended."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of ids."""
        return [InputPartition(part) for part in split_waiting(self.options.path, self.options.rowsperpartition)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: what still waits of a part."""
        if partition.value is None:
            return iter(())
        begin, end = partition.value
        return read_waiting(self.options.path, begin, end, self.columns, batch=self.options.batchsize)
