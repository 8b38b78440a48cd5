"""The directory of an archive and its manifest: one entry for each range of numbers, in a file of its own.

An entry is added by linking a finished file to its name, so two archivers cannot both add one. Compacting makes an
entry with the range of several others: of the entries with the same beginning the longest counts, and the others are
superseded, because readers that began before may still use their files.

The name of a data file says its range. If data files go beyond the manifest, entries were lost. That is damage: only
the manifest distinguishes these files from leftovers of a crash.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex
from socket import gethostname
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow.parquet as pq

from titanic.store import Archivist
from titanic_data.errors import ArchiveBusy, ArchiveError

FORMAT = 1

FILE_NAME = re.compile(r"((?:closed|restored-\d+)-(\d+)-(\d+))-\d+\.parquet")
"""The name of a data file: which attempt wrote it, and the first and the last number of the range."""


@dataclass(frozen=True)
class File:
    """A Parquet file: its path below ARCHIVE/data, and the CRC-32 of its bytes."""

    path: str
    rows: int
    bytes: int
    crc32: int


Progress = Callable[[int, int], None]
"""Called with the amount done, and the total."""


@dataclass(frozen=True)
class Entry:
    """The closed requests number `first` to `last`. `last_id` is the UUID of the last one, `made_at` in µs.

    A `gap` has no files: its requests left the ring before there was an archive, or later and an operator allowed it.
    """

    first: int
    last: int
    files: tuple[File, ...] = ()
    last_id: str = ""
    engine: str = ""
    made_at: int = field(default_factory=lambda: time.time_ns() // 1000)
    gap: bool = False

    @property
    def rows(self) -> int:
        """The number of rows in its files."""
        return sum(file.rows for file in self.files)

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.first:020d}-{self.last:020d}.json"


EntryDone = Callable[[Entry], None]
"""Called with each entry that is in the manifest."""


@dataclass
class Archive:
    """A directory with an archive, as it was when its manifest was read (`load`)."""

    path: Path
    id: str = ""
    """32 hexadecimal digits; empty in an archive of an earlier version until it is first locked."""
    store: str = ""
    """The id of its store; empty before the first run."""
    entries: list[Entry] = field(default_factory=list)
    superseded: list[Entry] = field(default_factory=list)
    is_new: bool = False
    pending: tuple[int, int] = (1, 0)
    """The range that is being archived, or was when an archiver was killed. An empty range: none."""

    @classmethod
    def create(cls, path: Path) -> Archive:
        """The archive in a directory, which is created if needed. Raises ArchiveError."""
        is_new = False
        try:
            make_directory(path)
            if not (path / "archive.json").exists():
                strange = sorted(one.name for one in path.iterdir() if not one.name.startswith(".archive.json"))
                if strange:
                    advice = _lost(path) or "choose an empty directory"
                    raise ArchiveError(f"{path} is not an archive", f"it holds {strange[0]!r}", advice)
                write_about(path, token_hex(16))
                is_new = True
            for name in ("manifest", "data"):
                make_directory(path / name)
        except OSError as error:
            raise ArchiveError(
                f"the archive {path} cannot be created", str(error), "check its owner and disk"
            ) from error
        archive = cls.open(path)
        archive.is_new = is_new
        return archive

    @classmethod
    def open(cls, path: Path) -> Archive:
        """The archive in a directory. Raises ArchiveError."""
        archive = cls.without_manifest(path)
        archive.load()
        return archive

    @classmethod
    def without_manifest(cls, path: Path) -> Archive:
        """The archive in a directory, without its manifest. Raises ArchiveError."""
        try:
            found = json.loads((path / "archive.json").read_text())
        except (OSError, ValueError) as error:
            fact = "it has no archive.json" if isinstance(error, FileNotFoundError) else str(error)
            advice = (isinstance(error, FileNotFoundError) and _lost(path)) or "name another directory"
            raise ArchiveError(f"{path} is not an archive", fact, advice) from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            its = found.get("format") if isinstance(found, dict) else found
            fact = f"its format is {its!r}; this version reads {FORMAT}"
            raise ArchiveError(f"the archive {path} cannot be read", fact, "upgrade Titanic")
        archive = cls(path, str(found.get("id", "")), str(found.get("store", "")))
        archive.pending = archive._pending()
        return archive

    @property
    def archivist(self) -> Archivist:
        """How the queue identifies it. A copy is the same archive."""
        return Archivist(bytes.fromhex(self.id), f"{self.path.resolve()} on {gethostname()}")

    def note_store(self, store: str) -> None:
        """Record that it is the archive of this store."""
        if store and store != self.store:
            write_about(self.path, self.id, store)
            self.store = store

    def discard_if_new(self) -> None:
        """Remove an archive that was just created and cannot be used."""
        if self.is_new and not self.entries:
            for name in ("manifest", "data"):
                (self.path / name).rmdir()
            for name in ("lock", "archive.json"):
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):  # not empty: others have written to it
                self.path.rmdir()

    @property
    def head(self) -> int:
        """The last archived number; 0: none."""
        return self.entries[-1].last if self.entries else 0

    @property
    def data(self) -> Path:
        """The directory of the data files."""
        return self.path / "data"

    @property
    def staging(self) -> Path:
        """The directory in which files are written."""
        return self.path / "staging"

    def files(self) -> list[Path]:
        """The data files of all entries."""
        return [self.data / file.path for entry in self.entries for file in entry.files]

    def load(self) -> None:
        """Read the manifest. Raises ArchiveError when its ranges have holes, or data files go beyond them."""
        written = self.written()  # read before the manifest, which then has what is committed meanwhile
        self.pending = self._pending()
        found = [self.read(file) for file in self.manifest()]
        found.sort(key=lambda entry: (entry.first, -entry.last))
        self.entries, self.superseded = [], []
        for entry in found:
            if entry.last <= self.head:
                self.superseded.append(entry)
            elif entry.first == self.head + 1:
                self.entries.append(entry)
            else:
                raise self._damaged(f"{entry.name} follows on number {self.head}")
        for file, (_, first, last) in written.items():
            if self.is_beyond(first, last, self.head, self.entries):
                raise self._damaged(f"it goes up to number {self.head}, and {file.name} up to {last}")

    def is_beyond(self, first: int, last: int, head: int, entries: list[Entry]) -> bool:
        """Whether files of a range go beyond a manifest and are not leftovers of an archiver that was killed.

        When some of the range had left the ring, these numbers are a gap, and the others are in another range.
        """
        known = self.pending[0] <= first and last <= self.pending[1]
        return last > head and not known and not any(one.gap and one.first <= first <= one.last for one in entries)

    def manifest(self) -> list[Path]:
        """The files of the manifest, one for each entry."""
        return sorted((self.path / "manifest").glob("[0-9]*.json"))

    def written(self) -> dict[Path, tuple[str, int, int]]:
        """All data files, also leftovers: which attempt wrote each, and its first and last number."""
        found = {}
        for file in sorted(self.data.glob("date=*/*.parquet")):
            if name := FILE_NAME.fullmatch(file.name):
                found[file] = name[1], int(name[2]), int(name[3])
        return found

    def _pending(self) -> tuple[int, int]:
        try:
            intent = json.loads((self.path / "pending.json").read_text())
            return int(intent["first"]), int(intent["last"])
        except (OSError, ValueError, TypeError, KeyError):  # the archiver reports it
            return 1, 0

    def commit(self, entry: Entry) -> None:
        """Add an entry. Raises ArchiveError when there is one for its range."""
        try:
            write_whole(self.path / "manifest" / entry.name, json.dumps(asdict(entry)) + "\n", new=True)
        except FileExistsError as error:
            fact = "another archiver was faster"
            raise ArchiveError(
                f"{entry.first} to {entry.last} are in the archive already", fact, "run only one"
            ) from error
        self.load()

    def note(self, entry: Entry) -> None:
        """Write an entry, also over another one."""
        write_whole(self.path / "manifest" / entry.name, json.dumps(asdict(entry)) + "\n")

    def clear_staging(self) -> None:
        """Delete what was staged. After a crash it is worthless."""
        shutil.rmtree(self.staging, ignore_errors=True)

    @contextmanager
    def locked(self, *, load: bool = True) -> Iterator[None]:
        """Lock the archive for changes. Raises ArchiveBusy, and what `load` raises."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                process = os.read(descriptor, 20).decode(errors="replace").strip()
                raise ArchiveBusy(
                    f"the archive {self.path} is in use", f"by process {process}", "wait until it is done"
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            if not self.id:  # of an earlier version
                self.id = token_hex(16)
                write_about(self.path, self.id)
            if load:
                self.load()
            yield
        finally:
            os.close(descriptor)

    def read(self, file: Path) -> Entry:
        """Read an entry from a file of the manifest. Raises ArchiveError."""
        try:
            document: dict[str, Any] = json.loads(file.read_text())
            document["files"] = tuple(File(**one) for one in document["files"])
            entry = Entry(**document)
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged(f"{file.name}: {error}") from error
        if entry.name != file.name or entry.last < entry.first:
            raise self._damaged(f"{file.name} has the entry {entry.name}")
        return entry

    def _damaged(self, fact: str) -> ArchiveError:
        advice = "restore the directory manifest from a backup, or rebuild it from the files: "
        advice += f"titanic-data rebuild-manifest --archive {self.path}"
        return ArchiveError(f"the manifest of {self.path} is damaged", fact, advice)


def _lost(path: Path) -> str:
    """The advice for a directory that seems to be an archive without its archive.json; empty for any other."""
    if not (path / "data").is_dir() or not (path / "manifest").is_dir():
        return ""
    return f"if archive.json was lost: titanic-data rebuild-manifest --archive {path} --store STORE recreates it"


def write_about(path: Path, archive_id: str, store: str = "") -> None:
    """Write archive.json."""
    about = {"what": "titanic archive", "format": FORMAT, "id": archive_id, "store": store}
    write_whole(path / "archive.json", json.dumps(about) + "\n")


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def measure(file: Path, *, sync: bool = False) -> tuple[int, int]:
    """The size of a file and the CRC-32 of its bytes. With `sync` its content is made durable."""
    size = total = 0
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            size += len(piece)
            total = crc32(piece, total)
        if sync:
            os.fsync(opened.fileno())
    return size, total


def write_whole(file: Path, text: str, *, new: bool = False) -> None:
    """Write a file so that after a crash it is either complete or as it was before.

    With `new` it must not exist: raises FileExistsError otherwise, also when another process was faster.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with draft.open("w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    try:
        if new:
            os.link(draft, file)
        else:
            draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(file.parent)


def make_directory(directory: Path) -> None:
    """Make a durable directory, with its parents."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


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
