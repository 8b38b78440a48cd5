"""Finding, creating and judging the files of a store.

A new store is made as `new.mdb` and renamed to `data.mdb` when it is complete and synced. So a `data.mdb` is
always a whole store, and one that isn't was damaged: an interrupted creation can't be mistaken for it.

The map is the size that the file can never exceed: the capacity (capacity.py). Only a store that holds more than its
capacity allows, because that was lowered, keeps the size it has, and gets the room to be emptied on top of what is in
use; it accepts nothing until its requests fit. Its file doesn't shrink by itself: a backup, restored, is small.

One process at a time opens a store. LMDB itself would let several in, but two servers would dispatch every request
twice. The lock is an flock() on `titanic.lock`: the kernel drops it when the process ends, however it ends, so it never
has to be cleared. The text in the file is for people only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import lmdb

from titanic.errors import NotAStore, StoreCorrupt, StoreLocked, StoreTooNew, StoreTooOld, StoreUnwritable
from titanic.store.lmdb import schema
from titanic.store.lmdb.capacity import divide, reserved
from titanic.store.lmdb.closed_ring import archive, known_archivist
from titanic.store.lmdb.disk import disk_full, flags, is_of_the_system, settle
from titanic.store.lmdb.pages import SALVAGE, faults, release
from titanic.store.lmdb.read import identity, queues
from titanic.store.lmdb.readers import Readers
from titanic.store.lmdb.schema import PAGE, Databases
from titanic.store.lmdb.service_spans import ServiceSpans
from titanic.store.lmdb.transaction import Environment, Pace, Reading
from titanic.store.records import DEFAULT_CAPACITY, MIN_CAPACITY, Durability, StoreSettings
from titanic.store.rules import unreleased
from titanic.util.files import take_room
from titanic.util.ids import SIZE, IdMaker

DATA = "data.mdb"
NEW = "new.mdb"
LOCK = "lock.mdb"
_OUR_LOCK = "titanic.lock"
_LOCK_SIZE = 2 * PAGE
BACKED_UP = "backed-up"
"""An empty file of the time at which the last backup began: a backup beside a server cannot write to its data."""

_OURS = {DATA, LOCK, _OUR_LOCK, NEW, BACKED_UP, "lost+found"}
_READERS = 126
_MOST_FORMATS = 999
"""A number beyond that is damage and no format to come."""


def prepare(directory: Path) -> list[Path]:
    """Make the directory if there is none; which ones were made. Raises StoreUnwritable, or NotAStore if it holds other
    things."""
    try:
        if directory.is_dir():
            found = {entry.name for entry in directory.iterdir()}
            if DATA not in found and (strange := sorted(found - _OURS)):
                raise NotAStore(f"{directory} is not a store", f"it holds {strange[0]!r}", "choose an empty directory")
        elif os.path.lexists(directory):
            raise NotAStore(f"{directory} is not a store", "it is not a directory", "choose a directory")
        else:
            return _make_directory(directory)
    except OSError as error:
        raise unwritable(directory, error) from error
    return []


def remove(directory: Path, made: list[Path]) -> None:
    """Undo the making of a store, the lock of which is held."""
    with contextlib.suppress(OSError):
        for name in (DATA, NEW, LOCK):
            (directory / name).unlink(missing_ok=True)
        remove_lock(directory)
        for folder in reversed(made):
            folder.rmdir()


def take_lock(directory: Path) -> int:
    """Take the store's lock and return the descriptor that holds it. Raises StoreLocked or StoreUnwritable."""
    try:
        descriptor = os.open(directory / _OUR_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            _give_to_owner(descriptor, directory)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_there = os.fstat(descriptor).st_nlink
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            os.close(descriptor)
            pid = re.match(r"pid (\d+)", holder)
            raise StoreLocked(
                f"the store in {directory} is in use",
                f"it is open in the process with {holder or 'an unknown pid'}",
                "stop that process, or choose another directory",
                pid=int(pid[1]) if pid else None,
            ) from error
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise unwritable(directory, error) from error
    if not is_there:  # its holder has removed it: others would lock another file
        os.close(descriptor)
        return take_lock(directory)
    since = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with contextlib.suppress(OSError):  # a full disk, on which there may yet be a store to be read and emptied
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} since {since}\n".encode(), 0)
    return descriptor


