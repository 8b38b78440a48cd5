"""Archives that Spark writes and reads: wherever they are."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.archiving import in_ring, read_files, rewrite, rows, run
from support.cli_data import titanic_data
from support.ring import fill, ring

from titanic.store import open_store
from titanic_data.archive import Archive, SparkEngine, archive_frame
from titanic_data.store_reader import forget
from titanic_data.tables import CLOSED

PAGE = Path(__file__).parents[2] / "data/README.md"


def test_a_path_is_no_pattern(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a[1]{x,y} #%20 back\\slash *?"
    store, archive = ring(folder / "store", 20), folder / "archive"
    run(store, archive, SparkEngine(spark))
    assert rows(archive) == in_ring(store, 1, 20)
    frame = archive_frame(spark, archive)
    assert frame.columns == CLOSED.schema.names
    assert sorted(row.seq for row in frame.where("date = '2023-11-14'").collect()) == list(range(1, 21))
    assert spark.read.format("titanic").load(str(store)).count() == 20
    whole = folder / "closed.parquet"
    pq.write_table(read_files(Archive.open(archive).files()), whole)
    done = titanic_data("report", "bodies", "--parquet", whole, "--json")
    assert len(done.json) > 0


def test_files_from_before_there_were_owners(spark: SparkSession, tmp_path: Path) -> None:
    """An archive that has them beside newer ones, and a file alone."""
    store, archive = ring(tmp_path / "store", 20), tmp_path / "archive"
    run(store, archive)
    rewrite(archive, lambda table: table.drop_columns(["owner"]), first=1)
    forget(store)
    with open_store(store) as opened:
        fill(opened, 20, at=20)
    run(store, archive, SparkEngine(spark))
    found = {row.seq: row.owner for row in archive_frame(spark, archive).select("seq", "owner").collect()}
    assert found == dict.fromkeys(range(1, 21)) | {row["seq"]: row["owner"] for row in in_ring(store, 21, 40)}
    assert "shop" in found.values()
    whole = tmp_path / "closed.parquet"
    pq.write_table(read_files(Archive.open(archive).files()).drop_columns(["owner"]), whole)
    assert len(titanic_data("report", "bodies", "--parquet", whole, "--json").json) > 0


def test_the_example_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: SparkSession) -> None:
    archive = tmp_path / "archive"
    run(ring(tmp_path / "store", 20), archive)
    (block,) = re.findall(r"```python\n(# waits\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    exec(block.replace("/archive", str(archive)), {})
    shown = [line.split("|")[2:4] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [name.strip() for name in shown[0]] == ["service", "waited"]
    assert len(shown) == 21
    assert max(float(waited) for _, waited in shown[1:] if waited.strip() != "NULL") > 60
