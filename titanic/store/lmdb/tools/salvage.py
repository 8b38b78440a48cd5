"""Saving what can be read of a store with damaged pages.

All rows that are found, without LMDB (pages.py), are written into a new file, which takes the place of the damaged one.
That is kept beside it. repair() then does the rest: it fails requests that are not complete.

The leaves below a branch that can't be read are found all the same: no tree has them, and they aren't free
(`_home_of`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import lmdb

from titanic.errors import RecordCorrupt, StoreCorrupt
from titanic.store.lmdb import (
    blob,
    closed_record,
    idempotency_key,
    opening,
    outcome_record,
    request_record,
    retry_record,
)
from titanic.store.lmdb.outcome_record import OutcomeHeader
from titanic.store.lmdb.pages import Hole, Pages
from titanic.store.lmdb.request_record import RequestHeader
from titanic.store.lmdb.schema import (
    DEAD,
    EXPIRY,
    KEY,
    LOAD,
    PAGE,
    REPLIED,
    SERVICES_KEY,
    TIME_SIZE,
    U32,
    Databases,
    sequence_of,
)
from titanic.store.lmdb.tools.findings import Problem
from titanic.util.ids import SIZE

_SPARE = 64 << 20
_PORTION = 8 << 20
_ROOT = -1

Row = tuple[bytes, bytes]


class Salvaged(NamedTuple):
    """What was saved: how many rows. `damaged` is the file as it was, `problems` is what couldn't be read of it."""

    damaged: Path
    rows: int
    problems: list[Problem]


def salvage(directory: Path) -> Salvaged:
    """Put a new file with all that can be read in the place of the data file of a store that no process has open.

    Raises StoreLocked, StoreUnwritable (there must be room for a copy), or StoreCorrupt when nothing can be read. Then
    all is as it was.
    """
    data, new = directory / opening.DATA, directory / opening.NEW
    descriptor = opening.take_lock(directory)
    try:
        try:
            with data.open("rb") as file:
                pages = Pages(file.fileno())
                rows = _save(pages, new, data.stat().st_size)
            damaged = _free_name(directory, time.strftime("damaged-%Y%m%dT%H%M%S"))
            owner = data.stat()
            _give(new, owner)
            os.link(data, damaged)
            new.rename(data)
            _renew_lock(directory, owner)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        opening.sync_directory(directory)
    except (OSError, lmdb.Error) as error:
        raise opening.unwritable(directory, error) from error
    finally:
        opening.release_lock(descriptor)
    return Salvaged(damaged, rows, _problems(pages))


def _free_name(directory: Path, name: str) -> Path:
    first = directory / f"{name}.mdb"
    names = (directory / f"{name}-{n}.mdb" for n in count(2))
    return next(path for path in chain([first], names) if not path.exists())


def _renew_lock(directory: Path, owner: os.stat_result) -> None:
    """Make a new lock file: the old one knows of transactions that the new file hasn't had."""
    (directory / opening.LOCK).unlink(missing_ok=True)
    opening.allocate_lock(directory)
    _give(directory / opening.LOCK, owner)


def _give(file: Path, owner: os.stat_result) -> None:
    """Keep the owner and mode: the server must be able to open a file that another user has repaired."""
    if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(file, owner.st_uid, owner.st_gid)
    file.chmod(stat.S_IMODE(owner.st_mode))


