"""Whether a store may be looked at, found out before it is tried: what the system says then names no file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from titanic.errors import StoreUnwritable
from titanic.store import Store

DATA, LOCK, OWNER = "data.mdb", "lock.mdb", "titanic.lock"


def expect_store(path: Path) -> None:
    """Complain when there is none."""
    try:
        found = (path / DATA).exists()
    except PermissionError as error:
        raise _closed(path, "its folder may not be entered", path) from error
    if not found:
        raise click.UsageError(f"there is no store at {path}")


def open_to_look(path: Path) -> Store:
    """The store, for reading."""
    expect_readable(path)
    return Store.open_read_only(path)


def expect_readable(path: Path) -> None:
    """Complain when it can't be read. Whoever reads has to write `lock.mdb`: it keeps what is looked at from being
    freed."""
    expect_store(path)
    data, lock = path / DATA, path / LOCK
    if not os.access(data, os.R_OK):
        raise _closed(path, f"{DATA} may not be read", data)
    if not os.statvfs(path).f_flag & os.ST_RDONLY:  # there LMDB does without the lock
        if lock.exists() and not os.access(lock, os.R_OK | os.W_OK):
            raise _closed(path, f"{LOCK}, which readers have to write too, may not be written", lock)
        if not lock.exists() and not os.access(path, os.W_OK):
            raise _closed(path, f"{LOCK}, which readers have to write too, is not there and may not be made", path)


def may_write(path: Path) -> bool:
    """Whether the store could be opened for writing too, by the rights on its files."""
    files = [path, *(path / name for name in (DATA, LOCK, OWNER))]
    return all(os.access(file, os.R_OK | os.W_OK) for file in files if file.exists())


def _closed(path: Path, fact: str, at: Path) -> StoreUnwritable:
    try:
        owner = at.owner()
    except (KeyError, OSError):
        owner = "its owner"
    return StoreUnwritable(
        f"the store in {path} cannot be looked at",
        fact,
        f"run this as {owner}, or give your group the right to read {DATA} and to read and write {LOCK}",
    )
