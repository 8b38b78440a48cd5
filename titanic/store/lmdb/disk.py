"""The disk below the store: what a commit waits for, and what its errors and LMDB's mean.

`durability` has three settings.

LMDB has two meta pages, each of which says where the trees begin; a commit writes one of them, in turn. The page with
the higher number counts. A commit, number n, does this:

                 pages        sync         meta page n
    synced       writev    →  fdatasync →  pwrite, through a descriptor that syncs by itself
    relaxed      writev    →  fdatasync →  pwrite, which the disk gets later: at commit n+1's fdatasync at the latest
    memory       writev    →              pwrite: the file system keeps all of it in RAM

All three hand everything to the kernel before they answer, so a killed process loses nothing.

*relaxed*. At a power cut, the disk has meta page n or n-1, n being the last commit: that one may be lost, and no other,
and the store is whole. For commit n+1 writes only to pages that commit n-1 or an earlier one has freed, and the trees
of n-1 and n have none of those. Its fdatasync takes meta page n along, and only then does meta page n+1 take the place
of n-1. `Store.sync`, called once a second (titanic/dispatch/maintenance.py) and when the store is closed, has the last
commit on the disk, too.

This relies on a meta page being on the disk after a sync that came later. When that sync fails, Linux may take the page
for written all the same, and the next sync does not report it. So `rewrite_meta_pages` writes them again before the
next commit begins. What a process left to the kernel that was killed is synced by the next one (`settle`).

*memory* is for file systems in RAM alone. On a disk the kernel writes pages in any order, and a power cut would leave
a store that is damaged.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import lmdb

from titanic.errors import DiskFull, NotInMemory, StoreCorrupt, StoreError, StoreFailed, StoreFull, disk_trouble
from titanic.store.lmdb.pages import SALVAGE
from titanic.store.lmdb.schema import PAGE
from titanic.store.records import Durability
from titanic.util.files import IN_MEMORY, file_system, sync_data, take_room


def flags(durability: Durability) -> dict[str, bool]:
    """What LMDB is to be opened with."""
    return {"sync": durability != "memory", "metasync": durability == "synced"}


def settle(env: lmdb.Environment, durability: Durability) -> None:
    """Have on the disk what a killed process may have left to the kernel: what a `synced` server answers is there.
    Raises lmdb.Error or OSError."""
    if durability == "relaxed":
        with env.begin(write=True):
            rewrite_meta_pages(env)
    elif durability == "synced":
        env.sync(True)


def rewrite_meta_pages(env: lmdb.Environment) -> None:
    """Write both meta pages as they are, and sync the file: all that was committed is on the disk then.

    The caller holds LMDB's write lock, so that no other process writes one of them meanwhile. Raises OSError.
    """
    descriptor = os.open(Path(env.path()) / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, os.pread(descriptor, 2 * PAGE, 0), 0)
        sync_data(descriptor)
    finally:
        os.close(descriptor)


def sync_file(env: lmdb.Environment) -> None:
    """Sync the file, whichever process has written to it. Raises OSError."""
    descriptor = os.open(Path(env.path()) / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_data(descriptor)
    finally:
        os.close(descriptor)


def expect_memory(directory: Path) -> None:
    """Raise NotInMemory unless the directory, which need not exist yet, is on a file system in RAM."""
    found = file_system(directory)
    if found not in IN_MEMORY:
        raise NotInMemory(
            f"the store's directory {directory} is not in memory",
            f"it is on {found}, and durability 'memory' syncs nothing",
            "choose a directory on a tmpfs, like /dev/shm/titanic",
        )


# -- errors ---------------------------------------------------------------------------------

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
)


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
        return StoreFailed("the store has too many readers", str(error), "stop readers that hang")
    if isinstance(error, lmdb.PanicError):
        return StoreFailed(f"the store in {env.path()} must be opened again", str(error), "restart; check the disk")
    if full := disk_full(error, Path(env.path())):
        what, fact, advice = disk_trouble(env.path(), room_on_disk(Path(env.path())))
        return DiskFull(what, f"{full}, {fact}", f"the transaction was rolled back; {advice}")
    return StoreFailed(
        f"the store in {env.path()} failed", str(error), "the transaction was rolled back; check the disk"
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
    if not hasattr(os, "O_TMPFILE"):
        return ""
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            take_room(descriptor, 0, _MOST_AT_ONCE)
        finally:
            os.close(descriptor)
    except OSError as refusal:
        return disk_full(refusal, directory)
    return ""


def room_on_disk(file: Path) -> int | None:
    """Bytes that the disk of the store's file has left. None: the file was deleted, or cannot be reached."""
    try:
        found = os.statvfs(file)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def largest_file(file: Path) -> int:
    """To how many bytes the store's file may grow for all that its disk has; very many when that is unknown. None when
    it was deleted: what was accepted now would end with this process."""
    try:
        return file.stat().st_blocks * 512 + (room_on_disk(file) or 0)
    except FileNotFoundError:
        return 0
    except OSError:
        return sys.maxsize


def is_still_refused(file: Path, refused: int) -> bool:
    """Whether the disk, which had this room when it refused a transaction, is likely to refuse the next one: more may
    have been wanted than there was, or a quota was in the way."""
    free = room_on_disk(file)
    return free is None or free < refused + ENOUGH or bool(_ask_for_room(file.parent))
