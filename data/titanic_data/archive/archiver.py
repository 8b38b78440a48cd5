"""Copies the ring into the archive. Whenever it is killed, nothing is lost and nothing is archived twice.

    recover        repeat a pending range that was not committed, the same range, if the ring still has it; acknowledge
                   the head again
    next range     from the head of the manifest on, not of the ring: a ring that begins later is a gap
    intend         write the range to pending.json
    stage          write its rows to staging/; their number must be that of the range
    sync, rename   to names made from the range: a repeated attempt overwrites leftovers of a crash
    commit         link the entry into the manifest
    acknowledge    report to the queue, which may drop the rows from now on
    clean          delete pending.json and staging/

Each step can be repeated after a crash in it or before it. Before the commit, what was written is not part of the
archive. After it, only the acknowledgement can be missing, and that is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from broker import DEFAULT_ENDPOINT, Key, credentials
from titanic import ArchiveInfo, Client, InvalidRequest
from titanic.errors import StoreLocked
from titanic.facts.audit import stored_acts
from titanic.store import ArchiveState, Archivist, ReadTransaction, WriteTransaction, open_store
from titanic_data.archive.engines import COMPRESSION, Engine, Reached
from titanic_data.archive.manifest import (
    Archive,
    Entry,
    EntryDone,
    File,
    make_directory,
    measure,
    sync_directory,
    write_whole,
)
from titanic_data.errors import ArchiveError, ArchiveGap
from titanic_data.store_reader import closed_range, forget, identity, store_at
from titanic_data.tables import TIME

Answer = TypeVar("Answer")

ROWS, BYTES = 500_000, 64 << 20
"""The most of one range."""

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
"""The arguments of `reached`, in this order. Tests kill the process at each."""

AUDIT_POINTS = ("audit staged", "audit renamed")
"""Those while acts are archived."""

_TEXTS = ("id", "act", "user", "way", "address", "service", "uuid", "text")
AUDIT_SCHEMA = pa.schema([("at", TIME), ("count", pa.int64()), *((name, pa.string()) for name in _TEXTS)])
"""The columns of acts of users; they mean what `titanic audit --json` prints. `id` is unique."""


@dataclass
class Summary:
    """The ranges, rows and bytes of Parquet that a run added, and acts of users."""

    ranges: int = 0
    rows: int = 0
    bytes: int = 0
    acts: int = 0


class Archiver:
    """One run. Calls `reached` at each step, and `done` with each new entry."""

    def __init__(
        self,
        archive: Archive,
        queue: Queue,
        engine: Engine,
        *,
        rows: int = ROWS,
        max_bytes: int = BYTES,
        allow_gap: bool = False,
        reached: Reached = lambda point: None,
        done: EntryDone = lambda entry: None,
    ) -> None:
        self._archive, self._queue, self._engine = archive, queue, engine
        self._rows, self._bytes, self._allow_gap = rows, max_bytes, allow_gap
        self._reached, self._done = reached, done

    def run(self) -> Summary:
        """Archive all that is closed now. Raises ArchiveError, and the errors of the store and the client."""
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
                self._is_lost(1)  # a new archive begins where the ring does
            self._archive.note_store(self._queue.identity())
            upto = self._queue.last()
            pending = self._recover()
            self._reached("recovered")
            while (found := pending or self._next(upto)) is not None:
                pending = None
                entry = self._archive_range(*found)
                if entry is None:
                    continue  # some of it left the ring meanwhile: go on with what follows
                summary.ranges += 1
                summary.rows += entry.rows
                summary.bytes += sum(file.bytes for file in entry.files)
                self._done(entry)
            summary.acts = archive_acts(self._archive, self._queue.store, self._reached)
        return summary

    def _expect_store(self) -> None:
        """Raise ArchiveError unless this is the archive's store."""
        archive, queue = self._archive, self._queue
        progress, identity = queue.progress(), queue.identity()
        last_id = archive.entries[-1].last_id if archive.entries else ""
        there = queue.id_of(archive.head) if last_id else None
        same = bool(identity) and identity == archive.store
        if progress.last < archive.head or (there and there != last_id):
            fact = f"the archive ends at {archive.head}, which is another request in the store, or none"
            if same:
                what = f"the store {queue.store} is older than its archive {archive.path}"
                raise ArchiveError(
                    what,
                    fact,
                    "was it restored from a backup? run titanic-data unregister, then start a new archive",
                )
            raise ArchiveError(f"{archive.path} is the archive of another store", fact, "use one archive per store")
        if archive.store and not same and there is None:
            fact = f"its store has the id {archive.store}, this one {identity or 'none yet'}"
            raise ArchiveError(f"{archive.path} is the archive of another store", fact, "use one archive per store")
        self._expect_acknowledged()

    def _expect_acknowledged(self) -> None:
        """Raise ArchiveError when the archive has less than it acknowledged: the ring need not have the rest."""
        archive, queue = self._archive, self._queue
        progress = queue.progress()
        known = progress.archivist
        behind = known is not None and known.id == archive.archivist.id and progress.archived_upto > archive.head
        # Not for an archive with a ring that has moved on without it: that is a gap, and reported as one.
        gap = archive.entries and progress.archived_upto < progress.first
        if archive.store and behind and not gap and not self._allow_gap:
            what = f"the archive {archive.path} lacks requests that it acknowledged to its store {queue.store}"
            fact = f"it ends at number {archive.head}, and acknowledged all up to {progress.archived_upto}"
            advice = "restore the archive from a backup; or run again with --allow-gap to continue without them"
            raise ArchiveError(what, fact, advice)

    @property
    def _pending(self) -> Path:
        return self._archive.path / "pending.json"

    def _recover(self) -> tuple[int, int] | None:
        """Repair what a crash has left, and return the range to repeat."""
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
            raise ArchiveError(what, str(error), "remove it: its range was not archived") from error
        noted = archive.entries[-1] if archive.entries else None
        if last <= archive.head or (noted and noted.gap and noted.first <= first <= noted.last):
            self._pending.unlink()  # it is done, or part of it is in a gap
            return None
        if first != archive.head + 1:
            fact = f"it has {first} to {last}, the archive ends at {archive.head}"
            advice = "was the manifest restored from a backup? remove the file"
            raise ArchiveError(f"{self._pending} does not match the archive", fact, advice)
        return None if self._is_lost(first) else (first, last)

    def _next(self, upto: int) -> tuple[int, int] | None:
        self._is_lost(self._archive.head + 1)
        first = self._archive.head + 1
        last = min(upto, first + self._rows - 1)
        return None if last < first else (first, self._queue.cut(first, last, self._bytes))

    def _is_lost(self, first: int) -> bool:
        """Whether this number has left the ring. Raises ArchiveGap, or records a gap: with `allow_gap`, and when the
        archive is new."""
        oldest = self._queue.progress().first
        if first >= oldest:
            return False
        if not self._allow_gap and self._archive.entries:
            what = f"archive gap: closed requests {first} to {oldest - 1} are not in the archive {self._archive.path}"
            fact = f"the ring begins at {oldest}; the archive was not registered or has lost them, or the server may "
            fact += "drop unarchived requests"
            raise ArchiveGap(what, fact, "run again with --allow-gap to continue without them, or restore the archive")
        self._archive.commit(Entry(first, oldest - 1, gap=True))
        self._pending.unlink(missing_ok=True)  # part of the pending range is lost: the rest becomes another range
        return True

    def _archive_range(self, first: int, last: int) -> Entry | None:
        """The new entry; None when part of the range left the ring meanwhile, and a gap was recorded."""
        archive = self._archive
        write_whole(self._pending, json.dumps({"first": first, "last": last, "engine": self._engine.name}))
        self._reached("intended")
        archive.clear_staging()
        try:
            self._engine.write(self._queue.store, first, last, archive.staging, self._reached)
        except Exception:  # each engine raises its own
            if not self._is_lost(first):
                raise
            return None
        self._reached("staged")
        last_id = self._queue.id_of(last)
        if last_id is None:
            self._is_lost(first)
            return None
        files = publish(archive, first, last, self._reached)
        entry = Entry(first, last, files, last_id, self._engine.name)
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
    reached: Reached = lambda point: None,
    *,
    kind: str = "closed",
) -> tuple[File, ...]:
    """Sync the files in staging and move them to their names in the archive."""
    stem = f"{kind}-{first}-{last}"
    known = set(archive.files())
    for left in archive.data.glob(f"date=*/{stem}-*.parquet"):
        if left not in known:
            left.unlink()  # by an attempt that was killed, perhaps of the other engine
    files = []
    for number, staged in enumerate(sorted(archive.staging.glob("date=*/*.parquet"))):
        size, total = measure(staged, sync=True)
        rows = pq.ParquetFile(staged).metadata.num_rows
        target = archive.data / staged.parent.name / f"{stem}-{number}.parquet"
        make_directory(target.parent)
        staged.rename(target)
        sync_directory(target.parent)
        files.append(File(str(target.relative_to(archive.data)), rows, size, total))
        reached("renaming")
    reached("renamed")
    return tuple(files)


