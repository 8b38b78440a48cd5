"""The engines that write and read the Parquet files: pyarrow in this process, or Spark on all of its machines.

Both write the same rows in the same layout: into `staging/date=…/`, sorted by service and number, so that a query for
one service skips most of a file. On one machine pyarrow is faster, and needs no Java.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from titanic_data.archive.manifest import Archive, expect_sizes
from titanic_data.session import as_file
from titanic_data.store_reader import read_closed
from titanic_data.tables import CLOSED, SCHEMA_VERSION

if TYPE_CHECKING:  # pyarrow alone needs no pyspark
    from pyspark.sql import DataFrame, SparkSession

ENGINES = ("pyarrow", "spark")
COMPRESSION = "zstd"
ORDER = ("service", "seq")
ROW_GROUP, GROUP_BYTES = 128 * 1024, 32 << 20
"""The most of one row group; bytes are those of the rows in memory."""

BATCH_ROWS, BATCH_BYTES = 4096, 64 << 20
"""The most that is decoded of all files together while they are merged."""

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
    """This process. The bodies of a range must fit into its memory."""

    name = "pyarrow"

    def write(self, store: Path, first: int, last: int, staging: Path, reached: Reached = lambda point: None) -> None:
        """See Engine."""
        streams: dict[date, list[Iterator[Any]]] = defaultdict(list)
        for batch in read_closed(store, first, last, CLOSED.schema.names):
            for day in pc.unique(batch[DATE]).to_pylist():
                some = batch.filter(pc.equal(batch[DATE], pa.scalar(day, pa.date32())))
                streams[day].append(iter((some.sort_by([(name, "ascending") for name in ORDER]),)))
        write_by_date(streams, CLOSED.schema, staging, reached)


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


def write_by_date(
    streams: Mapping[date, Iterable[Iterator[Any]]],
    schema: Any,
    staging: Path,
    reached: Reached = lambda point: None,
) -> None:
    """Write the rows of each day into a file of `staging/date=…/`, a row group at a time. `streams`: RecordBatches of
    this schema in the order of ORDER; each stream's own batches follow each other."""
    for day in sorted(streams):
        folder = staging / f"date={day}"
        folder.mkdir(parents=True)
        in_file = schema.remove(schema.get_field_index(DATE))
        with pq.ParquetWriter(folder / "part.parquet", in_file, compression=COMPRESSION) as writer:
            group: list[Any] = []
            rows = size = 0
            for piece in _merged(streams[day]):
                group.append(piece.select(in_file.names))
                rows, size = rows + len(piece), size + piece.nbytes
                if rows >= ROW_GROUP or size >= GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(group, in_file), rows)
                    rows = size = 0
                    group.clear()
            if group:
                writer.write_table(pa.Table.from_batches(group, in_file), rows)
        reached("staging")


class _Sorted:
    """A stream of sorted batches that is read row by row."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._batch: Any = None
        self._at = 0
        self._end = 0

    def next(self) -> tuple[str, int] | None:
        """Service and number of the next row; None at the end."""
        while self._at == self._end:
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._batch, self._at, self._end = batch, 0, len(batch)
            self._numbers = batch["seq"].to_numpy()
            services = batch["service"].dictionary_encode()
            self._services, codes = services.dictionary.to_pylist(), services.indices.to_numpy()
            self._codes, self._ends = codes, np.append(np.flatnonzero(np.diff(codes)) + 1, len(batch))
        return self._services[self._codes[self._at]], int(self._numbers[self._at])

    def take(self, number: int | None) -> Any:
        """The next row, and those of the same service behind it that are below a number; None: all."""
        begin, end = self._at, int(self._ends[np.searchsorted(self._ends, self._at, "right")])
        if number is not None:
            end = max(begin + 1, begin + int(np.searchsorted(self._numbers[begin:end], number)))
        self._at = end
        return self._batch.slice(begin, end - begin)


def _merged(streams: Iterable[Iterator[Any]]) -> Iterator[Any]:
    """The rows of sorted streams in the order of ORDER, as slices of their batches; one batch of each is held."""
    sources = [_Sorted(stream) for stream in streams]
    heads = [(*head, n) for n, source in enumerate(sources) if (head := source.next()) is not None]
    heapify(heads)
    while heads:
        service, _, n = heappop(heads)
        yield sources[n].take(heads[0][1] if heads and heads[0][0] == service else None)
        if (head := sources[n].next()) is not None:
            heappush(heads, (*head, n))


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
            return f"its rows have schema version {version}; this version reads {SCHEMA_VERSION}"
    return ""


def schema_of(contents: Iterable[bytes]) -> Any:
    """The columns of some files without a schema_fault: those of CLOSED, then those that a later version has added."""
    added = [pq.ParquetFile(pa.BufferReader(content)).schema_arrow for content in contents]
    known = set(CLOSED.schema.names)
    return pa.unify_schemas([CLOSED.schema, *(pa.schema([f for f in one if f.name not in known]) for one in added)])


def batches_of(content: bytes, file: str | Path, schema: Any = CLOSED.schema, max_bytes: int = BATCH_BYTES) -> Any:
    """The rows of a file as RecordBatches with these columns, null where the file has none, and the date from its path.
    A batch has no more than `max_bytes` if the file says how large its bodies are, or one row."""
    opened = pq.ParquetFile(pa.BufferReader(content))
    names = opened.schema_arrow.names
    day = pa.scalar(Path(file).parent.name.removeprefix("date=")).cast(pa.date32())
    for group in range(opened.num_row_groups):
        count = max(1, min(BATCH_ROWS, max_bytes // _largest_row(opened.metadata.row_group(group))))
        for batch in opened.iter_batches(count, [group]):
            columns = []
            for field in schema:
                if field.name == DATE:
                    columns.append(pa.repeat(day, len(batch)))
                elif field.name in names:
                    columns.append(batch[field.name].cast(field.type))
                else:
                    columns.append(pa.nulls(len(batch), field.type))
            yield pa.record_batch(columns, schema=schema)


def _largest_row(group: Any) -> int:
    """Bytes of the largest row of a row group, by its footer."""
    found = 1024
    for n in range(group.num_columns):
        column = group.column(n)
        if column.path_in_schema in ("request_bytes", "reply_bytes"):
            known = column.statistics
            found += known.max if known is not None and known.has_min_max else BATCH_BYTES
    return int(found)


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