def _save(pages: Pages, new: Path, size: int) -> int:
    """Write all rows into a new file, synced, and return how many."""
    roots = pages.trees()
    if not roots.keys() & {name.encode() for name in Databases._fields}:
        raise StoreCorrupt(f"{new.with_name(opening.DATA)} is damaged", "nothing of it can be read", "restore a backup")
    new.unlink(missing_ok=True)
    options = {"subdir": False, "max_dbs": 16, "mode": 0o640, "lock": False, "sync": False}
    with lmdb.open(str(new), map_size=2 * size // PAGE * PAGE + _SPARE, **options) as env:  # type: ignore[arg-type]
        databases = Databases(**{name: env.open_db(name.encode()) for name in Databases._fields})
        rows = 0
        for name, database in databases._asdict().items():
            root = roots.get(name.encode())
            if root is not None:
                rows += _write(env, database, pages.rows(name, root))
            elif pages.odd_rows or pages.holes:
                pages.holes.append(Hole(name, _ROOT, b"", None))
        for leaf in pages.strays() if pages.holes else ():
            if home := _home_of(leaf, pages.holes):
                rows += _write(env, getattr(databases, home), leaf)
        env.sync(True)
    return rows


def _write(env: lmdb.Environment, database: lmdb._Database, rows: Iterable[tuple[bytes, bytes]]) -> int:
    written = 0
    for portion in _portions(rows):
        with env.begin(write=True) as txn:
            written += txn.cursor(database).putmulti(portion, dupdata=False, overwrite=False)[1]
    return written


def _portions(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """The rows in lists of a few MiB."""
    portion: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in rows:
        portion.append((key, value))
        size += len(key) + len(value) + 100
        if size > _PORTION:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _problems(pages: Pages) -> list[Problem]:
    found = []
    if pages.is_older:
        found.append(("the last transaction", "it can't be read, only the one before it"))
    for hole in pages.holes:
        what = "its root can't be found" if hole.page == _ROOT else f"page {hole.page} can't be read"
        found.append((hole.tree, what))
    if pages.odd_rows:
        found.append(("rows", f"{pages.odd_rows} can't be read"))
    return [Problem(where, what, "save the rest in a new file") for where, what in found]


# -- leaves that no tree has ---------------------------------------------------------------------------------


def _home_of(leaf: list[Row], holes: Iterable[Hole]) -> str:
    """Return the database of a leaf that belongs to no tree; nothing when it fits none.

    Its keys are in a gap that a lost page left, and its rows have that database's format.
    """
    if not leaf:
        return ""
    first, last = min(leaf)[0], max(leaf)[0]
    gaps = {hole.tree for hole in holes if hole.low <= first and (hole.high is None or last < hole.high)}
    for name in _LOOKS:
        if name in gaps and 2 * sum(_looks_like(name, *row) for row in leaf) > len(leaf):
            return name
    return ""


def _looks_like(name: str, key: bytes, value: bytes) -> bool:
    try:
        return _LOOKS[name](key, value)
    except (RecordCorrupt, StoreCorrupt):
        return False


def _record(
    decode_header: Callable[[bytes, bytes], RequestHeader | OutcomeHeader],
    decode: Callable[[bytes, memoryview], object],
) -> Callable[[bytes, bytes], bool]:
    """Whether a row is a record with frames, or with a reference to them at its end."""

    def looks_like(key: bytes, value: bytes) -> bool:
        header = decode_header(key, value)
        if header.ref is None:
            decode(key, memoryview(value))
        return len(key) == SIZE and (header.ref is None or header.body_at + blob.REF_SIZE == len(value))

    return looks_like


_LOOKS: dict[str, Callable[[bytes, bytes], bool]] = {
    "requests": _record(request_record.decode_header, request_record.decode),
    "replies": _record(outcome_record.decode_header, outcome_record.decode),
    # for a retry, the other two check all that matters
    "retries": lambda key, value: len(key) == SIZE and bool(retry_record.decode(key, memoryview(value))),
    "closed": lambda key, value: bool(closed_record.decode_header(sequence_of(key), memoryview(value))),
    "graves": lambda key, value: len(key) == blob.GRAVE_KEY_SIZE and len(value) == U32.size,
    "blobs": lambda key, value: len(key) == blob.KEY_SIZE and len(value) > 0,
    "later": lambda key, value: len(key) == TIME_SIZE + SIZE and value[-2:-1] == b"\0",
    "ready": lambda key, value: not value and key[-SIZE - 2 : -SIZE - 1] == b"\0" and key[-SIZE - 1] <= 9,
    "timers": lambda key, value: not value and key[:1] in (EXPIRY, REPLIED, DEAD, KEY) and len(key) > 1 + TIME_SIZE,
    "keys": lambda key, value: idempotency_key.fits(value),
    "meta": lambda key, value: len(value) <= LOAD.size or key == SERVICES_KEY,
    "aside": lambda key, value: True,
}
"""The format of each database's rows; the most ambiguous formats last."""
