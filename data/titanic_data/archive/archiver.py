"""From the ring into the archive: nothing is lost, nothing is there twice, whenever it is killed.

    recover        a pending range that was not committed is done again, the same range, if the ring still has it; the
                   head is acknowledged again
    next range     from the manifest's head on, not from what the ring says: a ring that begins later is a gap
    intend         write the range down (pending.json)
    stage          write its rows into staging/; their number must be that of the range
    sync, rename   to names made from the range: whoever does it again writes over what a crash has left
    commit         link the entry into the manifest
    acknowledge    tell the queue: only now it may let go of them
    clean          pending.json and staging/ go

Each step can be done again after a crash anywhere before or in it. Before the commit, what was written is not part of
the archive; after it, only the acknowledgement can be missing, and it is repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from titanic_data.archive.durable import make_directory, sync_directory, sync_file, write_whole
from titanic_data.archive.engines import Engine
from titanic_data.archive.manifest import Archive, Entry, File
from titanic_data.archive.queue import Queue
from titanic_data.errors import ArchiveError, ArchiveGap

ROWS, BYTES = 500_000, 256 << 20
"""Of a range, at most."""

POINTS = (
    "locked",
    "recovered",
    "intended",
    "staging",
    "staged",
    "renaming",
    "renamed",
    "committed",
    "acknowledged",
    "cleaned",
)
"""What `reached` is told, in this order; the tests kill the process at each."""


@dataclass
class Summary:
    """What a run has done: ranges, rows and bytes of Parquet that it added."""

    ranges: int = 0
    rows: int = 0
    bytes: int = 0


class Archiver:
    """One run. `reached` is told of each step, `done` of each entry that was added."""

    def __init__(
        self,
        archive: Archive,
        queue: Queue,
        engine: Engine,
        *,
        rows: int = ROWS,
        max_bytes: int = BYTES,
        allow_gap: bool = False,
        reached: Callable[[str], None] = lambda point: None,
        done: Callable[[Entry], None] = lambda entry: None,
    ) -> None:
        self._archive, self._queue, self._engine = archive, queue, engine
        self._rows, self._bytes, self._allow_gap = rows, max_bytes, allow_gap
        self._reached, self._done = reached, done

    def run(self) -> Summary:
        """Archive all that is closed now. Raises ArchiveError, and what reading a store or asking a server raises."""
        summary = Summary()
        with self._archive.locked():
            self._reached("locked")
            try:
                self._expect_store()
                self._queue.register(self._archive.archivist)
            except BaseException:
                if not self._queue.uncertain:
                    self._archive.discard_if_new()
                raise
            if not self._archive.store:
                self._is_lost(1)  # a new archive begins here: from now on it has all that the queue was told
            self._archive.note_store(self._queue.identity())
            upto = self._queue.progress().last
            pending = self._recover()
            self._reached("recovered")
            while (found := pending or self._next(upto)) is not None:
                pending = None
                entry = self._archive_range(*found)
                if entry is None:
                    continue  # the ring has let go of some meanwhile: go on with what follows
                summary.ranges += 1
                summary.rows += entry.rows
                summary.bytes += sum(file.bytes for file in entry.files)
                self._done(entry)
        return summary

    def _expect_store(self) -> None:
        """Raise ArchiveError unless the archive is of this store."""
        archive, queue = self._archive, self._queue
        progress, identity = queue.progress(), queue.identity()
        last_id = archive.entries[-1].last_id if archive.entries else ""
        there = queue.id_of(archive.head) if last_id else None
        same = bool(identity) and identity == archive.store
        if progress.last < archive.head or (there and there != last_id):
            fact = f"the archive goes up to {archive.head}, which is another request there or none"
            if same:
                what = f"the store {queue.store} is older than its archive {archive.path}"
                raise ArchiveError(
                    what,
                    fact,
                    "was it restored from a backup? run titanic-data unregister, then go on with a new archive",
                )
            raise ArchiveError(f"{archive.path} is the archive of another store", fact, "use an archive for each store")
        if archive.store and not same and there is None:
            fact = f"that one's id is {archive.store}, this one's {identity or 'not there yet'}"
            raise ArchiveError(f"{archive.path} is the archive of another store", fact, "use an archive for each store")
        self._expect_all_that_was_told()

    def _expect_all_that_was_told(self) -> None:
        """Raise ArchiveError when the store was told of more than the archive has: the ring need not have it."""
        archive, queue = self._archive, self._queue
        progress, known = queue.progress(), queue.archivist()
        behind = known is not None and known.id == archive.archivist.id and progress.archived_upto > archive.head
        # An archive that comes back to a ring that has moved on is told so, too: that is a gap, and said below.
        gap = archive.entries and progress.archived_upto < progress.first
        if archive.store and behind and not gap and not self._allow_gap:
            what = f"the archive {archive.path} is behind what its store {queue.store} was told"
            fact = f"it goes up to number {archive.head}, and the store was told that all up to "
            advice = "restore the archive from a backup; or run again with --allow-gap to go on with what the ring has"
            raise ArchiveError(what, f"{fact}{progress.archived_upto} is there", advice)

    @property
    def _pending(self) -> Path:
        return self._archive.path / "pending.json"

    def _recover(self) -> tuple[int, int] | None:
        """Put right what a crash has left; the range that is to be done again."""
        archive = self._archive
        archive.clear_staging()
        if archive.entries:
            self._acknowledge(archive.entries[-1])
        if not self._pending.exists():
            return None
        try:
            intent = json.loads(self._pending.read_text())
            first, last = int(intent["first"]), int(intent["last"])
        except (ValueError, TypeError, KeyError) as error:
            what = f"{self._pending} is damaged"
            raise ArchiveError(what, str(error), "remove it: what it is about was not archived") from error
        noted = archive.entries[-1] if archive.entries else None
        if last <= archive.head or (noted and noted.gap and noted.first <= first <= noted.last):
            self._pending.unlink()  # it is done, or some of it was lost and that is noted
            return None
        if first != archive.head + 1:
            fact = f"it says {first} to {last}, the archive goes up to {archive.head}"
            raise ArchiveError(
                f"{self._pending} does not fit", fact, "was the manifest restored from a backup? remove it"
            )
        return None if self._is_lost(first) else (first, last)

    def _next(self, upto: int) -> tuple[int, int] | None:
        self._is_lost(self._archive.head + 1)
        first = self._archive.head + 1
        last = min(upto, first + self._rows - 1)
        return None if last < first else (first, self._queue.cut(first, last, self._bytes))

    def _is_lost(self, first: int) -> bool:
        """Whether the ring has let go of this number. That is an error, or noted as a gap; a new archive begins with
        what is there."""
        oldest = self._queue.progress().first
        if first >= oldest:
            return False
        if not self._allow_gap and self._archive.entries:
            what = f"archive gap: closed requests {first} to {oldest - 1} are not in the archive {self._archive.path}"
            fact = f"the ring begins at {oldest}; the archive was not registered or has lost them, or the server may "
            fact += "drop what it lacks"
            raise ArchiveGap(what, fact, "run again with --allow-gap to go on without them, or restore the archive")
        self._archive.commit(Entry(first, oldest - 1, made_at=time.time_ns() // 1000, gap=True))
        self._pending.unlink(missing_ok=True)  # of what was begun, some is lost: the rest will be another range
        return True

    def _archive_range(self, first: int, last: int) -> Entry | None:
        """The new entry; None when the ring has let go of some meanwhile, and that was noted."""
        archive = self._archive
        write_whole(self._pending, json.dumps({"first": first, "last": last, "engine": self._engine.name}))
        self._reached("intended")
        archive.clear_staging()
        try:
            self._engine.write(self._queue.store, first, last, archive.staging, self._reached)
        except Exception:  # each engine has its own way to say so
            if not self._is_lost(first):
                raise
            return None
        self._reached("staged")
        last_id = self._queue.id_of(last)
        if last_id is None:
            self._is_lost(first)
            return None
        files = publish(archive, first, last, self._reached)
        entry = Entry(first, last, files, last_id, self._engine.name, time.time_ns() // 1000)
        if entry.rows != last - first + 1:
            fact = f"{entry.rows} rows were written for {first} to {last}"
            raise ArchiveError("the archive is not complete", fact, "nothing was committed; run again")
        archive.commit(entry)
        self._reached("committed")
        self._acknowledge(entry)
        self._reached("acknowledged")
        self._pending.unlink()
        archive.clear_staging()
        self._reached("cleaned")
        return entry

    def _acknowledge(self, entry: Entry) -> None:
        if entry.last_id:
            self._queue.acknowledge(entry.last, entry.last_id, self._archive.archivist)


def publish(
    archive: Archive,
    first: int,
    last: int,
    reached: Callable[[str], None] = lambda point: None,
    *,
    kind: str = "closed",
) -> tuple[File, ...]:
    """Give the files in staging the names that they have in the archive, synced."""
    stem = f"{kind}-{first}-{last}"
    known = set(archive.files())
    for left in archive.data.glob(f"date=*/{stem}-*.parquet"):
        if left not in known:
            left.unlink()  # of an attempt that was killed, perhaps by the other engine
    files = []
    for number, staged in enumerate(sorted(archive.staging.glob("date=*/*.parquet"))):
        size, total = sync_file(staged)
        rows = pq.ParquetFile(staged).metadata.num_rows
        target = archive.data / staged.parent.name / f"{stem}-{number}.parquet"
        make_directory(target.parent)
        staged.rename(target)
        sync_directory(target.parent)
        files.append(File(str(target.relative_to(archive.data)), rows, size, total))
        reached("renaming")
    reached("renamed")
    return tuple(files)
