"""Checks whether the files of an archive are what its manifest says."""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow.parquet as pq

from titanic_data.archive.manifest import Archive, Entry, File, Progress, measure
from titanic_data.errors import ArchiveError


class Fault(NamedTuple):
    """What is wrong, and where. `range`: the arguments of `restore-range`, if that helps."""

    where: str
    what: str
    range: tuple[int, int] | None


def verify(archive: Archive, progress: Progress = lambda done, total: None) -> list[Fault]:
    """All faults of the files of an archive: missing, with another size, checksum or number of rows, or with numbers
    that are not those of their range. Opening the archive has checked already that the ranges have no holes.

    Calls `progress` with the number of files that were read, and of all files.
    """
    faults: list[Fault] = []
    done, total = 0, len(archive.files())
    for entry in archive.entries:
        found = []
        for known in entry.files:
            fault, numbers = _look(archive, known)
            done += 1
            progress(done, total)
            if fault:
                faults.append(Fault(known.path, fault, (entry.first, entry.last)))
            else:
                found.append(numbers)
        if len(found) == len(entry.files) and not entry.gap:
            numbers = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
            if not np.array_equal(numbers, np.arange(entry.first, entry.last + 1)):
                distinct = len(np.unique(numbers))
                what = f"{distinct} distinct numbers in {len(numbers)} rows for {entry.first} to {entry.last}"
                faults.append(Fault(entry.name, what, (entry.first, entry.last)))
    return faults


def _look(archive: Archive, known: File) -> tuple[str, Any]:
    """The fault of a file, or its numbers."""
    file = archive.data / known.path
    if fault := _size_fault(archive, known) or _checksum_fault(measure(file)[1], known):
        return fault, None
    numbers = pq.ParquetFile(file).read(["seq"])["seq"].to_numpy()
    fault = f"it has {len(numbers)} rows and should have {known.rows}" if len(numbers) != known.rows else ""
    return fault, numbers


def expect_sizes(archive: Archive) -> None:
    """Raise ArchiveError unless all files are there, with the sizes of the manifest. Reads none of them."""
    for entry in archive.entries:
        for known in entry.files:
            if fault := _size_fault(archive, known):
                raise _damaged(archive, entry, known, fault)


def read_whole(archive: Archive, entry: Entry, known: File) -> bytes:
    """The content of a file. Raises ArchiveError unless it has the size and the checksum of the manifest."""
    fault, content = _size_fault(archive, known), b""
    if not fault:
        content = (archive.data / known.path).read_bytes()
        fault = _checksum_fault(crc32(content), known)
    if fault:
        raise _damaged(archive, entry, known, fault)
    return content


def _size_fault(archive: Archive, known: File) -> str:
    try:
        size = (archive.data / known.path).stat().st_size
    except FileNotFoundError:
        return "it is missing"
    return "" if size == known.bytes else f"it has {size} bytes and should have {known.bytes}"


def _checksum_fault(found: int, known: File) -> str:
    return "" if found == known.crc32 else f"its checksum is {found:08x}, the manifest has {known.crc32:08x}"


def _damaged(archive: Archive, entry: Entry, known: File, fault: str) -> ArchiveError:
    again = f"titanic-data restore-range {entry.first} {entry.last} --archive {archive.path} writes it again"
    advice = f"{again}; titanic-data verify lists all damage"
    return ArchiveError(f"{archive.data / known.path} is damaged", fault, advice)
