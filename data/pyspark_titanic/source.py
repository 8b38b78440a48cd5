"""The source as Spark sees it: it checks the options, then returns readers and writers.

The source runs on the driver, in a process that Spark starts for it, so errors are raised before any task begins. A
writer makes each row a request; `titanic_data.submission` says why its task may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_titanic.batch import ClosedReader, FilteringReader, WaitingReader
from pyspark_titanic.stream import ClosedStream, RefusedStream
from titanic_data.errors import InvalidOption, InvalidRows, PipelineError
from titanic_data.spark_options import ReadOptions, read_options, write_options
from titanic_data.store_reader import store_at
from titanic_data.submission import Layout, layout, submit
from titanic_data.tables import TABLES


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
