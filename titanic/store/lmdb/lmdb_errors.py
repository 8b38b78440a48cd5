"""LMDB's exceptions, turned into the store's own."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import lmdb

from titanic.errors import DiskFull, StoreCorrupt, StoreError, StoreFailed, StoreFull
from titanic.store.lmdb.pages import SALVAGE
from titanic.store.lmdb.schema import PAGE

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
)


_FILE = "data.mdb"
_FULL = (errno.ENOSPC, errno.EDQUOT)
ENOUGH = 1 << 20
"""Bytes that the disk must have left, or the store counts as short of it."""
_MOST_AT_ONCE = 64 * PAGE
"""What LMDB writes in one piece, at most."""


def translate(error: lmdb.Error | OSError, env: lmdb.Environment, capacity: int) -> StoreError:
    """The exception to raise in place of `error`, which a transaction of `env` has raised."""
    if isinstance(error, lmdb.MapFullError):
        return StoreFull((env.info()["last_pgno"] + 1) * PAGE, capacity)
    if isinstance(error, _DAMAGE):
        return StoreCorrupt(f"the store in {env.path()} is damaged", str(error), SALVAGE)
    if isinstance(error, lmdb.ReadersFullError):
        return StoreFailed("the store has too many readers", str(error), "end those that hang")
    if isinstance(error, lmdb.PanicError):
        return StoreFailed(f"the store in {env.path()} must be opened again", str(error), "restart; look at the disk")
    if full := disk_full(error, Path(env.path())):
        what = f"the disk of the store in {env.path()} is full"
        return DiskFull(what, full, "nothing was kept of the transaction; make room")
    return StoreFailed(
        f"the store in {env.path()} failed", str(error), "nothing was kept of the transaction; look at the disk"
    )


def is_of_the_system(error: Exception) -> bool:
    """Whether the disk or the system is at fault and not what is in the file."""
    return type(error) is lmdb.Error or isinstance(error, (OSError, lmdb.DiskError, lmdb.ReadonlyError, lmdb.LockError))


def disk_full(error: Exception, directory: Path) -> str:
    """What the system says of a disk that is full; nothing when that isn't the reason for `error`.

    A disk that takes a part of what LMDB writes in one piece, and not the rest, is EIO to LMDB. Then it is asked for
    as much again: in a file without a name, so that nothing is left of it.
    """
    if not is_of_the_system(error):
        return ""
    if isinstance(error, OSError):
        return (error.strerror or "") if error.errno in _FULL else ""
    if isinstance(error, lmdb.DiskError):
        return os.strerror(errno.ENOSPC)
    return _ask_for_room(directory)


def _ask_for_room(directory: Path) -> str:
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _MOST_AT_ONCE)
        finally:
            os.close(descriptor)
    except OSError as refusal:
        return disk_full(refusal, directory)
    return ""


def room_on_disk(directory: Path) -> int:
    """Bytes that the disk has for files in the directory."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def largest_file(directory: Path) -> int:
    """To how many bytes the store's file may grow for all that its disk has; very many when that is unknown."""
    try:
        return (directory / _FILE).stat().st_blocks * 512 + room_on_disk(directory)
    except OSError:
        return sys.maxsize


def is_still_refused(directory: Path, refused: int) -> bool:
    """Whether the disk, which had this room when it refused a transaction, is likely to refuse the next one: more may
    have been wanted than there was, or a quota was in the way."""
    try:
        return room_on_disk(directory) < refused + ENOUGH or bool(_ask_for_room(directory))
    except OSError:
        return False
