"""A damaged archive stays one that is known to be damaged: nothing is made of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.archiving import content, rows, run
from support.cli_data import titanic_data
from support.ring import ring

from titanic_data.archive import Archive, archive_frame, compact, restore_range, verify
from titanic_data.errors import ArchiveError


def change(file: Path) -> None:
    """Exchange a byte of the data, so that it can still be read as Parquet or not, of the same size."""
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 3] ^= 1
    file.write_bytes(whole)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


DAMAGES: dict[str, Callable[[Path], None]] = {"its checksum is": change, "it has": cut, "it is missing": Path.unlink}
SIZES = ["it has", "it is missing"]
"""What is seen without reading a file."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return ring(tmp_path / "store", 300, step_us=1_200_000_000)


@pytest.fixture
def archive(store: Path, tmp_path: Path) -> Archive:
    run(store, tmp_path / "archive", rows=50)
    return Archive.open(tmp_path / "archive")


@pytest.mark.parametrize("fault", DAMAGES)
def test_compacting_refuses_what_is_damaged(store: Path, archive: Archive, fault: str) -> None:
    good = rows(archive.path)
    victim = archive.entries[4]
    file = archive.data / victim.files[0].path
    DAMAGES[fault](file)
    before, faults = content(archive.path), verify(archive)
    assert len(faults) == 1
    with pytest.raises(ArchiveError) as caught:
        compact(archive, rows=150)  # 1 to 150 could be one, 151 to 300 could not
    assert str(caught.value).startswith(f"titanic: {file} is damaged; {fault}")
    assert f"titanic-data restore-range {victim.first} {victim.last} --archive {archive.path}" in str(caught.value)
    assert "titanic-data verify" in str(caught.value)
    assert content(archive.path) == before
    assert verify(archive) == faults
    restore_range(Archive.open(archive.path), store, victim.first, victim.last)
    archive.load()
    assert len(compact(archive, rows=150)) == 2
    assert verify(archive) == []
    assert rows(archive.path) == good


@pytest.mark.parametrize("fault", SIZES)
def test_no_report_of_files_with_another_size(spark: SparkSession, archive: Archive, fault: str) -> None:
    victim = archive.entries[2]
    file = archive.data / victim.files[0].path
    DAMAGES[fault](file)
    with pytest.raises(ArchiveError, match=f"{file.name} is damaged; {fault}.*restore-range 101 150"):
        archive_frame(spark, archive.path)
    for command in ("report bodies", "replay --dry-run --where true", "files", "compact"):
        done = titanic_data(*command.split(), "--archive", archive.path)
        assert done.code == 1
        assert f"{file} is damaged; {fault}" in done.err
        assert done.out == b""
