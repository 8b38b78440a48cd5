"""Maintains an archive: merges small files, deletes files that are no longer needed, writes damaged ones again, and
makes a lost manifest from the names and contents of the data files.

Of a damaged manifest, entries that can be read stay as they are, with their checksums and gaps: a new checksum would
hide damage. The holes between them and after the last are filled with the files of one attempt for a range, if these
can be read and have each number of the range once. Of several attempts with the same beginning the longest counts, as
in a manifest.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from titanic_data.archive.archiver import Queue, publish
from titanic_data.archive.engines import BATCH_BYTES, PyArrowEngine, batches_of, schema_fault, schema_of, write_by_date
from titanic_data.archive.manifest import (
    Archive,
    Entry,
    EntryDone,
    File,
    Progress,
    make_directory,
    read_whole,
    sync_directory,
    write_about,
)
from titanic_data.errors import ArchiveError
from titanic_data.store_reader import identity, store_at

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


ROWS, BYTES = 1_000_000, 64 << 20
"""The most of one compacted range; bytes are those of the files, which are held in memory. What they hold may be far
larger: it is merged bit by bit."""

KEEP = 3600.0
"""Seconds for which superseded files stay, for current readers."""


class Vacuumed(NamedTuple):
    """The number of deleted files and their bytes; the same of those that are still too young."""

    files: int = 0
    bytes: int = 0
    kept_files: int = 0
    kept_bytes: int = 0


def compact(
    archive: Archive, *, rows: int = ROWS, max_bytes: int = BYTES, done: EntryDone = lambda entry: None
) -> list[Entry]:
    """Merge each run of small ranges into one range, with a file for each day. Returns the new entries.

    The old files stay until `vacuum`. Killed at any time, it leaves the old entries or the new one. Columns that some
    files lack are null in their rows. Raises ArchiveError, before anything is changed, when a file is not what the
    manifest says, or has a schema that this version cannot read.
    """
    made = []
    with archive.locked():
        runs = _runs(archive.entries, rows, max_bytes)
        for run in runs:
            for entry, file in _files(run):
                if fault := schema_fault(read_whole(archive, entry, file)):
                    what = f"{archive.data / file.path} cannot be compacted"
                    raise ArchiveError(what, fact=fault, advice="did a later version write it? upgrade Titanic")
        for run in runs:
            archive.clear_staging()
            first, last = run[0].first, run[-1].last
            # Checked once more as it is read: a new checksum would hide damage.
            contents = {one: read_whole(archive, *one) for one in _files(run)}
            schema, room = schema_of(contents.values()), BATCH_BYTES // len(contents)
            streams: dict[date, list[Any]] = defaultdict(list)
            for (_, file), content in contents.items():
                day = date.fromisoformat(Path(file.path).parent.name.removeprefix("date="))
                streams[day].append(batches_of(content, file.path, schema, room))
            write_by_date(streams, schema, archive.staging)
            files = publish(archive, first, last)
            entry = Entry(first, last, files, run[-1].last_id, "pyarrow")
            if entry.rows != last - first + 1:
                fact = f"{first} to {last} have {entry.rows} rows"
                raise ArchiveError("a range is not complete", fact, "run titanic-data verify")
            archive.commit(entry)
            archive.clear_staging()
            made.append(entry)
            done(entry)
    return made


def _files(run: list[Entry]) -> Iterator[tuple[Entry, File]]:
    return ((entry, file) for entry in run for file in entry.files)


def _runs(entries: list[Entry], rows: int, max_bytes: int) -> list[list[Entry]]:
    """Consecutive entries that fit into one: two or more each."""
    runs: list[list[Entry]] = [[]]
    for entry in entries:
        size = sum(file.bytes for one in (*runs[-1], entry) for file in one.files)
        count = sum(one.rows for one in (*runs[-1], entry))
        if entry.gap or (runs[-1] and (size > max_bytes or count > rows)):
            runs.append([])
        if not entry.gap:
            runs[-1].append(entry)
    return [run for run in runs if len(run) > 1]


def vacuum(archive: Archive, *, keep: float = KEEP) -> Vacuumed:
    """Delete superseded entries, and files that no entry names, if they are older than `keep` seconds."""
    done = Vacuumed()
    with archive.locked():
        oldest = time.time() - keep
        for entry in archive.superseded:
            current = next(one for one in archive.entries if one.first <= entry.first and entry.last <= one.last)
            if current.made_at <= oldest * 1e6:
                (archive.path / "manifest" / entry.name).unlink()
        sync_directory(archive.path / "manifest")
        archive.load()
        in_use, superseded = (
            {archive.data / file.path for entry in entries for file in entry.files}
            for entries in (archive.entries, archive.superseded)
        )
        for file in archive.data.glob("date=*/*.parquet"):
            if file in in_use:
                continue
            found = file.stat()
            if file in superseded or found.st_mtime > oldest:
                kept = done.kept_files + 1, done.kept_bytes + found.st_size
                done = done._replace(kept_files=kept[0], kept_bytes=kept[1])
            else:
                done = done._replace(files=done.files + 1, bytes=done.bytes + found.st_size)
                file.unlink()
    return done


def restore_range(archive: Archive, store: Path, first: int, last: int) -> Entry:
    """Write the files of an entry again from a store that still has its range: the queue's own, or a backup.

    Raises ArchiveError when `first` to `last` is not the range of an entry, or the store is another one.
    """
    with archive.locked():
        entry = next((one for one in archive.entries if (one.first, one.last) == (first, last)), None)
        if entry is None:
            raise ArchiveError(
                f"{first} to {last} is not a range of the archive", "", "titanic-data verify lists damaged ones"
            )
        with store_at(store).read() as transaction:
            ring = transaction.archive()
            found = transaction.closed_bulk(last, last).requests() if ring.first <= first and last <= ring.last else []
        if not found:
            what = f"the store {store} does not have closed requests {first} to {last}"
            raise ArchiveError(what, f"it has {ring.first} to {ring.last}", "name a backup of that time with --store")
        if entry.last_id and found[0].uuid.hex() != entry.last_id:
            raise ArchiveError(f"{store} is another store", f"another request has number {last} there")
        other = identity(store)
        if entry.gap and archive.store and other and other != archive.store:  # a gap names no request to compare
            fact = f"its id is {other}, that of the archive's store {archive.store}"
            raise ArchiveError(f"{store} is another store", fact, "name that store, or a backup of it, with --store")
        archive.clear_staging()
        PyArrowEngine().write(store, first, last, archive.staging)
        made_at = time.time_ns() // 1000
        files = publish(archive, first, last, kind=f"restored-{made_at}")
        archive.note(
            replace(entry, files=files, last_id=found[0].uuid.hex(), engine="pyarrow", made_at=made_at, gap=False)
        )
        archive.load()
        archive.clear_staging()
        return next(one for one in archive.entries if one.first == first)
