"""What a commit waits for: the three settings of `durability`.

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

import os
from pathlib import Path

import lmdb

from titanic.errors import NotInMemory
from titanic.store.lmdb.schema import PAGE
from titanic.store.records import Durability
from titanic.util.files import IN_MEMORY, file_system


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

    Hold LMDB's write lock, so that nobody else writes one of them meanwhile. Raises OSError.
    """
    descriptor = os.open(Path(env.path()) / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, os.pread(descriptor, 2 * PAGE, 0), 0)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(env: lmdb.Environment) -> None:
    """Sync the file, whoever has written to it. Raises OSError."""
    descriptor = os.open(Path(env.path()) / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
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
