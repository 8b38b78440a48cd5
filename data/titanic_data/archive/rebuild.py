"""Makes a lost manifest again from the names and the contents of the data files.

Entries that can be read stay as they are, with their checksums and gaps: a new checksum would hide damage. The holes
between them and after the last are filled with the files of one attempt for a range, if these can be read and have each
number of the range once. Of several attempts with the same beginning the longest counts, as in a manifest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from titanic_data.archive.archiver import Queue
from titanic_data.archive.manifest import Archive, Entry, File, Progress, make_directory, write_about
from titanic_data.errors import ArchiveError

_ENDLESS = 1 << 62


class _Attempt(NamedTuple):
    """The files that one attempt wrote for a range, by their names."""

    first: int
    last: int
    files: list[Path]


def rebuild_manifest(
    path: Path,
    *,
    store: Path | None = None,
    allow_gap: bool = False,
    progress: Progress = lambda done, total: None,
) -> list[Entry]:
    """Make the entries that a manifest has lost, and return them. No data file is changed. `store`: what was archived;
    a lost archive.json is made again with the ids that it has.

    Raises ArchiveError, before anything is written, when a file behind the last range is not whole, or when numbers are
    in no whole file; with `allow_gap` these become gaps.

    Calls `progress` with the number of files that were read, and of all files.
    """
    if store is not None and (path / "data").is_dir() and not (path / "archive.json").exists():
        queue = Queue(store)
        known = queue.progress().archivist
        if known is None:
            what = f"archive.json of {path} cannot be recreated"
            raise ArchiveError(what, f"no archive was ever registered with {store}", "name the store that was archived")
        write_about(path, known.id.hex(), queue.identity())
    archive = Archive.without_manifest(path)
    with archive.locked(load=False):
        kept = list(_readable(archive))
        attempts = _attempts(archive)
        total, done = sum(len(one.files) for one in attempts), 0
        made: list[Entry] = []
        faults: list[tuple[_Attempt, str]] = []
        for begin, end in _holes(kept):
            at = begin
            for attempt in (one for one in attempts if begin <= one.first and one.last <= end):
                done += len(attempt.files)
                progress(done, total)
                if attempt.first < at:
                    continue
                try:
                    entry = _noted(archive, attempt)
                except (pa.ArrowException, OSError, ValueError) as error:
                    faults.append((attempt, str(error).splitlines()[0]))
                    continue
                made += [Entry(at, attempt.first - 1, gap=True), entry] if attempt.first > at else [entry]
                at = attempt.last + 1
            if at <= end < _ENDLESS:
                made.append(Entry(at, end, gap=True))
        _expect_whole(archive, [*kept, *made], faults, made if not allow_gap else [])
        make_directory(archive.path / "manifest")
        for entry in made:
            archive.note(entry)
        archive.load()
    return made


def _readable(archive: Archive) -> Iterator[Entry]:
    for file in archive.manifest():
        try:
            yield archive.read(file)
        except ArchiveError:
            continue


def _attempts(archive: Archive) -> list[_Attempt]:
    """All attempts, in the order in which they are tried."""
    files: dict[tuple[str, int, int], list[Path]] = defaultdict(list)
    for file, name in archive.written().items():
        files[name].append(file)
    # Of one range the one that was restored last comes first: its name is the last of them.
    names = sorted(sorted(files, reverse=True), key=lambda name: (name[1], -name[2]))
    return [_Attempt(name[1], name[2], files[name]) for name in names]


def _holes(entries: list[Entry]) -> list[tuple[int, int]]:
    """The ranges without an entry; the last one has no end."""
    holes, head = [], 0
    for entry in sorted(entries, key=lambda entry: (entry.first, -entry.last)):
        if entry.first > head + 1:
            holes.append((head + 1, entry.first - 1))
        head = max(head, entry.last)
    return [*holes, (head + 1, _ENDLESS)]


def _noted(archive: Archive, attempt: _Attempt) -> Entry:
    """The entry for an attempt. Raises ValueError, or what reading Parquet raises, unless its files are whole."""
    files, numbers, last_id = [], [], ""
    for file in attempt.files:
        content = file.read_bytes()
        try:
            table = pq.ParquetFile(pa.BufferReader(content)).read()  # all of it, to find any damaged column
            rows = table.select(["seq", "request_id"])
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ValueError(f"{file.name}: {str(error).splitlines()[0]}") from error
        found = rows["seq"].to_numpy()
        numbers.append(found)
        if attempt.last in found:
            last_id = rows["request_id"][int(np.argmax(found == attempt.last))].as_py()
        files.append(File(str(file.relative_to(archive.data)), len(rows), len(content), crc32(content)))
    there, wanted = np.sort(np.concatenate(numbers)), np.arange(attempt.first, attempt.last + 1)
    if not np.array_equal(there, wanted):
        count = len(np.intersect1d(there, wanted))
        raise ValueError(f"their files have {count} of {len(wanted)} numbers, in {len(there)} rows")
    return Entry(attempt.first, attempt.last, tuple(files), last_id, "rebuilt")


def _expect_whole(
    archive: Archive, entries: list[Entry], faults: list[tuple[_Attempt, str]], unwanted: list[Entry]
) -> None:
    """Raise ArchiveError for a gap among the `unwanted` entries, and for faulty files beyond all entries."""
    what = f"the manifest of {archive.path} cannot be rebuilt"
    for gap in (entry for entry in unwanted if entry.gap):
        near = [fault for one, fault in faults if one.first <= gap.last and gap.first <= one.last]
        fact = f"numbers {gap.first} to {gap.last} are " + (f"incomplete: {near[0]}" if near else "in no file")
        advice = "restore their files from a backup; or run again with --allow-gap, which records them as a gap"
        raise ArchiveError(what, fact, advice)
    head = max((entry.last for entry in entries), default=0)
    for attempt, fault in faults:
        if archive.is_beyond(attempt.first, attempt.last, head, entries):
            advice = "restore it from a backup, or move it out of the archive, which then continues from there"
            raise ArchiveError(what, f"{attempt.first} to {attempt.last}: {fault}", advice)
