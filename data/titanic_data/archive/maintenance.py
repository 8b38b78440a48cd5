"""Maintains an archive: merges small files, deletes files that are no longer needed, writes damaged ones again."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from titanic_data.archive.archiver import publish
from titanic_data.archive.engines import BATCH_BYTES, PyArrowEngine, batches_of, schema_fault, schema_of, write_by_date
from titanic_data.archive.manifest import Archive, Entry, EntryDone, File, sync_directory
from titanic_data.archive.verify import read_whole
from titanic_data.errors import ArchiveError
from titanic_data.store_reader import store_at

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
