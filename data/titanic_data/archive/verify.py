"""Whether an archive is what its manifest says."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from titanic_data.archive.durable import checksum
from titanic_data.archive.manifest import Archive, Entry


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
    if not file.exists():
        return "it is missing", none
    if file.stat().st_size != known.bytes:
        return f"it has {file.stat().st_size} bytes and should have {known.bytes}", none
    if (found := checksum(file)) != known.crc32:
        return f"its checksum is {found:08x}, noted was {known.crc32:08x}", none
    numbers = pq.ParquetFile(file).read(["seq"])["seq"].to_numpy()
    if len(numbers) != known.rows:
        return f"it has {len(numbers)} rows and should have {known.rows}", none
    return "", numbers
