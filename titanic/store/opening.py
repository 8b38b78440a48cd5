"""Finding, creating and judging the files of a store.

A new store is made as `new.mdb` and renamed to `data.mdb` when it is complete and synced. So a `data.mdb` is
always a whole store, and one that isn't was damaged: an interrupted creation can't be mistaken for it.

Capacity, brim and map. The *capacity* bounds what `cost` adds up to, and that follows the real file closely but
not exactly: a B+tree's pages may be as little as a quarter full when requests are closed here and there, and a
transaction writes copies of the pages it changes before it frees the old ones two transactions later. Also
replies are stored even above the capacity. So the *map*, the size that the file can never exceed, is much
larger; that costs address space, not disk. Between, at the *brim*, accepting stops whatever the accounts say,
and what is left up to the end of the map is for closing, finishing and postponing.

    0 ........ capacity .................. brim .................... map
      accepted           replies, gaps          closing, finishing
"""

from __future__ import annotations

import os
from pathlib import Path

import lmdb

from titanic.errors import NotAStore, StoreCorrupt, StoreTooNew, StoreUnwritable
from titanic.ids import IdMaker
from titanic.store import lock
from titanic.store.environment import Environment
from titanic.store.schema import CAPACITY_KEY, FORMAT, FORMAT_KEY, PAGE, U32, U64, Databases

DATA = "data.mdb"
_NEW = "new.mdb"
_OURS = {DATA, "lock.mdb", lock.FILE, _NEW, f"{_NEW}-lock", "lost+found"}
_SPARE = 64 << 20


def prepare(directory: Path) -> None:
    """Make the directory if there is none. Raises StoreUnwritable, or NotAStore if it holds other things."""
    try:
        if directory.is_dir():
            found = {entry.name for entry in directory.iterdir()}
            if DATA not in found and (strange := sorted(found - _OURS)):
                raise NotAStore(f"{directory} is not a store", f"it holds {strange[0]!r}", "choose an empty directory")
        elif os.path.lexists(directory):
            raise NotAStore(f"{directory} is not a store", "it is no directory", "choose a directory")
        else:
            _make_directory(directory)
    except OSError as error:
        raise _unwritable(directory, error) from error


def take_lock(directory: Path) -> int:
    """Take the store's lock (lock.py). Raises StoreLocked or StoreUnwritable."""
    try:
        return lock.acquire(directory)
    except OSError as error:
        raise _unwritable(directory, error) from error


def open_environment(directory: Path, capacity: int) -> Environment:
    """Open the store in a directory that is prepared and locked, creating it if it isn't there.

    Raises StoreUnwritable, StoreCorrupt, NotAStore or StoreTooNew.
    """
    data = directory / DATA
    try:
        if not data.exists():
            _create(directory)
        size = data.stat().st_size
    except (OSError, lmdb.Error) as error:
        raise _unwritable(directory, error) from error
    if size < 2 * PAGE:
        raise _corrupt(data, f"it has {size} bytes")
    # A store that is opened with a smaller capacity than it was filled to needs its spare room all the same.
    brim = max(capacity + capacity // 2, size) + _SPARE
    try:
        env = lmdb.open(
            str(directory),
            map_size=brim + capacity // 2 + _SPARE,
            max_dbs=16,
            max_readers=126,
            mode=0o640,
            create=False,
            subdir=True,
            sync=True,
            lock=True,
        )
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
        raise _corrupt(data, str(error)) from error
    except lmdb.Error as error:
        raise _unwritable(directory, error) from error
    try:
        _check_length(env, data)
        databases = _open_databases(env, data)
        _note_capacity(env, databases, capacity)
        with env.begin(db=databases.requests) as txn:
            cursor = txn.cursor()
            ids = IdMaker(cursor.key() if cursor.last() else None)
    except lmdb.Error as error:
        env.close()
        raise _corrupt(data, str(error)) from error
    except BaseException:
        env.close()
        raise
    return Environment(env, databases, capacity, brim, ids)


def _make_directory(directory: Path) -> None:
    if not directory.parent.exists():
        _make_directory(directory.parent)
    directory.mkdir(0o750)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    """Make the names in a directory last: LMDB syncs its file, but not the directory that it stands in."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(directory: Path) -> None:
    new = directory / _NEW
    new_lock = directory / f"{_NEW}-lock"
    for leftover in (new, new_lock):
        leftover.unlink(missing_ok=True)
    with lmdb.open(str(new), subdir=False, map_size=_SPARE, max_dbs=16, mode=0o640) as env:
        names = {name: env.open_db(name.encode()) for name in Databases._fields}
        with env.begin(write=True, db=names["meta"]) as txn:
            txn.put(FORMAT_KEY, U32.pack(FORMAT))
    new_lock.unlink()
    new.rename(directory / DATA)
    _sync_directory(directory)


def _check_length(env: lmdb.Environment, data: Path) -> None:
    """Raise StoreCorrupt when the file ends before pages that are in use.

    Reading them through the map would end the process with SIGBUS. The last pages of a sound file can be missing,
    if they were taken and freed again in one transaction: then only a walk over all pages can tell.
    """
    pages = env.info()["last_pgno"] + 1
    size = data.stat().st_size
    if size >= pages * PAGE:
        return
    fact = f"it has {size} bytes and should have {pages * PAGE}"
    try:
        from lmdb.verify import VerifyError, verify  # since lmdb 3.0
    except ImportError:
        raise _corrupt(data, fact) from None
    try:
        problems = verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    except VerifyError as error:
        raise _corrupt(data, str(error)) from error
    if problems:
        raise _corrupt(data, fact)


def _open_databases(env: lmdb.Environment, data: Path) -> Databases:
    """Open the databases of a store, or raise NotAStore or StoreTooNew before anything is changed."""
    strange = NotAStore(f"{data} is not a store", "it is an LMDB file of something else", "choose another directory")
    try:
        meta = env.open_db(b"meta", create=False)
    except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
        raise strange from error
    with env.begin(db=meta) as txn:
        value = txn.get(FORMAT_KEY)
    if value is None or len(value) != U32.size:
        raise strange
    (found,) = U32.unpack(value)
    if found > FORMAT:
        raise StoreTooNew(
            f"the store in {data.parent} was written by a later version",
            f"its format is {found}, known are formats up to {FORMAT}",
            "upgrade this Titanic",
        )
    try:
        handles = {name: env.open_db(name.encode(), create=False) for name in Databases._fields}
    except lmdb.NotFoundError as error:
        raise _corrupt(data, "one of its databases is missing") from error
    return Databases(**handles)


def _note_capacity(env: lmdb.Environment, databases: Databases, capacity: int) -> None:
    with env.begin(db=databases.meta) as txn:
        known = txn.get(CAPACITY_KEY)
    if known != U64.pack(capacity):
        with env.begin(write=True, db=databases.meta) as txn:
            txn.put(CAPACITY_KEY, U64.pack(capacity))


def _unwritable(directory: Path, error: Exception) -> StoreUnwritable:
    return StoreUnwritable(
        f"the store's directory {directory} can't be created or written", str(error), "look at its owner and disk"
    )


def _corrupt(data: Path, fact: str) -> StoreCorrupt:
    return StoreCorrupt(f"{data} is damaged", fact, "restore it from a backup")