class Queue:
    """The store with the ring to archive, and the server that has it open, if one runs."""

    def __init__(
        self,
        store: Path,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`key`, `server_key`: as of `titanic.Client`."""
        self.store = store
        self.endpoint = endpoint
        self._curve = credentials(key, server_key)
        self.uncertain = False
        """Whether a call to the server has no answer yet, and may have been executed."""

    def progress(self) -> ArchiveState:
        """Which archive is registered, what it has, and what there is."""
        return self._read(lambda transaction: transaction.archive())

    def last(self) -> int:
        """The last number that was given out, which a power cut does not undo."""
        return closed_range(self.store)[1]

    def cut(self, first: int, last: int, max_bytes: int) -> int:
        """The number, from `first` to `last`, up to which the frames come to `max_bytes`."""
        return self._read(lambda transaction: transaction.cut_closed(first, last, max_bytes))

    def id_of(self, number: int) -> str | None:
        """The UUID of the request with this number; None when the ring does not have it."""
        found = self._read(lambda transaction: transaction.closed_bulk(number, number)).requests()
        return found[0].uuid.hex() if found else None

    def identity(self) -> str:
        """The id of the store, 32 hexadecimal digits; empty before a server of this version has opened it."""
        return identity(self.store)

    def _read(self, question: Callable[[ReadTransaction], Answer]) -> Answer:
        with store_at(self.store).read() as transaction:
            return question(transaction)

    def register(self, archivist: Archivist) -> None:
        """Have the ring keep what this archive lacks. Raises ArchiveError while another archive is registered."""
        progress = self.progress()
        known, registered = progress.archivist, progress.registered
        if registered and known == archivist:
            return
        if registered and known is not None and known.id != archivist.id:
            what = f"another archive is registered with the store {self.store}"
            advice = "continue with that one; or run titanic-data unregister first, to use this one"
            raise ArchiveError(what, f"it is {known.name} (id {known.id.hex()})", advice)
        said = {"archive": archivist.id.hex(), "name": archivist.name}
        self._report(lambda transaction: transaction.update_archive(archivist, register=True), register=True, **said)

    def unregister(self) -> None:
        """Have the ring wait for no archive."""
        if self.progress().registered:
            self._report(lambda transaction: transaction.update_archive(register=False), register=False)

    def acknowledge(self, upto: int, uuid: str, archivist: Archivist) -> None:
        """Report to the queue that the archive has everything up to a number, which is the request `uuid`."""
        if self.progress().archived_upto < upto:
            key = bytes.fromhex(uuid)
            self._report(
                lambda transaction: transaction.update_archive(archivist, upto=upto, uuid=key),
                upto=upto,
                uuid=uuid,
                archive=archivist.id.hex(),
                name=archivist.name,
            )

    def _report(self, change: Callable[[WriteTransaction], Any], **said: Any) -> None:
        """Change the store itself unless a server has it open; else ask the server."""
        identity = self.identity()
        forget(self.store)  # a process may open a store only once
        try:
            with open_store(self.store) as store, store.write() as transaction:
                change(transaction)
        except StoreLocked:
            with Client(self.endpoint, key=self._curve) as client:
                self._expect(client.archive(), identity)
                self.uncertain = True
                try:
                    client.archive(store=identity, **said)
                except InvalidRequest as error:
                    self.uncertain = False
                    what = f"the server at {self.endpoint} refused the progress of the archive"
                    raise ArchiveError(what, str(error), "nothing was changed there") from error
                self.uncertain = False

    def _expect(self, answer: ArchiveInfo, identity: str) -> None:
        """Raise ArchiveError unless the server that gave this answer has our store: no other may be changed."""
        if "store" not in answer or not identity:
            what = f"the store {self.store} cannot be archived while its server runs"
            raise ArchiveError(what, "the server is of an earlier version", "upgrade it, and start it again")
        if answer["store"] != identity:
            what = f"the server at {self.endpoint} has another store than {self.store}"
            fact = f"its id is {answer['store']}, this one's {identity}; nothing was changed"
            raise ArchiveError(what, fact, "name the right --endpoint")


def archive_acts(archive: Archive, store: Path, reached: Reached) -> int:
    """Archive the acts of users that the store has and the archive lacks, and return how many. Raises ArchiveError.

    Each run that finds some writes ARCHIVE/audit/FIRST-LAST.parquet: the ids of the first and the last act. A file gets
    its name when it is complete and synced, so a killed run leaves no part of one. An act is new if no file has its id.
    Ids begin with the time: only files that reach into the time of the store's acts are read.
    """
    known: set[str] | None = None
    new = []
    for name, act in stored_acts(store_at(store)):
        known = _known_acts(archive, name) if known is None else known
        if name not in known:
            new.append({"id": name, **act})
    if not new:
        return 0
    folder = archive.path / "audit"
    archive.clear_staging()
    make_directory(archive.staging)
    draft = archive.staging / "audit.parquet"
    pq.write_table(pa.Table.from_pylist(new, AUDIT_SCHEMA), draft, compression=COMPRESSION)
    measure(draft, sync=True)
    make_directory(folder)
    reached(AUDIT_POINTS[0])
    draft.rename(folder / f"{new[0]['id']}-{new[-1]['id']}.parquet")
    sync_directory(folder)
    reached(AUDIT_POINTS[1])
    archive.clear_staging()
    return len(new)


def _known_acts(archive: Archive, oldest: str) -> set[str]:
    """The ids of acts in the archive, from `oldest` on."""
    known: set[str] = set()
    for file in (archive.path / "audit").glob("*.parquet"):
        if file.stem.rpartition("-")[2] >= oldest:
            try:
                known.update(pq.read_table(file, columns=["id"])["id"].to_pylist())
            except (pa.ArrowException, OSError) as error:
                advice = "restore it from a backup; or remove it, and acts that the store still has are archived again"
                raise ArchiveError(f"{file} is damaged", str(error).splitlines()[0], advice) from error
    return known