def release_lock(descriptor: int) -> None:
    """Give the lock back. The file stays."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def remove_lock(directory: Path) -> None:
    """Remove the lock's file where no store is. The caller holds the lock."""
    (directory / _OUR_LOCK).unlink(missing_ok=True)


def open_environment(
    directory: Path, capacity: int | None, settings: StoreSettings, *, preallocate: bool, to_repair: bool
) -> Environment:
    """Open the store in a directory that is prepared and locked, creating it if it isn't there.

    Without a `capacity` it is what it was, or DEFAULT_CAPACITY. `to_repair`: see `LmdbStore.open`. Raises
    CapacityTooSmall, StoreUnwritable, StoreCorrupt, NotAStore, StoreTooNew or StoreTooOld.
    """
    data = directory / DATA
    try:
        if not data.exists():
            _create(directory)
        size = data.stat().st_size
    except (OSError, lmdb.Error) as error:
        raise unwritable(directory, error) from error
    if size < 2 * PAGE:
        raise _corrupt(data, f"it has {size} bytes")
    env = _open(directory, max(capacity or 0, size), settings.durability)
    try:
        _check_length(env, data)
        found, known = _format_and_capacity(env, data, to_repair=to_repair)
        if found < FORMAT:
            env.close()
            upgrade(directory, found)
            env = _open(directory, max(capacity or 0, data.stat().st_size), settings.durability)
        settle(env, settings.durability)
        room = divide(capacity or max(known or DEFAULT_CAPACITY, MIN_CAPACITY))
        with env.begin(db=env.open_db(b"requests", create=False)) as txn:
            cursor = txn.cursor()
            shared = IdMaker(cursor.key() if cursor.last() else None), Pace(), Readers(env), ServiceSpans()
        environment = Environment(env, data, _open_databases(env, data), room, settings, *shared)
        nameless = False
        with Reading(environment) as tx:
            used = tx.used()
            if not to_repair:
                queues(tx)  # what every server needs at once; better it ends here, with a reason, than later
                archive(tx)
                known_archivist(tx)
                nameless = identity(tx) is None
        needed = max(room.capacity, data.stat().st_size)
        if used > room.least:  # no store that kept to this capacity has so much: it was lowered
            needed = max(needed, used + reserved(room.capacity))
        env.set_mapsize(needed - needed % PAGE)
        if known != room.capacity and (known is not None or capacity is not None):
            with env.begin(write=True, db=environment.databases.meta) as txn:
                txn.put(schema.CAPACITY_KEY, schema.U64.pack(room.capacity))
        if nameless:
            _give_identity(environment)
        if preallocate:  # take the disk's room now, so that it cannot be missing later
            with data.open("r+b") as file:
                take_room(file.fileno(), 0, room.capacity)
                os.fsync(file.fileno())
    except (OSError, lmdb.Error) as error:
        env.close()
        raise (unwritable(directory, error) if is_of_the_system(error) else _corrupt(data, str(error))) from error
    except BaseException:
        env.close()
        raise
    return environment


def _give_identity(environment: Environment) -> None:
    """Give an identity to a store that has lost it. Without room the store does without until it is next opened."""
    try:
        with environment.env.begin(write=True, db=environment.databases.meta) as txn:
            txn.put(schema.IDENTITY_KEY, os.urandom(SIZE))
    except lmdb.Error as error:
        if not isinstance(error, lmdb.MapFullError) and not disk_full(error, Path(environment.env.path())):
            raise


def open_read_only(directory: Path) -> Environment:
    """Open a store that another process may have open.

    Raises NotAStore, StoreUnwritable, StoreCorrupt, StoreTooNew or StoreTooOld.
    """
    data = directory / DATA
    if not data.is_file():
        raise NotAStore(f"{directory} is not a store", f"it has no {DATA}", "name another directory")
    env = _open(directory, 0, read_only=True)
    try:
        _check_length(env, data)
        found, known = _format_and_capacity(env, data)
        if found < FORMAT:
            raise StoreTooOld(
                f"the store in {directory} was written by an earlier version",
                f"its format is {found}, this version reads format {FORMAT}",
                "open it for writing once, which converts it",
            )
        room = divide(max(known or 0, MIN_CAPACITY))
        databases = _open_databases(env, data)
        shared = IdMaker(None), Pace(), Readers(env), ServiceSpans()
        return Environment(env, data, databases, room, StoreSettings(), *shared)
    except lmdb.Error as error:
        env.close()
        raise _corrupt(data, str(error)) from error
    except BaseException:
        env.close()
        raise


