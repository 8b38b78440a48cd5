"""Whether an archive is what its manifest says, and what says so before something is made of its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow.parquet as pq

from titanic_data.archive.durable import checksum
from titanic_data.archive.manifest import Archive, Entry, File
from titanic_data.errors import ArchiveError


class Fault(NamedTuple):
    """What is wrong, and where. `range` is what `restore-range` is to be given, if that helps."""

    where: str
    what: str
    range: tuple[int, int] | None


def verify(archive: Archive, looked: Callable[[int, int], None] = lambda done, total: None) -> list[Fault]:
    """All that is wrong with the files of an archive: missing, of another size, checksum or number of rows, or with
    other numbers than those of their range. That the ranges follow each other was seen when it was opened.

    `looked` is told how many of the files have been looked at.
    """
    faults: list[Fault] = []
    done, total = 0, len(archive.files())
    for entry in archive.entries:
        found = []
        for file in entry.files:
            fault, numbers = _look(archive, entry, file.path)
            done += 1
            looked(done, total)
            if fault:
                faults.append(Fault(file.path, fault, (entry.first, entry.last)))
            else:
                found.append(numbers)
        if len(found) == len(entry.files) and not entry.gap:
            numbers = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
            if not np.array_equal(numbers, np.arange(entry.first, entry.last + 1)):
                distinct = len(np.unique(numbers))
                what = f"{distinct} distinct numbers in {len(numbers)} rows for {entry.first} to {entry.last}"
                faults.append(Fault(entry.name, what, (entry.first, entry.last)))
    return faults


def _look(archive: Archive, entry: Entry, path: str) -> tuple[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """What is wrong with a file, and its numbers."""
    none = np.empty(0, np.int64)
    (known,) = (file for file in entry.files if file.path == path)
    file = archive.data / path
    if fault := _size_fault(archive, known) or _checksum_fault(checksum(file), known):
        return fault, none
    numbers = pq.ParquetFile(file).read(["seq"])["seq"].to_numpy()
    if len(numbers) != known.rows:
        return f"it has {len(numbers)} rows and should have {known.rows}", none
    return "", numbers


def expect_sizes(archive: Archive) -> None:
    """Raise ArchiveError unless all files are there, with the sizes that were noted; nothing is read."""
    for entry in archive.entries:
        for known in entry.files:
            if fault := _size_fault(archive, known):
                raise _damaged(archive, entry, known, fault)


def read_whole(archive: Archive, entry: Entry, known: File) -> bytes:
    """What is in a file of an entry. Raises ArchiveError unless it has the size and the checksum that were noted."""
    if fault := _size_fault(archive, known):
        raise _damaged(archive, entry, known, fault)
    content = (archive.data / known.path).read_bytes()
    if fault := _checksum_fault(crc32(content), known):
        raise _damaged(archive, entry, known, fault)
    return content


def _size_fault(archive: Archive, known: File) -> str:
    try:
        size = (archive.data / known.path).stat().st_size
    except FileNotFoundError:
        return "it is missing"
    return "" if size == known.bytes else f"it has {size} bytes and should have {known.bytes}"


def _checksum_fault(found: int, known: File) -> str:
    return "" if found == known.crc32 else f"its checksum is {found:08x}, noted was {known.crc32:08x}"


def _damaged(archive: Archive, entry: Entry, known: File, fault: str) -> ArchiveError:
    again = f"titanic-data restore-range {entry.first} {entry.last} --archive {archive.path} writes it again"
    advice = f"{again}; titanic-data verify finds all that is damaged"
    return ArchiveError(f"{archive.data / known.path} is damaged", fault, advice)
