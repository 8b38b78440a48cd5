"""Copies of a store that are whole stores themselves.

A copy is made next to where it is to be, under a temporary name, synced, opened and checked, and only then renamed. So
what has the name is good. LMDB copies one moment, page by page and without the free ones, while the store goes on
working. Pages that are freed meanwhile can't be used until the copy is done: it ends before these are too many.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import lmdb

from titanic.errors import NotAStore, StoreCorrupt, StoreError, StoreUnwritable
from titanic.store.lmdb.disk import disk_full, is_of_the_system, translate
from titanic.store.lmdb.opening import DATA, sync_directory
from titanic.store.lmdb.pages import expect_sound
from titanic.store.lmdb.readers import COPY
from titanic.store.lmdb.schema import PAGE
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools.apart import expect_room, read_apart
from titanic.store.lmdb.tools.check import check
from titanic.store.lmdb.tools.findings import Progress

_EVERY = 0.1


def backup(store: LmdbStore, dest: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Copy an open store into the new directory `dest`. `progress` is called during the copy and its check.

    Raises NotAStore when `dest` is there, StoreUnwritable, StoreError when it was ended because it kept room from the
    store, or StoreCorrupt when the copy isn't sound: then there is no `dest`.
    """
    target = Path(dest)
    _refuse_existing(target)
    partial = target.with_name(f".{target.name}.partial")
    try:
        if partial.exists():
            shutil.rmtree(partial)  # of one that was interrupted
        partial.mkdir(0o750, parents=True)
        try:
            _copy(store, partial, progress)
            _verify(partial, progress)
            partial.rename(target)
            sync_directory(target.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise StoreUnwritable(f"{target} can't be written", str(error), "check its owner and disk") from error


def restore(source: str | os.PathLike[str], dest: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Make the store `dest` from a backup, or from a store that no server has open; `source` stays as it is.

    Raises NotAStore when there is a store in `dest` or none in `source`, StoreCorrupt when `source` isn't sound.
    """
    target = Path(dest)
    _refuse_existing(target)
    if (Path(source) / DATA).exists():
        expect_sound(Path(source) / DATA)
    with LmdbStore.open_read_only(source) as store:
        _expect_sound(store, progress)
        backup(store, target, progress)


def _refuse_existing(target: Path) -> None:
    if (target / DATA).exists():
        raise NotAStore(f"{target} is in the way", "there is a store already", "choose another directory, or move it")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise NotAStore(f"{target} is in the way", "it is there and not empty", "choose another directory")


def _copy(store: LmdbStore, directory: Path, progress: Progress | None) -> None:
    read_apart(COPY, copy, store.path, directory, progress=progress)
    with (directory / DATA).open("r+b") as file:
        os.fchmod(file.fileno(), 0o640)
        os.fsync(file.fileno())
    sync_directory(directory)


def copy(path: str, dest: str, *, progress: Progress) -> dict[str, Any]:
    """Copy the pages of a store, in a process of its own (apart.py). Ends early when the store needs the room."""
    with LmdbStore.open_read_only(path) as store:
        env, data = store.environment.env, Path(dest) / DATA
        info = env.info()
        total = (info["last_pgno"] + 1) * PAGE
        copying = ThreadPoolExecutor(1, "copy").submit(env.copy, dest, compact=True)
        while wait([copying], _EVERY).not_done:
            if data.exists():
                progress("copying", data.stat().st_size, total)
            expect_room(store, info["last_txnid"])
        try:
            copying.result()
        except lmdb.Error as error:
            if is_of_the_system(error):
                raise OSError(disk_full(error, Path(dest)) or str(error)) from error
            raise translate(error, env, store.capacity) from error
    return {}


def _verify(directory: Path, progress: Progress | None) -> None:
    if progress is not None:
        progress("checking", 0, 0)
    expect_sound(directory / DATA)
    with LmdbStore.open_read_only(directory) as copy:
        _expect_sound(copy, progress)
    (directory / "lock.mdb").unlink(missing_ok=True)


def _expect_sound(store: LmdbStore, progress: Progress | None) -> None:
    def checked(name: str, done: int, total: int) -> None:
        if progress is not None:
            progress("checking", done, total)

    try:
        problems = check(store, checked)
    except StoreError as error:
        raise StoreCorrupt(f"the store in {store.path} isn't sound", str(error), "don't rely on it") from error
    if problems:
        fact = f"{len(problems)} problems, the first: {problems[0].where}: {problems[0].what}"
        raise StoreCorrupt(f"the store in {store.path} isn't sound", fact, "repair it first")