def sync_directory(directory: Path) -> None:
    """Sync the names in a directory: LMDB syncs its file, but not the directory of the file."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(
    directory: Path, map_size: int, durability: Durability = "synced", *, read_only: bool = False
) -> lmdb.Environment:
    data = directory / DATA
    try:
        allocate_lock(directory, read_only=read_only)
        env = lmdb.open(
            str(directory),
            map_size=map_size - map_size % PAGE,
            max_dbs=16,
            max_readers=_READERS,
            mode=0o640,
            create=False,
            subdir=True,
            readonly=read_only,
            lock=True,
            **flags(durability),
        )
        env.reader_check()  # killed ones may have all places
        return env
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
        ours = library_version().rpartition(".")[0]
        if (found := release(data)) and found != ours:
            raise StoreTooNew(
                f"the store in {directory} was written with LMDB {found}, which has another file format",
                f"the installed package lmdb {lmdb.__version__} reads that of LMDB {ours}",
                f"install one with LMDB {found}, or restore a backup made with LMDB {ours}",
            ) from error
        raise _corrupt(data, str(error)) from error
    except (OSError, lmdb.Error) as error:
        raise unwritable(directory, error) from error


def library_version() -> str:
    """The version of LMDB itself, which the package lmdb has."""
    return "{}.{}.{}".format(*lmdb.version())


def allocate_lock(directory: Path, *, read_only: bool = False) -> None:
    """Give LMDB's lock file all the room it needs.

    LMDB makes it sparse and maps it: on a full disk, touching it would end the process with SIGBUS. One that has its
    room isn't opened: closing it would give up the locks that this process may have on it.
    """
    file = directory / LOCK
    if read_only and os.statvfs(directory).f_flag & os.ST_RDONLY:
        _expect_unused(directory)  # LMDB does without it then
        return
    if file.exists() and file.stat().st_blocks * 512 >= _LOCK_SIZE:
        return
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        _give_to_owner(descriptor, directory)
        take_room(descriptor, 0, _LOCK_SIZE)
    finally:
        os.close(descriptor)


def _expect_unused(directory: Path) -> None:
    """Raise StoreLocked if a server has the store open: without a lock its pages change while they are read."""
    with contextlib.suppress(FileNotFoundError), (directory / _OUR_LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what, fact = f"the store in {directory} is in use", f"{LOCK}, which protects it, is read-only here"
            raise StoreLocked(what, fact, "make it writable; for a systemd unit: ReadWritePaths", pid=None) from error


def _give_to_owner(descriptor: int, directory: Path) -> None:
    """Have a lock file that root created belong to the user of the directory, who must be able to open it, too."""
    if os.geteuid() == os.fstat(descriptor).st_uid == 0:
        owner = directory.stat()
        with contextlib.suppress(OSError):  # not every root may
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _make_directory(directory: Path) -> list[Path]:
    made = [] if directory.parent.exists() else _make_directory(directory.parent)
    directory.mkdir(0o750)
    sync_directory(directory.parent)
    return [*made, directory]


def _create(directory: Path) -> None:
    new = directory / NEW
    new.unlink(missing_ok=True)
    try:
        with (
            lmdb.open(str(new), subdir=False, map_size=1 << 20, max_dbs=16, mode=0o640, lock=False) as env,
            env.begin(write=True) as txn,
        ):
            names = {name: env.open_db(name.encode(), txn=txn) for name in Databases._fields}
            txn.put(schema.FORMAT_KEY, schema.U32.pack(FORMAT), db=names["meta"])
            txn.put(schema.IDENTITY_KEY, os.urandom(SIZE), db=names["meta"])
        new.rename(directory / DATA)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync_directory(directory)


def _check_length(env: lmdb.Environment, data: Path) -> None:
    """Raise StoreCorrupt when the file ends before pages that are in use.

    Reading them through the map would end the process with SIGBUS. The last pages of a sound file can be missing,
    if they were taken and freed again in one transaction: then only a walk over all pages can show damage.
    """
    pages = env.info()["last_pgno"] + 1
    size = data.stat().st_size
    if size >= pages * PAGE:
        return
    if faults(data):
        raise _corrupt(data, f"it has {size} bytes and should have {pages * PAGE}")


def _format_and_capacity(env: lmdb.Environment, data: Path, *, to_repair: bool = False) -> tuple[int, int | None]:
    """The store's format, and its capacity when it was last open (0: never; None: that row is damaged).

    Raises NotAStore, StoreTooNew, StoreTooOld or StoreCorrupt, before anything is changed.
    """
    strange = NotAStore(f"{data} is not a store", "it is an LMDB file of another program", "choose another directory")
    try:
        meta = env.open_db(b"meta", create=False)
    except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
        raise strange from error
    with env.begin(db=meta) as txn:
        value, capacity = txn.get(schema.FORMAT_KEY), txn.get(schema.CAPACITY_KEY)
        earlier = txn.get(schema.UNRELEASED_FORMAT_KEY)
    if value is None and earlier is not None and len(earlier) == schema.U32.size and _has(env, "requests", "ready"):
        raise unreleased(str(data.parent), *schema.U32.unpack(earlier))
    (found,) = schema.U32.unpack(value) if value is not None and len(value) == schema.U32.size else (0,)
    if not 0 < found <= _MOST_FORMATS:
        *earlier_ones, _ = Databases._fields  # the last one came with format 3
        if not _has(env, *earlier_ones):
            raise strange
        if not to_repair:
            fact = "'store_format' in 'meta' " + ("is missing" if value is None else f"is {value.hex()}")
            raise StoreCorrupt(f"{data} is damaged", fact, schema.REPAIR)
        found = FORMAT if _has(env, "facts") else 2
    if found > FORMAT:
        raise StoreTooNew(
            f"the store in {data.parent} was written by a later version",
            f"its format is {found}, this version reads formats up to {FORMAT}",
            "upgrade Titanic",
        )
    if capacity is None:
        return found, 0
    (known,) = schema.U64.unpack(capacity) if len(capacity) == schema.U64.size else (schema.MOST_BYTES,)
    return found, known if known < schema.MOST_BYTES else None


def _has(env: lmdb.Environment, *databases: str) -> bool:
    with env.begin() as txn:
        return all(txn.get(name.encode()) is not None for name in databases)


def _open_databases(env: lmdb.Environment, data: Path) -> Databases:
    try:
        handles = {name: env.open_db(name.encode(), create=False) for name in Databases._fields}
    except lmdb.NotFoundError as error:
        raise _corrupt(data, "one of its databases is missing") from error
    return Databases(**handles)


def unwritable(directory: Path, error: Exception) -> StoreUnwritable:
    return StoreUnwritable(
        f"the store's directory {directory} can't be created or written",
        disk_full(error, directory) or str(error),
        "check its owner and disk",
    )


def _corrupt(data: Path, fact: str) -> StoreCorrupt:
    return StoreCorrupt(f"{data} is damaged", fact, SALVAGE)


# -- upgrade --------------------------------------------------------------------------------

# Each step changes indexes and counters; records are left as they are, since their codecs know the older ones. All
# steps happen in one transaction, which changes the format number last: after a crash the store is the old one or the
# new one. No other process may have it open.

_SPARE = 64 << 20


def _nothing(env: lmdb.Environment, txn: lmdb.Transaction[memoryview]) -> None:
    """Formats 2 and 4 have timers that earlier versions do not know (schema.KEPT, schema.BODIES)."""


def _make_facts(env: lmdb.Environment, txn: lmdb.Transaction[memoryview]) -> None:
    """Format 3 has facts."""
    env.open_db(b"facts", txn=txn)


STEPS: dict[int, Callable[[lmdb.Environment, lmdb.Transaction[memoryview]], None]] = {
    1: _nothing,
    2: _make_facts,
    3: _nothing,
}
"""By the format that each begins with."""

FORMAT = max(STEPS) + 1
"""Of the keys and databases. The first release has format 1."""


def upgrade(directory: Path, found: int) -> None:
    """Convert the store in a directory that is locked. When that fails, with lmdb.Error, it stays as it was."""
    size = (directory / "data.mdb").stat().st_size
    with (
        lmdb.open(str(directory), map_size=2 * size + _SPARE, max_dbs=16, create=False) as env,
        env.begin(write=True, buffers=True) as txn,
    ):
        for number in range(found, FORMAT):
            STEPS[number](env, txn)
        meta = env.open_db(b"meta", txn=txn, create=False)
        txn.put(schema.FORMAT_KEY, schema.U32.pack(FORMAT), db=meta)
