"""What an archive consists of: its entries, each a file of its own under its range of numbers.

An entry is added by linking a finished file to its name, so two archivers can't both add one. An entry that was made
by compacting has the range of several others; where ranges begin alike, the longest counts, and the others are
superseded: readers that began before may still use them.

Files tell of their range by their names. Where they go beyond the manifest, entries were lost: that is damage, for
nobody could tell these files from leftovers any more.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex
from socket import gethostname
from typing import Any

from titanic.store import Archivist
from titanic_data.archive.durable import make_directory, write_whole
from titanic_data.errors import ArchiveBusy, ArchiveError

FORMAT = 1

FILE_NAME = re.compile(r"((?:closed|restored-\d+)-(\d+)-(\d+))-\d+\.parquet")
"""What files are called: of which attempt they are, and the first and the last number of its range."""


@dataclass(frozen=True)
class File:
    """A Parquet file; `path` from ARCHIVE/data on. `crc32` of its bytes."""

    path: str
    rows: int
    bytes: int
    crc32: int


@dataclass(frozen=True)
class Entry:
    """The closed requests number `first` to `last`. `last_id` is the UUID of the last one.

    A `gap` has no files: these had left the ring before they were archived, before there was an archive, or later and
    somebody has accepted that.
    """

    first: int
    last: int
    files: tuple[File, ...] = ()
    last_id: str = ""
    engine: str = ""
    made_at: int = 0
    gap: bool = False

    @property
    def rows(self) -> int:
        """In its files."""
        return sum(file.rows for file in self.files)

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.first:020d}-{self.last:020d}.json"


@dataclass
class Archive:
    """A directory with an archive. Look at it again (`load`) after it was changed."""

    path: Path
    id: str = ""
    """32 hexadecimal digits; nothing until it is first locked, in one of an earlier version."""
    store: str = ""
    """The id of the store whose archive it is; nothing before its first run."""
    entries: list[Entry] = field(default_factory=list)
    superseded: list[Entry] = field(default_factory=list)
    is_new: bool = False
    begun: tuple[int, int] = (1, 0)
    """The range that is being archived, or was when somebody was killed; an empty one: none."""

    @classmethod
    def create(cls, path: Path) -> Archive:
        """The archive in a directory, which is made if there is none. Raises ArchiveError."""
        is_new = False
        try:
            make_directory(path)
            if not (path / "archive.json").exists():
                strange = sorted(one.name for one in path.iterdir() if not one.name.startswith(".archive.json"))
                if strange:
                    raise ArchiveError(
                        f"{path} is not an archive", f"it holds {strange[0]!r}", "choose an empty directory"
                    )
                _write_about(path, token_hex(16))
                is_new = True
            for name in ("manifest", "data"):
                make_directory(path / name)
        except OSError as error:
            raise ArchiveError(
                f"the archive {path} cannot be made", str(error), "look at its owner and disk"
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
        """The same, before a look at its manifest."""
        try:
            found = json.loads((path / "archive.json").read_text())
        except (OSError, ValueError) as error:
            fact = "it has no archive.json" if isinstance(error, FileNotFoundError) else str(error)
            raise ArchiveError(f"{path} is not an archive", fact, "look for another directory") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            fact = f"its format is {found.get('format') if isinstance(found, dict) else found!r}, known is {FORMAT}"
            raise ArchiveError(f"the archive {path} cannot be read", fact, "upgrade this Titanic")
        archive = cls(path, str(found.get("id", "")), str(found.get("store", "")))
        archive.begun = archive._begun()
        return archive

    @property
    def archivist(self) -> Archivist:
        """What the queue knows it by. A copy is the same archive."""
        return Archivist(bytes.fromhex(self.id), f"{self.path.resolve()} on {gethostname()}")

    def note_store(self, store: str) -> None:
        """From now on it is the archive of this store."""
        if store and store != self.store:
            _write_about(self.path, self.id, store)
            self.store = store

    def discard_if_new(self) -> None:
        """Leave nothing behind of an archive that was only just made, when it cannot be used."""
        if self.is_new and not self.entries:
            for name in ("manifest", "data"):
                (self.path / name).rmdir()
            for name in ("lock", "archive.json"):
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):  # somebody else's directory perhaps, with something in it by now
                self.path.rmdir()

    @property
    def head(self) -> int:
        """The last number that is archived; 0: none."""
        return self.entries[-1].last if self.entries else 0

    @property
    def data(self) -> Path:
        """Where its files are."""
        return self.path / "data"

    @property
    def staging(self) -> Path:
        """Where files are written."""
        return self.path / "staging"

    def files(self) -> list[Path]:
        """All that belong to it."""
        return [self.data / file.path for entry in self.entries for file in entry.files]

    def load(self) -> None:
        """Read the manifest. Raises ArchiveError when its ranges don't follow each other, or files go beyond them."""
        written = self.written()  # before the manifest: what is committed meanwhile is in there
        self.begun = self._begun()
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
        """Whether files of a range go beyond a manifest, although nobody was killed while they were written.

        Where the ring had let go of some of them, these were noted as a gap, and the others are in another range.
        """
        known = self.begun[0] <= first and last <= self.begun[1]
        return last > head and not known and not any(one.gap and one.first <= first <= one.last for one in entries)

    def manifest(self) -> list[Path]:
        """The files of its entries."""
        return sorted((self.path / "manifest").glob("[0-9]*.json"))

    def written(self) -> dict[Path, tuple[str, int, int]]:
        """All data files, whether they belong to it or not: of which attempt, the first and the last number."""
        found = {}
        for file in sorted(self.data.glob("date=*/*.parquet")):
            if name := FILE_NAME.fullmatch(file.name):
                found[file] = name[1], int(name[2]), int(name[3])
        return found

    def _begun(self) -> tuple[int, int]:
        try:
            intent = json.loads((self.path / "pending.json").read_text())
            return int(intent["first"]), int(intent["last"])
        except (OSError, ValueError, TypeError, KeyError):  # the archiver says so
            return 1, 0

    def commit(self, entry: Entry) -> None:
        """Add an entry, for good. Raises ArchiveError when its range is there already."""
        try:
            write_whole(self.path / "manifest" / entry.name, json.dumps(asdict(entry)) + "\n", new=True)
        except FileExistsError as error:
            fact = "another archiver was quicker"
            raise ArchiveError(
                f"{entry.first} to {entry.last} are in the archive already", fact, "use one only"
            ) from error
        self.load()

    def replace(self, entry: Entry) -> None:
        """Put an entry in the place of the one with its range."""
        self.note(entry)
        self.load()

    def note(self, entry: Entry) -> None:
        """Write an entry, whatever is in its place."""
        write_whole(self.path / "manifest" / entry.name, json.dumps(asdict(entry)) + "\n")

    def clear_staging(self) -> None:
        """Nothing in there is worth anything after a crash."""
        shutil.rmtree(self.staging, ignore_errors=True)

    @contextmanager
    def locked(self, *, load: bool = True) -> Iterator[None]:
        """For as long as the archive is changed. Raises ArchiveBusy, and what `load` raises."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                who = os.read(descriptor, 20).decode(errors="replace").strip()
                raise ArchiveBusy(
                    f"the archive {self.path} is in use", f"by process {who}", "wait until it is done"
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            if not self.id:  # of an earlier version
                self.id = token_hex(16)
                _write_about(self.path, self.id)
            if load:
                self.load()
            yield
        finally:
            os.close(descriptor)

    def read(self, file: Path) -> Entry:
        """An entry. Raises ArchiveError."""
        try:
            document: dict[str, Any] = json.loads(file.read_text())
            document["files"] = tuple(File(**one) for one in document["files"])
            entry = Entry(**document)
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged(f"{file.name}: {error}") from error
        if entry.name != file.name or entry.last < entry.first:
            raise self._damaged(f"{file.name} is about {entry.name}")
        return entry

    def _damaged(self, fact: str) -> ArchiveError:
        advice = "restore the directory manifest from a backup, or make it anew from the files: "
        advice += f"titanic-data rebuild-manifest --archive {self.path}"
        return ArchiveError(f"the manifest of {self.path} is damaged", fact, advice)


def _write_about(path: Path, archive_id: str, store: str = "") -> None:
    about = {"what": "titanic archive", "format": FORMAT, "id": archive_id, "store": store}
    write_whole(path / "archive.json", json.dumps(about) + "\n")
