"""The engines that write and read the Parquet files: pyarrow in this process, or Spark on all of its machines.

Both write the same rows in the same layout: into `staging/date=…/`, sorted by service and number, so that a query for
one service skips most of a file. On one machine pyarrow is faster, and needs no Java.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from titanic_data.archive.manifest import Archive
from titanic_data.archive.verify import expect_sizes
from titanic_data.session import as_file
from titanic_data.store_reader import read_closed
from titanic_data.tables import CLOSED, SCHEMA_VERSION

if TYPE_CHECKING:  # pyarrow alone needs no pyspark
    from pyspark.sql import DataFrame, SparkSession

ENGINES = ("pyarrow", "spark")
COMPRESSION = "zstd"
ORDER = ("service", "seq")
ROW_GROUP = 128 * 1024
DATE = "date"
"""The only column that is not in the files: it is in the name of their directory."""


Reached = Callable[[str], None]


class Engine(Protocol):
    """Writes ranges of a ring."""

    name: str

    def write(self, store: Path, first: int, last: int, staging: Path, reached: Reached = lambda point: None) -> None:
        """Write the closed requests number `first` to `last` into `staging/date=…/`. Calls `reached("staging")`
        when some are written."""


class PyArrowEngine:
    """This process. A range must fit into its memory."""

    name = "pyarrow"

    def write(self, store: Path, first: int, last: int, staging: Path, reached: Reached = lambda point: None) -> None:
        """See Engine."""
        batches = list(read_closed(store, first, last, CLOSED.schema.names))
        write_by_date(pa.Table.from_batches(batches, CLOSED.schema), staging, reached)


class SparkEngine:
    """A Spark session. Its tasks must run where the store is: on the machine of the queue."""

    name = "spark"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def write(self, store: Path, first: int, last: int, staging: Path, reached: Reached = lambda point: None) -> None:
        """See Engine."""
        spark = self._spark
        reader = spark.read.format("titanic").option("startingOffsets", str(first)).option("endingOffsets", str(last))
        parts = os.cpu_count() or 1  # the tasks run here, beside the store
        frame = reader.option("minPartitions", parts).load(str(store.absolute())).sortWithinPartitions(*ORDER)
        reached("staging")
        name = "spark.sql.parquet.outputTimestampType"
        before = spark.conf.get(name)
        spark.conf.set(name, "TIMESTAMP_MICROS")
        try:
            writer = frame.write.mode("overwrite").partitionBy("date").option("compression", COMPRESSION)
            writer.parquet(f"file:{staging.absolute()}")
        finally:
            spark.conf.set(name, str(before))


def write_by_date(table: Any, staging: Path, reached: Reached = lambda point: None) -> None:
    """Write rows with the columns of CLOSED, and perhaps others, into `staging/date=…/`."""
    for date in sorted(pc.unique(table[DATE]).to_pylist()):
        folder = staging / f"date={date}"
        folder.mkdir(parents=True)
        some = table.filter(pc.equal(table[DATE], pa.scalar(date, pa.date32())))
        some = some.sort_by([(name, "ascending") for name in ORDER]).drop_columns([DATE])
        pq.write_table(some, folder / "part.parquet", compression=COMPRESSION, row_group_size=ROW_GROUP)
        reached("staging")


def schema_fault(content: bytes) -> str:
    """Why the content of a file cannot be read as CLOSED; empty when it can.

    An earlier version may have fewer columns, and a later one more: see tables.SCHEMA_VERSION.
    """
    file = pq.ParquetFile(pa.BufferReader(content))
    found = file.schema_arrow
    if "seq" not in found.names:
        return "it has no column seq"
    for field in CLOSED.schema:
        if field.name in found.names and (kind := _plain(found.field(field.name).type)) != _plain(field.type):
            return f"its column {field.name} is {kind}, and {field.type} here"
    if "schema_version" in found.names:
        version = pc.max(file.read(["schema_version"])["schema_version"]).as_py()
        if version is not None and version > SCHEMA_VERSION:
            return f"its rows have the schema version {version}, known is {SCHEMA_VERSION}"
    return ""


def rows_of(content: bytes, file: str | Path) -> Any:
    """The rows of a file without a schema_fault as a table, with the date from its path.

    The columns are those of CLOSED, null where the file has none, and then those that a later version has added.
    """
    table = pq.ParquetFile(pa.BufferReader(content)).read()
    date = pa.scalar(Path(file).parent.name.removeprefix("date=")).cast(pa.date32())
    table = table.append_column(DATE, pa.repeat(date, len(table)))
    known = [
        table[field.name].cast(field.type) if field.name in table.schema.names else pa.nulls(len(table), field.type)
        for field in CLOSED.schema
    ]
    added = [name for name in table.schema.names if name not in CLOSED.schema.names]
    columns = [*known, *(table[name] for name in added)]
    return pa.table(columns, schema=pa.schema([*CLOSED.schema, *(table.schema.field(name) for name in added)]))


def archive_frame(spark: SparkSession, path: str | Path) -> DataFrame:
    """All rows of an archive, as it is now, with the columns of tables.CLOSED.

    Conditions on `date`, `service` and `seq` skip files and parts of them. Raises ArchiveError, also when a file is
    missing or has the wrong size; only `verify`, which reads everything, checks checksums.
    """
    archive = Archive.open(Path(path))
    expect_sizes(archive)
    schema = CLOSED.ddl(CLOSED.schema.names)
    files = [as_file(file) for file in archive.files()]
    if not files:
        return spark.createDataFrame([], schema)
    base = f"file:{archive.data.absolute()}"  # a path, not a pattern
    return spark.read.schema(schema).option("basePath", base).parquet(*files).select(CLOSED.schema.names)


def _plain(kind: Any) -> Any:
    """An Arrow type without the name that its writer gave to the elements of a list."""
    return pa.list_(kind.value_type) if pa.types.is_list(kind) else kind
