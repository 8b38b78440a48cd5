"""An archive as a DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from titanic_data.archive.manifest import Archive
from titanic_data.archive.verify import expect_sizes
from titanic_data.session import as_file
from titanic_data.tables import CLOSED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def archive_frame(spark: SparkSession, path: str | Path) -> DataFrame:
    """All rows of an archive, as it is now, with the columns of tables.CLOSED.

    Conditions on `date`, `service` and `seq` skip what they can. Raises ArchiveError, also when a file is missing or
    has another size than was noted; checksums are for `verify`, which reads everything.
    """
    archive = Archive.open(Path(path))
    expect_sizes(archive)
    schema = CLOSED.ddl(CLOSED.schema.names)
    files = [as_file(file) for file in archive.files()]
    if not files:
        return spark.createDataFrame([], schema)
    base = f"file:{archive.data.absolute()}"  # no pattern
    return spark.read.schema(schema).option("basePath", base).parquet(*files).select(CLOSED.schema.names)
