"""Archiving a ring in this process, killed where a test wants it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
from support.processes import PYTHONPATH, SUPPORT, Fork

from titanic_data.archive import Archive, Archiver, Engine, PyArrowEngine, Queue, Summary
from titanic_data.archive.engines import batches_of
from titanic_data.store_reader import read_closed
from titanic_data.tables import CLOSED


class Crash(BaseException):
    """The process is gone, as far as the archive can tell."""


def run(store: Path, archive: Path, engine: Engine | None = None, **settings: object) -> Summary:
    """Archive what there is, in ranges of 100 rows."""
    settings = {"rows": 100, **settings}
    return Archiver(Archive.create(archive), Queue(store), engine or PyArrowEngine(), **settings).run()  # type: ignore[arg-type]


def crash_at(point: str, count: int = 1) -> Callable[[str], None]:
    """For `reached`: the run ends when it comes to a point for the n-th time."""
    left = count

    def reached(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0:
            raise Crash

    return reached


def killed(*arguments: str | Path, output: int | IO[bytes]) -> Fork:
    """Run archive_killed.py."""
    env, imports = {**os.environ, "PYTHONPATH": PYTHONPATH}, ("titanic_data.archive", "titanic_data.session")
    return Fork(SUPPORT / "archive_killed.py", *arguments, env=env, imports=imports, stdout=output, stderr=output)


def rows(archive: Path) -> list[dict[str, object]]:
    """All rows of an archive in the order of their numbers."""
    found: list[dict[str, object]] = read_files(Archive.open(archive).files()).sort_by("seq").to_pylist()
    return found


def read_files(files: Sequence[Path]) -> Any:
    """The rows of some files, with their date, as one table."""
    batches = [batch for file in files for batch in batches_of(file.read_bytes(), file)]
    return pa.Table.from_batches(batches, CLOSED.schema)


def rewrite(archive: Path, change: Callable[[pa.Table], pa.Table], first: int) -> None:
    """Make the files of a range those of another version of this program."""
    opened = Archive.open(archive)
    (entry,) = (entry for entry in opened.entries if entry.first == first)
    files = []
    for known in entry.files:
        path = opened.data / known.path
        pq.write_table(change(pq.ParquetFile(path).read()), path)
        files.append(replace(known, bytes=path.stat().st_size, crc32=crc32(path.read_bytes())))
    opened.note(replace(entry, files=tuple(files)))
    opened.load()


def content(folder: Path) -> dict[str, bytes]:
    """All files below a folder but the lock, which says who had it last."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != "lock")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def in_ring(store: Path, first: int, last: int) -> list[dict[str, object]]:
    """The same rows of the ring."""
    return [row for batch in read_closed(store, first, last, CLOSED.schema.names) for row in batch.to_pylist()]
