"""What an archive consists of: its entries, each a file of its own under its range of numbers.

An entry is added by linking a finished file to its name, so two archivers can't both add one. An entry that was made
by compacting has the range of several others; where ranges begin alike, the longest counts, and the others are
superseded: readers that began before may still use them.
"""

from __future__ import annotations

import fcntl
import json
import os
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
        try:
            found = json.loads((path / "archive.json").read_text())
        except (OSError, ValueError) as error:
            fact = "it has no archive.json" if isinstance(error, FileNotFoundError) else str(error)
            raise ArchiveError(f"{path} is not an archive", fact, "look for another directory") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            fact = f"its format is {found.get('format') if isinstance(found, dict) else found!r}, known is {FORMAT}"
            raise ArchiveError(f"the archive {path} cannot be read", fact, "upgrade this Titanic")
        archive = cls(path, str(found.get("id", "")), str(found.get("store", "")))
        archive.load()
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
        """Read the manifest. Raises ArchiveError when its ranges don't follow each other."""
        found = [self._read(file) for file in sorted((self.path / "manifest").glob("[0-9]*.json"))]
        found.sort(key=lambda entry: (entry.first, -entry.last))
        self.entries, self.superseded = [], []
        for entry in found:
            if entry.last <= self.head:
                self.superseded.append(entry)
            elif entry.first == self.head + 1:
                self.entries.append(entry)
            else:
                what = f"the manifest of {self.path} is damaged"
                fact = f"{entry.name} follows on number {self.head}"
                raise ArchiveError(what, fact, "restore the directory manifest from a backup")

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
        write_whole(self.path / "manifest" / entry.name, json.dumps(asdict(entry)) + "\n")
        self.load()

    def clear_staging(self) -> None:
        """Nothing in there is worth anything after a crash."""
        shutil.rmtree(self.staging, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For as long as the archive is changed. Raises ArchiveBusy."""
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
            self.load()
            yield
        finally:
            os.close(descriptor)

    def _read(self, file: Path) -> Entry:
        try:
            document: dict[str, Any] = json.loads(file.read_text())
            document["files"] = tuple(File(**one) for one in document["files"])
            entry = Entry(**document)
        except (ValueError, TypeError, KeyError) as error:
            fact = f"{file.name}: {error}"
            raise ArchiveError(f"the manifest of {self.path} is damaged", fact, "restore it from a backup") from error
        if entry.name != file.name or entry.last < entry.first:
            raise ArchiveError(f"the manifest of {self.path} is damaged", f"{file.name} is about {entry.name}")
        return entry


def _write_about(path: Path, archive_id: str, store: str = "") -> None:
    about = {"what": "titanic archive", "format": FORMAT, "id": archive_id, "store": store}
    write_whole(path / "archive.json", json.dumps(about) + "\n")
